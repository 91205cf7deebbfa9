"""The deployment package for AWS Lambda: a zip of the worker, NumPy and xxhash, and a template that deploys it."""

import ast
import json
import platform
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path, PurePosixPath
from typing import Literal, get_args

import siafu
from siafu.files import atomic_writer, write_atomically
from siafu.workers.allowlist import ADDRESSES_VARIABLE
from siafu.workers.signing import KEY

Architecture = Literal["x86_64", "arm64"]
HANDLER = "siafu.workers.handler"
MAX_BYTES = 50_000_000  # of a zip that Lambda takes directly
_LEFT_OUT = (
    "siafu.workers.torch_compute",
    "siafu.interpreter",
)  # they serve processes with torch, too large for a zip
_WHEELS = {"x86_64": "x86_64", "arm64": "aarch64"}
_GLIBC = (
    "manylinux2014",
    "manylinux_2_17",
    "manylinux_2_26",
    "manylinux_2_27",
    "manylinux_2_28",
    "manylinux_2_34",
)
DISTRIBUTIONS = ("numpy", "xxhash")  # what the worker needs beside siafu
_UNUSED = ("tests", "testing", "f2py", "include", "doc", "distutils", "__pycache__")
_UNUSED_ENDINGS = (".pyi", ".pyc", ".h", ".c", ".a", ".pxd", ".pyx")


@dataclass(frozen=True)
class LambdaConfig:
    """The configuration of a Lambda function.

    Attributes:
        name: of the function.
        architecture: of its processor; arm64 costs a fifth less.
        python: the version of its Python.
        memory_mb: its memory; 1,769 MB come with one processor.
        timeout_s: after which Lambda ends it, at most 900, which bounds the length of a lease.
    """

    name: str = "siafu-worker"
    architecture: Architecture = "x86_64"
    python: str = f"{sys.version_info.major}.{sys.version_info.minor}"
    memory_mb: int = 1769
    timeout_s: int = 900

    def __post_init__(self) -> None:
        if self.architecture not in get_args(Architecture):
            raise ValueError(
                f"architecture is {self.architecture!r}, expected {' or '.join(get_args(Architecture))}"
            )
        if not 128 <= self.memory_mb <= 10_240:
            raise ValueError(f"memory_mb is {self.memory_mb}, expected 128 to 10240: what Lambda offers")
        if not 1 <= self.timeout_s <= 900:
            raise ValueError(f"timeout_s is {self.timeout_s}, expected 1 to 900: what Lambda offers")


def write_package(
    path: Path, *, function: LambdaConfig | None = None, wheels: Mapping[str, Path] | None = None
) -> int:
    """Write the zip; returns its size in bytes. The same siafu, NumPy and xxhash give the same bytes at any time.

    NumPy and xxhash have the versions that are installed here, so that results agree to the bit. They are copied from
    this environment if they fit the function, else downloaded by pip, or taken from ``wheels`` by their names.
    """
    function = function or LambdaConfig()
    files = {name: source.read_bytes() for name, source in _own_files()}
    for name in DISTRIBUTIONS:
        files |= dict(_files_in(name, function, (wheels or {}).get(name)))
    path.parent.mkdir(parents=True, exist_ok=True)
    with (
        atomic_writer(path) as file,
        zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as package,
    ):
        for name in sorted(files):
            entry = zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0))
            entry.compress_type, entry.create_system = zipfile.ZIP_DEFLATED, 3
            entry.external_attr = (0o755 if ".so" in name else 0o644) << 16
            package.writestr(entry, files[name])
    size = path.stat().st_size
    if size > MAX_BYTES:
        raise ValueError(f"{path} has {size} bytes, more than the {MAX_BYTES} that Lambda takes directly")
    return size


def write_sam(path: Path, *, package: Path, function: LambdaConfig | None = None) -> None:
    """Write an AWS SAM template that deploys the zip, as JSON: ``sam deploy --guided --template-file PATH``."""
    text = json.dumps(_template(package, function or LambdaConfig()), indent=2) + "\n"
    write_atomically(path, text.encode())


def _template(package: Path, function: LambdaConfig) -> dict[str, object]:
    trust = {KEY: {"Ref": "LeaseKey"}, ADDRESSES_VARIABLE: {"Ref": "LeaseAddresses"}}
    one_thread = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    properties = {
        "FunctionName": function.name,
        "Description": f"A tensor worker of siafu {siafu.__version__}: NumPy alone, dials back to its graph server.",
        "CodeUri": package.name,
        "Handler": f"{HANDLER}.handler",
        "Runtime": f"python{function.python}",
        "Architectures": [function.architecture],
        "MemorySize": function.memory_mb,
        "Timeout": function.timeout_s,
        "Environment": {"Variables": one_thread | trust},
        "VpcConfig": {
            "Fn::If": [
                "InVpc",
                {"SubnetIds": {"Ref": "SubnetIds"}, "SecurityGroupIds": {"Ref": "SecurityGroupIds"}},
                {"Ref": "AWS::NoValue"},
            ]
        },
    }
    listed = {"Type": "CommaDelimitedList", "Default": ""}
    key = {
        "Type": "String",
        "NoEcho": True,
        "AllowedPattern": "([0-9a-fA-F]{2}){32,512}",
        "Description": "Key that leases are signed with: 64 hexadecimal digits or more, as at the run.",
    }
    addresses = {
        "Type": "String",
        "AllowedPattern": ".+",
        "Description": "Hosts and networks of the graph servers that the function may dial, with commas.",
    }
    joined = {"Fn::Join": ["", {"Ref": "SubnetIds"}]}
    return {
        "AWSTemplateFormatVersion": "2010-09-09",
        "Transform": "AWS::Serverless-2016-10-31",
        "Description": "Tensor workers of siafu. Give subnets and security groups from which they reach your servers.",
        "Parameters": {
            "LeaseKey": key,
            "LeaseAddresses": addresses,
            "SubnetIds": listed,
            "SecurityGroupIds": listed,
        },
        "Conditions": {"InVpc": {"Fn::Not": [{"Fn::Equals": [joined, ""]}]}},
        "Resources": {"Worker": {"Type": "AWS::Serverless::Function", "Properties": properties}},
        "Outputs": {"Function": {"Value": {"Ref": "Worker"}}},
    }


