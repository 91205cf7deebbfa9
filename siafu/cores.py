"""Count the cores that this process may use, and set up OpenMP's threads for them. Torch is not imported here.

OpenMP's library reads its variables when it is loaded, so they are set before torch is imported.
"""

import os
from collections.abc import Mapping
from math import ceil
from pathlib import Path

from siafu.control_groups import PROC, ROOT, group_folders, read_setting

# Rounds that a waiting thread spins before it sleeps, some 10 microseconds. GNU's default is 300000, some milliseconds:
# beside another process a spinning thread keeps a core from the thread that it waits for.
_SPINS = 1000


def usable_cores() -> int:
    """Count the cores that this process may use: by its affinity and by the quota of its control groups."""
    quota = cgroup_cores()
    return affinity_cores() if quota is None else max(1, min(affinity_cores(), ceil(quota)))


def affinity_cores() -> int:
    """Count the cores that this process may run on, which may be fewer than there are."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def cgroup_cores(proc: Path = PROC, root: Path = ROOT) -> float | None:
    """Return the tightest quota of the control groups this process is in, in cores; None for no quota."""
    quotas = []
    for folder, unified in group_folders("cpu", proc, root):
        if unified:
            quota, _, period = read_setting(folder / "cpu.max").partition(" ")
        else:
            quota, period = (read_setting(folder / f"cpu.cfs_{name}_us") for name in ("quota", "period"))
        if quota.isdigit() and period.isdigit() and int(quota) and int(period):
            quotas.append(int(quota) / int(period))
    return min(quotas, default=None)


def default_threads(environ: Mapping[str, str], *, ranks: int, torch_threads: int) -> int:
    """Return the number of threads of a rank: its share of the cores; of a single rank not more than torch's.

    For a single rank OMP_NUM_THREADS is followed as it is.
    """
    if ranks > 1:
        return max(1, usable_cores() // ranks)
    return torch_threads if "OMP_NUM_THREADS" in environ else min(torch_threads, usable_cores())


def thread_environ(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of OpenMP to add before torch is imported; those that the user set are left alone."""
    added = {}
    if not {"OMP_WAIT_POLICY", "GOMP_SPINCOUNT"} & environ.keys():
        added["GOMP_SPINCOUNT"] = str(_SPINS)
    if "OMP_NUM_THREADS" not in environ and usable_cores() < affinity_cores():
        added["OMP_NUM_THREADS"] = str(usable_cores())  # else as many as the affinity allows
    return added
