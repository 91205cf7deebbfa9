"""The error for a missing optional package names it and the command that installs it."""

import subprocess
import sys
import tomllib
from collections.abc import Callable
from importlib import import_module
from pathlib import Path

import pytest

import siafu
from siafu.data import karate
from siafu.extras import EXTRAS, MissingExtra, require_extra
from siafu.partition.assign import assign
from siafu.sites.provisioning import init_trial
from siafu.workers.aws_lambda import LambdaPlatform

# Runs the command where a package and all below it cannot be imported.
WITHOUT = """
import sys
class Hidden:
    def find_spec(self, name, path=None, target=None):
        if name == hidden or name.startswith(hidden + "."):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
hidden = sys.argv.pop(1)
sys.meta_path.insert(0, Hidden())
from siafu.__main__ import main
main()
"""

NEEDS: list[tuple[str, Callable[[], object]]] = [
    ("pymetis", lambda: assign(karate(), parts=2, by="metis")),
    ("kaminpar", lambda: assign(karate(), parts=2, by="kaminpar")),
    ("ray", lambda: import_module("siafu.launch.ray")),
    ("ray", lambda: import_module("siafu.workers.ray_tasks")),
    ("boto3", lambda: LambdaPlatform("worker", key=bytes(32))),
    ("optuna", lambda: import_module("siafu.tuning.study")),
    ("torch_geometric", lambda: karate().to_pyg()),
    ("torch_geometric", lambda: siafu.NeighborLoader(karate(), [3])),
]


@pytest.mark.parametrize(("package", "use"), NEEDS)
def test_a_package_that_is_not_installed_is_named_with_its_install_command(
    package: str, use: Callable[[], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    for loaded in ("siafu.launch.ray", "siafu.workers.ray_tasks", *sys.modules):
        if loaded.startswith(
            ("siafu.launch.ray", "siafu.workers.ray_tasks", "siafu.tuning.study", f"{package}.")
        ):
            monkeypatch.delitem(sys.modules, loaded, raising=False)
    monkeypatch.setitem(sys.modules, package, None)
    install = f"needs {package}, which is not installed: {EXTRAS[package].install}"
    with pytest.raises(MissingExtra) as missing:
        use()
    assert install in str(missing.value)


@pytest.fixture(scope="module")
def trial(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A federation of two sites."""
    folder = tmp_path_factory.mktemp("federation") / "trial"
    init_trial(folder, ["a", "b"])
    return folder


@pytest.mark.parametrize(
    ("package", "command"),
    [
        ("google.protobuf", ("federate", "coordinator/federation.toml")),
        ("grpc", ("federate", "coordinator/federation.toml")),
        ("google", ("site", "serve", "--data", "store", "--config", "a/site.toml")),
    ],
)
def test_the_commands_of_sites_name_what_they_need(
    trial: Path, package: str, command: tuple[str, ...]
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT, package, *command],
        capture_output=True,
        text=True,
        check=False,
        cwd=trial,
    )
    assert done.returncode == 1
    assert "which is not installed: pip install 'siafu[sites]'" in done.stderr
    assert "fault of siafu" not in done.stderr


def test_a_package_that_does_not_load_is_told_apart() -> None:
    with (
        pytest.raises(MissingExtra, match=r"ray, which does not load \(too old\); install it again"),
        require_extra("engine ray", "ray"),
    ):
        raise ImportError("too old")


def test_every_extra_is_one_of_the_package() -> None:
    project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]
    assert {extra.name for extra in EXTRAS.values()} == project["optional-dependencies"].keys() - {"test"}