def _own_files() -> Iterator[tuple[str, Path]]:
    """Yield the files of siafu that the worker imports, with their names in the zip."""
    root, found, ahead = Path(siafu.__file__).parents[1], set[Path](), [HANDLER]
    while ahead:
        for path in _files_of(root, ahead.pop()):
            if path in found:
                continue
            found.add(path)
            ahead += [name for name in _imports(path) if not name.startswith(_LEFT_OUT)]
    for path in sorted(found):
        yield path.relative_to(root).as_posix(), path


def _files_of(root: Path, module: str) -> Iterator[Path]:
    """Yield the file of a module, or of the module that holds a name, and those of its parent packages."""
    parts = module.split(".")
    for count in range(1, len(parts) + 1):
        place = root.joinpath(*parts[:count])
        for path in (place / "__init__.py", place.with_suffix(".py")):
            if path.is_file():
                yield path


def _imports(path: Path) -> Iterator[str]:
    """Yield the modules of siafu that a file imports, except under TYPE_CHECKING."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    guards = [
        node for node in ast.walk(tree) if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)
    ]
    unused = {id(node) for guard in guards for node in ast.walk(guard)}
    for node in ast.walk(tree):
        if (
            id(node) not in unused
            and isinstance(node, ast.ImportFrom)
            and (node.module or "").startswith("siafu.")
        ):
            yield str(node.module)
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def _files_in(name: str, function: LambdaConfig, wheel: Path | None) -> Iterator[tuple[str, bytes]]:
    """Yield the files of a distribution that the worker may need."""
    if wheel is not None:
        yield from _of_wheel(name, wheel)
    elif _installed_fits(name, function):
        for file in distribution(name).files or []:
            if _is_used(name, PurePosixPath(file.as_posix())):
                yield file.as_posix(), Path(str(file.locate())).read_bytes()
    else:
        with tempfile.TemporaryDirectory(prefix="siafu-") as folder:
            yield from _of_wheel(name, _download(name, function, Path(folder)))


def _installed_fits(name: str, function: LambdaConfig) -> bool:
    """Tell whether Lambda's Python can load a distribution of this environment."""
    here = f"{sys.version_info.major}.{sys.version_info.minor}"
    if function.python != here or platform.machine() != _WHEELS[function.architecture]:
        return False
    try:
        return "manylinux" in (distribution(name).read_text("WHEEL") or "")
    except PackageNotFoundError:
        return False


def _download(name: str, function: LambdaConfig, folder: Path) -> Path:
    platforms = [f"--platform={glibc}_{_WHEELS[function.architecture]}" for glibc in _GLIBC]
    wanted = f"{name}=={distribution(name).version}"
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:", *platforms,
               f"--python-version={function.python}", "--implementation=cp", f"--dest={folder}", wanted]  # fmt: skip
    try:
        subprocess.run(command, check=True, capture_output=True, text=True, timeout=300)
    except (OSError, subprocess.SubprocessError) as error:
        reason = (getattr(error, "stderr", "") or str(error)).strip().splitlines()[-1:]
        raise ValueError(
            f"pip could not download {wanted} for Python {function.python} on {function.architecture}: "
            f"{' '.join(reason)}; give a wheel that you have"
        ) from error
    return next(folder.glob("*.whl"))


def _of_wheel(name: str, wheel: Path) -> Iterator[tuple[str, bytes]]:
    if not wheel.name.startswith(f"{name}-") or "manylinux" not in wheel.name:
        raise ValueError(f"{wheel} is no wheel of {name} for Linux, expected {name}-…-manylinux….whl")
    with zipfile.ZipFile(wheel) as package:
        for file in package.namelist():
            if _is_used(name, PurePosixPath(file)):
                yield file, package.read(file)


def _is_used(name: str, file: PurePosixPath) -> bool:
    """Tell whether a worker may need a file of a distribution."""
    if file.is_absolute() or ".." in file.parts or not file.parts[0].startswith(name):
        return False
    if file.parts[0].endswith(".dist-info"):
        return file.name in ("METADATA", "LICENSE", "LICENSE.txt")
    return not (set(file.parts) & set(_UNUSED) or file.name.endswith(_UNUSED_ENDINGS))
