"""Graph generators: communities with learnable labels, and R-MAT. They know no file and no clock.

The same arguments give the same graph on every machine.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray

from siafu import native
from siafu.data.random_stream import RandomStream
from siafu.graph import Graph
from siafu.user_input import MAX_NODES

_CHUNK = 1 << 20  # draws at a time: what is in hand stays in the cache, and memory is bounded
_COMMUNITY_NODES = 400
_DEGREE_SPREAD, _SIZE_SPREAD = 40.0, 10.0  # the largest expected degree and community, in smallest ones
_STRANGERS = 0.08  # the share of nodes with no edge drawn inside their community
_STRANGER_WEIGHT = 6  # how much more they draw outside
_SIGNAL = 0.25  # how far class means lie apart, in deviations of the noise
_LABEL_NOISE = 0.05

Pairs = NDArray[np.int64]  # each (lower node) << 32 | (higher node)


def community(
    num_nodes: int,
    *,
    degree: float = 25,
    features: int = 100,
    classes: int = 47,
    inside: float = 0.87,
    seed: int = 0,
) -> Graph:
    """Generate a degree-corrected community graph, whose labels are learned better with the graph than without.

    Communities have power-law sizes of about 400 nodes and one class each, and expected degrees follow a power law. A
    share ``inside`` of the edges joins nodes of one community; the others join any two nodes. For 8 % of the nodes
    (strangers) the neighbours carry no information. Features are the mean of the class plus noise, and 5 % of the
    labels are wrong. Half of the nodes are for training, a quarter each for validation and test.

    Args:
        num_nodes: N; they come shuffled, so that neighbours are near each other by no accident.
        degree: of a node on average; there are about ``num_nodes * degree`` edges, both directions counted.
        features: F; 0 for none.
        classes: C.
        inside: share of edges inside communities, 0 to 1.
        seed: of everything.
    """
    _check_community(num_nodes, degree=degree, classes=classes, inside=inside)
    bounds = _community_bounds(num_nodes, degree=degree, classes=classes, seed=seed)  # (K + 1,)
    pairs = _community_pairs(num_nodes, bounds, degree=degree, inside=inside, seed=seed)
    order = RandomStream(seed, "order").order(num_nodes).astype(np.int32)
    graph = _undirected(pairs, order, name="community")
    kind = RandomStream(seed, "community class").order(len(bounds) - 1) % classes
    true_class = np.empty(num_nodes, dtype=np.int64)
    true_class[order] = np.repeat(kind, np.diff(bounds))
    return _with_labels(graph, true_class, features=features, classes=classes, seed=seed)


def rmat(
    num_nodes: int,
    num_edges: int,
    *,
    a: float = 0.57,
    b: float = 0.19,
    c: float = 0.19,
    features: int = 0,
    classes: int = 0,
    seed: int = 0,
) -> Graph:
    """Generate a directed R-MAT graph (Chakrabarti, Zhan, Faloutsos 2004); repeated edges and self-loops stay.

    Each edge falls into the quarters of the adjacency matrix with probabilities ``a``, ``b``, ``c`` and the rest,
    recursively; then nodes are shuffled. Features depend on the class, which the graph does not.
    """
    src, dst = torch.empty(num_edges, dtype=torch.int32), torch.empty(num_edges, dtype=torch.int32)
    done = 0
    for some_src, some_dst in rmat_edges(num_nodes, num_edges, a=a, b=b, c=c, seed=seed):
        rows = slice(done, done + len(some_src))
        src[rows], dst[rows], done = torch.from_numpy(some_src), torch.from_numpy(some_dst), rows.stop
    csr = native.sort_rows(native.build_csr(dst, src, num_rows=num_nodes))
    graph = Graph(csr.indptr, csr.indices, name="rmat")
    if classes == 0 and features == 0:
        return graph
    kind = RandomStream(seed, "class").below(max(classes, 1), num_nodes).astype(np.int64)
    return _with_labels(graph, kind, features=features, classes=classes, seed=seed)


def rmat_edges(
    num_nodes: int, num_edges: int, *, a: float = 0.57, b: float = 0.19, c: float = 0.19, seed: int = 0
) -> Iterator[tuple[NDArray[np.int32], NDArray[np.int32]]]:
    """Yield the edges of :func:`rmat` in batches, for graphs larger than memory: sources and targets, (n,) each."""
    if not 1 <= num_nodes <= MAX_NODES or num_edges < 0:
        raise ValueError(
            f"rmat: {num_nodes} nodes and {num_edges} edges; expected at least 1 node and 0 edges"
        )
    if min(a, b, c) < 0 or a + b + c > 1:
        raise ValueError(f"rmat: a, b, c are {a}, {b}, {c}; expected chances that add up to 1 at most")
    chances, draws, done = (a, a + b, a + b + c), RandomStream(seed, "rmat"), 0
    order = draws.order(num_nodes).astype(np.int32)
    while done < num_edges:
        rows, cols = _rmat_chunk(num_nodes, min(_CHUNK, num_edges - done), chances, draws)
        there = (rows < num_nodes) & (cols < num_nodes)  # the matrix is a power of two wide
        rows, cols = rows[there], cols[there]
        yield order[rows], order[cols]
        done += len(rows)


def random_labels(graph: Graph, *, seed: int = 0) -> Graph:
    """Replace the labels by random ones: a score above chance then shows a leak.

    Classes are drawn evenly; unlabelled nodes stay so. Multi-label rows and regression targets are shuffled.
    """
    if graph.y is None:
        raise ValueError(f"{graph.name}: there are no labels to replace")
    draws = RandomStream(seed, "random labels")
    if graph.y.dtype != torch.int64:
        return replace(graph, y=graph.y[torch.from_numpy(draws.order(graph.num_nodes))])
    drawn = torch.from_numpy(draws.below(int(graph.y.max()) + 1, graph.num_nodes)).long()
    return replace(graph, y=torch.where(graph.y < 0, graph.y, drawn))


def _check_community(num_nodes: int, *, degree: float, classes: int, inside: float) -> None:
    if not 2 <= num_nodes <= MAX_NODES:
        raise ValueError(f"community: {num_nodes} nodes; expected 2 to {MAX_NODES}")
    if not 0 < degree <= num_nodes / 4:
        raise ValueError(
            f"community: degree is {degree}; expected more than 0, at most a quarter of {num_nodes} nodes"
        )
    if classes < 1:
        raise ValueError(f"community: classes is {classes}; expected at least 1")
    if not 0 <= inside <= 1:
        raise ValueError(f"community: inside is {inside}; expected a share from 0 to 1")


def _community_bounds(num_nodes: int, *, degree: float, classes: int, seed: int) -> NDArray[np.int64]:
    """Return the begin of each community among the ordered nodes, and the end of the last: (K + 1,)."""
    smallest = 4 * int(np.ceil(degree))  # on average; in a smaller one there would be no room for the edges
    count = max(num_nodes // _COMMUNITY_NODES, min(classes, num_nodes // smallest), 1)
    if count < classes:
        raise ValueError(
            f"community: {num_nodes} nodes of degree {degree} make {count} communities, fewer than the "
            f"{classes} classes; ask for {classes * smallest} nodes, for fewer classes or for a lower degree"
        )
    sizes = _power_law(RandomStream(seed, "sizes"), count, spread=_SIZE_SPREAD, scale=1000)
    ends = np.concatenate([[0], np.cumsum(sizes)])
    return np.arange(count + 1) + ends * (num_nodes - count) // ends[-1]  # none is empty


def _power_law(draws: RandomStream, count: int, *, spread: float, scale: float) -> NDArray[np.int64]:
    """Draw (count,) integers from ``scale`` to ``scale * spread``, whose density falls as the third power."""
    return (scale * np.minimum(1 / np.sqrt(draws.uniform(count)), spread)).astype(np.int64)


def _community_pairs(
    num_nodes: int, bounds: NDArray[np.int64], *, degree: float, inside: float, seed: int
) -> Pairs:
    """Draw distinct pairs of nodes in community order, half as many as there are edges."""
    weight = _power_law(RandomStream(seed, "degrees"), num_nodes, spread=_DEGREE_SPREAD, scale=4)
    stranger = RandomStream(seed, "strangers").chance(_STRANGERS, num_nodes)
    stranger[bounds[:-1]] = False  # so that every community has somebody to draw
    at_home, abroad = np.where(stranger, 0, weight), np.where(stranger, weight * _STRANGER_WEIGHT, weight)
    first = np.concatenate([[0], np.cumsum(at_home)])[bounds]  # (K + 1,) the first stub of each community
    community = np.repeat(np.arange(len(bounds) - 1, dtype=np.int32), np.diff(bounds))  # (N,)
    home_stub, any_stub = _stubs(at_home), _stubs(abroad)
    draws = RandomStream(seed, "edges")

    def any_node(count: int) -> NDArray[np.int32]:
        return any_stub[draws.below(len(any_stub), count)]

    def any_two(count: int) -> Pairs:
        return _pairs(any_node(count), any_node(count))

    def two_of_one(count: int) -> Pairs:
        one = home_stub[draws.below(len(home_stub), count)]
        low, high = first[community[one]], first[community[one] + 1]
        place = low + (draws.uniform(count) * (high - low)).astype(np.int64)
        return _pairs(one, home_stub[np.minimum(place, high - 1)])

    wanted = round(num_nodes * degree / 2)
    within = _distinct(two_of_one, round(wanted * inside), besides=np.empty(0, dtype=np.int64))
    return _distinct(any_two, wanted, besides=within)


def _stubs(weight: NDArray[np.int64]) -> NDArray[np.int32]:
    """Repeat each node by its weight: a stub drawn evenly is a node drawn by weight."""
    return np.repeat(np.arange(len(weight), dtype=np.int32), weight)


def _pairs(one: NDArray[np.int32], other: NDArray[np.int32]) -> Pairs:
    low, high = np.minimum(one, other), np.maximum(one, other)
    return (low.astype(np.int64) << 32 | high)[low != high]


def _distinct(draw: Callable[[int], Pairs], wanted: int, *, besides: Pairs) -> Pairs:
    """Draw until there are about ``wanted`` distinct pairs: never more, at most half a per cent fewer."""
    pairs = besides
    for _ in range(100):
        lacking = wanted - len(pairs)
        if lacking * 200 <= wanted:
            return pairs
        drawn = [draw(min(_CHUNK, lacking - done)) for done in range(0, lacking, _CHUNK)]
        pairs = np.concatenate([pairs, *drawn])
        pairs.sort()
        pairs = pairs[np.diff(pairs, prepend=-1) != 0]
    raise ValueError(f"community: no room for {wanted} distinct pairs; ask for more nodes or a lower degree")


def _undirected(pairs: Pairs, order: NDArray[np.int32], *, name: str) -> Graph:
    """Build the graph of the pairs in both directions; node ``i`` of the pairs becomes ``order[i]``."""
    one = torch.from_numpy(order[pairs >> 32])
    other = torch.from_numpy(order[pairs & 0xFFFFFFFF])
    csr = native.build_csr(torch.cat([one, other]), torch.cat([other, one]), num_rows=len(order))
    csr = native.sort_rows(csr)
    return Graph(csr.indptr, csr.indices, name=name)


def _with_labels(
    graph: Graph, true_class: NDArray[np.int64], *, features: int, classes: int, seed: int
) -> Graph:
    """Add features and, where there are classes, labels and a split of 50 / 25 / 25 per cent."""
    if features:
        graph = replace(graph, x=torch.from_numpy(_features(true_class, features, seed)))
    if not classes:
        return graph
    draws = RandomStream(seed, "labels")
    wrong = draws.chance(_LABEL_NOISE, len(true_class))
    y = np.where(wrong, draws.below(classes, len(true_class)), true_class)
    place = np.empty(len(y), dtype=np.int64)
    place[RandomStream(seed, "split").order(len(y))] = np.arange(len(y))
    half, three_quarters = len(y) // 2, len(y) * 3 // 4
    return replace(
        graph,
        y=torch.from_numpy(y),
        train_mask=torch.from_numpy(place < half),
        val_mask=torch.from_numpy((place >= half) & (place < three_quarters)),
        test_mask=torch.from_numpy(place >= three_quarters),
    )


def _features(true_class: NDArray[np.int64], features: int, seed: int) -> NDArray[np.float32]:
    mean = RandomStream(seed, "class means").noise(int(true_class.max()) + 1, features) * np.float32(_SIGNAL)
    draws = RandomStream(seed, "features")
    x = np.empty((len(true_class), features), dtype=np.float32)
    rows = max(1, _CHUNK // features)
    for start in range(0, len(x), rows):
        part = true_class[start : start + rows]
        np.add(mean[part], draws.noise(len(part), features), out=x[start : start + rows])
    return x


def _rmat_chunk(
    num_nodes: int, count: int, chances: tuple[float, float, float], draws: RandomStream
) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Draw a chunk of edges, one bit of both ends at a time; one random word serves four bits."""
    first, second, third = (np.uint16(min(round(chance * 2**16), 2**16 - 1)) for chance in chances)
    rows, cols = np.zeros(count, dtype=np.int32), np.zeros(count, dtype=np.int32)
    word: NDArray[np.uint64] = draws.raw(0)
    for level in range((num_nodes - 1).bit_length()):
        word = draws.raw(count) if level % 4 == 0 else word >> np.uint64(16)
        fate = word.astype(np.uint16)
        low = fate >= second
        rows += rows
        rows += low
        cols += cols
        cols += (fate >= first) ^ low ^ (fate >= third)
    return rows, cols
