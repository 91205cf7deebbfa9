"""Training on snapshots: ranks own steps, turn rows to nodes and back, and keep little between blocks of time."""

from collections.abc import Callable, Sequence
from typing import Any

import psutil
import torch
from torch import Tensor

from siafu import native
from siafu.comm.config import CommConfig
from siafu.dynamic import change_of
from siafu.methods.snapshots.activity import Marks
from siafu.methods.snapshots.build import Predictor
from siafu.methods.snapshots.config import SnapshotsConfig
from siafu.methods.snapshots.distributed_comm import RankTurn
from siafu.methods.snapshots.links import LinkTask
from siafu.methods.snapshots.live import Losses, Passes, restored, tune
from siafu.methods.snapshots.plan import plan_passes
from siafu.methods.snapshots.state_cache import Known
from siafu.methods.snapshots.task import Judge, TemporalTask
from siafu.methods.snapshots.time_partition import Cut
from siafu.methods.snapshots.timeline import Timeline, stacked
from siafu.nn.dropout import mix
from siafu.nn.link import LinkHead
from siafu.nn.temporal import Span, checkpointed_backward
from siafu.nn.temporal import State as TemporalState
from siafu.nn.temporal.recurrent import Recurrent
from siafu.nn.temporal.temporal_comm import Alone, Busy, Turn
from siafu.sampling.permutation import KeyedPermutation
from siafu.training.adam import Adam, Group
from siafu.training.byte_counter import ByteCounter
from siafu.training.config import TrainConfig
from siafu.training.optimizer import DistributedOptimizer
from siafu.training.procedure import EpochPosition, EpochStats, Evaluation, Monitor, Procedure, State
from siafu.training.residuals import load_residuals, residuals_of


