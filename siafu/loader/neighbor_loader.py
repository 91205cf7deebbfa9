"""The loader that users see as ``siafu.NeighborLoader``."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from siafu.comm import Comm
from siafu.loader.arguments import check_pyg_arguments, check_sizes, read_fanouts
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

    Arguments and the fields of a minibatch are PyG's. Threads of this process sample, gather and build, as many as
    torch has. So ``num_workers`` and the like are accepted and ignored; arguments without a meaning here are refused.
    Sampling depends on the seed, the epoch, the minibatch, the hop and the node alone, not on the number of threads.

    On several ranks each rank has the seeds that it owns, and a minibatch is shared by all ranks: ``batch_size``
    counts the seeds of all ranks. Each rank samples the subgraph of its own seeds, and gets an empty minibatch if it
    owns none. Making a loader and taking a minibatch are collective. Unless shuffled, seeds are in the order of the
    user's ids. ``n_id`` are the user's ids, and there is no ``e_id``.

    Attributes:
        epoch: the number of the next iteration's epoch, from 0; set it to continue where another process ended.
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
                ``comm`` the Part of this rank. A store that is passed by its path stays on disk, and its resident
                pages are limited.
            num_neighbors: in-edges sampled per node in each hop, from the seeds outwards; -1: all.
            input_nodes: the seeds, as a mask or as rows, which may repeat; None: all nodes. Of a Part, own rows.
            batch_size: seeds of a minibatch, on all ranks together.
            replace: whether to sample with replacement.
            subgraph_type: ``directional``: the sampled edges; ``bidirectional``: these and their reverse; ``induced``:
                all edges between the sampled nodes.
            shuffle: whether to permute the seeds in each epoch.
            drop_last: whether to leave out a last minibatch that is not full.
            seed: of the permutation and the sampling.
            transform: a function that is applied to each minibatch.
            comm: the group of ranks that have the parts of the data; see ``siafu.join``.
            others: further arguments of PyG's loader.
        """
        check_pyg_arguments(others)
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
        """Yield the minibatches of the next epoch."""
        epoch, self.epoch = self.epoch, self.epoch + 1
        return (self._batch(epoch, number) for number in range(len(self)))

    def _batch(self, epoch: int, number: int) -> Any:
        first = number * self.batch_size
        numbers = torch.arange(first, min(first + self.batch_size, self._seeds.total))
        epoch_key = mix(mix(self._seed) ^ epoch)
        if self._shuffle:
            numbers = KeyedPermutation(self._seeds.total, key=mix(epoch_key)).at(numbers)
        place = self._seeds.own(numbers)
        subgraph = self._sample_around(
            self._source.position(self._seeds.rows(place)), mix(epoch_key ^ number)
        )
        batch = self._source.batch(subgraph)
        batch.num_nodes, batch.edge_index = subgraph.position.numel(), subgraph.edge_index
        batch.num_sampled_nodes, batch.num_sampled_edges = subgraph.hop_nodes, subgraph.hop_edges
        batch.input_id, batch.batch_size = self._seeds.input_id(place), place.numel()
        return batch if self.transform is None else self.transform(batch)

    def _sample_around(self, seeds: torch.Tensor, key: int) -> Subgraph:
        """Sample the subgraph around some seeds. Collective on several ranks."""
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
