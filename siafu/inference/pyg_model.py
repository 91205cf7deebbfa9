"""``to_pyg``: the model of a run as a plain module of torch_geometric's layers, with the same outputs."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from siafu.extras import require_extra
from siafu.inference.trained_run import TrainedRun
from siafu.nn import Dense, Gat, GatV2, Gcn, Gin, Layer, Sage
from siafu.nn.embedded import Embedded
from siafu.nn.ensemble import Ensemble
from siafu.nn.gnn import Gnn
from siafu.training.scaling import Scaling, load_scaling

KINDS = ("gcn", "sage", "gat", "gatv2", "gin", "mlp")


class PygModel(nn.Module):
    """Layers of torch_geometric, with the norms, skip connections, jumping knowledge and dropout of a run's model.

    It is in evaluation mode at first; ``train()`` turns dropout on, for training it further.

    Attributes:
        inputs: prepares features as the run did; see ``data.normalize``.
        convs: the layers, each a layer of torch_geometric; of an MLP ``nn.Linear``.
        norms, skips, drops: what follows each layer; the first of ``drops`` acts on the inputs.
        head: the last layer of jumping knowledge, or None.

    Shapes:
        x: (N, F), features as the user has them: ``graph.to_pyg().x``.
        edge_index: (2, E), sources above targets.
        edge_weight: (E,), or None where every edge weighs 1. GAT, GATv2 and the maximum of GraphSAGE read none.
        returns: (N, C), as ``output`` of :func:`siafu.predict`.
    """

    def __init__(self, gnn: Gnn, inputs: nn.Module) -> None:
        super().__init__()
        self.inputs, self.jump = inputs, gnn.config.jump
        num_hidden = len(gnn.norms)
        self.convs = nn.ModuleList(_conv(gnn.layer(place)) for place in range(len(gnn.layers)))
        self.norms = nn.ModuleList(_norm(norm) for norm in gnn.norms)
        self.skips = nn.ModuleList(_skip(skip) for skip in gnn.skips)
        self.drops = nn.ModuleList(nn.Dropout(gnn.drop(place).rate) for place in range(num_hidden + 1))
        self.activation = {"relu": nn.ReLU, "elu": nn.ELU}[gnn.activation]()
        self.head = None if gnn.head is None else _linear(gnn.head.weight, gnn.head.bias)
        self.eval()

    def forward(self, x: Tensor, edge_index: Tensor, edge_weight: Tensor | None = None) -> Tensor:
        """Compute the outputs of all nodes."""
        x = self.inputs(x)
        h, hidden = self.drops[0](x), []
        for place, conv in enumerate(self.convs):
            z = _apply(conv, h, edge_index, edge_weight)
            if place == len(self.norms):
                return z
            z = self.norms[place](z + self.skips[place](h if place else x))
            h = self.drops[place + 1](self.activation(z))
            hidden.append(h)
        assert self.head is not None
        return self.head(torch.cat(hidden, 1) if self.jump == "cat" else torch.stack(hidden).amax(0))


class Features(nn.Module):
    """Features in float32, unchanged."""

    def forward(self, x: Tensor) -> Tensor:
        """Convert features: (N, F) -> (N, F)."""
        return x.float()


class DividedBySum(nn.Module):
    """Feature rows, each divided by its sum (``data.normalize = "rows"``)."""

    def forward(self, x: Tensor) -> Tensor:
        """Divide rows: (N, F) -> (N, F)."""
        x = x.float()
        total = x.sum(1, keepdim=True)
        return x / torch.where(total == 0, 1.0, total)


class Standardised(nn.Module):
    """Feature columns, standardised by the training nodes (``data.normalize = "standard"``)."""

    mean: Tensor
    deviation: Tensor

    def __init__(self, scaling: Scaling) -> None:
        super().__init__()
        self.register_buffer("mean", scaling.mean)
        self.register_buffer("deviation", scaling.deviation)

    def forward(self, x: Tensor) -> Tensor:
        """Standardise columns: (N, F) -> (N, F)."""
        return Scaling(self.mean, self.deviation).apply(x)


class NoSkip(nn.Module):
    """No skip connection."""

    def forward(self, x: Tensor) -> float:
        """Add nothing."""
        return 0.0


def to_pyg(run: TrainedRun) -> PygModel:
    """Make a module of torch_geometric's layers with the weights of a run's model."""
    gnn = _gnn_of(run)
    return PygModel(gnn, _inputs_of(run))


def _gnn_of(run: TrainedRun) -> Gnn:
    """Return the model of a run; refuse models that are no stack of layers which torch_geometric has."""
    match run.model:
        case _ if run.settings.task != "node":
            found = f"was trained for task {run.settings.task}"
        case Gnn() as gnn if gnn.config.kind in KINDS:
            return gnn
        case None:
            found = "has no model: it was stopped, or holds several seeds"
        case Ensemble():
            member = str(run.directory / "member-0")
            found = f"is an ensemble; convert its members, such as siafu.open({member!r})"
        case Embedded():
            found = "learned a row for each node, since its graph has no features"
        case model:
            found = f"has a model of kind {run.settings.model.kind} ({type(model).__name__})"
    raise ValueError(
        f"{run.directory}: {found}; to_pyg converts models for nodes with features, of kind {', '.join(KINDS)}"
    )


def _inputs_of(run: TrainedRun) -> nn.Module:
    """Return what prepares features as the run does."""
    match run.settings.data.normalize:
        case "rows":
            return DividedBySum()
        case "standard":
            return Standardised(load_scaling(run.directory))
        case _:
            return Features()


def _apply(conv: Any, x: Tensor, edge_index: Tensor, edge_weight: Tensor | None) -> Tensor:
    """Run a layer; with weights, the sums of GIN and GraphSAGE, which torch_geometric has without, are weighted."""
    match type(conv).__name__:
        case "Linear":
            return conv(x)
        case "GCNConv":
            return conv(x, edge_index, edge_weight)
        case "GINConv" if edge_weight is not None:
            m, _ = _weighted_sum(x, edge_index, edge_weight)
            return conv.nn((1 + conv.eps) * x + m)
        case "SAGEConv" if edge_weight is not None and conv.aggr == "mean":
            m, total = _weighted_sum(x, edge_index, edge_weight)
            return conv.lin_l(m * torch.where(total != 0, 1.0 / total, 0.0)[:, None]) + conv.lin_r(x)
    return conv(x, edge_index)


def _weighted_sum(x: Tensor, edge_index: Tensor, edge_weight: Tensor) -> tuple[Tensor, Tensor]:
    """Sum the rows of in-neighbours by weight: (N, F); and the weights: (N,)."""
    src, dst = edge_index
    rows = torch.zeros_like(x).index_add_(0, dst, x[src] * edge_weight[:, None])
    return rows, x.new_zeros(x.shape[0]).index_add_(0, dst, edge_weight)


@torch.no_grad()
def _conv(layer: Layer) -> nn.Module:
    """Make the layer of torch_geometric that computes the same."""
    with require_extra("Run.to_pyg", "torch_geometric"):
        from torch_geometric.nn import GATConv, GATv2Conv, GCNConv, GINConv, SAGEConv

    widths = (layer.in_features, layer.out_features)
    match layer:
        case Dense():
            return _linear(layer.weight, layer.bias)
        case Gcn():
            return _filled(GCNConv(*widths), {"lin.weight": layer.weight.T, "bias": layer.bias})
        case Sage():
            lin = {"lin_l.weight": layer.weight_neigh.T, "lin_l.bias": layer.bias}
            return _filled(SAGEConv(*widths, aggr=layer.reduce), lin | {"lin_r.weight": layer.weight_self.T})
        case Gin():
            mlp = nn.Sequential(
                nn.Linear(layer.in_features, layer.hidden), nn.ReLU(), nn.Linear(layer.hidden, widths[1])
            )
            inner = {"nn.0.weight": layer.weight_in.T, "nn.0.bias": layer.bias_in, "eps": layer.eps.view(1)}
            outer = {"nn.2.weight": layer.weight_out.T, "nn.2.bias": layer.bias}
            return _filled(GINConv(mlp, train_eps=True), inner | outer)
        case Gat():
            scores = {"att_src": layer.score_src[None], "att_dst": layer.score_dst[None]}
            return _filled(
                _attention(GATConv, layer), {"lin.weight": layer.weight.T, "bias": layer.bias} | scores
            )
        case GatV2():
            source = {"lin_l.weight": layer.weight_src.T, "lin_l.bias": layer.bias_src}
            target = {"lin_r.weight": layer.weight_dst.T, "lin_r.bias": layer.bias_dst}
            values = source | target | {"att": layer.vector[None], "bias": layer.bias}
            return _filled(_attention(GATv2Conv, layer), values)
    raise AssertionError(layer)


def _attention(make: Callable[..., nn.Module], layer: Gat | GatV2) -> nn.Module:
    """Make an attention layer without weights."""
    width = layer.out_features // layer.heads if layer.concat else layer.out_features
    options: dict[str, Any] = {"heads": layer.heads, "concat": layer.concat}
    options |= {"negative_slope": layer.negative_slope, "dropout": layer.attention_drop.rate}
    return make(layer.in_features, width, **options)


def _filled(conv: nn.Module, values: dict[str, Tensor]) -> nn.Module:
    """Copy weights into a layer, all of them."""
    conv.load_state_dict(values)
    return conv


@torch.no_grad()
def _linear(weight: Tensor, bias: Tensor | None) -> nn.Linear:
    """Make a dense layer of a weight (in, out)."""
    linear = nn.Linear(weight.shape[0], weight.shape[1], bias=bias is not None)
    linear.weight.copy_(weight.T)
    if bias is not None:
        linear.bias.copy_(bias)
    return linear


def _norm(norm: nn.Module) -> nn.Module:
    """Copy a norm."""
    match norm:
        case nn.LayerNorm():
            made: nn.Module = nn.LayerNorm(norm.normalized_shape, eps=norm.eps)
        case nn.BatchNorm1d():
            made = nn.BatchNorm1d(norm.num_features, eps=norm.eps, momentum=norm.momentum)
        case _:
            return nn.Identity()
    made.load_state_dict(norm.state_dict())
    return made


def _skip(skip: nn.Module) -> nn.Module:
    """Copy a skip connection: none, the rows, or a product."""
    if isinstance(skip, nn.Identity):
        return nn.Identity()
    weight = getattr(skip, "weight", None)
    return NoSkip() if weight is None else _linear(weight, None)
