"""A server on this machine that publishes small archives, for tests of downloads."""

from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import pytest


class Server:
    """Publishes ``files`` by name; ``lie`` is how many bytes more it promises than it sends, or None."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.asked: list[str] = []
        self.lie: int | None = 0
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                name = self.path.removeprefix("/")
                server.asked.append(name)
                if name not in server.files:
                    self.send_error(404)
                    return
                self.send_response(200)
                if server.lie is not None:
                    self.send_header("Content-Length", str(len(server.files[name]) + server.lie))
                self.end_headers()
                self.wfile.write(server.files[name])

            def log_message(self, *_: object) -> None:
                pass

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._http.server_port}"
        self._thread = Thread(target=self._http.serve_forever, kwargs={"poll_interval": 0.01})
        self._thread.start()

    def close(self) -> None:
        self._http.shutdown()
        self._thread.join()
        self._http.server_close()


@pytest.fixture
def server() -> Iterator[Server]:
    running = Server()
    yield running
    running.close()
