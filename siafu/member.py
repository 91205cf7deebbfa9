"""What one rank does in a run: it trains on its part, and rank 0 writes what comes of it."""

import os
import statistics
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from siafu.comm import Comm
from siafu.comm.everyone import gather_texts
from siafu.comm.halo import Halo
from siafu.config import Settings
from siafu.cost import value
from siafu.dynamic import DynamicGraph
from siafu.events import Events, Progress, Unheard, silent
from siafu.files import make_folder
from siafu.folder import RunFolder
from siafu.graph import Block, Graph
from siafu.methods.lazy.bytes_sent import message_bytes, parameter_bytes
from siafu.methods.lazy.clients import ClientsTrainer, owners
from siafu.methods.lazy.frugal_clients import FrugalClients
from siafu.methods.lazy.frugal_trainer import FrugalTrainer
from siafu.methods.lazy.procedure import LazyTrainer
from siafu.methods.lazy.stage import build_staged
from siafu.methods.links import LinkTrainer, SampledLinkTrainer
from siafu.methods.pipeline.procedure import PipelineTrainer
from siafu.methods.sampled.procedure import SampledTrainer
from siafu.methods.snapshots.build import build_predictor, build_task, build_timeline
from siafu.methods.snapshots.links import LinkTask as LinksOverTime
from siafu.methods.snapshots.procedure import SnapshotsTrainer
from siafu.methods.snapshots.task import TemporalTask
from siafu.nn.embedded import Embedded, build_model
from siafu.nn.layer import Layer
from siafu.nn.link import build_linked, link_of
from siafu.nn.model import Gnn
from siafu.nn.norm import BatchNorm
from siafu.nn.streamed import Rows, Streamed
from siafu.partition.cut import Part
from siafu.results.machine import describe_machine, peak_rss_bytes, usable_cores, usable_memory_bytes
from siafu.results.trace import write_trace
from siafu.store.tensors import save_tensors
from siafu.trained import input_rows, room_of
from siafu.training.full import EpochListener, FullTrainer, Watch
from siafu.training.layerwise import Room
from siafu.training.link.split import split_edges
from siafu.training.link.task import LinkTask, link_task
from siafu.training.task import SPLITS, Task, task_of
from siafu.workers.crew import BILLED
from siafu.workers.signing import lease_key

ENDS = ("done", "patience")


def _nobody(*_: Any, **__: Any) -> None:
    """Listen to nothing."""


@dataclass(frozen=True)
class Onlooker:
    """Who follows a run from outside.

    Attributes:
        on_epoch: told of each epoch.
        should_stop: asked after each epoch for a reason to stop.
        progress: told how far a download is.
        say: told what begins, in a line.
        on_training: called before the first epoch; from then on ``should_stop`` is asked.
    """

    on_epoch: EpochListener = _nobody
    should_stop: Callable[[], str | None] = lambda: None
    progress: Progress = silent
    say: Callable[[str], None] = lambda _: None
    on_training: Callable[[], None] = lambda: None


@dataclass(frozen=True)
class Assignment:
    """What a rank is to do, known to all ranks alike.

    Attributes:
        tree: the settings.
        run: their checksum, which the run's checkpoint carries.
        edges: of the whole graph.
        resumed: whether the run was started before.
        checkpointed: whether rank 0 has a checkpoint to go on from.
        folder: of the run, which not every rank may see; None where nobody says.
        same_group: whether the checkpoint was written by these ranks, and not by some of them or by others.
    """

    tree: Settings
    run: str
    edges: int
    resumed: bool = False
    checkpointed: bool = False
    folder: Path | None = None
    same_group: bool = True


