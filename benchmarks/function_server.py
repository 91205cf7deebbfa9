"""A function that is called by HTTP, in a process of its own: ``python benchmarks/function_server.py PORT``.

It answers as functions-framework does: each request is handed to ``siafu.workers.handler.serve_http``.
"""

import json
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from siafu.workers.handler import serve_http


class _Request:
    """The part of Flask's request that the function reads."""

    def __init__(self, headers: Any, body: bytes) -> None:
        self.headers, self._body, self.content_length = headers, body, len(body)

    def get_data(self, *, cache: bool) -> bytes:
        return self._body


class _Handler(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        try:
            said = serve_http(_Request(self.headers, body))
            answer, status = said if isinstance(said, tuple) else (said, 200)
        except Exception as error:
            status, answer = 500, {"error": str(error)}
        text = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *_: object) -> None:
        """Print nothing."""


if __name__ == "__main__":
    ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), _Handler).serve_forever()
