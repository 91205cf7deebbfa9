"""``siafu site status``: the state of a site as its files show it; and the lock that admits one server."""

import fcntl
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from siafu import files
from siafu.launch.sites.config import SiteConfig
from siafu.launch.sites.ledger import LedgerTotals, read_ledger
from siafu.sites.credentials import SiteCredentials


@contextmanager
def site_lock(config: SiteConfig) -> Iterator[Callable[[str], None]]:
    """Lock a site against a second server; yields a function that records the address it serves on."""
    config.work.mkdir(parents=True, exist_ok=True)
    place = config.work / "address"
    refusal = f"{config.work}: another process serves this site; stop it first"
    with files.lock_file(config.work / ".lock", refusal=refusal):
        for left in config.work.glob("attempt-*"):  # left by a killed server
            shutil.rmtree(left, ignore_errors=True)
        try:
            yield lambda address: files.write_atomically(place, address.encode())
        finally:
            place.unlink(missing_ok=True)


def site_status(config: SiteConfig) -> dict[str, Any]:
    """Collect the state of a site from its files."""
    keys, totals = SiteCredentials(config), LedgerTotals()
    own = keys.own
    for line in read_ledger(config.ledger) if config.ledger.is_file() else []:
        totals.add(line)
    return {
        "site": config.name,
        "serves": _serves(config),
        "certificate": own.fingerprint,
        "expires": f"{own.ends:%Y-%m-%d}",
        "warnings": keys.troubles(),
        "policy": config.policy.model_dump(),
        "peers": sorted(config.peers),
        "max_bytes": config.max_bytes,
        "ledger_bytes": totals.all,
        "by_what": dict(totals.by_what),
        "by_peer": dict(totals.by_peer),
        "by_run": {run: count for run, count in totals.by_run.items() if run},
    }


def _serves(config: SiteConfig) -> str | None:
    """The address that the site serves on; None if it does not serve."""
    lock = config.work / ".lock"
    if not lock.is_file():
        return None
    with lock.open("r") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            place = config.work / "address"
            return place.read_text() if place.is_file() else None
    return None
