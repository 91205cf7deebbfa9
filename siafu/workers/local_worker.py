"""Workers in this process: threads that take tasks from the queue and compute them. They know no connection."""

import threading

from siafu.workers.task import ComputeFn
from siafu.workers.task_queue import TaskQueue


def run_tasks(tasks: TaskQueue, worker: str, compute: ComputeFn, *, fallback: bool = False) -> None:
    """Take and compute tasks until the queue is closed. A ``fallback`` worker gets the tasks that others gave up."""
    while (task := tasks.take(worker, fallback=fallback)) is not None:
        try:
            result = compute(task, tasks.weights(task.version))
        except Exception as error:
            tasks.fail(task.key, worker, f"{type(error).__name__}: {error}")
        else:
            tasks.commit(task.key, worker, result)


def start_fallback_thread(tasks: TaskQueue, compute: ComputeFn, *, worker: str = "local") -> threading.Thread:
    """Start the thread that computes tasks which two workers gave up. It ends when the queue is closed."""
    thread = threading.Thread(
        target=run_tasks,
        args=(tasks, worker, compute),
        kwargs={"fallback": True},
        name="siafu-local",
        daemon=True,
    )
    thread.start()
    return thread
