"""The secret of a group of ranks, from the environment or from a private file; never from the network."""

import hashlib
import hmac
from collections.abc import Mapping
from pathlib import Path

from siafu.files import read_private
from siafu.launch.rank_environment import RankEnvironment

SECRET, SECRET_FILE = "SIAFU_SECRET", "SIAFU_SECRET_FILE"
_MIN_BYTES, _MAX_BYTES = 16, 4096
_HOW_TO_MAKE_ONE = (
    "(umask 077; head -c 32 /dev/urandom | base64 > ~/siafu.secret), copy it to every host with scp -p, and set "
    f"{SECRET_FILE}=~/siafu.secret there"
)


def group_key(environ: Mapping[str, str], rank_env: RankEnvironment, *, trust_network: bool) -> bytes:
    """Derive the key that authenticates the ranks of one attempt; raises ValueError if they need a secret.

    Without a secret, ranks on one host authenticate by their user id, and the key is not secret.
    """
    secret = read_secret(environ)
    if secret is None and not rank_env.one_host and not trust_network:
        raise ValueError(
            f"{rank_env.world_size} ranks on several hosts, but neither {SECRET} nor {SECRET_FILE} is set: without a "
            f"secret anybody on the network could join. Make one with {_HOW_TO_MAKE_ONE}; or, where nobody else "
            "reaches the network, set comm.trust_network=true"
        )
    attempt = f"group {rank_env.attempt_id} {rank_env.port if rank_env.one_host else ''}"
    return hmac.digest(secret or b"no secret", attempt.encode(), hashlib.sha256)


def read_secret(environ: Mapping[str, str]) -> bytes | None:
    """Read the user's secret, or None; raises ValueError for one that others can read or guess."""
    if text := environ.get(SECRET):
        return _check_length(text.encode(), SECRET)
    if name := environ.get(SECRET_FILE):
        path = Path(name).expanduser()
        try:
            secret = read_private(path, max_bytes=_MAX_BYTES)
        except ValueError as error:
            raise ValueError(f"{SECRET_FILE}={error}; make one with {_HOW_TO_MAKE_ONE}") from None
        return _check_length(secret, f"{SECRET_FILE}={path}")
    return None


def _check_length(secret: bytes, what: str) -> bytes:
    secret = secret.strip()
    if len(secret) < _MIN_BYTES:
        raise ValueError(
            f"{what}: a secret of {len(secret)} bytes; expected at least {_MIN_BYTES}, which nobody can guess: "
            f"make one with {_HOW_TO_MAKE_ONE}"
        )
    return secret
