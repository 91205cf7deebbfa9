"""Signed leases: a function serves only a lease that was signed with the key that the function was deployed with.

The key is 64 or more hexadecimal digits, in the environment variable ``SIAFU_LEASE_KEY`` or in a file that
``SIAFU_LEASE_KEY_FILE`` names and that only its owner can read. Standard library alone.
"""

import hashlib
import hmac
import json
import re
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from siafu.files import read_private
from siafu.workers.allowlist import ADDRESSES_VARIABLE, first_allowed, parse_allowlist
from siafu.workers.lease import Lease

KEY, KEY_FILE = "SIAFU_LEASE_KEY", "SIAFU_LEASE_KEY_FILE"
BILLED_KINDS = ("lambda", "http")  # kinds of workers that get signed leases and are paid by their time
MAX_BYTES = 4096  # of a signed lease
_MAX_KEY_BYTES = 2048
_PURPOSE = b"siafu lease\0"
_KEY_FORM = re.compile("(?:[0-9a-fA-F]{2}){32,512}")
_MAKE_ONE = "make one with: (umask 077; openssl rand -hex 32 > lease.key)"


class LeaseRefused(ValueError):
    """A function refuses a lease; the text gives the reason."""


def lease_key(environment: Mapping[str, str], file: str = "") -> bytes:
    """Read the key of leases from ``file``, from the file that the environment names, or from the environment.

    Raises ValueError if there is no key, if it is too short, or if other users can read its file.
    """
    file = file or environment.get(KEY_FILE, "")
    text, where = (_read(file), file) if file else (environment.get(KEY, ""), KEY)
    text = text.strip()
    if not text:
        raise ValueError(
            f"there is no key to sign and check leases of functions with; set {KEY_FILE} to a file that holds one, or "
            f"{KEY} to the key itself, the same at the function and at the run; {_MAKE_ONE}"
        )
    if not _KEY_FORM.fullmatch(text):
        raise ValueError(f"{where}: not a key of leases, expected 64 hexadecimal digits or more; {_MAKE_ONE}")
    return bytes.fromhex(text)


def sign(lease: Lease, key: bytes) -> str:
    """Return a lease with its signature, as JSON."""
    text = lease.to_json()
    return json.dumps({"lease": text, "signature": _signature(text, key)})


def accept(signed: object, environment: Mapping[str, str]) -> Lease:
    """Verify a JSON object that :func:`sign` made with this environment's key, and return its lease; LeaseRefused.

    Nothing of the lease is read before its signature was verified. Unless the host's name itself is listed, the
    returned lease holds an IP address, so that the address which is dialled is the one that was checked.
    """
    try:
        key = lease_key(environment)
        allowed = parse_allowlist(environment.get(ADDRESSES_VARIABLE, ""))
    except ValueError as error:
        raise LeaseRefused(f"this function serves no lease: {error}") from None
    lease = _verified(signed, key)
    if lease.deadline_s <= time.time():
        raise LeaseRefused("the lease has expired; are the clocks of both sides right?")
    host = first_allowed(lease.host, lease.port, allowed)
    if host is None:
        raise LeaseRefused(
            f"the lease names the graph server {lease.host}:{lease.port}, which is not among the addresses that "
            f"this function was deployed to dial ({ADDRESSES_VARIABLE})"
        )
    return replace(lease, host=host)


def parse(body: bytes) -> object:
    """Parse the JSON object of a request; raises LeaseRefused."""
    if len(body) > MAX_BYTES:
        raise LeaseRefused(f"a request of more than {MAX_BYTES} bytes, expected a signed lease")
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        raise LeaseRefused("the request is no JSON, expected a signed lease") from None


def _verified(signed: object, key: bytes) -> Lease:
    match signed:
        case {"lease": str(text), "signature": str(signature)} if len(text) <= MAX_BYTES:
            pass
        case _:
            raise LeaseRefused("the request is no signed lease: is it of another version of siafu?")
    if not hmac.compare_digest(signature.encode(), _signature(text, key).encode()):
        raise LeaseRefused(
            "the signature of the lease is wrong: its issuer holds another key than this function was deployed with"
        )
    try:
        return Lease.from_json(text)
    except ValueError as error:
        raise LeaseRefused(str(error)) from None


def _signature(text: str, key: bytes) -> str:
    return hmac.new(key, _PURPOSE + text.encode(), hashlib.sha256).hexdigest()


def _read(file: str) -> str:
    try:
        return read_private(Path(file), max_bytes=_MAX_KEY_BYTES).decode("ascii", "replace")
    except ValueError as error:
        raise ValueError(f"{error}; expected the key of leases; {_MAKE_ONE}") from None