def build_trainer(
    comm: Comm, part: Part | DynamicGraph, tree: Settings, custom: nn.Module | None, *, scratch: Path
) -> FullTrainer:
    """The trainer of one rank's part; ``scratch`` is a folder for what does not fit into memory. Collective."""
    if isinstance(part, DynamicGraph):
        return _snapshots_trainer(comm, part, tree)
    if tree.task == "link":
        return _link_trainer(comm, part, tree, scratch=scratch)
    own, several = part.own, comm.world_size > 1
    x, task = input_rows(own, tree, scratch=scratch), task_of(own, tree.train, comm)
    halo = Halo(comm, part.route, num_own=own.num_nodes, precision=tree.comm.precision) if several else None
    block = part.block(halo, narrow=tree.comm.narrow)
    if isinstance(x, Streamed):
        block = replace(block, spill=x.spill)
    if custom is not None:
        if tree.method != "full":
            raise ValueError(
                f"method {tree.method} trains siafu's own models; use method full for a module of your own"
            )
        _check_custom(custom, x, own.name, several=several)
        for value in custom.state_dict().values():  # each process may have made its own
            value.copy_(comm.broadcast(value, label="weights"))
        return FullTrainer(custom, block, x, task, tree.train, seed=tree.seed, wire=tree.comm)
    if tree.method == "lazy":
        return _lazy_trainer(part, block, x, task, tree)
    model = build_model(
        tree.model, in_features=x.shape[1], out_features=task.num_outputs, num_nodes=part.num_nodes
    )
    model.reset(torch.Generator().manual_seed(tree.seed))
    if tree.method == "full":
        return FullTrainer(model, block, x, task, tree.train, seed=tree.seed, wire=tree.comm)
    if not isinstance(model, Gnn):
        raise ValueError(
            f"{own.name}: method {tree.method} reads features, but there are none; use method full"
        )
    if tree.method == "pipeline":
        check_pipeline(tree)
        return PipelineTrainer(
            model,
            block,
            x,
            task,
            tree.train,
            pipeline=tree.pipeline,
            route=part.route,
            seed=tree.seed,
            wire=tree.comm,
            cores=usable_cores(),
            folder=scratch if tree.pipeline.workers not in ("inline", "threads") else None,
        )
    if several and tree.model.norm == "batch":
        raise ValueError(
            "model.norm is batch, whose moments in a minibatch would be each rank's own; set it to layer, or train "
            "on one rank"
        )
    room = _room(comm, part, model, x, tree, scratch)
    return SampledTrainer(model, part, block, x, task, tree.train, **_minibatches(tree), room=room)


def _minibatches(tree: Settings) -> dict[str, Any]:
    """How minibatches are made and learned from."""
    return {"sampled": tree.sampled, "seed": tree.seed, "wire": tree.comm}


def _snapshots_trainer(comm: Comm, graph: DynamicGraph, tree: Settings) -> SnapshotsTrainer:
    timeline = build_timeline(graph, tree.snapshots, tree.model)
    task = build_task(graph, tree.asked, comm)
    model = build_predictor(
        tree.model, tree.link, task=tree.task, in_features=timeline.in_features, out_features=task.num_outputs
    )
    model.reset(torch.Generator().manual_seed(tree.seed))
    return SnapshotsTrainer(
        model, timeline, task, tree.train, snapshots=tree.snapshots, seed=tree.seed, wire=tree.comm
    )


def _link_trainer(
    comm: Comm, part: Part, tree: Settings, *, scratch: Path
) -> LinkTrainer | SampledLinkTrainer:
    split = split_edges(part.own, shares=tree.link.split, fold=tree.data.fold)
    part = replace(part, own=split.graph)
    own = part.own
    x = input_rows(own, tree, scratch=scratch)
    block = part.block(None, narrow=tree.comm.narrow)
    if isinstance(x, Streamed):
        block = replace(block, spill=x.spill)
    model = build_linked(
        tree.model,
        in_features=x.shape[1],
        num_nodes=part.num_nodes,
        kind=tree.link.static_head,
        hidden=tree.link.width or tree.model.hidden,
    )
    model.reset(torch.Generator().manual_seed(tree.seed))
    how: dict[str, Any] = {"config": tree.train, "link": tree.link, "seed": tree.seed, "fold": tree.data.fold}
    task = link_task(own, split, link_of(model), **how, comm=comm)
    if tree.method == "full":
        return LinkTrainer(model, block, x, task, tree.train, seed=tree.seed, wire=tree.comm)
    room = _room(comm, part, model, x, tree, scratch)
    return SampledLinkTrainer(model, part, block, x, task, tree.train, **_minibatches(tree), room=room)


