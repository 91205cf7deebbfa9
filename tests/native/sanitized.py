"""Run a module or script of this tree with a core that was built apart, such as the one with sanitizers.

python tests/native/sanitized.py build/sanitize/_core.so pytest tests/native
"""

import runpy
import sys
from importlib.machinery import ExtensionFileLoader
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import torch  # noqa: F401  its OpenMP library comes first

NAME = "siafu.native._core"


def main() -> None:
    """Load the core, then run what follows as if it were called by itself."""
    core, target, *rest = sys.argv[1:]
    spec = spec_from_file_location(NAME, core, loader=ExtensionFileLoader(NAME, core))
    assert spec is not None
    assert spec.loader is not None
    sys.modules[NAME] = module_from_spec(spec)
    spec.loader.exec_module(sys.modules[NAME])
    sys.argv = [target, *rest]
    if target.endswith(".py"):
        sys.path.insert(0, str(Path(target).parent))
        runpy.run_path(target, run_name="__main__")
    else:
        runpy.run_module(target, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
