"""Workers in this process: threads that take tasks and compute them. They know no connection."""

import threading
from collections.abc import Callable

from siafu.workers.task import Arrays, Result, Task
from siafu.workers.task_queue import Tasks


def work(tasks: Tasks, worker: str, do: Callable[[Task, Arrays], Result], *, local: bool = False) -> None:
    """Take tasks and do them, until there are none any more; ``local`` ones are those that two others gave up."""
    while (task := tasks.take(worker, local=local)) is not None:
        try:
            result = do(task, tasks.weights(task.version))
        except Exception as error:
            tasks.fail(task.key, worker, f"{type(error).__name__}: {error}")
        else:
            tasks.commit(task.key, worker, result)


def start_local(
    tasks: Tasks, do: Callable[[Task, Arrays], Result], *, worker: str = "local"
) -> threading.Thread:
    """A thread that does what two workers gave up. It ends when the tasks are closed."""
    thread = threading.Thread(
        target=work, args=(tasks, worker, do), kwargs={"local": True}, name="siafu-local", daemon=True
    )
    thread.start()
    return thread
