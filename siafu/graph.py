"""Graph and Block: the values that everything else speaks. They know no rank, no file and no clock.

Row sets, used as name suffixes everywhere:
    _dst   D rows, the nodes a layer writes
    _src   S rows, the nodes a layer reads; the first D of them are the destinations
    _edge  E rows, in CSR order of the destinations
"""

from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import torch
import xxhash
from numpy.typing import ArrayLike
from torch import Tensor

from siafu import native
from siafu.array_checks import (
    ValidatedCsr,
    check_array,
    check_classes,
    check_csr,
    check_permutation,
    check_width,
)
from siafu.columns import Columns, take_columns
from siafu.native import Csr, SparseRows
from siafu.sparse_input import check_features, read_features
from siafu.user_input import (
    check_edges,
    check_finite,
    largest_id,
    read_edge_split,
    read_edge_weight,
    read_edges,
    read_node_rows,
)

if TYPE_CHECKING:
    from siafu.context import Context

_CHUNK_BYTES = 1 << 25
FLOATS = (torch.float32, torch.float64, torch.bfloat16)


class Whole(NamedTuple):
    """What is known of the nodes of a block that has only some of their in-edges, in the whole graph.

    Attributes:
        degree_src: (S,) float64, the weight of each source's in-edges with exactly one loop.
        missing_loop: (D,) float64, what each destination lacks of exactly one edge to itself.
        num_edges: (D,) int64, the in-edges of each destination.
    """

    degree_src: Tensor
    missing_loop: Tensor
    num_edges: Tensor


@dataclass(frozen=True, eq=False)
class Block:
    """What one layer reads: a rectangular CSR whose rows are destinations and whose columns are sources.

    The whole graph, one part of it, a sampled hop and a snapshot are all blocks.

    Attributes:
        indptr: (D + 1,) int64, non-decreasing, ``indptr[0] == 0``.
        indices: (E,) int32, the in-neighbours of each destination, each in ``[0, num_src)``.
        num_src: S, at least D; the first D sources are the destinations themselves.
        edge_weight: (E,) float, or None where every edge weighs 1.
        node_id: (S,) int64, the user's own row number of each source, or None where it is the row number.
        whole: what is known of the whole graph, where edges were drawn; None where the block has all in-edges.
        cache: scales that were computed from this block alone; a copy of the block has its own.
        checked: the offsets and indices, once they were found to be in range; these are not read again.
    """

    indptr: Tensor
    indices: Tensor
    num_src: int
    edge_weight: Tensor | None = None
    node_id: Tensor | None = None
    whole: Whole | None = None
    cache: dict[Hashable, Tensor] = field(default_factory=dict, init=False, repr=False)
    checked: ValidatedCsr | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        known = check_csr(self.indptr, self.indices, self.num_src, "block", known=self.checked)
        object.__setattr__(self, "checked", known)
        if self.num_dst > self.num_src:
            raise ValueError(
                f"block: {self.num_dst} destinations, but num_src is {self.num_src}; expected at least as many, "
                "since the first sources are the destinations"
            )
        if self.edge_weight is not None:
            check_array(self.edge_weight, "block: edge_weight", FLOATS, (self.num_edges,))
        if self.node_id is not None:
            check_array(self.node_id, "block: node_id", torch.int64, (self.num_src,))

    @property
    def num_dst(self) -> int:
        """D, the number of destinations."""
        return self.indptr.numel() - 1

    @property
    def num_given(self) -> int:
        """The number of rows that a layer is given: those of all sources."""
        return self.num_src

    @property
    def given_id(self) -> Tensor | None:
        """(num_given,) int64, the user's own row numbers of the given rows, or None."""
        return self.node_id

    @property
    def num_edges(self) -> int:
        """E, the number of edges."""
        return self.indices.numel()

    @property
    def csr(self) -> Csr:
        """The bare arrays, as kernels take them."""
        return Csr(self.indptr, self.indices)

    @cached_property
    def transposed(self) -> Csr:
        """Rows and columns exchanged, for the backward pass; ``origin`` is the edge's place in this block."""
        return native.transpose(self.csr, num_cols=self.num_src, origin=True)

    @cached_property
    def turned(self) -> Csr:
        """The same, with ``origin`` only where edges have weights: it takes 8 bytes an edge, and sums do without."""
        if self.edge_weight is not None:
            return self.transposed
        return native.transpose(self.csr, num_cols=self.num_src)

    @property
    def row_edge(self) -> Tensor:
        """(E,) int32, the destination of each edge; made anew each time, since it is as large as the block."""
        return torch.arange(self.num_dst, dtype=torch.int32).repeat_interleave(self.indptr.diff())

    @cached_property
    def missing_loop(self) -> Tensor:
        """(D,) float64, what each destination lacks of exactly one edge to itself; of several the last counts."""
        weight = None if self.edge_weight is None else self.edge_weight.float()
        return native.missing_loops(self.csr, weight)

    @cached_property
    def own_end(self) -> Tensor:
        """(D,) int64, where in each row the sources that are no destinations begin; rows must be sorted."""
        return native.split_rows(self.csr, self.num_dst)

    @cached_property
    def in_degree(self) -> Tensor:
        """(D,) float64, the number of in-edges, or the sum of their weights."""
        if self.edge_weight is None:
            return self.indptr.diff().double()
        zeros = torch.zeros(self.num_dst, dtype=torch.float64)
        return zeros.index_add_(0, self.row_edge, self.edge_weight.double())

    def with_static(self, x_src: Any) -> "Context":
        """The context in which ``x_src`` never changes, so that its aggregate is computed once and kept."""
        from siafu.context import Context

        return Context(self, static_src=x_src)

    def keep(self, key: Hashable, compute: Callable[[], Tensor]) -> Tensor:
        """The result of ``compute`` when ``key`` was asked for first; it must follow from the block alone."""
        if key not in self.cache:
            self.cache[key] = compute()
        return self.cache[key]


