"""Predict with the model of a run: outputs, embeddings and scores of pairs, in the user's order of nodes."""

import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from numpy.typing import ArrayLike
from torch import Tensor, nn

from siafu.context import Context
from siafu.data.columns import encode_graph
from siafu.dynamic import DynamicGraph
from siafu.graph import Graph
from siafu.inference.correct_and_smooth import SMOOTHED, smooth_predictions
from siafu.inference.trained_run import Run, open_run, read_encoder, source_graph
from siafu.load_graph import AnyGraph
from siafu.methods import METHODS
from siafu.methods.snapshots.config import task_config_of
from siafu.methods.static import make_room
from siafu.nn.embedded import Embedded
from siafu.nn.ensemble import Ensemble, averaged
from siafu.nn.link import LinkHead, get_link_head
from siafu.nn.model import Model
from siafu.nn.propagated import Propagated
from siafu.nn.staged import Staged
from siafu.nn.streamed import Rows
from siafu.run_folder import RunFolder
from siafu.training import inputs
from siafu.training.classes import LabelNames
from siafu.training.layerwise import Room, embeddings_by_layer, outputs_by_layer
from siafu.training.scaling import load_scaling
from siafu.training.scorer import Scorer
from siafu.training.thresholds import is_predicted
from siafu.user_input import check_edges, read_edges

_PAIRS_PER_BATCH = 1 << 18


def predict(
    run: Run | Path | str,
    graph: AnyGraph | Path | str | None = None,
    *,
    embeddings: bool = False,
    out: Path | str | None = None,
    pairs: ArrayLike | Tensor | None = None,
    say: Callable[[str], None] | None = None,
) -> dict[str, Tensor]:
    """Predict for every node of a graph, in the user's order.

    Returns ``output`` (N, C), the logits of the model, and with ``embeddings`` also ``embedding`` (N, H). For one
    class a node, ``class`` (N,) is the predicted one: the most probable, or by the run's threshold. For task link,
    ``output`` is one embedding per node; with ``pairs``, ``score`` (P,) is the logit that each pair is an edge, and
    messages pass over all edges of the graph. For a dynamic graph the prediction is that of the last step. For an
    ensemble the outputs are averaged, and the embeddings of its members stand side by side, (N, members x H). A run
    that ended with correct-and-smooth repeats it on the graph that it trained on, and leaves it out on any other; its
    threshold is left out with it.

    Args:
        run: a run or its folder.
        graph: a graph, a name or path that :func:`siafu.load` takes, or None for the graph that the run trained on.
        embeddings: whether to return the last hidden rows, too.
        out: a Parquet or CSV file to write: the id, class and probabilities of each node.
        pairs: (2, P) node numbers, sources above targets.
        say: shows warnings; by default they are Python's.
    """
    if out is not None:
        from siafu.inference.export import check_out

        check_out(Path(out))
    run = run if isinstance(run, Run) else _open(run)
    if run.model is None:
        raise ValueError(_without_model(run))
    graph = _graph_of(run, graph)
    _check_kind(run, graph)
    graph = _encoded(run, graph) if isinstance(graph, Graph) else graph
    if run.metrics.get(SMOOTHED) and not smooths(run, graph):
        text = (
            f"{graph.name}: not the graph that {run.directory} was trained on, whose labels correct-and-smooth reads; "
            "it is left out, and outputs are those of the model"
        )
        warnings.warn(text, stacklevel=2) if say is None else say(f"warning: {text}")
    predicted = _predict(run, graph, embeddings=embeddings, pairs=pairs)
    if run.metrics["task"] == "class":
        threshold = run.metrics["threshold"] if decides_by_threshold(run, graph) else None
        predicted["class"] = _classes(run, predicted["output"], threshold)
    if out is not None:
        from siafu.inference.export import write_predictions

        write_predictions(
            Path(out), graph, predicted, kind=run.metrics["task"], names=run.settings.class_names
        )
    return predicted


def decides_by_threshold(run: Run, graph: AnyGraph) -> bool:
    """Return whether classes of a graph are predicted by the run's threshold, which fits smoothed outputs or others."""
    chosen = run.metrics.get("threshold") is not None
    return chosen and (not run.metrics.get(SMOOTHED) or smooths(run, graph))


def _classes(run: Run, output: Tensor, threshold: float | None) -> Tensor:
    """Predict the class of each row: (N, C) -> (N,) int64."""
    if threshold is None:
        return output.argmax(1)
    labels = LabelNames("class", 2, run.settings.class_names or None)
    positive = labels.find(run.metrics["positive_class"], f"{run.directory}: positive_class")
    log_odds = Scorer("class", 2, positive).log_odds(output)
    return torch.where(is_predicted(log_odds, threshold), positive, 1 - positive)


