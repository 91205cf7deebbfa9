"""Examine this machine: what it has for training, and what is missing.

A probe that fails becomes a finding, never an exception.
"""

import importlib.util
import os
import platform
import re
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from siafu.extras import EXTRAS
from siafu.results.format import fmt_bytes

_OPENMP = re.compile(r"(?:^|/)lib(?:gomp|omp|iomp5)(?:-\w+)?\.(?:so[.\d]*|dylib)$")
_NAMES_SHOWN = 8
_LOW_DISK_BYTES = 2 * 2**30


@dataclass(frozen=True)
class Finding:
    """The result of one probe.

    Attributes:
        name: the subject, in a few words.
        value: what was found.
        level: ``ok``; ``note``: slower or more limited than it could be; ``missing``: something will not work.
        advice: what to do; empty if nothing is to be done.
    """

    name: str
    value: str
    level: Literal["ok", "note", "missing"] = "ok"
    advice: str = ""


def examine(environ: Mapping[str, str]) -> list[Finding]:
    """Probe everything that training needs or could use."""
    probes: list[tuple[str, Callable[[], Finding]]] = [
        ("Python", _python),
        ("torch", _torch),
        ("threads", lambda: _threads(environ)),
        ("compiled core", _core),
        ("OpenMP", _openmp),
        ("cores", _cores),
        ("memory", _memory),
        ("memory limit", _memory_limit),
        ("huge pages", _huge_pages),
        ("data home", lambda: _data_home(environ)),
        ("disk of the data home", lambda: _disk("disk of the data home", _home(environ))),
        ("disk of this folder", lambda: _disk("disk of this folder", Path.cwd())),
    ]
    probes += [(name, lambda name=name: _extra(name)) for name in EXTRAS]  # type: ignore[misc]
    return [_try(name, probe) for name, probe in probes]


def _try(name: str, probe: Callable[[], Finding]) -> Finding:
    try:
        return probe()
    except Exception as error:
        text = f"could not be examined: {type(error).__name__}: {error}"
        return Finding(name, text, "note", "the message says what failed; the rest of the list still holds")


def _python() -> Finding:
    return Finding("Python", f"{platform.python_version()} ({platform.python_implementation()})")


def _torch() -> Finding:
    try:
        import torch
    except (ImportError, OSError) as error:
        return Finding("torch", f"does not load: {error}", "missing", "pip install 'torch>=2.6'")
    return Finding("torch", torch.__version__)


def _threads(environ: Mapping[str, str]) -> Finding:
    import torch

    from siafu.cores import default_threads, usable_cores

    cores, given = usable_cores(), environ.get("OMP_NUM_THREADS")
    threads = default_threads(environ, ranks=1, torch_threads=torch.get_num_threads())
    if given is None or threads == cores:
        return Finding("threads", f"{threads}, as many as usable cores" if threads == cores else f"{threads}")
    advice = (
        "some cores stay idle" if threads < cores else "threads wait for each other"
    ) + f"; unset OMP_NUM_THREADS to use {cores}"
    return Finding("threads", f"{threads}, by OMP_NUM_THREADS={given}", "note", advice)


def _core() -> Finding:
    from siafu import native

    if native.compiled():
        return Finding("compiled core", native.instruction_set())
    return Finding(
        "compiled core",
        "not there: plain torch is used, several times slower",
        "missing",
        "install a C++20 compiler, then reinstall siafu",
    )


def openmp_libraries(maps: Path = Path("/proc/self/maps")) -> list[str]:
    """List the OpenMP libraries that this process has loaded: as many as there are thread pools."""
    paths = {
        line.split(maxsplit=5)[5] for line in maps.read_text(encoding="utf-8").splitlines() if "/" in line
    }
    return sorted({os.path.realpath(path) for path in paths if _OPENMP.search(path)})


