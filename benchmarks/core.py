"""No benchmark measures siafu without its compiled core: plain torch is about ten times slower."""

import sys

from siafu import native


def require_core() -> None:
    """End with a message where the compiled core is not in use."""
    if not native.compiled():
        sys.exit(f"{native.NOT_COMPILED}; a benchmark would measure plain torch, so it does not run")
