"""Describe this machine, for the first event of a run and for the doctor; host and user names are left out."""

import platform
import resource
from pathlib import Path
from typing import Any

import psutil
import torch

import siafu
from siafu import native
from siafu.control_groups import PROC, ROOT, group_folders, read_setting
from siafu.cores import usable_cores

_UNLIMITED = 2**60  # the first control groups write a number near 2**63 for "no limit"


def describe_machine() -> dict[str, Any]:
    """Processor, memory, versions and threads, ready for JSON."""
    return {
        "cpu": cpu_model(),
        "cores": usable_cores(),
        "memory_bytes": usable_memory_bytes(),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}".strip(),
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "siafu": siafu.__version__,
        "instruction_set": native.instruction_set(),
        "threads": torch.get_num_threads(),
    }


def cpu_model(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    """Return the model name of the processor, else its architecture."""
    try:
        lines = cpuinfo.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, "") or platform.processor() or platform.machine()


def usable_memory_bytes() -> int:
    """Return the memory of the machine, or the limit of its control group where that is less."""
    limit = cgroup_memory_bytes()
    total = total_memory_bytes()
    return total if limit is None else min(total, limit)


def total_memory_bytes() -> int:
    """Return the total memory of the machine."""
    return int(psutil.virtual_memory().total)


def free_memory_bytes() -> int:
    """Return the memory that is available without swapping."""
    return int(psutil.virtual_memory().available)


def peak_rss_bytes(status: Path = Path("/proc/self/status")) -> int:
    """Return the most memory that this process has held; ``getrusage`` may return that of a parent."""
    try:
        lines = status.read_text(encoding="ascii").splitlines()
    except OSError:
        lines = []
    peaks = (int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:"))
    return next(peaks, 0) or resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def cgroup_memory_bytes(proc: Path = PROC, root: Path = ROOT) -> int | None:
    """Return the tightest memory limit of the control groups this process is in, None for no limit."""
    names = {True: "memory.max", False: "memory.limit_in_bytes"}
    texts = [read_setting(folder / names[unified]) for folder, unified in group_folders("memory", proc, root)]
    limits = [int(text) for text in texts if text.isdigit()]
    return min((limit for limit in limits if limit < _UNLIMITED), default=None)
