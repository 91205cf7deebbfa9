"""Training on snapshots: ranks own steps, transpose rows to node-major and back, and checkpoint gradients over time."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import psutil
import torch
from torch import Tensor

from siafu import native
from siafu.comm.config import CommConfig
from siafu.dynamic import change_of
from siafu.methods.snapshots.activity import ActivityCache
from siafu.methods.snapshots.build import Predictor
from siafu.methods.snapshots.config import SnapshotsConfig
from siafu.methods.snapshots.distributed_comm import DistributedTemporalComm
from siafu.methods.snapshots.labels import RowCollector, TemporalLabelTask
from siafu.methods.snapshots.links import TemporalLinkTask
from siafu.methods.snapshots.live import LossEvaluator, TuningPasses, fine_tune, restore_weights
from siafu.methods.snapshots.plan import plan_passes
from siafu.methods.snapshots.state_cache import StateCache
from siafu.methods.snapshots.task import SampleEvaluator, SampleResults, TemporalTask
from siafu.methods.snapshots.time_partition import SegmentPartition
from siafu.methods.snapshots.timeline import Timeline, select_nodes
from siafu.nn.dropout import mix
from siafu.nn.link import LinkHead
from siafu.nn.temporal import Span, checkpointed_backward
from siafu.nn.temporal import State as TemporalState
from siafu.nn.temporal.recurrent import Recurrent
from siafu.nn.temporal.temporal_comm import ActivityMask, SingleRankComm, TemporalComm
from siafu.sampling.permutation import KeyedPermutation
from siafu.training.adam import Adam, Group
from siafu.training.byte_counter import ByteCounter
from siafu.training.config import TrainConfig
from siafu.training.optimizer import DistributedOptimizer
from siafu.training.procedure import EpochPosition, EpochStats, Evaluation, Monitor, Procedure, State
from siafu.training.residuals import load_residuals, residuals_of


class PassReader(NamedTuple):
    """The parts of one pass over time on one rank.

    Attributes:
        comm: the communication of the pass.
        make_span: makes the span of a segment.
        own_steps: the numbers of the own steps of a segment.
    """

    comm: TemporalComm
    make_span: Callable[[int], Span]
    own_steps: Callable[[int], range]


class SnapshotsProcedure(Procedure):
    """Trains a temporal model on samples, each a step whose outputs predict something.

    Without a window, all samples are trained on together, in one pass over time an epoch. With a window, each sample is
    a pass of its own, and ``snapshots.batch`` of them make one step of the optimiser.
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
        self.score_untrained = isinstance(model.head, LinkHead) and model.head.memory_columns > 0
        self.timeline, self.snapshots, self._wire = timeline, snapshots, wire or CommConfig()
        self._plan = plan_passes(
            model.temporal, timeline, snapshots, train=task.samples["train"], ranks=task.comm.world_size
        )
        timeline.cache_bytes = self._plan.cache_bytes
        self._activity = ActivityCache(task.comm, timeline)
        self._peak_rss: dict[int, int] = {}  # of each segment, after its forward pass
        self._state_cache = StateCache(model.temporal)

    def begin(self, monitor: Monitor, *, epoch: int) -> None:
        """Write how much the graph changes from step to step."""
        native.map_large_arrays()  # so that memory is returned after each segment
        if self.comm.rank == 0 and not epoch:
            change = change_of(self.timeline.graph, life=self.timeline.life)
            monitor.events.write("change", **change._asdict())

    def after_epochs(self, epoch: int, monitor: Monitor) -> None:
        """Write the memory of the segments after the first epoch."""
        if epoch == 1:
            monitor.events.write("blocks", **self._segment_memory())

    def _segment_memory(self) -> dict[str, list[int]]:
        """Steps of each segment, its estimated bytes, and the memory of the process."""
        plan, rss = self._plan, [self._peak_rss[segment] for segment in sorted(self._peak_rss)]
        if plan.sample_parallel:
            return {"steps": plan.lengths, "rss_bytes": rss}
        planned = plan.memory.of_segments(plan.lengths)
        return {"steps": plan.lengths, "planned_bytes": planned, "rss_bytes": rss}

    def step(self, epochs: range, position: EpochPosition) -> list[EpochStats]:
        """Train one epoch, or the rest of it."""
        epoch, loss = epochs.start, position.loss
        self.model.train()
        self.optimizer.set_lr(epoch)
        batches = self._batches(epoch)
        for done, samples in enumerate(batches[position.minibatch :], position.minibatch + 1):
            self.optimizer.zero_grad()
            share = self._train_samples(samples, epoch)
            loss += self.optimizer.add_gradients(share)
            self.optimizer.step()
            if done < len(batches):
                position.advance(done, loss)
        return [EpochStats(loss / len(batches))]

    def state(self) -> State:
        """The residuals of this rank."""
        return State({}, residuals_of(None, self.optimizer))

    def load_state(self, state: State) -> None:
        """Restore the residuals."""
        load_residuals(None, self.optimizer, state.tensors)

    def _batches(self, epoch: int) -> list[list[int]]:
        """The samples of each optimiser step, in an order that depends on seed and epoch."""
        train = self.task.samples["train"]
        if not self._plan.window:
            return [list(train)]
        key = mix(mix(self.seed) ^ (epoch << 1))
        order = KeyedPermutation(len(train), key=key).at(torch.arange(len(train))).tolist()
        samples, size = [train[place] for place in order], self.snapshots.batch
        return [samples[start : start + size] for start in range(0, len(samples), size)]

    def _train_samples(self, samples: Sequence[int], epoch: int, task: TemporalTask | None = None) -> Tensor:
        """Add the gradients of the mean loss of some samples; returns this rank's share of the loss. Collective."""
        task = task or self.task
        total = torch.zeros((), dtype=torch.float64)
        for number, (segments, of_pass) in enumerate(self._plan.passes(samples)):
            reader = self._pass_reader(segments, number, training=True)
            if reader is None:
                continue

            def step_loss(
                segment: int,
                place: int,
                h: Tensor,
                of_pass: frozenset[int] = of_pass,
                reader: PassReader = reader,
            ) -> Tensor | None:
                step = reader.own_steps(segment)[place]
                if not place:
                    rss = psutil.Process().memory_info().rss
                    self._peak_rss[segment] = max(self._peak_rss.get(segment, 0), rss)
                if step not in of_pass:
                    return None
                return task.sample_loss(self.model.head, step, h, epoch=epoch) / len(samples)

            temporal = self.model.temporal
            total += checkpointed_backward(
                temporal,
                reader.make_span,
                step_loss,
                num_segments=len(segments),
                state=temporal.begin(self.timeline.graph.num_nodes, reader.comm),
                comm=reader.comm,
                known_states=self._state_cache.take(),
            )
        return total

    def _pass_reader(
        self, segments: list[SegmentPartition], number: int, *, training: bool
    ) -> PassReader | None:
        """Make the reader of a pass on this rank; None if another rank computes the pass alone."""
        if self._plan.sample_parallel:
            if number % self.comm.world_size != self.comm.rank:
                return None
            return self._single_step_reader(segments[-1].stop - 1)
        label = "rows" if training else "evaluate rows"
        comm = DistributedTemporalComm(self.comm, segments, precision=self._wire.precision, label=label)

        def own_steps(segment: int) -> range:
            return segments[segment].steps_of(self.comm.rank)

        def make_span(segment: int) -> Span:
            part, own = segments[segment], own_steps(segment)
            x, codes = self.timeline.inputs(own), self._activity_codes(part)
            x_nodes = self._node_major_inputs(part, comm, codes) if self._reads_node_major_inputs() else None
            mask = None
            if codes is not None and not self._activity.mostly_active(part):
                mask = ActivityMask(self.timeline.active(own), codes > 0)
            m = None if self.timeline.band is not None else self.timeline.aggregated_inputs(own)
            first = part.start - segments[0].start
            return Span(self.timeline.steps(own), part.steps[-1], first, x, x_nodes, m, activity=mask)

        return PassReader(comm, make_span, own_steps)

    def _activity_codes(self, segment: SegmentPartition) -> Tensor | None:
        """The activity codes of own nodes, if rows are transposed between ranks; else None. Collective."""
        transposed = any(isinstance(layer, Recurrent) for layer in self.model.temporal.layers)
        return self._activity.codes(segment) if transposed and self.comm.world_size > 1 else None

    def _node_major_inputs(
        self, segment: SegmentPartition, comm: TemporalComm, codes: Tensor | None
    ) -> list[Tensor]:
        """The inputs of each chunk of own nodes in all steps of a segment; degrees come from the activity codes."""
        if codes is not None and self.timeline.graph.x is None:
            return [self.timeline.inputs_from_codes(codes[:, chunk]) for chunk in comm.node_chunks]
        x = select_nodes(self.timeline.inputs(range(segment.start, segment.stop)), comm.own_nodes)
        if len(comm.node_chunks) == 1:
            return [x]
        return [x[..., chunk, :].contiguous() for chunk in comm.node_chunks]

    def _reads_node_major_inputs(self) -> bool:
        """True if the recurrence of the first layer reads the inputs too."""
        first = self.model.temporal.layers[0]
        return isinstance(first, Recurrent) and first.reads_inputs

    def _single_step_reader(self, sample: int) -> PassReader:
        """Make the reader of a pass whose last step alone is computed, by this rank."""
        own, comm = range(sample, sample + 1), SingleRankComm()
        window = self._plan.window
        comm.own_steps = slice(window, window + 1)

        def make_span(_: int) -> Span:
            line = self.timeline
            return Span(line.steps(own), window + 1, 0, line.inputs(own), m=line.aggregated_inputs(own))

        return PassReader(comm, make_span, lambda _: own)

    @torch.no_grad()
    def outputs(self) -> SampleResults:
        """The results of validation and test samples. Collective."""
        if isinstance(self.task, TemporalLinkTask) and self.task.config.live:
            return SampleResults(self._evaluate_live(self.task), {})
        return self._evaluate_splits(["val", "test"], rows=True)

    def _evaluate_live(self, task: TemporalLinkTask) -> Tensor:
        """The same with live updates: the model is fine-tuned before each sample, and restored in the end."""
        passes, adam = TuningPasses(self._tuning_step, self._sample_loss), self.optimizer.adam
        found = []
        with restore_weights(self.model):
            for split in ("val", "test"):
                for sample in task.samples[split]:
                    self.optimizer.adam = Adam([Group(list(self.model.parameters()))], lr=self.config.lr)
                    with torch.enable_grad():
                        fine_tune(self.model, task, sample - 1, passes, steps=task.config.live)
                    found.append(self._evaluate_samples([(split, sample)], task))
        self.optimizer.adam = adam
        return torch.cat(found)

    def _tuning_step(self, task: TemporalLinkTask, sample: int, step: int) -> None:
        """Make one step of the optimiser on one sample."""
        self.optimizer.zero_grad()
        self.optimizer.add_gradients(self._train_samples([sample], self.config.epochs + step, task))
        self.optimizer.step()

    @torch.no_grad()
    def _sample_loss(self, task: TemporalLinkTask, sample: int) -> float:
        return float(self._evaluate_samples([("", sample)], LossEvaluator(task))[0, 0])

    @torch.no_grad()
    def _evaluate_splits(
        self, splits: Sequence[str], *, rows: bool = False, cache_states: bool = False
    ) -> SampleResults:
        """The results of each sample of some splits, with ``rows`` also those of labelled rows. Collective."""
        requests = [(split, each) for split in splits for each in self.task.samples[split]]
        kept = RowCollector(self.task, splits) if rows and isinstance(self.task, TemporalLabelTask) else None
        counts = self._evaluate_samples(requests, self.task, cache_states=cache_states, kept=kept)
        return SampleResults(counts, {} if kept is None else kept.rows())

    def _evaluate_samples(
        self,
        requests: list[tuple[str, int]],
        evaluator: SampleEvaluator,
        *,
        cache_states: bool = False,
        kept: RowCollector | None = None,
    ) -> Tensor:
        """Evaluate some samples, each of a split: (samples, num_counts + 1). Collective.

        With ``cache_states`` (without a window), the states between segments are cached for the next epoch, which
        begins with the same weights. ``kept`` collects the labelled rows of own samples.
        """
        self.model.eval()
        place = {each: row for row, each in enumerate(requests)}
        splits = list(dict.fromkeys(split for split, _ in requests))
        found = torch.zeros(len(requests), evaluator.num_counts + 1, dtype=torch.float64)
        passes = self._plan.passes(sorted({sample for _, sample in requests}))
        for number, (segments, of_pass) in enumerate(passes):
            reader = self._pass_reader(segments, number, training=False)
            if reader is None:
                continue
            state = self.model.temporal.begin(self.timeline.graph.num_nodes, reader.comm)
            between = list[TemporalState]()
            for segment in range(len(segments)):
                if cache_states and 0 < segment < len(self._plan.lengths):
                    between.append(state)
                reader.comm.begin_segment(segment, "once")
                out, state = self.model.temporal(reader.make_span(segment), state, reader.comm)
                for row, step in enumerate(reader.own_steps(segment)):
                    for split in splits if step in of_pass else ():
                        if (split, step) in place:
                            counts = evaluator.evaluate_sample(self.model.head, step, out[row], split)
                            found[place[split, step]] = counts
                            if kept is not None:
                                kept.add(self.model.head, step, out[row], split)
            if cache_states:
                self._state_cache.store(between)
        return self.comm.all_reduce(found, label="scores")

    def evaluate(self, epoch: int) -> Evaluation:
        """Score the validation samples; the test samples are scored at the end."""
        if not self.task.count["val"]:
            return Evaluation({"val": None}, 0.0)
        cache_states = epoch < self.config.epochs and not self._plan.window
        found = self._evaluate_splits(["val"], rows=self.task.needs_rows, cache_states=cache_states)
        return Evaluation({"val": self.task.score(found, "val")}, float(found.counts[:, -1].mean()))
