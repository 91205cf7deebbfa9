"""The frugal recipe among simulated clients: each client's contributions are rounded separately, every byte is counted.

Clients with training nodes contribute a term to each sum of a head, and receive the sum. Clients with validation nodes
receive it too, and send the scores of heads. All others receive a head once it is fitted. All clients send rows.

The whole recipe is one stage: a client that is away for it neither sends nor trains, and its neighbours drop the edges
from it. Each head is fitted by a new sample of the available training clients. In the end all clients are back; those
that were away receive the model, and rows are exchanged once more for the final outputs.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from siafu import native
from siafu.comm import Comm, single_rank_comm
from siafu.comm.availability import ClientAvailability
from siafu.comm.compressed_halo import CompressedHalo
from siafu.comm.config import Precision
from siafu.comm.quantization import quantize_dequantize
from siafu.comm.rounds import member_links
from siafu.comm.route import empty_route
from siafu.comm.simulated_rounds import SimulatedRounds
from siafu.comm.wire_sizes import EXACT, UpdateEncoding
from siafu.context import Context, ExchangeMode
from siafu.methods.lazy.averaging import flat_parameters
from siafu.methods.lazy.clients import clients_with_rows, restrict_task
from siafu.methods.lazy.config import LazyConfig
from siafu.methods.lazy.delivery_history import DeliveryHistory
from siafu.methods.lazy.frugal import Candidate, FrugalConfig, FrugalRecipe, FrugalResult
from siafu.methods.lazy.frugal_procedure import FrugalProcedure
from siafu.methods.lazy.hop_features import compute_hop_features
from siafu.methods.lazy.ridge import VALUES_PER_SCALE, LinearHead, RidgeRegression, RowSubset
from siafu.methods.lazy.validation import val_scores
from siafu.nn.aggregates import gcn_scales
from siafu.nn.propagated import Propagated
from siafu.partition.cut import Part
from siafu.training.task import Task

_TERM_NUMBERS = 1 << 23  # values of terms in memory at a time


class FrugalClientsProcedure(FrugalProcedure):
    """Fits the frugal recipe on the whole graph; ``owner``, (N,) int64, is the client of each node."""

    def __init__(self, part: Part, *args: Any, lazy: LazyConfig, owner: Tensor, **settings: Any) -> None:
        super().__init__(part, *args, **settings)
        self.owner = owner
        availability = ClientAvailability(
            int(owner.max()) + 1,
            seed=self.seed,
            participation=lazy.participation,
            away=lazy.away,
            quorum=lazy.quorum,
        )
        needed = [
            clients_with_rows(self.task, split, owner) for split in ("train", "val") if self.task.count[split]
        ]
        links = member_links(self.context.block.indptr, self.context.block.indices, owner)
        self.rounds = SimulatedRounds(availability, links, self.comm.meter, needed=needed)
        self._sums = 0

    def metrics(self, seconds: float) -> dict[str, Any]:
        """Further, the traffic of clients and its duration for each network profile."""
        clients = self.rounds.traffic_metrics(clients_with_rows(self.task, "train", self.owner))
        return super().metrics(seconds) | clients | {"rounds": self._sums}

    def _fit(self, config: FrugalConfig) -> FrugalResult:
        available = self.rounds.available(0)
        made = _ClientRecipe(
            self.rounds, self.owner, self.context, self.x_src, self.task, config, available=available
        )
        found = made.run()
        self._sums = made.sums
        out = found.out if bool(available.all()) else self._final_outputs(found.model, available)
        return replace(found, context=self.context, out=out)

    @torch.no_grad()
    def _final_outputs(self, model: Propagated, available: Tensor) -> Tensor:
        """Send the model to clients that were not ``available``, (P,) bool; compute its outputs with all clients."""
        self.rounds.broadcast(
            flat_parameters(list(model.parameters())), ~available, label="weights caught up"
        )
        halo = _MeteredHalo(self.rounds, self.context.num_dst, torch.ones_like(self.rounds.links.row).bool())
        halo.begin("halo answers")
        return model(replace(self.context, exchange=halo, cache={}), self.x_src)


class _ClientRecipe(FrugalRecipe):
    """The recipe on the nodes of ``available`` clients, (P,) bool; counts the bytes that they would send."""

    def __init__(
        self,
        rounds: SimulatedRounds,
        owner: Tensor,
        context: Context,
        x: Any,
        task: Task,
        config: FrugalConfig,
        *,
        available: Tensor,
    ) -> None:
        comm, deliveries = (
            _MeteredComm(task.comm, self._meter_sum),
            DeliveryHistory(context, rounds.links, owner),
        )
        task, asked = restrict_task(task, available[owner]), deliveries.messages_between(available, available)
        present, _ = deliveries.context(0, [x], asked, stands_in=False)
        super().__init__(comm, present, empty_route(), x, replace(task, comm=comm), config)
        self.rounds, self.owner, self.sums, self.heads = rounds, owner, 0, 0
        self.halo = _MeteredHalo(rounds, context.num_dst, asked)
        self.context = replace(self.context, exchange=self.halo)
        self.edges, self.asked = context.block.indptr.diff(), asked
        self.present_clients, self.available = available, available[owner]
        self.validators = clients_with_rows(task, "val", owner)
        self.senders = clients_with_rows(task, "train", owner)
        self.nodes = self.train

    def run(self) -> FrugalResult:
        """Fit all candidates; if a client is away, exchange the degrees of the whole graph first."""
        if self.context.block.whole is not None:
            scale = gcn_scales(self.context, torch.float64).pre
            assert scale is not None
            self.rounds.exchange(scale[:, None], self.asked, label="halo degrees")
        return super().run()

    def _input_head(self, rows: Tensor, target: Tensor) -> Candidate:
        self.nodes = rows
        made = super()._input_head(rows, target)
        (score,) = val_scores(self.task, [made.z[self.val]])  # of the head as clients received it
        return replace(made, score=score)

    def _blended_head(self, made: Candidate, hop: int, rows: Tensor, x: Tensor) -> Candidate:
        self.nodes = self.train
        return super()._blended_head(made, hop, rows, x)

    def _degree_head(self, rows: list[Tensor], x: Tensor) -> Candidate:
        self.nodes = self.train
        return super()._degree_head(rows, x)

    def _fit_head(
        self, rows: RowSubset, target: Tensor, rows_val: RowSubset, *, sums: Precision | None = None
    ) -> LinearHead:
        could = torch.zeros_like(self.present_clients)
        could[self.owner[self.nodes]] = True
        kept = self.rounds.sample_participants(self.heads, could)[self.owner[self.nodes]]
        self.nodes, self.heads = self.nodes[kept], self.heads + 1
        head = super()._fit_head(rows.select(kept), target[kept], rows_val, sums=sums)
        return self._broadcast_head(head, UpdateEncoding(sums or self.config.sums, VALUES_PER_SCALE))

    def _broadcast_head(self, head: LinearHead, wire: UpdateEncoding) -> LinearHead:
        """Send a head to the clients that did not receive its sums; all clients use the head as sent."""
        values = torch.cat([head.weight.reshape(-1), head.bias])
        others = self.present_clients & ~(self.senders | self.validators)
        values = self.rounds.broadcast(values, others, label="weights head", wire=wire)
        weight, bias = values.split([head.weight.numel(), head.bias.numel()])
        return replace(head, weight=weight.view_as(head.weight), bias=bias)

    def _ridge(
        self, rows: RowSubset, target: Tensor, weight: Tensor | None, *, sums: Precision
    ) -> RidgeRegression:
        owner, self.senders = self.owner[self.nodes], torch.zeros_like(self.present_clients)
        self.senders[owner] = True
        wire = UpdateEncoding(sums, VALUES_PER_SCALE)
        return _ClientRidge(
            _ClientRows(rows, owner, wire), target, self.comm, weight=weight, add=self._reduce_terms
        )

    def _reduce_terms(self, sums: Tensor, wire: UpdateEncoding) -> Tensor:
        """Count a sum of terms, (N,), and return it as contributing and validating clients receive it."""
        self.sums += 1
        total = self.rounds.collect(sums, self.senders, label="gradients ridge", wire=wire)
        return self.rounds.broadcast(
            total, self.senders | self.validators, label="gradients ridge", wire=wire
        )

    def _meter_sum(self, values: Tensor, label: str) -> None:
        """Count a sum that is not rounded: means, scores, or a histogram of confidences or degrees."""
        if label.startswith("gradients"):
            self._reduce_terms(values, EXACT)
            return
        sure = label in ("scores confident", "scores degrees")
        self.rounds.collect(values, self.present_clients if sure else self.validators, label=label)
        self.rounds.broadcast(
            values[:1], self.present_clients if sure else self.senders | self.validators, label=label
        )

    def _hop_rows(self, x: Tensor) -> list[Tensor]:
        """Compute the features of each hop; clients request the rows that they read first."""
        need = [torch.cat([self.train, self.val])]  # nodes that each hop computes, the last hop at the end
        for _ in range(self.config.hops - 1):
            read = native.mark_columns(self.context.block.csr, need[0], num_cols=self.context.num_src)
            read[need[0]] = True
            need.insert(0, read.nonzero()[:, 0])
        rows = x
        for hop, nodes in enumerate(need):
            asked = self._messages_to(nodes)
            self.rounds.request(asked, label="halo asks")
            self.rounds.exchange(rows, asked, label="halo features")
            rows = self._hop_output(hop + 1, nodes, x)
        return super()._hop_rows(x)

    def _hop_output(self, hops: int, nodes: Tensor, x: Tensor) -> Tensor:
        """Compute the features after some hops for some nodes, as they are sent: (N, F)."""
        precision = self.config.scores
        every = compute_hop_features(
            self.comm, self.context, self.route, x, wanted=nodes, hops=hops, precision=precision
        )
        rows = torch.zeros_like(x)
        rows[nodes] = quantize_dequantize(every[-1].double(), precision).to(x.dtype)
        return rows

    def _messages_to(self, nodes: Tensor) -> Tensor:
        """Select the messages that bring the rows that some nodes read, (M,) bool."""
        links, reads = self.rounds.links, torch.zeros(self.context.num_dst, dtype=torch.bool)
        reads[nodes] = True
        used = links.of_edge[reads.repeat_interleave(self.edges)]
        asked = torch.zeros(links.row.numel(), dtype=torch.bool)
        asked[used[used >= 0]] = True
        return asked & self.asked


class _ClientRows(RowSubset):
    """Rows of several clients, whose terms of a sum are rounded separately; ``owner`` is (R,) int64."""

    def __init__(self, rows: RowSubset, owner: Tensor, wire: UpdateEncoding) -> None:
        order = owner.argsort(stable=True)
        super().__init__(rows._x, rows.index)
        self._rows, self.width = rows, rows.width
        self.wire, self._order = wire, order
        self._client = owner[order].unique_consecutive(return_inverse=True)[1]

    def take(self, index: Tensor) -> Tensor:
        """Take rows of all inputs by index: (R,) -> (R, F)."""
        return self._rows.take(index)

    def terms(self, values: Tensor) -> Tensor:
        """Sum every client's ``X' V`` as it is sent: (R, K) -> (F, K)."""
        out = torch.zeros(self.width * values.shape[1], dtype=self.dtype)
        for rows, client in self._groups(out.numel()):
            x, v = self.take(self.index[rows]), values[rows].to(self.dtype)
            some = int(client[-1]) + 1
            if some == 1:
                each = (x.t() @ v).reshape(1, -1)
            else:
                each = out.new_zeros(some, out.numel())
                each.index_add_(0, client, (x[:, :, None] * v[:, None, :]).flatten(1))
            out += self.wire.quantize_rows(each).sum(0)
        return out.view(self.width, -1)

    def _groups(self, numbers: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield the rows of a few clients at a time, and the client of each row, from 0."""
        most = max(1, _TERM_NUMBERS // max(1, numbers))
        size = torch.bincount(self._client).tolist()
        begin, rows, first = 0, 0, 0
        for client, count in enumerate([*size, most + 1]):
            if rows and rows + count > most:
                some = slice(first, first + rows)
                yield self._order[some], self._client[some] - begin
                begin, first, rows = client, first + rows, 0
            rows += count


class _ClientRidge(RidgeRegression):
    """Ridge regression whose terms come from clients; ``add`` takes a sum and its wire encoding."""

    def __init__(
        self,
        rows: _ClientRows,
        target: Tensor,
        comm: Comm,
        *,
        weight: Tensor | None,
        add: Callable[[Tensor, UpdateEncoding], Tensor],
    ) -> None:
        self._reduce_terms, self._by_client = add, rows
        super().__init__(rows, target, comm, weight=weight)

    def _sum(self, values: Tensor) -> Tensor:
        terms = self._by_client.terms(values)
        return self._reduce_terms(terms.reshape(-1), self._by_client.wire).view_as(terms).double()


class _MeteredComm(Comm):
    """A Comm of one rank that reports its sums to a callback."""

    def __init__(self, comm: Comm, hear: Callable[[Tensor, str], None]) -> None:
        super().__init__(comm._transport)
        self._meter_sum = hear

    def all_reduce(self, values: Tensor, *, label: str) -> Tensor:
        """Return the values, which are the sum, and report them."""
        self._meter_sum(values.reshape(-1), label)
        return super().all_reduce(values, label=label)


class _MeteredHalo(CompressedHalo):
    """A halo without remote rows that counts the bytes of the messages ``asked``, (M,) bool, at each exchange."""

    def __init__(self, rounds: SimulatedRounds, num_own: int, asked: Tensor) -> None:
        super().__init__(single_rank_comm(), empty_route(), num_own=num_own)
        self._rounds, self._asked = rounds, asked

    def start_gather(self, x_own: Tensor, mode: ExchangeMode) -> Callable[[], Tensor]:
        """Count the exchange and gather nothing: (D, F) -> (0, F)."""
        self._rounds.exchange(x_own, self._asked, label=self._label)
        return lambda: x_own[:0]
