"""Each room (file or folder) of the package may import only rooms listed above it, so there is no cycle."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "siafu"

# A room is a file or a folder of the package. Rooms of one line don't import each other.
ORDER = [
    ["native", "wire", "control_groups", "conditions"],
    ["cores"],
    [
        "user_input",
        "array_checks",
        "prefetch",
        "files",
        "checksums",
        "terminal",
        "signals",
        "extras",
        "machine",
        "interpreter",
        "settings_page",
    ],
    ["sparse_input", "columns"],
    ["graph", "event_log", "cost"],
    ["context", "dynamic"],
    ["convert"],
    ["store", "comm"],
    ["data", "partition", "sampling", "nn"],
    ["workers"],
    ["training"],
    ["methods", "launch"],
    ["results"],
    ["plan", "doctor"],
    ["applying"],
    ["config", "run_folder", "load_graph"],
    ["recipes"],
    ["inference", "store_partitions", "resolve"],
    ["preview", "callback"],
    ["data_warnings"],
    ["race"],
    ["rank", "loader", "process_group"],
    ["engines", "rank_process"],
    ["search"],
    ["run", "sites"],
    ["tuning"],
    ["cli"],
]
# Inside functions alone: Graph.from_pyg and its like hand their work to the room that knows the other libraries, and
# Block.with_static makes a context; Graph.from_tables and Graph.encoded hand theirs to the rooms that know tables;
# Graph.save and DynamicGraph.save hand theirs to the store.
INSIDE_FUNCTIONS = {
    ("graph", "convert"),
    ("dynamic", "convert"),
    ("graph", "context"),
    ("graph", "data"),
    ("graph", "store"),
    ("dynamic", "store"),
}
LEVEL = {room: level for level, rooms in enumerate(ORDER) for room in rooms}

DISTRIBUTORS = {"torch.distributed", "ray", "boto3", "grpc"}
ONE_FILE = {"optuna": "tuning/study.py"}  # libraries that one file alone imports
MAY_DISTRIBUTE = {"launch", "workers"}
# They know no rank, no file, no clock.
PURE = {"graph", "context", "dynamic", "native", "nn", "sampling"}
OUTSIDE_WORLD = {"datetime", "io", "os", "pathlib", "shutil", "socket", "subprocess", "tempfile", "time"}
RUNS_WHAT_IT_READS = {"pickle", "marshal", "shelve", "dill", "cloudpickle", "joblib"}

FILES = sorted(PACKAGE.rglob("*.py"))


def name_of(path: Path) -> str:
    return path.relative_to(PACKAGE).as_posix()


def room_of(path: Path) -> str:
    """The file or folder of the package that a file belongs to; the package's own face is ``__init__``."""
    return Path(path.relative_to(PACKAGE).parts[0]).stem


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def is_later(node: ast.AST) -> bool:
    """Whether imports below it do not run when the file is imported."""
    if isinstance(node, ast.If):
        return ast.unparse(node.test) == "TYPE_CHECKING"
    return isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)


def imported(path: Path) -> Iterator[tuple[str, bool]]:
    """Every name that a file imports, written out in full, and whether it does so inside a function or for types."""
    tree = tree_of(path)
    inside = {id(node) for later in ast.walk(tree) if is_later(later) for node in ast.walk(later)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name, id(node) in inside
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{name_of(path)}:{node.lineno}: write the import in full"
            for alias in node.names:
                yield f"{node.module}.{alias.name}", id(node) in inside
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_module"):
            for argument in node.args[:1]:
                if isinstance(argument, ast.Constant):
                    yield str(argument.value), id(node) in inside


def rooms_imported(path: Path) -> Iterator[tuple[str, bool]]:
    """The other rooms that a file imports."""
    for name, inside in imported(path):
        package, _, rest = name.partition(".")
        room = rest.partition(".")[0]
        if package == "siafu" and room and not room.startswith("__") and room != room_of(path):
            yield room, inside


def chains(path: Path) -> Iterator[str]:
    """Every dotted name that a file mentions, such as ``torch.load``."""
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.Attribute):
            yield ast.unparse(node)


def names_library(path: Path, library: str) -> bool:
    """Whether a file imports the library, or reaches it through a package that it imports."""
    found = {name for name, _ in imported(path)} | (set(chains(path)) if "." in library else set())
    return any(name == library or name.startswith(f"{library}.") for name in found)


def test_every_room_has_its_place_in_the_order() -> None:
    unknown = {room_of(path) for path in FILES} - set(LEVEL) - {"__init__", "__main__"}
    assert not unknown, f"put {sorted(unknown)} where they belong in ORDER of {Path(__file__).name}"
    assert len(FILES) > 50  # the package was found