@dataclass(frozen=True, eq=False)
class Graph:
    """A graph with what is known of its nodes. Edges are kept by destination.

    Attributes:
        indptr: (N + 1,) int64.
        indices: (E,) int32, the sources of each node's in-edges.
        x: (N, F) features in float32, in bfloat16, or in int8 with ``x_scale``; sparse rows where most are zero; or
            None. See :attr:`features`.
        y: (N,) int64 classes with -1 for none, (N, C) uint8 for many labels, or (N,) or (N, K) float32 targets with
            NaN for none; or None.
        train_mask, val_mask, test_mask: (N,) bool, disjoint, or None.
        edge_weight: (E,) float32, in the order of ``indices``, or None.
        node_id: (N,) int64, the user's own row number of each row, or None where it is the row number.
        name: what to call it in messages.
        node_names: N ids as the user wrote them (an Arrow array of strings or integers), or None: the row number.
        class_names: as many names as there are classes, or None: the class number.
        x_scale: (N,) float32, what each row of an ``x`` in int8 is multiplied by; None for any other.
        edge_split: (E,) uint8, in the order of ``indices``: 0 train, 1 validation, 2 test, for tasks on pairs; or None.
        columns: typed columns of the nodes, which :meth:`encoded` turns into ``x``; None where ``x`` is all.
        num_halo: the nodes of other parts that ``indices`` name, as N and up; 0 unless this is a part of a graph.
        checked: the offsets and indices, once they were found to be in range; these are not read again.
    """

    indptr: Tensor
    indices: Tensor
    x: Tensor | SparseRows | None = None
    y: Tensor | None = None
    train_mask: Tensor | None = None
    val_mask: Tensor | None = None
    test_mask: Tensor | None = None
    edge_weight: Tensor | None = None
    node_id: Tensor | None = None
    name: str = "graph"
    node_names: Any = None
    class_names: tuple[str, ...] | None = None
    x_scale: Tensor | None = None
    edge_split: Tensor | None = None
    columns: Columns | None = None
    num_halo: int = 0
    checked: ValidatedCsr | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        num_src = self.num_nodes + self.num_halo
        known = check_csr(self.indptr, self.indices, num_src, self.name, known=self.checked)
        object.__setattr__(self, "checked", known)
        _copy_strided(self)
        _check_shapes(self)
        _check_columns(self)
        if self.y is not None:
            check_classes(self.y, self.name, class_names=self.class_names)

    @property
    def features(self) -> Tensor | SparseRows | None:
        """(N, F), ``x`` as numbers to calculate with: what is stored in int8 becomes float32."""
        if not isinstance(self.x, Tensor) or self.x_scale is None:
            return self.x
        return self.x.float().mul_(self.x_scale[:, None])

    @property
    def num_nodes(self) -> int:
        """N."""
        return self.indptr.numel() - 1

    @property
    def num_edges(self) -> int:
        """E."""
        return self.indices.numel()

    @cached_property
    def block(self) -> Block:
        """The whole graph as one block."""
        return Block(
            self.indptr, self.indices, self.num_nodes, self.edge_weight, self.node_id, checked=self.checked
        )

    def reordered(self, order: Tensor) -> "Graph":
        """The same graph with row ``order[i]`` at row ``i``; ``node_id`` says where each row stood."""
        check_permutation(order, self.num_nodes, f"{self.name}: order")
        known = self.edge_weight is not None or self.edge_split is not None
        csr = native.relabel(Csr(self.indptr, self.indices), order, origin=known)

        def edges(value: Tensor | None) -> Tensor | None:
            return None if value is None or csr.origin is None else value[csr.origin]

        def rows(value: Tensor | None) -> Tensor | None:
            return None if value is None else native.gather(value, order)

        return replace(
            self,
            indptr=csr.indptr,
            indices=csr.indices,
            edge_weight=edges(self.edge_weight),
            edge_split=edges(self.edge_split),
            x=take_rows(self.x, order),
            x_scale=rows(self.x_scale),
            y=rows(self.y),
            train_mask=rows(self.train_mask),
            val_mask=rows(self.val_mask),
            test_mask=rows(self.test_mask),
            node_id=order if self.node_id is None else rows(self.node_id),
            columns=take_columns(self.columns, order.numpy()),
        )

    @classmethod
    def from_edges(
        cls,
        edge_index: ArrayLike | Tensor,
        *,
        x: ArrayLike | Tensor | SparseRows | None = None,
        y: ArrayLike | Tensor | None = None,
        train_mask: ArrayLike | Tensor | None = None,
        val_mask: ArrayLike | Tensor | None = None,
        test_mask: ArrayLike | Tensor | None = None,
        edge_weight: ArrayLike | Tensor | None = None,
        edge_split: ArrayLike | Tensor | None = None,
        num_nodes: int | None = None,
        undirected: bool = False,
        name: str = "graph",
    ) -> "Graph":
        """A graph of (2, E) sources and targets, NumPy arrays or tensors; checked, see :func:`check`.

        ``x`` may also be a sparse matrix of scipy or torch, and is kept sparse where most numbers are zero.
        ``undirected`` adds each edge's reverse and drops repeated edges (the first weight is kept). ``edge_split`` is
        0, 1 or 2 for edges to train on, to validate and to test on.
        """
        edges = read_edges(edge_index, name)
        given: dict[str, Any] = {
            "x": x,
            "y": y,
            "train_mask": train_mask,
            "val_mask": val_mask,
            "test_mask": test_mask,
        }
        rows: dict[str, Any] = {
            key: read_features(value) if key == "x" else read_node_rows(value, key)
            for key, value in given.items()
            if value is not None
        }
        known = [num_nodes] if num_nodes is not None else [value.shape[0] for value in rows.values()]
        count = known[0] if known else largest_id(edges) + 1
        check_edges(edges, count, name)
        weight = None if edge_weight is None else read_edge_weight(edge_weight, edges.shape[1], name)
        split = None if edge_split is None else read_edge_split(edge_split, edges.shape[1], name)
        src, dst = edges.to(torch.int32)
        if undirected:
            src, dst = torch.cat([src, dst]), torch.cat([dst, src])
            weight = None if weight is None else torch.cat([weight, weight])
            split = None if split is None else torch.cat([split, split])
        origin = weight is not None or split is not None
        csr = native.sort_rows(native.build_csr(dst, src, num_rows=count, origin=origin))
        csr = native.deduplicate(csr) if undirected else csr
        graph = cls(
            csr.indptr,
            csr.indices,
            edge_weight=None if weight is None or csr.origin is None else weight[csr.origin],
            edge_split=None if split is None or csr.origin is None else split[csr.origin],
            name=name,
            **rows,
        )
        check(graph)
        return graph

    @staticmethod
    def from_tables(
        *,
        edges: Any,
        nodes: Any = None,
        id: str | None = None,
        label: str | None = None,
        source: str | None = None,
        target: str | None = None,
        weight: str | None = None,
        split: str | None = None,
        split_column: str | None = None,
        split_seed: int = 0,
        combine: Literal["first", "sum", "mean"] | None = None,
        undirected: bool = False,
        label_kind: Literal["class", "multilabel", "number"] | None = None,
        name: str = "graph",
    ) -> "Graph":
        """A graph of tables of pandas, Polars or Arrow, with the ids, columns and labels of the user.

        Tables are read as ``siafu import --nodes --edges`` reads files; columns of edges other than ends and weight are
        left out.

        Args:
            edges: a table of edges, or several with the same columns.
            nodes: a table of nodes with columns of any kind, or several with the same columns; None: edges alone.
            id: the column of ids in ``nodes``; None: ``id``, else the first.
            label: the column of labels in ``nodes``; None: ``label``, if there is one.
            source: the column of sources in ``edges``; None: ``src``, else the first.
            target: the column of targets in ``edges``; None: ``dst``, else the second.
            weight: the column of weights in ``edges``; None: ``weight``, if there is one.
            split: shares of the labelled nodes, such as ``80/10/10``; None: 60/20/20.
            split_column: the column of the split in ``nodes``; None: ``split``, if there is one.
            split_seed: the seed of a split by shares.
            combine: how repeated edges become one; None: they stay, unless ``undirected``.
            undirected: whether to add the reverse of each edge and drop repeated edges.
            label_kind: the kind of labels; None: inferred.
            name: what to call the graph.
        """
        from siafu.data.importing.arrow_tables import graph_from_tables, schema_of_names

        schema = schema_of_names(
            id=id, label=label, split_column=split_column, source=source, target=target, weight=weight
        )
        return graph_from_tables(
            nodes=nodes,
            edges=edges,
            schema=schema,
            split=split,
            split_seed=split_seed,
            combine=combine,
            undirected=undirected,
            label_kind=label_kind,
            name=name,
        )

    def encoded(self) -> "Graph":
        """The same graph with its columns encoded as ``x``, by statistics of the training nodes."""
        from siafu.data.columns import encode_graph

        return encode_graph(self)[0]

    @staticmethod
    def from_pyg(data: Any, *, fold: int = 0, name: str = "graph") -> "Graph":
        """Convert a PyG ``Data``; see :func:`siafu.convert.from_pyg`."""
        from siafu import convert

        return convert.from_pyg(data, fold=fold, name=name)

    @staticmethod
    def from_dgl(
        graph: Any, *, x: str = "feat", y: str = "label", fold: int = 0, name: str = "graph"
    ) -> "Graph":
        """Convert a ``DGLGraph``; see :func:`siafu.convert.from_dgl`."""
        from siafu import convert

        return convert.from_dgl(graph, x=x, y=y, fold=fold, name=name)

    @staticmethod
    def from_networkx(graph: Any, *, weight: str = "weight", name: str = "graph") -> "Graph":
        """Convert a networkx graph; see :func:`siafu.convert.from_networkx`."""
        from siafu import convert

        return convert.from_networkx(graph, weight=weight, name=name)

    @staticmethod
    def from_scipy(
        adjacency: Any,
        *,
        x: Any = None,
        y: Any = None,
        train_mask: Any = None,
        val_mask: Any = None,
        test_mask: Any = None,
        name: str = "graph",
    ) -> "Graph":
        """Convert a scipy sparse adjacency, row the source; see :func:`siafu.convert.from_scipy`."""
        from siafu import convert

        masks = {"train_mask": train_mask, "val_mask": val_mask, "test_mask": test_mask}
        return convert.from_scipy(adjacency, x=x, y=y, **masks, name=name)

    def to_pyg(self) -> Any:
        """Make a PyG ``Data`` whose rows stand in the user's own order."""
        from siafu import convert

        return convert.to_pyg(self)