def _lazy_trainer(
    part: Part, block: Block, x: Rows, task: Task, tree: Settings
) -> LazyTrainer | FrugalTrainer:
    if not x.shape[1]:
        raise ValueError(f"{part.own.name}: method lazy reads features, but there are none; use method full")
    if tree.comm.precision != "fp32":
        raise ValueError(
            f"comm.precision is {tree.comm.precision}, but method lazy sends rows as lazy.bits says; set that instead"
        )
    if tree.lazy.clients != "none" and not isinstance(x, Streamed):
        return _clients_trainer(part, block, x, task, tree)
    if tree.lazy.recipe == "frugal":
        features = tree.lazy.features
        return FrugalTrainer(
            part, block, x, task, tree.train, seed=tree.seed, wire=tree.comm, features=features
        )
    if isinstance(x, Streamed):
        raise ValueError("method lazy holds what a stage reads in memory; set data.inputs to memory")
    model = build_staged(tree.model, tree.lazy, in_features=x.shape[1], out_features=task.num_outputs)
    model.reset(torch.Generator().manual_seed(tree.seed))
    return LazyTrainer(
        model, part, block, x, task, tree.train, lazy=tree.lazy, seed=tree.seed, wire=tree.comm
    )


def _clients_trainer(
    part: Part, block: Block, x: Tensor, task: Task, tree: Settings
) -> ClientsTrainer | FrugalClients:
    owner = owners(part.own, tree.lazy.clients, by=tree.partition.by, ranks=tree.ranks)
    if tree.lazy.recipe == "frugal":
        return FrugalClients(
            part, block, x, task, tree.train, lazy=tree.lazy, seed=tree.seed, wire=tree.comm, owner=owner
        )
    model = build_staged(tree.model, tree.lazy, in_features=x.shape[1], out_features=task.num_outputs)
    model.reset(torch.Generator().manual_seed(tree.seed))
    return ClientsTrainer(
        model, part, block, x, task, tree.train, lazy=tree.lazy, seed=tree.seed, wire=tree.comm, owner=owner
    )


def check_pipeline(tree: Settings) -> None:
    """Refuse settings with which method pipeline cannot train, among them a missing key of leases."""
    if tree.pipeline.workers in BILLED:
        lease_key(os.environ, tree.pipeline.lease_key_file)  # or it says what to do
    if tree.model.norm == "batch":
        raise ValueError(
            "model.norm is batch, which is not row by row, so that no worker could do it; set it to layer, or use "
            "method full"
        )
    if tree.comm.gradients != "fp32":
        raise ValueError(
            f"comm.gradients is {tree.comm.gradients}, but method pipeline adds gradients up exactly; set it to fp32"
        )


def _room(
    comm: Comm, part: Part, model: Gnn | Embedded, x: Rows, tree: Settings, scratch: Path
) -> Room | None:
    """Where activations of all nodes lie while they are scored; None where they fit into memory. Collective."""
    layers = [layer for layer in model.layers if isinstance(layer, Layer)]
    widest = max(max(layer.z_features, layer.out_features) for layer in layers)
    needed = 3 * 4 * part.num_nodes * widest  # what a layer reads, what it aggregates, what it writes
    large = isinstance(x, Streamed) or needed > usable_memory_bytes() / 2
    anyone = int(comm.all_reduce(torch.tensor([int(large)]), label="control"))
    return room_of(tree, scratch=scratch) if anyone else None