@pytest.mark.parametrize("path", [path for path in FILES if room_of(path) in LEVEL], ids=name_of)
def test_imports_point_upstream(path: Path) -> None:
    own = room_of(path)
    for room, inside in rooms_imported(path):
        if inside and (own, room) in INSIDE_FUNCTIONS:
            continue
        assert room in LEVEL, f"{name_of(path)} imports siafu.{room}, which has no place in the order"
        assert LEVEL[room] < LEVEL[own], (
            f"{name_of(path)} imports siafu.{room}, which does not stand above {own}"
        )


def module_of(path: Path) -> str:
    """The dotted name of a file's module."""
    parts = ("siafu", *path.relative_to(PACKAGE).with_suffix("").parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@pytest.mark.parametrize("room", sorted({room_of(path) for path in FILES if path.parent != PACKAGE}))
def test_modules_of_a_room_form_no_import_cycle(room: str) -> None:
    files = {module_of(path): path for path in FILES if room_of(path) == room}
    graph = {}
    for module, path in files.items():
        names = {name for name, _ in imported(path) if not name.endswith("._core")}  # it is compiled
        # ``from siafu.comm import Comm`` names siafu.comm.Comm: what is no module is of the package's own face
        found = {name if name in files else name.rpartition(".")[0] for name in names}
        graph[module] = {name for name in found if name in files and name != module}
    TopologicalSorter(graph).prepare()  # raises CycleError, which names the modules of a cycle


@pytest.mark.parametrize("library", sorted(DISTRIBUTORS))
def test_a_library_that_distributes_is_named_in_one_file_of_a_room_that_may(library: str) -> None:
    naming = [path for path in FILES if names_library(path, library)]
    rooms = [room_of(path) for path in naming]
    assert set(rooms) <= MAY_DISTRIBUTE, [name_of(path) for path in naming]
    assert len(rooms) == len(set(rooms)), [name_of(path) for path in naming]


@pytest.mark.parametrize("library", sorted(ONE_FILE))
def test_an_optional_library_is_named_in_its_file_alone(library: str) -> None:
    assert [name_of(path) for path in FILES if names_library(path, library)] == [ONE_FILE[library]]


@pytest.mark.parametrize("path", [path for path in FILES if room_of(path) in PURE], ids=name_of)
def test_layers_samplers_and_kernels_know_no_file_and_no_clock(path: Path) -> None:
    assert not {name.partition(".")[0] for name, _ in imported(path)} & OUTSIDE_WORLD


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_nothing_is_unpickled_or_evaluated(path: Path) -> None:
    assert not {name.partition(".")[0] for name, _ in imported(path)} & RUNS_WHAT_IT_READS
    assert "torch.load" not in chains(path)
    for node in ast.walk(tree_of(path)):
        if not isinstance(node, ast.Call):
            continue
        called = ast.unparse(node.func)
        assert called not in ("eval", "exec", "compile", "__import__"), f"{name_of(path)}:{node.lineno}"
        allowed = [ast.unparse(keyword.value) for keyword in node.keywords if keyword.arg == "allow_pickle"]
        if called in ("np.load", "numpy.load", "np.lib.format.read_array"):
            assert allowed == ["False"], f"{name_of(path)}:{node.lineno}: write allow_pickle=False"
        assert allowed in ([], ["False"]), f"{name_of(path)}:{node.lineno}"


@pytest.mark.parametrize(
    "statement",
    [
        "import siafu",
        "import siafu.cli",
        "import siafu.cli; sys.argv = ['siafu', '--help']; siafu.cli.main()",
        "import siafu.cli; sys.argv = ['siafu', 'train', '--help']; siafu.cli.main()",
    ],
    ids=["siafu", "siafu.cli", "siafu --help", "siafu train --help"],
)
def test_torch_is_not_imported_before_it_is_needed(statement: str) -> None:
    script = f"""
import sys
try:
    {statement}
except SystemExit as end:
    assert not end.code, end.code
print(sorted({{"torch", "numpy", "pyarrow"}} & set(sys.modules)))
"""
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=240)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.splitlines()[-1] == "[]", ran.stdout


def test_the_names_of_the_package_are_there_when_asked_for() -> None:
    import siafu

    for name in siafu.__all__:
        assert getattr(siafu, name) is not None
    with pytest.raises(AttributeError, match="has no attribute 'trian'"):
        _ = siafu.trian  # type: ignore[attr-defined]
