"""The secret of a group of ranks: from the environment or from a file of its owner; never from the network."""

import hashlib
import hmac
import os
import stat
from collections.abc import Mapping
from pathlib import Path

from siafu.engine.place import Place

SECRET, SECRET_FILE = "SIAFU_SECRET", "SIAFU_SECRET_FILE"
_MIN_BYTES, _MAX_BYTES = 16, 4096
_HOW = (
    "(umask 077; head -c 32 /dev/urandom | base64 > ~/siafu.secret), copy it to every host with scp -p, and set "
    f"{SECRET_FILE}=~/siafu.secret there"
)


def group_key(environ: Mapping[str, str], place: Place, *, trust_network: bool) -> bytes:
    """The key by which the ranks of one attempt know each other; raises ValueError where they need a secret.

    Without a secret, ranks on one host know each other by their user, and the key is no secret.
    """
    secret = read_secret(environ)
    if secret is None and not place.one_host and not trust_network:
        raise ValueError(
            f"{place.world_size} ranks on several hosts, but neither {SECRET} nor {SECRET_FILE} is set: without a "
            f"secret anybody on the network could join. Make one with {_HOW}; or, where nobody else reaches the "
            "network, set comm.trust_network=true"
        )
    attempt = f"group {place.attempt} {place.port if place.one_host else ''}"
    return hmac.digest(secret or b"no secret", attempt.encode(), hashlib.sha256)


def read_secret(environ: Mapping[str, str]) -> bytes | None:
    """The user's secret, or None; raises ValueError for one that others can read or guess."""
    if text := environ.get(SECRET):
        return _long_enough(text.encode(), SECRET)
    if name := environ.get(SECRET_FILE):
        path = Path(name).expanduser()
        return _long_enough(_read_private(path), f"{SECRET_FILE}={path}")
    return None


def _read_private(path: Path) -> bytes:
    try:
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK), "rb") as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise ValueError(f"{SECRET_FILE}={path}: not a file; make one with {_HOW}")
            if status.st_uid != os.geteuid() or status.st_mode & 0o077:
                raise ValueError(
                    f"{SECRET_FILE}={path}: belongs to user {status.st_uid} with mode {status.st_mode & 0o777:04o}; "
                    f"expected user {os.geteuid()} with mode 0600, so that nobody else reads it: chmod 600 {path}, "
                    "and make a new secret if others could read it"
                )
            return file.read(_MAX_BYTES)
    except OSError as error:
        raise ValueError(f"{SECRET_FILE}={path}: {error.strerror}; make one with {_HOW}") from None


def _long_enough(secret: bytes, what: str) -> bytes:
    secret = secret.strip()
    if len(secret) < _MIN_BYTES:
        raise ValueError(
            f"{what}: a secret of {len(secret)} bytes; expected at least {_MIN_BYTES}, which nobody can guess: "
            f"make one with {_HOW}"
        )
    return secret
