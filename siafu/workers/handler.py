"""The worker as a serverless function: an invocation carries a signed lease, and ends with it.

``handler`` is for AWS Lambda, ``serve_http`` for functions-framework, Cloud Run functions and Knative. Both refuse
leases that are not signed with the key that the function was deployed with (:func:`siafu.workers.signing.accept`).
"""

import os
import time
from dataclasses import asdict, replace
from typing import Any

from siafu.workers.signing import MAX_BYTES, LeaseRefused, accept, parse
from siafu.workers.worker import serve

_RETURN_S = 1.0  # the worker ends so long before Lambda would kill the function


def handler(event: object, context: Any) -> dict[str, Any]:
    """Serve the lease in a Lambda event; returns the report, or raises LeaseRefused."""
    lease = accept(event, os.environ)
    left_s = context.get_remaining_time_in_millis() / 1000 - _RETURN_S
    lease = replace(lease, deadline_s=min(lease.deadline_s, time.time() + left_s))
    return asdict(serve(lease, request_id=context.aws_request_id))


def serve_http(request: Any) -> dict[str, Any] | tuple[dict[str, Any], int]:
    """Serve the lease in the body of a Flask request; returns the report, or the reason with status 403."""
    try:
        if request.content_length is None or request.content_length > MAX_BYTES:
            raise LeaseRefused(f"a request of {request.content_length} bytes, expected at most {MAX_BYTES}")
        lease = accept(parse(request.get_data(cache=False)), os.environ)
    except LeaseRefused as refused:
        return {"error": str(refused)}, 403
    return asdict(serve(lease, fresh=False))