def smooths(run: Run, graph: AnyGraph) -> bool:
    """Return whether predictions of a graph are corrected and smoothed: those of the graph that a run trained on."""
    if not run.metrics.get(SMOOTHED) or not isinstance(graph, Graph):
        return False
    encoded = _encoded(run, graph) if graph.columns is not None else graph
    return inputs.fingerprint(encoded) == run.settings.fingerprint


def _open(run: object) -> Run:
    if not isinstance(run, str | Path):
        raise ValueError(
            f"run is a {type(run).__name__}; expected what siafu.train returned, or a run's folder"
        )
    return open_run(run)


def _graph_of(run: Run, graph: object) -> AnyGraph:
    """Return the given graph, or load it by its name."""
    if isinstance(graph, Graph | DynamicGraph):
        return graph
    if graph is not None and not isinstance(graph, str | Path):
        raise ValueError(
            f"graph is a {type(graph).__name__}; expected a siafu.Graph or siafu.DynamicGraph (see Graph.from_edges, "
            "Graph.from_pyg), or a name or path that siafu.load takes"
        )
    return source_graph(run, graph)


def _predict(
    run: Run, graph: AnyGraph, *, embeddings: bool, pairs: ArrayLike | Tensor | None
) -> dict[str, Tensor]:
    assert run.model is not None
    if isinstance(graph, DynamicGraph):
        return _predict_last_step(run, graph, embeddings=embeddings, pairs=pairs)
    data = run.settings.data.model_copy(update={"reorder": "auto", "layout": "auto"})
    reads_sparse = METHODS[run.settings.method].reads_sparse_inputs(run.settings)
    resolved = inputs.resolve(data, graph, reads_sparse=reads_sparse)
    config = run.settings.model_copy(update={"data": resolved})
    prepared = inputs.prepare(graph, config.data)
    scaling = None
    if resolved.normalize == "standard" and graph.x is not None:
        scaling = load_scaling(run.directory)
        _check_width(scaling.mean.numel(), graph.x.shape[1], graph)
    x = inputs.input_rows(prepared, resolved, config.model, scratch=run.directory, scaling=scaling)
    room = make_room(ranks=config.ranks, budget_mb=config.sampled.budget_mb, scratch=run.directory)
    context = prepared.block.with_static(x)

    def rows_of(model: nn.Module) -> dict[str, Tensor]:
        if resolved.inputs == "stream" and isinstance(model, Model):
            return _outputs_by_layer(model, prepared, x, embeddings=embeddings, room=room)
        return _outputs(model, context, x, embeddings=embeddings, graph=graph)

    found = _of_members(run.model, rows_of) if isinstance(run.model, Ensemble) else rows_of(run.model)
    if smooths(run, graph):
        found["output"] = smooth_predictions(prepared, config, found["output"], scratch=run.directory)
    found = {name: inputs.in_user_order(rows, prepared) for name, rows in found.items()}
    if pairs is not None:
        found["score"] = score_pairs(run, graph, found["output"], pairs)
    return found


def _encoded(run: Run, graph: Graph) -> Graph:
    """Return the graph with its columns encoded as those of the training data were."""
    encoder = read_encoder(RunFolder(run.directory))
    if encoder is None and graph.columns is not None:
        raise ValueError(
            f"{graph.name}: has columns ({_listed(graph)}), but the model was trained on plain features, or "
            f"{RunFolder(run.directory).encoder} was removed; give a graph with the same features"
        )
    if encoder is not None and graph.columns is None:
        names = ", ".join(each.name for each in encoder.columns)
        raise ValueError(
            f"{graph.name}: has no columns, but the model was trained on {names}; import a table of nodes with them "
            "(siafu import --nodes)"
        )
    return encode_graph(graph, encoder)[0]


def _listed(graph: Graph) -> str:
    return ", ".join(column.type.name for column in graph.columns or ())


def _of_members(model: Ensemble, rows_of: Callable[[nn.Module], dict[str, Tensor]]) -> dict[str, Tensor]:
    """Average the outputs of the members of an ensemble; their embeddings stand side by side."""
    embeddings: list[Tensor] = []

    def outputs() -> Iterator[Tensor]:
        for member in model.members:
            found = rows_of(member)
            embeddings.extend(found[name] for name in ("embedding",) if name in found)
            yield found["output"]

    output = averaged(outputs(), model.kind)
    return {"output": output} | ({"embedding": torch.cat(embeddings, 1)} if embeddings else {})


