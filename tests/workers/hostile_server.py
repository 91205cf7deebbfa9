"""A hostile graph server: it holds the token of its lease, and names files and memory of the host."""

import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np
from stub_tasks import LONG_S, SETUP

from siafu import __version__
from siafu.wire.handshake import authenticate
from siafu.workers.connection import ConnectionLost, FrameConnection
from siafu.workers.lease import Lease
from siafu.workers.task_frames import Frame, FrameKind

TOKEN = "ab" * 32
Head = dict[str, Any]


def task(**more: Any) -> Head:
    return {"key": [0, 0, 0, 0], "version": 0, "training": True, **more}


def attacks(secret: str, script: str) -> dict[str, tuple[Head, Head]]:
    """Additions to the SETUP frame, and a task: with paths as in an old protocol, or memory never handed over."""
    place = [0, 0, "uint8", [6, 1]]
    return {
        "a segment by its path": (
            {"segments": [secret]},
            task(shared={"rows/x": place}, into=[1, script, 64]),
        ),
        "a path as the number": ({}, task(shared={"rows/x": [secret, *place[1:]]}, slot=script)),
        "a number never handed over": ({}, task(shared={"rows/x": place}, slot=1)),
        "a slot by its path": ({}, task(slot=[1, script, 64])),
        "a slot never handed over": ({}, task(slot=1)),
        "a descriptor of its own": ({}, task(shared={"rows/x": [2, 0, "uint8", [1]]})),
    }


class HostileServer:
    """Listens on this host, and attacks each worker that connects. ``frames`` are the worker's, without heartbeats."""

    def __init__(self, setup: Head, task: Head) -> None:
        self.setup, self.task = setup, task
        self.frames: list[Frame] = []
        self.said = b""
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    @property
    def port(self) -> int:
        return int(self._listener.getsockname()[1])

    def lease(self, **changes: Any) -> Lease:
        given = {"token": TOKEN, "deadline_s": time.time() + LONG_S, **changes}
        return Lease("run", "worker-1", "127.0.0.1", self.port, **given)

    def close(self) -> None:
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._thread.join(LONG_S)
        self._listener.close()

    def _run(self) -> None:
        with suppress(OSError):
            sock, _ = self._listener.accept()
            self.attack(sock, lambda: None)

    def attack(self, sock: socket.socket, before: Callable[[], None]) -> None:
        until_s = time.monotonic() + LONG_S
        authenticate(sock, TOKEN.encode(), {"version": __version__}, listening=True, until=until_s)
        connection = FrameConnection(sock)
        with suppress(ConnectionLost):
            connection.send(FrameKind.SETUP, {"setup": SETUP.to_json(), "worker": "worker-1", **self.setup})
            self._receive(connection, FrameKind.READY)
            before()
            arrays = {"rows/row_id": np.arange(6), "weights/layers.0.weight": np.ones((4, 3), np.float32)}
            connection.send(FrameKind.TASK, self.task, arrays)
            self._receive(connection, FrameKind.CLOSE)
        connection.close()

    def _receive(self, connection: FrameConnection, last: FrameKind) -> None:
        while not self.frames or self.frames[-1].kind != last:
            frame = connection.receive(silence_s=LONG_S)
            if frame.kind != FrameKind.HEARTBEAT:
                self.frames.append(frame)