class SnapshotsProcedure(Procedure):
    """Trains a model over time on samples, each a step whose rows predict something.

    Samples that see all steps before them are learned from together, in one pass over time an epoch. Samples that see a
    window are passes of their own, some of which make a step of the optimiser.
    """

    model: Predictor
    task: TemporalTask

    def __init__(
        self,
        model: Predictor,
        timeline: Timeline,
        task: TemporalTask,
        config: TrainConfig,
        *,
        snapshots: SnapshotsConfig,
        seed: int,
        wire: CommConfig | None = None,
    ) -> None:
        self.model, self.task, self.comm, self.config, self.seed = model, task, task.comm, config, seed
        self.in_features = timeline.in_features
        self.optimizer = DistributedOptimizer(model, config, task.comm, wire=wire)
        self.sent = ByteCounter(task.comm)
        self.score_untrained = isinstance(model.head, LinkHead) and model.head.recencies > 0
        self.timeline, self.snapshots, self._wire = timeline, snapshots, wire or CommConfig()
        self._plan = plan_passes(
            model.temporal, timeline, snapshots, train=task.samples["train"], ranks=task.comm.world_size
        )
        timeline.keep_bytes = self._plan.keep_bytes
        self._marks = Marks(task.comm, timeline)
        self._held: dict[int, int] = {}  # RSS when a block of time had gone forward, the most
        self._known = Known(model.temporal)

    def begin(self, monitor: Monitor, *, epoch: int) -> None:
        """Write how much the graph changes from step to step."""
        native.map_large_arrays()  # which die block by block
        if self.comm.rank == 0 and not epoch:
            change = change_of(self.timeline.graph, life=self.timeline.life)
            monitor.events.write("change", **change._asdict())

    def after_epochs(self, epoch: int, monitor: Monitor) -> None:
        """Write the memory of the blocks of time after the first epoch."""
        if epoch == 1:
            monitor.events.write("blocks", **self._of_blocks())

    def _of_blocks(self) -> dict[str, list[int]]:
        """Steps of each block of time, the bytes it was to take, and what the process held."""
        plan, held = self._plan, [self._held[block] for block in sorted(self._held)]
        if plan.last_alone:
            return {"steps": plan.lengths, "rss_bytes": held}
        planned = plan.need.of_blocks(plan.lengths)
        return {"steps": plan.lengths, "planned_bytes": planned, "rss_bytes": held}

    def step(self, epochs: range, position: EpochPosition) -> list[EpochStats]:
        """Train one epoch, or the rest of it."""
        epoch, loss = epochs.start, position.loss
        self.model.train()
        self.optimizer.set_lr(epoch)
        batches = self._batches(epoch)
        for done, samples in enumerate(batches[position.minibatch :], position.minibatch + 1):
            self.optimizer.zero_grad()
            share = self._learned(samples, epoch)
            loss += self.optimizer.add_gradients(share)
            self.optimizer.step()
            if done < len(batches):
                position.advance(done, loss)
        return [EpochStats(loss / len(batches))]

    def state(self) -> State:
        """The residuals of this rank."""
        return State({}, residuals_of(None, self.optimizer))

    def load_state(self, state: State) -> None:
        """Take residuals back."""
        load_residuals(None, self.optimizer, state.tensors)

    def _batches(self, epoch: int) -> list[list[int]]:
        """The samples of each step of the optimiser, in an order that the seed and the epoch give."""
        train = self.task.samples["train"]
        if not self._plan.window:
            return [list(train)]
        key = mix(mix(self.seed) ^ (epoch << 1))
        order = KeyedPermutation(len(train), key=key).at(torch.arange(len(train))).tolist()
        samples, size = [train[place] for place in order], self.snapshots.batch
        return [samples[start : start + size] for start in range(0, len(samples), size)]

    def _learned(self, samples: Sequence[int], epoch: int, task: TemporalTask | None = None) -> Tensor:
        """Add the gradients of the mean loss of some samples to what is there; returns the share of it. Collective."""
        task = task or self.task
        total = torch.zeros((), dtype=torch.float64)
        for number, (cuts, of) in enumerate(self._plan.passes(samples)):
            reader = self._reader(cuts, number, learning=True)
            if reader is None:
                continue
            turn, span_of, numbers_of = reader

            def loss_of(
                block: int, place: int, h: Tensor, of: frozenset[int] = of, numbers_of: Any = numbers_of
            ) -> Tensor | None:
                step = numbers_of(block)[place]
                if not place:
                    self._held[block] = max(self._held.get(block, 0), psutil.Process().memory_info().rss)
                if step not in of:
                    return None
                return task.loss_of(self.model.head, step, h, epoch=epoch) / len(samples)

            temporal = self.model.temporal
            total += checkpointed_backward(
                temporal,
                span_of,
                loss_of,
                num_segments=len(cuts),
                state=temporal.begin(self.timeline.graph.num_nodes, turn),
                turn=turn,
                known=self._known.taken(),
            )
        return total

    def _reader(
        self, cuts: list[Cut], number: int, *, learning: bool
    ) -> tuple[Turn, Callable[[int], Span], Callable[[int], range]] | None:
        """How this rank reads the blocks of a pass: its turn, the span of a block and the numbers of its own steps.

        None where the pass is another rank's alone, because only its last step is read.
        """
        if self._plan.last_alone:
            if number % self.comm.world_size != self.comm.rank:
                return None
            return self._last_alone(cuts[-1].stop - 1)
        label = "rows" if learning else "evaluate rows"
        turn: RankTurn | Alone = RankTurn(self.comm, cuts, precision=self._wire.precision, label=label)

        def numbers_of(block: int) -> range:
            return cuts[block].steps_of(self.comm.rank)

        def span_of(block: int) -> Span:
            cut, own = cuts[block], numbers_of(block)
            x, marks = self.timeline.inputs(own), self._marks_of(cut)
            x_nodes = self._inputs_by_nodes(cut, turn, marks) if self._reads_by_nodes() else None
            busy = None
            if marks is not None and not self._marks.few_idle(cut):
                busy = Busy(self.timeline.busy(own), marks > 0)
            m = None if self.timeline.band is not None else self.timeline.aggregated(own)
            first = cut.start - cuts[0].start
            return Span(self.timeline.steps(own), cut.steps[-1], first, x, x_nodes, m, busy=busy)

        return turn, span_of, numbers_of

    def _marks_of(self, cut: Cut) -> Tensor | None:
        """What is to be known of own nodes where rows are turned from steps to nodes for others. Collective."""
        turned = any(isinstance(layer, Recurrent) for layer in self.model.temporal.layers)
        return self._marks.of(cut) if turned and self.comm.world_size > 1 else None

    def _inputs_by_nodes(self, cut: Cut, turn: Turn, marks: Tensor | None) -> list[Tensor]:
        """The inputs of each piece of own nodes in all steps of a block; degrees are told by who owns the steps."""
        if marks is not None and self.timeline.graph.x is None:
            return [self.timeline.marked(marks[:, piece]) for piece in turn.pieces]
        x = stacked(self.timeline.inputs(range(cut.start, cut.stop)), turn.own_nodes)
        return [x[..., piece, :].contiguous() for piece in turn.pieces] if len(turn.pieces) > 1 else [x]

    def _reads_by_nodes(self) -> bool:
        """Whether the part along time of the first layer reads the inputs too."""
        first = self.model.temporal.layers[0]
        return isinstance(first, Recurrent) and first.reads_inputs

    def _last_alone(self, sample: int) -> tuple[Turn, Callable[[int], Span], Callable[[int], range]]:
        own, turn = range(sample, sample + 1), Alone()
        window = self._plan.window
        turn.own_steps = slice(window, window + 1)

        def span_of(_: int) -> Span:
            line = self.timeline
            return Span(line.steps(own), window + 1, 0, line.inputs(own), m=line.aggregated(own))

        return turn, span_of, lambda _: own

    @torch.no_grad()
    def outputs(self) -> Tensor:
        """What adds up to the scores of each validation and test sample, a row each. Collective."""
        if isinstance(self.task, LinkTask) and self.task.config.live:
            return self._judged_live(self.task)
        return self._judged(["val", "test"])

    def _judged_live(self, task: LinkTask) -> Tensor:
        """The same, where links are learned as they become known; the weights are those before, in the end."""
        passes, adam = Passes(self._tuned, self._loss_of), self.optimizer.adam
        found = []
        with restored(self.model):
            for split in ("val", "test"):
                for sample in task.samples[split]:
                    self.optimizer.adam = Adam([Group(list(self.model.parameters()))], lr=self.config.lr)
                    with torch.enable_grad():
                        tune(self.model, task, sample - 1, passes, steps=task.config.live)
                    found.append(self._told([(split, sample)], task))
        self.optimizer.adam = adam
        return torch.cat(found)

    def _tuned(self, task: LinkTask, sample: int, step: int) -> None:
        self.optimizer.zero_grad()
        self.optimizer.add_gradients(self._learned([sample], self.config.epochs + step, task))
        self.optimizer.step()

    @torch.no_grad()
    def _loss_of(self, task: LinkTask, sample: int) -> float:
        return float(self._told([("", sample)], Losses(task))[0, 0])

    @torch.no_grad()
    def _judged(self, splits: Sequence[str], *, keep: bool = False) -> Tensor:
        """What adds up to the scores, and the loss, of each sample of some splits: (samples, K + 1). Collective."""
        asked = [(split, each) for split in splits for each in self.task.samples[split]]
        return self._told(asked, self.task, keep=keep)

    def _told(self, asked: list[tuple[str, int]], task: Judge, *, keep: bool = False) -> Tensor:
        """What a task tells of some samples, each of a split: (samples, num_counts + 1). Collective.

        With ``keep``, where samples see all time, states between blocks are kept: the next epoch begins with the same.
        """
        self.model.eval()
        place = {each: row for row, each in enumerate(asked)}
        splits = list(dict.fromkeys(split for split, _ in asked))
        found = torch.zeros(len(asked), task.num_counts + 1, dtype=torch.float64)
        for number, (cuts, of) in enumerate(self._plan.passes(sorted({sample for _, sample in asked}))):
            reader = self._reader(cuts, number, learning=False)
            if reader is None:
                continue
            turn, span_of, numbers_of = reader
            state = self.model.temporal.begin(self.timeline.graph.num_nodes, turn)
            between = list[TemporalState]()
            for block in range(len(cuts)):
                if keep and 0 < block < len(self._plan.lengths):
                    between.append(state)
                turn.begin(block, "only")
                out, state = self.model.temporal(span_of(block), state, turn)
                for row, step in enumerate(numbers_of(block)):
                    for split in splits if step in of else ():
                        if (split, step) in place:
                            found[place[split, step]] = task.judged(self.model.head, step, out[row], split)
            if keep:
                self._known.keep(between)
        return self.comm.all_reduce(found, label="scores")

    def evaluate(self, epoch: int) -> Evaluation:
        """Score the validation samples; the test samples are scored at the end."""
        if not self.task.count["val"]:
            return Evaluation({"val": None}, 0.0)
        found = self._judged(["val"], keep=epoch < self.config.epochs and not self._plan.window)
        score = self.task.scores_of(found)[self.task.metric]
        return Evaluation({"val": score}, float(found[:, -1].mean()))
