"""The worker as a serverless function: an invocation carries a lease, and ends when the lease does.

``handler`` is for AWS Lambda, ``serve_http`` for functions-framework, Cloud Run functions and Knative.
"""

import time
from dataclasses import asdict, replace
from typing import Any

from siafu.workers.lease import Lease
from siafu.workers.worker import serve

_RETURN_S = 1.0  # before the function is ended by force


def handler(event: object, context: Any) -> dict[str, Any]:
    """Serve the lease that the event is; returns what was done."""
    lease = Lease.from_dict(event)
    left_s = context.get_remaining_time_in_millis() / 1000 - _RETURN_S
    lease = replace(lease, deadline_s=min(lease.deadline_s, time.time() + left_s))
    return asdict(serve(lease, request_id=context.aws_request_id))


def serve_http(request: Any) -> dict[str, Any]:
    """Serve the lease in the body of a request, which has to be one of Flask; returns what was done."""
    return asdict(serve(Lease.from_json(request.get_data(cache=False)), fresh=False))
