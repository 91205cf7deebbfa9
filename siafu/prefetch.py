"""Work done ahead, in a thread of its own, while what it made before is used."""

import queue
import threading
from collections.abc import Iterable, Iterator
from typing import TypeVar

import torch

T = TypeVar("T")


def prefetch(items: Iterable[T]) -> Iterator[T]:
    """The items, each made while the one before is used; an error is raised where its item would have come.

    Where the caller stops early, at most one item is made in vain.
    """
    made: queue.Queue[tuple[T | None, BaseException | None]] = queue.Queue(maxsize=1)
    wanted, over, threads = threading.Semaphore(0), threading.Event(), torch.get_num_threads()

    def make() -> None:
        torch.set_num_threads(threads)
        try:
            for item in items:
                made.put((item, None))
                wanted.acquire()
                if over.is_set():
                    return
            made.put((None, None))
        except BaseException as error:
            made.put((None, error))

    thread = threading.Thread(target=make, daemon=True, name="siafu ahead")
    thread.start()
    try:
        while True:
            item, error = made.get()
            if error is not None:
                raise error
            if item is None:
                return
            wanted.release()
            yield item
    finally:
        over.set()
        wanted.release()
