"""Workers as AWS Lambda functions, at AWS or any other endpoint. The only file that imports boto3.

An invocation carries a lease and lasts until the lease ends.
"""

import json
import queue
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from siafu.extras import require_extra
from siafu.workers.lease import Lease
from siafu.workers.signing import LeaseRefused, sign
from siafu.workers.supervisor import LeaseError

_READ_TIMEOUT_S = 960  # Lambda ends an invocation after 15 minutes
_FATAL_CODES = {
    "AccessDeniedException",
    "ExpiredTokenException",
    "InvalidSignatureException",
    "UnrecognizedClientException",
    "InvalidParameterValueException",
}


class LambdaPlatform:
    """Makes one invocation per lease, which is signed with ``key``.

    ``endpoint_urls`` are used instead of AWS, for instance of emulators; each of them serves one lease at a time.
    """

    def __init__(
        self,
        function: str,
        *,
        key: bytes,
        region: str | None = None,
        endpoint_urls: Sequence[str] = (),
        max_leases: int = 1000,
    ) -> None:
        self._function, self._key = function, key
        self._clients: queue.SimpleQueue[Any] = queue.SimpleQueue()
        if not endpoint_urls:
            client = _client(region, None, max_leases)
            for _ in range(max_leases):
                self._clients.put(client)  # one client is safe to use from many threads
        for url in endpoint_urls:
            self._clients.put(_client(region, url, 1))

    def run_worker(self, lease: Lease) -> None:
        """Invoke the function with a lease and wait for its end; raises LeaseError."""
        client = self._clients.get()
        try:
            self._invoke(client, lease)
        finally:
            self._clients.put(client)

    def close(self) -> None:
        """Do nothing: an invocation ends when its worker loses the connection to the graph server."""

    def _invoke(self, client: Any, lease: Lease) -> None:
        from botocore.exceptions import BotoCoreError, ClientError, NoCredentialsError

        try:
            response = client.invoke(FunctionName=self._function, Payload=sign(lease, self._key).encode())
            body = response["Payload"].read()
        except NoCredentialsError:
            raise LeaseError(
                "there are no AWS credentials to invoke Lambda with: set AWS_PROFILE, or AWS_ACCESS_KEY_ID and "
                "AWS_SECRET_ACCESS_KEY",
                fatal=True,
            ) from None
        except ClientError as error:
            raise self._refused(error.response) from error
        except BotoCoreError as error:
            raise LeaseError(f"Lambda could not be reached: {error}") from error
        _check(body, failed=bool(response.get("FunctionError")), function=self._function)

    def _refused(self, response: Any) -> LeaseError:
        code = response.get("Error", {}).get("Code", "")
        message = response.get("Error", {}).get("Message", "")
        status = response.get("ResponseMetadata", {}).get("HTTPStatusCode")
        if status == 429 or code == "TooManyRequestsException":
            return LeaseError(f"Lambda throttles: {message or code}", throttled=True)
        if status == 413 or code == "RequestTooLargeException":
            return LeaseError(f"Lambda refuses the lease as too large (413): {message}", fatal=True)
        if code == "ResourceNotFoundException":
            return LeaseError(
                f"there is no Lambda function {self._function!r} ({message}); deploy one from what "
                "'siafu lambda package' writes, or name another",
                fatal=True,
            )
        return LeaseError(f"Lambda refuses: {code}: {message}", fatal=code in _FATAL_CODES)


def _client(region: str | None, endpoint_url: str | None, max_connections: int) -> Any:
    with require_extra("pipeline.workers = lambda", "boto3"):
        import boto3
        from botocore.config import Config
        from botocore.exceptions import BotoCoreError
    config = Config(
        read_timeout=_READ_TIMEOUT_S,
        connect_timeout=10,
        retries={"total_max_attempts": 1},  # a lease is not handed out twice
        max_pool_connections=max_connections,
        tcp_keepalive=True,
    )
    try:
        session = boto3.session.Session(region_name=region)
        return session.client("lambda", endpoint_url=endpoint_url, config=config)
    except (BotoCoreError, ValueError) as error:
        raise ValueError(f"AWS Lambda cannot be called: {error}") from error


def _check(body: bytes, *, failed: bool, function: str) -> None:
    """Raise LeaseError if a function failed. AWS sets a header then; an emulator returns the error as a result."""
    answer: Any = None
    with suppress(ValueError):
        answer = json.loads(body)
    error = answer if isinstance(answer, dict) and "errorType" in answer else None
    if error is None and not failed:
        return
    kind, message = (error or {}).get("errorType", "Error"), (error or {}).get("errorMessage", body[:200])
    fatal = str(kind).startswith("Runtime.Import") or kind == LeaseRefused.__name__
    raise LeaseError(f"the function {function!r} failed: {kind}: {message}", fatal=fatal)