def _check_custom(custom: nn.Module, x: Rows, name: str, *, several: bool) -> None:
    if isinstance(x, Streamed):
        raise ValueError("your module reads all inputs at once, but data.inputs is stream; set it to memory")
    if not x.shape[1]:
        raise ValueError(f"{name}: no features for your module to read; give x")
    for module in custom.modules():
        if (
            several
            and isinstance(module, nn.modules.batchnorm._BatchNorm)
            and not isinstance(module, BatchNorm)
        ):
            raise ValueError(
                f"your module has a {type(module).__name__}, which knows the rows of one rank alone; use "
                "siafu.nn.norm.BatchNorm, called with (rows, block), or train on one rank"
            )


def carry_out(
    comm: Comm,
    part: Part | DynamicGraph,
    to_do: Assignment,
    *,
    folder: RunFolder | None,
    onlooker: Onlooker,
    custom: nn.Module | None = None,
) -> tuple[dict[str, Any], nn.Module | None]:
    """Train to the end, or to where somebody stops it; returns what was measured, and the model if it was the end.

    ``folder`` is that of the run on rank 0, None on others. Collective.
    """
    with scratch_folder(to_do, folder) as scratch:
        trainer = build_trainer(comm, part, to_do.tree, custom, scratch=scratch)
        trainer.done.run = to_do.run
        if to_do.checkpointed:
            trainer.resume(None if folder is None else folder.checkpoint, own=to_do.same_group)
        try:
            with closing(Unheard() if folder is None else Events(folder.events)) as events:
                found = _carry_out(trainer, part, to_do, events, folder, onlooker)
        except OSError as error:
            if folder is not None:
                error.filename = error.filename or str(folder.events)  # a failed write does not say where
            raise
    return found, trainer.model if found["finished"] else None


@contextmanager
def scratch_folder(to_do: Assignment, folder: RunFolder | None) -> Iterator[Path]:
    """The run's folder where this rank sees it, else a new one that its user alone may enter and that does not stay."""
    if folder is not None:
        yield folder.path
    elif to_do.folder is not None and _is_of_run(to_do.folder, to_do.run):
        yield to_do.folder
    else:
        with tempfile.TemporaryDirectory(prefix="siafu-run-") as private:
            yield Path(private)


def _is_of_run(path: Path, run: str) -> bool:
    """Whether a folder holds that run and is our user's own: another host may have one of the same name."""
    try:
        return path.stat().st_uid == os.geteuid() and RunFolder(path).config_checksum() == run
    except (OSError, ValueError):
        return False


def _carry_out(
    trainer: FullTrainer,
    part: Part | DynamicGraph,
    to_do: Assignment,
    events: Events | Unheard,
    folder: RunFolder | None,
    onlooker: Onlooker,
) -> dict[str, Any]:
    _begin(events, trainer, part, to_do)
    checkpoint = None
    if folder is not None:
        checkpoint = folder.checkpoint
        make_folder(checkpoint.parent)
    onlooker.on_training()
    reason = trainer.train(Watch(events, checkpoint, onlooker.should_stop, onlooker.on_epoch, onlooker.say))
    events.flush()
    if isinstance(trainer, PipelineTrainer) and folder is not None:
        write_trace(folder.events, folder.trace)
    out = trainer.outputs()
    scores = {split: trainer.task.scores(out, split) for split in SPLITS}
    if reason in ENDS:
        _write_result(trainer, part, events, out, scores)
        if folder is not None:
            shape = {
                "in_features": trainer.x_src.shape[1],
                "out_features": trainer.task.num_outputs,
                "num_nodes": 0 if trainer.x_src.shape[1] else part.num_nodes,
            }
            save_tensors(folder.weights, trainer.model.state_dict(), shape)
    return _measure(trainer, to_do.tree, scores) | {"finished": reason in ENDS, "stopped_by": reason}


