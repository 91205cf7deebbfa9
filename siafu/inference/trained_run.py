"""A run that came to its end: its model, opened again and asked. It trains nothing."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from numpy.typing import ArrayLike
from torch import Tensor, nn

from siafu import data
from siafu.config import Config, parse_toml
from siafu.data.pair_table import read_pairs
from siafu.dynamic import DynamicGraph
from siafu.event_log import Progress, no_progress
from siafu.graph import Block, Graph
from siafu.inference.export import check_out, write_pairs, write_predictions
from siafu.methods import METHODS
from siafu.methods.snapshots.build import Predictor, build_link_memory, build_timeline
from siafu.methods.snapshots.config import task_config_of
from siafu.methods.snapshots.labels import node_outputs
from siafu.methods.snapshots.last_step import last_step_embeddings
from siafu.methods.static import make_room
from siafu.nn.embedded import Embedded
from siafu.nn.link import LinkHead, get_link_head
from siafu.nn.model import Model
from siafu.nn.propagated import Propagated
from siafu.nn.staged import Staged
from siafu.nn.streamed import Rows, Streamed
from siafu.run_folder import RunFolder, existing_folder
from siafu.store.tensors import load_tensors
from siafu.training import inputs
from siafu.training.layerwise import Room, embeddings_by_layer, outputs_by_layer
from siafu.user_input import check_edges, read_edges

AnyGraph = Graph | DynamicGraph
_PAIRS_AT_ONCE = 1 << 18


@dataclass(frozen=True)
class Run:
    """A trained model and what became of it.

    Attributes:
        directory: where the run's files are.
        settings: what it was made with.
        metrics: what ``--json`` prints.
        model: the model with its best weights; None where the run was stopped before its end, or had several seeds.
        rank: which rank of a group this process is; 0 has the folder and speaks to the user.
    """

    directory: Path
    settings: Config
    metrics: dict[str, Any]
    model: nn.Module | None
    rank: int = 0

    @property
    def test_accuracy(self) -> float:
        """The share of test nodes whose class is right."""
        found = self.metrics.get("test_accuracy")
        if found is None:
            raise AttributeError(
                f"no test accuracy: this run measured {self.metrics['metric']}; see run.metrics"
            )
        return found


def load(
    source: str | Path,
    *,
    fold: int = 0,
    progress: Progress = no_progress,
    verify: bool = True,
    step: float | None = None,
    steps: int | None = None,
) -> Graph | DynamicGraph:
    """A graph by the name of a data set, or the path of a store or an ``.npz``; see :func:`siafu.data.load`."""
    home = data.data_home(os.environ)
    return data.load(source, fold=fold, home=home, progress=progress, verify=verify, step=step, steps=steps)


def load_static(
    source: str | Path, *, fold: int = 0, progress: Progress = no_progress, verify: bool = True
) -> Graph:
    """The same, of a graph that does not change over time."""
    return data.only_static(load(source, fold=fold, progress=progress, verify=verify))


def open_run(run: Path | str, *, model: nn.Module | None = None) -> Run:
    """A finished run, loaded again; ``model`` is needed where it was a module of your own."""
    folder = existing_folder(Path(run))
    if not folder.finished:
        raise ValueError(
            f'{folder.path}: this run has not ended; continue it with "siafu resume {folder.path}"'
        )
    tree, found = parse_toml(folder.read_config()), folder.read_metrics()
    if tree.seeds > 1:
        return Run(folder.path, tree, found, None)
    return Run(folder.path, tree, found, load_weights(folder, tree, model))


def predict(
    run: Run | Path | str,
    graph: AnyGraph | Path | str | None = None,
    *,
    embeddings: bool = False,
    out: Path | str | None = None,
    pairs: ArrayLike | Tensor | None = None,
) -> dict[str, Tensor]:
    """What a run's model says of a graph's nodes, in the user's order.

    ``run`` is a run or its folder; ``graph`` is a graph, what :func:`load` takes, or None for what the run trained on.
    Returns ``output`` (N, C), the model's bare output, and with ``embeddings`` also ``embedding`` (N, H). ``out`` is
    a Parquet or CSV file to write it to, with the ids, the class and the probabilities of each node. Of a run of task
    link the output is a row a node, and with ``pairs`` (2, P), rows of sources above those of targets, ``score`` (P,)
    tells how likely each is an edge, as a logit; messages pass over all edges of the graph. Of a graph that changes
    over time the last step is asked.
    """
    if out is not None:
        check_out(Path(out))
    run = run if isinstance(run, Run) else _opened(run)
    if run.model is None:
        raise ValueError(_without_model(run))
    graph = _graph_of(run, graph)
    found = _found(run, graph, embeddings=embeddings, pairs=pairs)
    if out is not None:
        write_predictions(Path(out), graph, found, kind=run.metrics["task"], names=run.settings.class_names)
    return found


def _opened(run: object) -> Run:
    if not isinstance(run, str | Path):
        raise ValueError(
            f"run is a {type(run).__name__}; expected what siafu.train returned, or a run's folder"
        )
    return open_run(run)


def _graph_of(run: Run, graph: object) -> AnyGraph:
    """The graph that was given, or whose name was."""
    if isinstance(graph, Graph | DynamicGraph):
        return graph
    if graph is not None and not isinstance(graph, str | Path):
        raise ValueError(
            f"graph is a {type(graph).__name__}; expected a siafu.Graph or siafu.DynamicGraph (see Graph.from_edges, "
            "Graph.from_pyg), or a name or path that siafu.load takes"
        )
    return source_graph(run, graph)


def _found(
    run: Run, graph: AnyGraph, *, embeddings: bool, pairs: ArrayLike | Tensor | None
) -> dict[str, Tensor]:
    _check_kind(run, graph)
    assert run.model is not None
    if isinstance(graph, DynamicGraph):
        return _of_last_step(run, graph, embeddings=embeddings, pairs=pairs)
    config = run.settings.data.model_copy(update={"reorder": "auto"})
    tree = run.settings.model_copy(update={"data": inputs.resolve(config, graph)})
    prepared = inputs.prepare(graph, tree.data)
    x = inputs.input_rows(prepared, tree.data, tree.model, scratch=run.directory)
    if isinstance(x, Streamed) and isinstance(run.model, Model):
        room = make_room(ranks=tree.ranks, budget_mb=tree.sampled.budget_mb, scratch=run.directory)
        found = _outputs_by_layer(run.model, prepared, x, embeddings=embeddings, room=room)
    else:
        found = _outputs(run.model, prepared.block.with_static(x), x, embeddings=embeddings, graph=graph)
    found = {name: inputs.in_user_order(rows, prepared) for name, rows in found.items()}
    if pairs is not None:
        found["score"] = score_pairs(run, graph, found["output"], pairs)
    return found


def _check_kind(run: Run, graph: AnyGraph) -> None:
    """Refuse a graph that changes over time to a model that knows no time, and the other way round."""
    changes = isinstance(graph, DynamicGraph)
    if changes != isinstance(run.model, Predictor):
        found, wanted = ("changes", "does not") if changes else ("does not change", "does")
        raise ValueError(
            f"{graph.name}: {found} over time, but the model was trained on a graph that {wanted}; give such a graph"
        )


@torch.no_grad()
def _of_last_step(
    run: Run, graph: DynamicGraph, *, embeddings: bool, pairs: ArrayLike | Tensor | None
) -> dict[str, Tensor]:
    """The same of a graph that changes over time, as it stands in its last step."""
    model, tree = run.model, run.settings
    assert isinstance(model, Predictor)
    timeline = build_timeline(graph, tree.snapshots, tree.model)
    _check_width(model.in_features, timeline.in_features, graph)
    h = last_step_embeddings(model.temporal, timeline, window=tree.snapshots.window or 0)
    found = {"output": h if isinstance(model.head, LinkHead) else node_outputs(model.head, h)}
    if embeddings:
        found["embedding"] = h
    if pairs is not None:
        if tree.task != "link" or not isinstance(model.head, LinkHead):
            raise ValueError(f"{run.directory}: did not learn which pairs are joined; leave pairs out")
        ends = read_edges(pairs, "pairs")
        check_edges(ends, graph.num_nodes, f"{graph.name}: pairs")
        memory, last = build_link_memory(graph, task_config_of(tree)), graph.num_steps - 1
        h = memory.append_node_features(h, last, memory.pair_table(last))
        found["score"] = model.head(h, *ends.long(), memory.pair_features(last, *ends))
    return found


def predict_pairs(run: Run, graph: AnyGraph, pairs: Path, *, out: Path) -> int:
    """Score the pairs of a file and write them to a Parquet or CSV file; returns how many."""
    given = read_pairs(pairs, graph)
    write_pairs(out, given.src, given.dst, predict(run, graph, pairs=given.rows)["score"])
    return given.rows.shape[1]


@torch.no_grad()
def score_pairs(run: Run, graph: Graph, rows: Tensor, pairs: ArrayLike | Tensor) -> Tensor:
    """The logit of each pair, (2, P) -> (P,), given the rows of all nodes; see :func:`predict`."""
    if run.settings.task != "link" or run.model is None:
        raise ValueError(f"{run.directory}: trained on nodes, not on pairs; leave pairs out")
    ends = read_edges(pairs, "pairs")
    check_edges(ends, graph.num_nodes, f"{graph.name}: pairs")
    head = get_link_head(run.model)
    a_src, b_dst = head.factors(rows)
    parts = zip(*(of.long().split(_PAIRS_AT_ONCE) for of in ends), strict=True)
    return torch.cat([torch.empty(0), *(head.pairs(a_src, b_dst, src, dst) for src, dst in parts)])


@torch.no_grad()
def _outputs(model: nn.Module, block: Block, x: Rows, *, embeddings: bool, graph: Graph) -> dict[str, Tensor]:
    model.eval()
    if not isinstance(model, Model | Embedded | Staged):
        if embeddings:
            raise ValueError(_without_embeddings(model))
        if isinstance(model, Propagated):
            _check_width(model.weight.shape[1], x.shape[1], graph)
        return {"output": model(block, x)}
    _check_fits(model, x, graph)
    found = {"output": model(block, x)}
    return found | {"embedding": model.embed(block, x)} if embeddings else found


def _outputs_by_layer(
    model: Model, graph: Graph, x: Streamed, *, embeddings: bool, room: Room
) -> dict[str, Tensor]:
    model.eval()
    _check_fits(model, x, graph)
    found = {"output": outputs_by_layer(model, graph.block, x, room=room)}
    return (
        found | {"embedding": embeddings_by_layer(model, graph.block, x, room=room)} if embeddings else found
    )


def _check_fits(model: Model | Embedded | Staged, x: Rows, graph: Graph) -> None:
    if isinstance(model, Embedded):
        if x.shape[1] or graph.num_nodes != model.rows.shape[0]:
            raise ValueError(
                f"{graph.name}: the model learned a row for each of the {model.rows.shape[0]} nodes it was trained on, "
                "which had no features, and knows no others; give the graph it was trained on"
            )
        return
    _check_width(model.in_features, x.shape[1], graph)


def _check_width(in_features: int, found: int, graph: AnyGraph) -> None:
    if found != in_features:
        raise ValueError(
            f"{graph.name}: has {found} features, but the model was trained on {in_features}; give a "
            "graph with the same features"
        )


def _without_embeddings(model: nn.Module) -> str:
    if isinstance(model, Propagated):
        return "the model of recipe frugal has no hidden rows, and so no embeddings; leave them out"
    return "embeddings are known of siafu's own models only"


def source_graph(run: Run, source: Path | str | None = None, *, progress: Progress = no_progress) -> AnyGraph:
    """The graph of ``source``, or the one a run was trained on."""
    source = source or run.settings.source
    if not source:
        raise ValueError(f"{run.directory}: trained on a graph given in Python; name the data to predict")
    step = run.settings.snapshots.step
    return load(source, fold=run.settings.data.fold, step=step, progress=progress)


def model_of(tree: Config, *, in_features: int, out_features: int, num_nodes: int) -> nn.Module:
    """Build the model of a run of siafu's own kinds, without its weights."""
    return METHODS[tree.method].build_model(
        tree, in_features=in_features, out_features=out_features, num_nodes=num_nodes
    )


def load_weights(folder: RunFolder, tree: Config, model: nn.Module | None) -> nn.Module:
    """The model of a run with its weights; ``model`` where it was a module of your own."""
    try:
        weights, shape = load_tensors(folder.weights)
    except ValueError as error:
        raise ValueError(
            f'{error}; delete it and "siafu resume {folder.path}" writes it again from the checkpoint'
        ) from None
    if model is None:
        if tree.model.kind == "custom":
            raise ValueError(f"{folder.path}: trained a module of your own; open it from Python with model=")
        if shape.keys() != {"in_features", "out_features", "num_nodes"}:
            raise ValueError(f"{folder.weights}: not the weights of a run; put the right file back")
        model = model_of(tree, **shape)
    try:
        if isinstance(model, Propagated):
            return Propagated.of_state(weights)
        model.load_state_dict(weights)
    except (RuntimeError, ValueError) as error:
        raise ValueError(f"{folder.weights}: its weights do not fit the model ({error})") from None
    return model


def _without_model(run: Run) -> str:
    if run.settings.seeds > 1:
        return f"{run.directory}: holds {run.settings.seeds} runs; choose one, such as {run.directory / 'seed-0'}"
    return f'{run.directory}: stopped before its end; continue it with "siafu resume {run.directory}"'
