"""What ranks use of memory while they run, and whether the kernel killed one of them for it."""

import time
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

import psutil

_EVERY_S = 0.25
_MOST_POINTS = 256


class MemoryCurves:
    """Samples the resident memory of ranks; a long curve keeps every second point."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._next = self._began
        self._every_s = _EVERY_S
        self._points: dict[int, list[tuple[float, int]]] = {}
        self._kills: dict[Path, int] = {}

    def sample(self, pids: dict[int, int]) -> None:
        """Look at every rank, if it is time to."""
        now = time.monotonic()
        if now < self._next:
            return
        self._next = now + self._every_s
        for rank, pid in pids.items():
            if rank not in self._points:
                self._kills |= {path: kills for path, kills in _kills(pid) if path not in self._kills}
            self._add(rank, now - self._began, _rss_bytes(pid))

    def _add(self, rank: int, at_s: float, rss_bytes: int) -> None:
        points = self._points.setdefault(rank, [])
        if rss_bytes:
            points.append((at_s, rss_bytes))
        if len(points) > _MOST_POINTS:
            self._points = {rank: points[::2] for rank, points in self._points.items()}
            self._every_s *= 2

    def kernel_killed(self) -> bool:
        """Whether the kernel has killed a process for lack of memory since ranks were first looked at."""
        return any(_count(path) > before for path, before in self._kills.items())

    def tell(self, rank: int) -> str:
        """A rank's curve in a few numbers."""
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


def _kills(pid: int) -> Iterator[tuple[Path, int]]:
    """The files that count such kills for a process: those of its control groups, else the whole machine's."""
    found = [path for folders, name in _groups(pid) if (path := _nearest(folders, name))]
    for path in found or [Path("/proc/vmstat")]:
        yield path, _count(path)


def _groups(pid: int) -> Iterator[tuple[list[Path], str]]:
    """Where a control group of a process may be found, from itself to the root, and the file that counts there."""
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


def _nearest(folders: list[Path], name: str) -> Path | None:
    """The first file that counts; in a container the names of groups may be those outside."""
    return next((folder / name for folder in folders if _count(folder / name) >= 0), None)


def _count(path: Path) -> int:
    """The ``oom_kill`` of a file of names and numbers; -1 where there is none."""
    try:
        fields = dict(line.split(maxsplit=1) for line in path.read_text().splitlines())
        return int(fields["oom_kill"])
    except (OSError, ValueError, KeyError):
        return -1
