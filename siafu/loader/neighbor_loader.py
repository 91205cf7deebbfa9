"""The loader."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from siafu.comm import Comm
from siafu.loader.arguments import check_others, check_sizes, read_fanouts
from siafu.loader.sample_source import open_source
from siafu.nn.dropout import mix
from siafu.sampling import (
    KeyedPermutation,
    Subgraph,
    induced_subgraph,
    make_bidirectional,
    repeat_seeds,
    sample_subgraph,
    unique_seeds,
)


class NeighborLoader:
    """Minibatches of sampled neighbours, as torch_geometric.loader.NeighborLoader makes them, without pyg-lib.

        loader = siafu.NeighborLoader(data, [15, 10], input_nodes=data.train_mask, batch_size=1024, shuffle=True)
        for batch in loader:
            out = model(batch.x, batch.edge_index)[: batch.batch_size]

    Arguments and the fields of a minibatch are PyG's. Threads of this process draw, gather and build (as many as torch
    has), so ``num_workers`` and the like are accepted and change nothing; what has no meaning here is refused. Which
    neighbours are drawn depends on the seed, the epoch, the minibatch, the hop and the node alone, and so on no number
    of threads.

    On several ranks each has the seeds that it owns, and a minibatch is one of all ranks: ``batch_size`` counts all its
    seeds, each rank grows the subgraph of its own, and has an empty minibatch where it owns none. Making a loader and
    taking a minibatch are collective. Unless shuffled, seeds stand in the order of the user's ids. ``n_id`` are the
    user's ids, and there is no ``e_id``.

    Attributes:
        epoch: of the next iteration, from 0; set it to go on where another process ended.
    """

    def __init__(
        self,
        data: Any,
        num_neighbors: Sequence[int],
        input_nodes: Any = None,
        *,
        batch_size: int = 1,
        replace: bool = False,
        subgraph_type: str = "directional",
        shuffle: bool = False,
        drop_last: bool = False,
        seed: int = 0,
        transform: Callable[[Any], Any] | None = None,
        comm: Comm | None = None,
        **others: Any,
    ) -> None:
        """Make a loader.

        Args:
            data: a torch_geometric Data, a siafu Graph, the name or path of one as ``siafu.load`` takes it, or with
                ``comm`` the Part of this rank. A store that is given by its path stays on disk, and its pages do not
                pile up in memory.
            num_neighbors: in-edges drawn for a node in each hop, from the seeds outwards; -1: all.
            input_nodes: the seeds, as a mask or as rows, which may repeat; None: all nodes. Of a Part, own rows.
            batch_size: seeds of a minibatch, on all ranks together.
            replace: whether to draw with replacement.
            subgraph_type: ``directional``: the edges drawn; ``bidirectional``: those and their reverse; ``induced``:
                all edges between the nodes that were met.
            shuffle: whether each epoch has another order of seeds.
            drop_last: whether to leave out a last minibatch that is not full.
            seed: of the order and the draws.
            transform: what is done to each minibatch.
            comm: the group of ranks over which the data is cut; see ``siafu.join``.
            others: further arguments of PyG's loader.
        """
        check_others(others)
        check_sizes(batch_size, str(getattr(subgraph_type, "value", subgraph_type)))
        self._fanouts = read_fanouts(num_neighbors)
        self._source = open_source(data, comm)
        self._seeds = self._source.seeds(input_nodes)
        self.data, self.batch_size, self.drop_last, self.transform = data, batch_size, drop_last, transform
        self._type, self._replace = str(getattr(subgraph_type, "value", subgraph_type)), replace
        self._shuffle, self._seed = shuffle, seed
        self.epoch = 0

    def __len__(self) -> int:
        total = self._seeds.total
        return total // self.batch_size if self.drop_last else -(-total // self.batch_size)

    def __iter__(self) -> Iterator[Any]:
        """The minibatches of the next epoch."""
        epoch, self.epoch = self.epoch, self.epoch + 1
        return (self._batch(epoch, number) for number in range(len(self)))

    def _batch(self, epoch: int, number: int) -> Any:
        first = number * self.batch_size
        numbers = torch.arange(first, min(first + self.batch_size, self._seeds.total))
        epoch_key = mix(mix(self._seed) ^ epoch)
        if self._shuffle:
            numbers = KeyedPermutation(self._seeds.total, key=mix(epoch_key)).at(numbers)
        place = self._seeds.own(numbers)
        subgraph = self._around(self._source.position(self._seeds.rows(place)), mix(epoch_key ^ number))
        batch = self._source.batch(subgraph)
        batch.num_nodes, batch.edge_index = subgraph.position.numel(), subgraph.edge_index
        batch.num_sampled_nodes, batch.num_sampled_edges = subgraph.hop_nodes, subgraph.hop_edges
        batch.input_id, batch.batch_size = self._seeds.input_id(place), place.numel()
        return batch if self.transform is None else self.transform(batch)

    def _around(self, seeds: torch.Tensor, key: int) -> Subgraph:
        """The subgraph of some seeds. Collective on several ranks."""
        draw, keys = self._source.draw, [_signed(mix(key ^ (hop + 1))) for hop in range(len(self._fanouts))]
        different, place = unique_seeds(seeds)
        found = sample_subgraph(draw, different, keys, fanouts=self._fanouts, replace=self._replace)
        match self._type:
            case "induced":
                found = induced_subgraph(draw, found)
            case "bidirectional":
                found = make_bidirectional(found)
        return repeat_seeds(found, place)

    def __repr__(self) -> str:
        return (
            f"NeighborLoader({len(self)} minibatches of {self.batch_size} seeds, {self._fanouts} neighbours)"
        )


def _signed(value: int) -> int:
    return value - 2**64 if value >= 2**63 else value
