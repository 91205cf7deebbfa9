"""The secret of a group of ranks: from the environment or from a file of its owner; never from the network."""

import hashlib
import hmac
from collections.abc import Mapping
from pathlib import Path

from siafu.files import read_private
from siafu.launch.rank_environment import Place

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
        try:
            secret = read_private(path, max_bytes=_MAX_BYTES)
        except ValueError as error:
            raise ValueError(f"{SECRET_FILE}={error}; make one with {_HOW}") from None
        return _long_enough(secret, f"{SECRET_FILE}={path}")
    return None


def _long_enough(secret: bytes, what: str) -> bytes:
    secret = secret.strip()
    if len(secret) < _MIN_BYTES:
        raise ValueError(
            f"{what}: a secret of {len(secret)} bytes; expected at least {_MIN_BYTES}, which nobody can guess: "
            f"make one with {_HOW}"
        )
    return secret