def _openmp() -> Finding:
    if not Path("/proc/self/maps").exists():
        return Finding("OpenMP", "this system does not list loaded libraries", "note")
    from siafu import native  # loads torch and the core, in that order

    found = openmp_libraries()
    names = ", ".join(found) or "none loaded"
    if len(found) > 1:
        return Finding(
            "OpenMP",
            f"{len(found)} libraries: {names}",
            "note",
            "torch and the core have a thread pool each; reinstall siafu beside this torch",
        )
    return Finding("OpenMP", f"one library: {names}" if native.compiled() and found else names)


def _cores() -> Finding:
    from siafu.cores import affinity_cores, cgroup_cores, usable_cores
    from siafu.machine import cpu_model

    usable, there, quota, affinity = usable_cores(), os.cpu_count() or 1, cgroup_cores(), affinity_cores()
    value = f"{usable} of {there}, {cpu_model()}"
    if usable >= there:
        return Finding("cores", value)
    if quota is not None and quota < affinity:
        why = f"the control group has a quota of {quota:g} cores; raise the container's limit to use more"
    else:
        why = f"the affinity of this process allows {affinity}; see taskset, or the container's set of cores"
    return Finding("cores", value, "note", why)


def _memory() -> Finding:
    from siafu.machine import free_memory_bytes, total_memory_bytes

    return Finding("memory", f"{fmt_bytes(free_memory_bytes())} free of {fmt_bytes(total_memory_bytes())}")


def _memory_limit() -> Finding:
    from siafu.machine import cgroup_memory_bytes, total_memory_bytes

    limit = cgroup_memory_bytes()
    if limit is None or limit >= total_memory_bytes():
        return Finding("memory limit", "none below the machine's memory")
    advice = (
        "the control group ends a process that goes beyond; raise the container's limit for larger graphs"
    )
    return Finding("memory limit", fmt_bytes(limit), "note", advice)


def _huge_pages() -> Finding:
    path = Path("/sys/kernel/mm/transparent_hugepage/enabled")
    if not path.exists():
        return Finding("huge pages", "this system does not tell")
    chosen = re.search(r"\[(\w+)\]", path.read_text(encoding="ascii"))
    value = chosen.group(1) if chosen else "unknown"
    if value == "never":
        return Finding(
            "huge pages", value, "note", f"large graphs run faster with: echo madvise > {path} (as root)"
        )
    return Finding("huge pages", value)


def _home(environ: Mapping[str, str]) -> Path:
    from siafu.data.loading import data_home

    return data_home(environ)


def _data_home(environ: Mapping[str, str]) -> Finding:
    home = _home(environ)
    if not home.is_dir():
        if environ.get("SIAFU_DATA"):
            return Finding(
                "data home", f"{home} is not a folder", "missing", "make it, or set SIAFU_DATA to another"
            )
        return Finding("data home", f"{home}, not made yet")
    names = sorted(_data_sets(home))
    if not names:
        return Finding("data home", f"{home}, empty")
    more = f" and {len(names) - _NAMES_SHOWN} more" if len(names) > _NAMES_SHOWN else ""
    return Finding("data home", f"{home}: {', '.join(names[:_NAMES_SHOWN])}{more}")


def _data_sets(home: Path) -> list[str]:
    archives = [path.stem for path in (*home.glob("*.npz"), *home.glob("temporal/*.npz"))]
    return archives + [path.parent.name for path in home.glob("*/manifest.json")]


def _disk(name: str, folder: Path) -> Finding:
    there = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    usage = shutil.disk_usage(there)
    value = f"{fmt_bytes(usage.free)} free of {fmt_bytes(usage.total)} ({there})"
    if not os.access(there, os.W_OK):
        return Finding(
            name, f"{value}, not writable", "note", "choose another folder for what is to be written"
        )
    if usage.free < _LOW_DISK_BYTES:
        return Finding(name, value, "note", "free some space: checkpoints and stores need room")
    return Finding(name, value)


def _extra(name: str) -> Finding:
    extra = EXTRAS[name]
    if not _is_installed(name):
        return Finding(name, f"not installed (optional: {extra.purpose})", "note", extra.install)
    return Finding(name, f"installed ({extra.purpose})")


def _is_installed(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:  # of a package above
        return False
