"""Prefetch: make the next items of an iterator in a thread while the current one is used."""

import queue
import threading
from collections.abc import Iterable, Iterator
from typing import TypeVar

import torch

T = TypeVar("T")


def prefetch(items: Iterable[T]) -> Iterator[T]:
    """Yield the items; the next one is made in a thread while the caller uses the current one.

    An error in the thread is raised at the position of its item. If the caller stops early, at most one item is made
    for nothing.
    """
    ready: queue.Queue[tuple[T | None, BaseException | None]] = queue.Queue(maxsize=1)
    requests, stopped, threads = threading.Semaphore(0), threading.Event(), torch.get_num_threads()

    def produce() -> None:
        torch.set_num_threads(threads)
        try:
            for item in items:
                ready.put((item, None))
                requests.acquire()
                if stopped.is_set():
                    return
            ready.put((None, None))
        except BaseException as error:
            ready.put((None, error))

    thread = threading.Thread(target=produce, daemon=True, name="siafu prefetch")
    thread.start()
    try:
        while True:
            item, error = ready.get()
            if error is not None:
                raise error
            if item is None:
                return
            requests.release()
            yield item
    finally:
        stopped.set()
        requests.release()