def _check_kind(run: Run, graph: AnyGraph) -> None:
    """Refuse a dynamic graph for a static model, and a static graph for a dynamic one."""
    changes = isinstance(graph, DynamicGraph)
    if changes != METHODS[run.settings.method].over_time:
        found, wanted = ("changes", "does not") if changes else ("does not change", "does")
        raise ValueError(
            f"{graph.name}: {found} over time, but the model was trained on a graph that {wanted}; give such a graph"
        )


@torch.no_grad()
def _predict_last_step(
    run: Run, graph: DynamicGraph, *, embeddings: bool, pairs: ArrayLike | Tensor | None
) -> dict[str, Tensor]:
    """Predict for the last step of a dynamic graph."""
    from siafu.methods.snapshots.build import Predictor, build_link_memory, build_timeline
    from siafu.methods.snapshots.labels import node_outputs
    from siafu.methods.snapshots.last_step import last_step_embeddings

    model, config = run.model, run.settings
    assert isinstance(model, Predictor)
    timeline = build_timeline(graph, config.snapshots, config.model)
    _check_width(model.in_features, timeline.in_features, graph)
    h = last_step_embeddings(model.temporal, timeline, window=config.snapshots.window or 0)
    found = {"output": h if isinstance(model.head, LinkHead) else node_outputs(model.head, h)}
    if embeddings:
        found["embedding"] = h
    if pairs is not None:
        if config.task != "link" or not isinstance(model.head, LinkHead):
            raise ValueError(f"{run.directory}: did not learn which pairs are joined; leave pairs out")
        ends = read_edges(pairs, "pairs")
        check_edges(ends, graph.num_nodes, f"{graph.name}: pairs")
        memory, last = build_link_memory(graph, task_config_of(config)), graph.num_steps - 1
        h = memory.append_node_features(h, last, memory.pair_table(last))
        found["score"] = model.head(h, *ends.long(), memory.pair_features(last, *ends))
    return found


def predict_pairs(run: Run, graph: AnyGraph, pairs: Path, *, out: Path) -> int:
    """Score the pairs of a file and write the scores to a Parquet or CSV file; returns the number of pairs."""
    from siafu.data.pair_table import read_pairs
    from siafu.inference.export import write_pairs

    given = read_pairs(pairs, graph)
    write_pairs(out, given.src, given.dst, predict(run, graph, pairs=given.rows)["score"])
    return given.rows.shape[1]


@torch.no_grad()
def score_pairs(run: Run, graph: Graph, rows: Tensor, pairs: ArrayLike | Tensor) -> Tensor:
    """Compute the logit of each pair from the rows of all nodes: (N, H), (2, P) -> (P,); see :func:`predict`."""
    if run.settings.task != "link" or run.model is None:
        raise ValueError(f"{run.directory}: trained on nodes, not on pairs; leave pairs out")
    ends = read_edges(pairs, "pairs")
    check_edges(ends, graph.num_nodes, f"{graph.name}: pairs")
    head = get_link_head(run.model)
    a_src, b_dst = head.factors(rows)
    parts = zip(*(of.long().split(_PAIRS_PER_BATCH) for of in ends), strict=True)
    return torch.cat([torch.empty(0), *(head.pairs(a_src, b_dst, src, dst) for src, dst in parts)])


@torch.no_grad()
def _outputs(
    model: nn.Module, context: Context, x: Rows, *, embeddings: bool, graph: Graph
) -> dict[str, Tensor]:
    model.eval()
    if not isinstance(model, Model | Embedded | Staged):
        if embeddings:
            raise ValueError(_without_embeddings(model))
        if isinstance(model, Propagated):
            _check_width(model.weight.shape[1], x.shape[1], graph)
        return {"output": model(context, x)}
    _check_fits(model, x, graph)
    found = {"output": model(context, x)}
    return found | {"embedding": model.embed(context, x)} if embeddings else found


def _outputs_by_layer(
    model: Model, graph: Graph, x: Rows, *, embeddings: bool, room: Room
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


def _without_model(run: Run) -> str:
    if run.settings.seeds > 1:
        return f"{run.directory}: holds {run.settings.seeds} runs; choose one, such as {run.directory / 'seed-0'}"
    return f'{run.directory}: stopped before its end; continue it with "siafu resume {run.directory}"'
