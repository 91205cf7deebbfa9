"""A race on the ranks of a run: candidates train in turn, and after each round the worse half is dropped.

Each candidate trains with the loop and the method of the run, so that the best one's checkpoint is the run's own. A
race that is interrupted goes on from the checkpoints of its candidates.
"""

import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from siafu.checksums import checksum
from siafu.comm import Comm
from siafu.config import Config, write_toml
from siafu.event_log import EventLog, NullEventLog
from siafu.methods import METHODS, RankContext, build_procedure
from siafu.recipes.plan import RacePlan, select, standard_error, survivors_of
from siafu.recipes.race_folder import RaceFolder
from siafu.run_folder import RunFolder
from siafu.training.loop import ENDS, PAUSED, DivergedError, Loop
from siafu.training.procedure import Callbacks, Monitor

MakeRank = Callable[[Config], RankContext]  # of the config of a candidate


class Standing(NamedTuple):
    """The standing of a candidate at the end of a round.

    Attributes:
        epoch: epochs trained.
        score: the best score on validation nodes so far, negated where lower is better; None: it diverged.
        error: the standard error of the score.
        bytes: sent so far by all ranks.
    """

    epoch: int
    score: float | None
    error: float = 0.0
    bytes: int = 0


@dataclass
class Race:
    """A race on one rank.

    Attributes:
        comm: the group.
        plan: the candidates and the rounds.
        context_for: makes what a candidate's procedure is built from.
        folder: the folder of the run's race on rank 0, else None.
        callbacks: of the run.
        write_start: writes the first event of a candidate's run.
    """

    comm: Comm
    plan: RacePlan
    context_for: MakeRank
    folder: RaceFolder | None
    callbacks: Callbacks
    write_start: Callable[[EventLog | NullEventLog, Loop, Config], None]
    _stopped: str = field(default="", init=False)

    def run(self) -> dict[str, Any]:
        """Run all rounds; returns the result, or the reason of a stop. Collective."""
        began_s = time.perf_counter()
        racing, rounds, sent = list(range(len(self.plan.candidates))), [], dict[int, int]()
        for until in self.plan.rounds:
            standings = {}
            for place in racing:
                standings[place] = standing = self._train(place, until)
                sent[place] = standing.bytes
                if self._stopped:
                    return {"finished": False, "stopped_by": self._stopped}
            rounds.append(self._describe(standings, until))
            racing = _survivors(standings)
            self._say(rounds[-1], racing)
        result = {
            "names": [each.name for each in self.plan.candidates],
            "chosen": racing[0],
            "rounds": rounds,
            "seconds": time.perf_counter() - began_s,
            "bytes": sum(sent.values()) - sent[racing[0]],
        }
        if self.folder is not None:
            self.folder.write_result(result)
        return {"finished": True, **result}

    def _train(self, place: int, until: int) -> Standing:
        """Train one candidate to the end of a round."""
        config = self.plan.candidates[place].config
        trained = config.model_copy(update={"method": METHODS[config.method].race_method})
        procedure = build_procedure(self.context_for(trained))
        procedure.sent.start_now()
        loop = Loop(procedure, config.train, run=checksum(write_toml(config)))
        own = None if self.folder is None else self.folder.candidate(place)
        if self._has_checkpoint(own):
            loop.resume(None if own is None else own.checkpoint)
        try:
            if loop.state.epoch < until and not loop.state.ended:
                self._fit(loop, config, own, until)
        except DivergedError:
            return Standing(loop.state.epoch, None, bytes=_bytes_of(loop))
        return _standing(loop)

    def _fit(self, loop: Loop, config: Config, own: RunFolder | None, until: int) -> None:
        callbacks = Callbacks(should_stop=self.callbacks.should_stop)
        with closing(NullEventLog() if own is None else EventLog(own.events)) as events:
            if own is not None:
                own.checkpoint.parent.mkdir(exist_ok=True)
            self.write_start(events, loop, config)
            monitor = Monitor(events, None if own is None else own.checkpoint, callbacks)
            reason = loop.fit(monitor, until=until)
        self._stopped = "" if reason in (*ENDS, PAUSED) else reason

    def _has_checkpoint(self, own: RunFolder | None) -> bool:
        """Ask rank 0 whether the candidate has a checkpoint."""
        text = None if own is None else "yes" if own.checkpoint.is_file() else "no"
        return self.comm.broadcast_text(text, label="control") == "yes"

    def _describe(self, standings: dict[int, Standing], until: int) -> dict[str, Any]:
        places = list(standings)
        return {
            "epoch": until,
            "places": places,
            "scores": [None if each.score is None else abs(each.score) for each in standings.values()],
        }

    def _say(self, of_round: dict[str, Any], survivors: list[int]) -> None:
        """Say how a round ended, here and in the event log of the run."""
        if self.folder is None:
            return
        names = [each.name for each in self.plan.candidates]
        scores = ", ".join(
            f"{names[place]} {'diverged' if score is None else format(score, '.4f')}"
            for place, score in zip(of_round["places"], of_round["scores"], strict=True)
        )
        left = " and ".join(names[place] for place in survivors)
        text = f"race, {of_round['epoch']} epochs: {scores} on validation nodes; left: {left}"
        with closing(EventLog(self.folder.run.events)) as events:
            events.write("note", text=text)
        self.callbacks.say(text)


def _standing(loop: Loop) -> Standing:
    """The standing of a candidate whose round is over."""
    task, score = loop.procedure.task, loop.state.best_score
    if score is None:
        return Standing(loop.state.epoch, None, bytes=_bytes_of(loop))
    error = standard_error(score, task.count["val"], is_share=task.higher_is_better)
    sign = 1 if task.higher_is_better else -1
    return Standing(loop.state.epoch, sign * score, error, _bytes_of(loop))


def _bytes_of(loop: Loop) -> int:
    return sum(loop.procedure.sent.update().values())


def _survivors(standings: dict[int, Standing]) -> list[int]:
    """The candidates that go on; if all diverged, the first half of them."""
    places = [place for place, each in standings.items() if each.score is not None] or list(standings)
    scores = [standings[place].score or 0.0 for place in places]
    errors = [standings[place].error for place in places]
    count = min(survivors_of(len(standings)), len(places))
    return [places[number] for number in select(scores, errors, count=count)]
