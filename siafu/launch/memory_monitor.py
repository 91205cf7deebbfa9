"""Memory use of ranks over time, and detection of kills by the kernel's OOM killer."""

import time
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

import psutil

_EVERY_S = 0.25
_MAX_POINTS = 256


class MemoryMonitor:
    """Samples the resident memory of ranks. When a curve grows long, every second point is dropped."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._next = self._began
        self._every_s = _EVERY_S
        self._points: dict[int, list[tuple[float, int]]] = {}
        self._oom_kills: dict[Path, int] = {}

    def sample(self, pids: dict[int, int]) -> None:
        """Sample every rank, if the interval has passed."""
        now = time.monotonic()
        if now < self._next:
            return
        self._next = now + self._every_s
        for rank, pid in pids.items():
            if rank not in self._points:
                self._oom_kills |= {
                    path: kills for path, kills in _oom_counters(pid) if path not in self._oom_kills
                }
            self._add(rank, now - self._began, _rss_bytes(pid))

    def _add(self, rank: int, at_s: float, rss_bytes: int) -> None:
        points = self._points.setdefault(rank, [])
        if rss_bytes:
            points.append((at_s, rss_bytes))
        if len(points) > _MAX_POINTS:
            self._points = {rank: points[::2] for rank, points in self._points.items()}
            self._every_s *= 2

    def kernel_killed(self) -> bool:
        """Return whether the OOM killer has killed a process since the ranks were first sampled."""
        return any(_read_oom_kills(path) > before for path, before in self._oom_kills.items())

    def describe(self, rank: int) -> str:
        """Summarise a rank's memory curve in a few numbers."""
        points = self._points.get(rank, [])
        if not points:
            return "it ended before its memory could be looked at"
        picked = [points[(len(points) - 1) * place // 3] for place in range(4)]
        curve = ", ".join(f"{rss / 1e9:.2f} GB at {at:.1f} s" for at, rss in dict.fromkeys(picked))
        return f"its memory: {curve}; at most {max(rss for _, rss in points) / 1e9:.2f} GB"


def _rss_bytes(pid: int) -> int:
    try:
        return int(psutil.Process(pid).memory_info().rss)
    except psutil.Error:
        return 0


def _oom_counters(pid: int) -> Iterator[tuple[Path, int]]:
    """Yield the files that count OOM kills for a process, with their counts: its cgroups', else the machine's."""
    found = [path for folders, name in _memory_cgroups(pid) if (path := _nearest_counter(folders, name))]
    for path in found or [Path("/proc/vmstat")]:
        yield path, _read_oom_kills(path)


def _memory_cgroups(pid: int) -> Iterator[tuple[list[Path], str]]:
    """Yield the candidate folders of each memory cgroup of a process, innermost first, and the name of its counter."""
    try:
        lines = Path(f"/proc/{pid}/cgroup").read_text().splitlines()
    except OSError:
        return
    for number, controllers, group in (line.split(":", 2) for line in lines):
        path = PurePosixPath(group.strip("/"))
        above = [path, *path.parents]
        if number == "0":
            for root in (Path("/sys/fs/cgroup"), Path("/sys/fs/cgroup/unified")):
                yield [root / each for each in above], "memory.events"
        elif "memory" in controllers.split(","):
            yield [Path("/sys/fs/cgroup/memory") / each for each in above], "memory.oom_control"


def _nearest_counter(folders: list[Path], name: str) -> Path | None:
    """Return the first counter that exists; in a container, cgroup paths may be those of the host."""
    return next((folder / name for folder in folders if _read_oom_kills(folder / name) >= 0), None)


def _read_oom_kills(path: Path) -> int:
    """Read ``oom_kill`` from a file of names and numbers; -1 if there is none."""
    try:
        fields = dict(line.split(maxsplit=1) for line in path.read_text().splitlines())
        return int(fields["oom_kill"])
    except (OSError, ValueError, KeyError):
        return -1
