"""Workers as functions that are called by HTTP: functions-framework, Cloud Run, Knative. A request carries a lease."""

import json
import time
from collections.abc import Mapping
from contextlib import suppress
from http.client import HTTPException
from typing import Any
from urllib.error import HTTPError
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

from siafu.workers.lease import Lease
from siafu.workers.signing import sign
from siafu.workers.supervisor import LeaseError

_ANSWER_S = 30.0  # for the response, once the lease has ended
_FATAL_STATUSES = {400, 401, 403, 404, 405, 411, 415}


class HttpPlatform:
    """Sends one request per lease, which is signed with ``key``. ``headers`` are added to each request."""

    def __init__(self, url: str, *, key: bytes, headers: Mapping[str, str] | None = None) -> None:
        if urlsplit(url).scheme not in ("http", "https") or not urlsplit(url).hostname:
            raise ValueError(f"workers are called at {url!r}, expected an address such as https://host/path")
        self._url, self._key, self._headers = url, key, dict(headers or {})

    def run_worker(self, lease: Lease) -> None:
        """Post a lease and wait for the response; raises LeaseError."""
        headers = {"Content-Type": "application/json", **self._headers}
        request = Request(self._url, sign(lease, self._key).encode(), headers, method="POST")
        try:
            with urlopen(request, timeout=max(0.0, lease.deadline_s - time.time()) + _ANSWER_S) as response:
                body = response.read(1 << 16)
        except HTTPError as error:
            with error:
                raise self._refused(error.code, error.read(1000)) from None
        except (OSError, HTTPException) as error:
            raise LeaseError(f"{self._url} could not be reached: {error}") from error
        _check(self._url, body)

    def close(self) -> None:
        """Do nothing: a request ends when its worker loses the connection to the graph server."""

    def _refused(self, status: int, body: bytes) -> LeaseError:
        reason = f"{self._url} answered with {status}: {body.decode(errors='replace').strip()[:200]}"
        if status == 413:
            reason += " (it refuses the lease as too large)"
        return LeaseError(reason, throttled=status == 429, fatal=status in _FATAL_STATUSES or status == 413)


def _check(url: str, body: bytes) -> None:
    report: Any = None
    with suppress(ValueError):
        report = json.loads(body)
    if not isinstance(report, dict) or "tasks" not in report:
        raise LeaseError(f"{url} answered {body[:200]!r}, which no worker does: is siafu deployed there?")
