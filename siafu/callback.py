"""``Callback``, the base class of users' callbacks, and the ``Callbacks`` that call them during a run."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from siafu.config import Config
from siafu.event_log import Progress
from siafu.inference import Run
from siafu.training.procedure import Callbacks, EpochCallback

STOPPED = "callback"  # the reason in ``stopped_by``


class Callback:
    """Methods that training calls; override those that you need, and give instances as ``callbacks=[...]``.

        class Plot(siafu.Callback):
            def on_epoch_end(self, epoch, logs):
                print(epoch, logs["loss"], logs["val_score"])

        siafu.train(graph, callbacks=[Plot()])

    They are called in the process that called ``siafu.train``, for several ranks too; ranks in other processes may
    train some epochs more before they stop. With several seeds, members of an ensemble or a baseline, epochs begin at 1
    for each model that is trained. Epochs of the race of recipes are reported for the recipe that is chosen alone. An
    exception ends the run, which :func:`siafu.resume` continues. Engine ``ray`` reports no epochs.
    """

    def on_train_start(self, directory: Path, settings: Config) -> None:
        """Called once before the first epoch, with the folder of the run and its resolved settings.

        Where several recipes race, the settings are those of the first.
        """

    def on_epoch_end(self, epoch: int, logs: dict[str, Any]) -> None:
        """Called after each epoch; epochs count from 1.

        ``logs`` has ``epochs`` (the maximum number of epochs), ``loss``, ``val_score`` (None in epochs that are not
        scored), ``seconds``, and where the cost is metered ``dollars`` and ``value``.
        """

    def should_stop(self) -> bool:
        """Called after :meth:`on_epoch_end`; True stops the run after this epoch, as Ctrl-C does.

        The run then has a checkpoint and no scores, its metric ``stopped_by`` is ``callback``, and
        :func:`siafu.resume` continues it. To end training with the best weights so far, set ``patience`` instead.
        """
        return False

    def on_train_end(self, run: Run) -> None:
        """Called once after training, with what ``siafu.train`` returns; not if training fails."""


def functions_of(callbacks: Sequence[Callback] | Callback) -> Callbacks:
    """Return the functions that a run calls, which call each of ``callbacks``, or the one given, in turn."""
    callbacks = tuple(callbacks) if isinstance(callbacks, Iterable) else (callbacks,)
    wrong = next((each for each in callbacks if not isinstance(each, Callback)), None)
    if wrong is not None:
        raise ValueError(f"callbacks has {wrong!r}; expected instances of subclasses of siafu.Callback")
    stop = list[str]()

    def start(directory: Path, settings: Config) -> None:
        for each in callbacks:
            each.on_train_start(directory, settings)

    def end_epoch(epoch: int, total: int, **figures: Any) -> None:
        for each in callbacks:
            each.on_epoch_end(epoch, {"epochs": total, **figures})
        stop.extend(STOPPED for each in callbacks if each.should_stop())

    def end(run: Run) -> None:
        for each in callbacks:
            each.on_train_end(run)

    return Callbacks(end_epoch, lambda: next(iter(stop), None), on_start=start, on_end=end)


def with_epochs(callbacks: Callbacks, show: EpochCallback, *, progress: Progress) -> Callbacks:
    """Return callbacks that also show epochs and the progress of other work."""

    def end_epoch(epoch: int, total: int, **figures: Any) -> None:
        show(epoch, total, **figures)
        callbacks.on_epoch(epoch, total, **figures)

    return replace(callbacks, on_epoch=end_epoch, progress=progress)
