"""Read settings of the control groups that this process is in, of version 1 and 2."""

from pathlib import Path

PROC, ROOT = Path("/proc/self/cgroup"), Path("/sys/fs/cgroup")


def group_folders(controller: str, proc: Path = PROC, root: Path = ROOT) -> list[tuple[Path, bool]]:
    """List the folders of groups that may limit ``controller``, each with whether it is of version 2.

    A group's limits hold together with those of each level above; containers see the root alone.
    """
    try:
        groups = [line.split(":", 2) for line in proc.read_text(encoding="utf-8").splitlines()]
    except OSError:
        return []
    found = []
    for _, controllers, group in (parts for parts in groups if len(parts) == 3):
        here = Path(group.strip("/"))
        if controllers == "":
            found += [(root / level, True) for level in (here, *here.parents)]
        elif controller in controllers.split(","):
            mounts = dict.fromkeys((controller, controllers))  # most systems link one to the other
            found += [(root / mount / level, False) for mount in mounts for level in (here, *here.parents)]
    return found


def read_setting(path: Path) -> str:
    """Return the text of a setting; empty if there is no such file."""
    try:
        return path.read_text(encoding="ascii").strip()
    except OSError:
        return ""