def take_rows(rows: Tensor | SparseRows | None, index: Tensor) -> Tensor | SparseRows | None:
    """Rows of node data picked by number; None if there are none."""
    if rows is None or isinstance(rows, SparseRows):
        return None if rows is None else rows.take(index)
    return native.gather(rows, index)


def chunks(rows: Tensor) -> Iterator[Tensor]:
    """Rows some at a time, however wide they are: a memory-mapped array is read once, and never whole."""
    step = max(1, _CHUNK_BYTES // max(1, rows.dtype.itemsize * rows[:1].numel()))
    for start in range(0, rows.shape[0], step):
        yield rows[start : start + step]


def checksum_of(arrays: Mapping[str, Tensor | SparseRows | None], about: str = "") -> str:
    """A checksum of named arrays, of which some may be missing, and of what else is to be told ``about`` them."""
    digest = xxhash.xxh3_64(about.encode())
    plain: dict[str, Tensor | None] = {}
    for name, value in arrays.items():
        if isinstance(value, SparseRows):
            plain |= sparse_arrays(value, name)
        else:
            plain[name] = value
    for name, value in plain.items():
        digest.update(name.encode())
        if value is not None:
            digest.update(f"{value.dtype}{tuple(value.shape)}".encode())
            for chunk in chunks(value):
                digest.update(chunk.contiguous().view(torch.uint8).numpy().data)
    return digest.hexdigest()


def sparse_arrays(rows: SparseRows, name: str) -> dict[str, Tensor]:
    """The arrays of sparse rows, named as files name them."""
    width = torch.tensor([rows.width])
    return {
        f"{name}_indptr": rows.indptr,
        f"{name}_indices": rows.indices,
        f"{name}_values": rows.values,
        f"{name}_width": width,
    }


_OF_NODES: dict[str, tuple[torch.dtype, ...]] = {
    "x": (*FLOATS, torch.int8),
    "x_scale": (torch.float32,),
    "y": (torch.int64, torch.uint8, torch.float32),
    "train_mask": (torch.bool,),
    "val_mask": (torch.bool,),
    "test_mask": (torch.bool,),
    "node_id": (torch.int64,),
}
_OF_EDGES: dict[str, tuple[torch.dtype, ...]] = {"edge_weight": FLOATS, "edge_split": (torch.uint8,)}


def _copy_strided(graph: Graph) -> None:
    """Have arrays of nodes and edges in one piece: a slice of columns, such as ``x[:, :5]``, is copied."""
    for name in (*_OF_NODES, *_OF_EDGES):
        value = getattr(graph, name)
        if isinstance(value, Tensor) and not value.is_contiguous():
            object.__setattr__(graph, name, value.contiguous())


def _check_shapes(graph: Graph) -> None:
    """Refuse arrays of nodes and edges whose type or number of rows cannot be."""
    for count, what, known in ((graph.num_nodes, "node", _OF_NODES), (graph.num_edges, "edge", _OF_EDGES)):
        for field_name, dtypes in known.items():
            value: Tensor | SparseRows | None = getattr(graph, field_name)
            if value is None:
                continue
            if field_name == "x" and isinstance(value, SparseRows):
                if len(value) != count:
                    raise ValueError(
                        f"{graph.name}: x has {len(value)} rows; expected {count}, one for each node"
                    )
                continue
            assert not isinstance(value, SparseRows)
            if isinstance(value, Tensor) and value.ndim and value.shape[0] != count:
                raise ValueError(
                    f"{graph.name}: {field_name} has {value.shape[0]} rows; expected {count}, one for each {what}"
                )
            wide = field_name == "x" or (field_name == "y" and value.ndim == 2)
            check_array(value, f"{graph.name}: {field_name}", dtypes, (count, None) if wide else (count,))
    if graph.x is not None:
        check_width(graph.x.shape, f"{graph.name}: x")
    if (graph.x is not None and graph.x.dtype == torch.int8) != (graph.x_scale is not None):
        found = "None" if graph.x is None else str(graph.x.dtype)
        found += " without x_scale" if graph.x_scale is None else " with x_scale"
        raise ValueError(
            f"{graph.name}: x is {found}; expected int8 with a scale a row, or another type without"
        )


def _check_columns(graph: Graph) -> None:
    """Refuse columns of another length than there are nodes, and columns beside features."""
    for column in graph.columns or ():
        if len(column) != graph.num_nodes:
            raise ValueError(
                f"{graph.name}: column {column.type.name!r} has {len(column)} values; expected {graph.num_nodes}, one "
                "for each node"
            )
    if graph.columns and graph.x is not None:
        raise ValueError(f"{graph.name}: has x and columns; expected features or columns to encode, not both")


def check(graph: Graph) -> None:
    """Refuse features, labels, masks and weights that cannot be trained on, saying which and where."""
    name, rows = graph.name, graph.num_nodes
    if graph.x is not None:
        check_features(graph.x, f"{name}: x")
    if graph.x_scale is not None:
        check_finite(graph.x_scale[:, None], f"{name}: x_scale")
    if graph.edge_weight is not None:
        check_finite(graph.edge_weight[:, None], f"{name}: edge_weight")
    if graph.y is not None and graph.y.is_floating_point() and bool(graph.y.isinf().any()):
        row = int(graph.y.isinf().nonzero()[0, 0])
        raise ValueError(f"{name}: y[{row}] is infinite; expected a finite number, or NaN for none")
    seen = torch.zeros(rows, dtype=torch.bool)
    for field_name in ("train_mask", "val_mask", "test_mask"):
        mask: Tensor | None = getattr(graph, field_name)
        if mask is None:
            continue
        if bool((seen & mask).any()):
            row = int((seen & mask).nonzero()[0])
            raise ValueError(
                f"{name}: node {row} is in {field_name} and in another mask; splits must be disjoint"
            )
        seen |= mask