def _begin(
    events: Events | Unheard, trainer: FullTrainer, part: Part | DynamicGraph, to_do: Assignment
) -> None:
    if not trainer.done.epoch:
        about = {"name": _of(part).name, "nodes": part.num_nodes, "edges": to_do.edges}
        about |= {"features": trainer.x_src.shape[1], "outputs": trainer.task.num_outputs}
        events.write("start", config=to_do.tree.model_dump(), graph=about, machine=describe_machine())
    if to_do.resumed:
        done = trainer.done
        events.write("resume", epoch=done.epoch, **({"minibatch": done.minibatch} if done.minibatch else {}))


def _of(part: Part | DynamicGraph) -> Graph | DynamicGraph:
    """The graph that a rank has something of."""
    return part if isinstance(part, DynamicGraph) else part.own


def _write_result(
    trainer: FullTrainer,
    part: Part | DynamicGraph,
    events: Events | Unheard,
    out: Tensor,
    scores: dict[str, dict[str, float | None]],
) -> None:
    task = trainer.task
    fields: dict[str, Any] = {f"{split}_scores": of for split, of in scores.items()}
    if task.kind in ("class", "edge") and task.count["test"]:
        fields["confusion"] = task.confusion(out, "test").tolist()
        fields["class_names"] = list(_of(part).class_names or map(str, range(task.num_outputs)))
    events.write("result", best_epoch=trainer.done.best_epoch, **fields)
    if isinstance(task, TemporalTask):
        events.write("samples", **task.by_sample(out))


def _measure(
    trainer: FullTrainer, tree: Settings, scores: dict[str, dict[str, float | None]]
) -> dict[str, Any]:
    """The object that ``--json`` prints, but for the run's folder. Collective."""
    task, done = trainer.task, trainer.done
    found: dict[str, Any] = {"metric": task.metric}
    for split, of in scores.items():
        found |= {f"{split}_{name}": value for name, value in of.items()}
        found[f"{split}_score"] = of[task.metric]
    peaks = gather_texts(trainer.comm, str(max(done.peak_rss_bytes, peak_rss_bytes())), label="control")
    sent = trainer.count_bytes()
    return found | {
        "epochs": done.epoch,
        "best_epoch": done.best_epoch,
        "seconds": done.seconds,
        "epoch_seconds": statistics.median(done.epoch_seconds or [0.0]),
        "bytes_sent": sum(sent.values()),
        "bytes_by_label": sent,
        "peak_rss_bytes": max(map(int, peaks)),
        "task": task.kind,
        "method": tree.method,
        "model": tree.model.kind,
        "engine": tree.engine,
        "ranks": tree.ranks,
        "seed": tree.seed,
        **_of_method(trainer),
    }


def _of_method(trainer: FullTrainer) -> dict[str, Any]:
    """What one method or task alone measures."""
    done = trainer.done
    if isinstance(trainer.task, LinkTask):
        return {"protocol": trainer.task.link.protocol, **_of_sampled(trainer)}
    if isinstance(trainer.task, LinksOverTime):
        return {"protocol": trainer.task.config.protocol}
    if isinstance(trainer, SampledTrainer):
        return _of_sampled(trainer)
    if isinstance(trainer, PipelineTrainer):
        worth = value(done.seconds, done.dollars)
        counts = {"tasks": done.tasks, "tasks_relaunched": done.tasks_relaunched}
        return {"dollars": done.dollars, "value": worth, **counts}
    if isinstance(trainer, LazyTrainer | FrugalTrainer):
        sent = done.bytes_by_label
        counts = {"message_bytes": message_bytes(sent), "parameter_bytes": parameter_bytes(sent)}
        if isinstance(trainer, ClientsTrainer | FrugalClients):
            counts |= trainer.clients()
        return {**counts, "stage": trainer.stage, "stages": trainer.bytes_by_stage()}
    return {}


def _of_sampled(trainer: FullTrainer) -> dict[str, Any]:
    if not isinstance(trainer, SampledTrainer):
        return {}
    return {f"{what}_seconds": spent for what, spent in trainer.spent.items()}
