"""The frugal recipe among simulated clients: every client's terms are rounded by themselves, every byte is counted.

Who has training nodes gives its term of each sum of a head, and hears the sum; who has validation nodes hears it too,
and tells how good heads are. All others hear a head once it is fitted. Everybody passes on rows.

The whole recipe is one stage: who is away for it neither sends nor learns, and its neighbours do without. Of the
training clients that are there, those who give the terms of a head are drawn anew for each head. In the end everybody
is back, who was away hears the model, and rows travel once more, so that all are answered alike.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from siafu import native
from siafu.comm import Comm, single_rank_comm
from siafu.comm.availability import Attendance
from siafu.comm.compressed_halo import CompressedHalo
from siafu.comm.config import Precision
from siafu.comm.quantization import quantize_dequantize
from siafu.comm.rounds import member_links
from siafu.comm.route import empty_route
from siafu.comm.simulated_rounds import SimulatedRounds
from siafu.comm.wire_sizes import EXACT, UpdateWire
from siafu.graph import Block, Fetch
from siafu.methods.lazy.averaging import flat
from siafu.methods.lazy.clients import holders, of_those
from siafu.methods.lazy.config import LazyConfig
from siafu.methods.lazy.delivery_history import Known
from siafu.methods.lazy.frugal import Candidate, Frugal, FrugalConfig, Recipe
from siafu.methods.lazy.frugal_procedure import FrugalProcedure
from siafu.methods.lazy.hop_features import hop_rows
from siafu.methods.lazy.ridge import SHARE_A_SCALE, Head, Picked, Ridge
from siafu.methods.lazy.validation import val_scores
from siafu.nn.aggregates import gcn_scales
from siafu.nn.propagated import Propagated
from siafu.partition.cut import Part
from siafu.training.task import Task

_TERM_NUMBERS = 1 << 23  # of terms that are held at a time


class FrugalClientsProcedure(FrugalProcedure):
    """Fits the frugal recipe on the whole graph, whose nodes belong to clients: ``owner`` is (N,) int64."""

    def __init__(self, part: Part, *args: Any, lazy: LazyConfig, owner: Tensor, **settings: Any) -> None:
        super().__init__(part, *args, **settings)
        self.owner = owner
        attendance = Attendance(
            int(owner.max()) + 1,
            seed=self.seed,
            participation=lazy.participation,
            away=lazy.away,
            quorum=lazy.quorum,
        )
        needed = [holders(self.task, split, owner) for split in ("train", "val") if self.task.count[split]]
        links = member_links(self.block.indptr, self.block.indices, owner)
        self.rounds = SimulatedRounds(attendance, links, self.comm.meter, needed=needed)
        self._sums = 0

    def metrics(self, seconds: float) -> dict[str, Any]:
        """Further, the traffic of clients and how long it takes at each level."""
        clients = self.rounds.told(holders(self.task, "train", self.owner))
        return super().metrics(seconds) | clients | {"rounds": self._sums}

    def _fit(self, config: FrugalConfig) -> Frugal:
        there = self.rounds.meet(0)
        made = _AmongClients(self.rounds, self.owner, self.block, self.x_src, self.task, config, there=there)
        found = made.run()
        self._sums = made.sums
        out = found.out if bool(there.all()) else self._answered(found.model, there)
        return replace(found, block=self.block, out=out)

    @torch.no_grad()
    def _answered(self, model: Propagated, there: Tensor) -> Tensor:
        """What the model says with everybody back, after who was not ``there``, (P,) bool, has heard it."""
        self.rounds.tell(flat(list(model.parameters())), ~there, label="weights caught up")
        passing = _Passing(self.rounds, self.block.num_dst, torch.ones_like(self.rounds.links.row).bool())
        passing.begin("halo answers")
        return model(replace(self.block, others=passing, memo={}), self.x_src)


class _AmongClients(Recipe):
    """The recipe on the nodes of those who are there, (P,) bool, with what they would send for it."""

    def __init__(
        self,
        rounds: SimulatedRounds,
        owner: Tensor,
        block: Block,
        x: Any,
        task: Task,
        config: FrugalConfig,
        *,
        there: Tensor,
    ) -> None:
        heard, known = _Heard(task.comm, self._hear), Known(block, rounds.links, owner)
        task, asked = of_those(task, there[owner]), known.asked(there, there)
        left, _ = known.block(0, [x], asked, stands_in=False)
        super().__init__(heard, left, empty_route(), x, replace(task, comm=heard), config)
        self.rounds, self.owner, self.sums, self.heads = rounds, owner, 0, 0
        self.halo = _Passing(rounds, block.num_dst, asked)
        self.block = replace(self.block, others=self.halo)
        self.edges, self.asked = block.indptr.diff(), asked
        self.everybody, self.there = there, there[owner]
        self.judges = holders(task, "val", owner)
        self.givers = holders(task, "train", owner)
        self.nodes = self.train

    def run(self) -> Frugal:
        """Try everything; where somebody is away, degrees of the whole graph are told first."""
        if self.block.whole is not None:
            scale = gcn_scales(self.block, torch.float64).pre
            assert scale is not None
            self.rounds.exchange(scale[:, None], self.asked, label="halo degrees")
        return super().run()

    def _plain(self, rows: Tensor, target: Tensor) -> Candidate:
        self.nodes = rows
        made = super()._plain(rows, target)
        (score,) = val_scores(self.task, [made.z[self.val]])  # of the head as it was told
        return replace(made, score=score)

    def _blended(self, made: Candidate, hop: int, rows: Tensor, x: Tensor) -> Candidate:
        self.nodes = self.train
        return super()._blended(made, hop, rows, x)

    def _by_degree(self, rows: list[Tensor], x: Tensor) -> Candidate:
        self.nodes = self.train
        return super()._by_degree(rows, x)

    def _head(self, rows: Picked, target: Tensor, rows_val: Picked, *, sums: Precision | None = None) -> Head:
        could = torch.zeros_like(self.everybody)
        could[self.owner[self.nodes]] = True
        kept = self.rounds.draw(self.heads, could)[self.owner[self.nodes]]
        self.nodes, self.heads = self.nodes[kept], self.heads + 1
        head = super()._head(rows.some(kept), target[kept], rows_val, sums=sums)
        return self._told(head, UpdateWire(sums or self.config.sums, SHARE_A_SCALE))

    def _told(self, head: Head, wire: UpdateWire) -> Head:
        """A head as those hear it who did not hear the sums; all go on with that."""
        told = torch.cat([head.weight.reshape(-1), head.bias])
        others = self.everybody & ~(self.givers | self.judges)
        told = self.rounds.tell(told, others, label="weights head", wire=wire)
        weight, bias = told.split([head.weight.numel(), head.bias.numel()])
        return replace(head, weight=weight.view_as(head.weight), bias=bias)

    def _ridge(self, rows: Picked, target: Tensor, weight: Tensor | None, *, sums: Precision) -> Ridge:
        owner, self.givers = self.owner[self.nodes], torch.zeros_like(self.everybody)
        self.givers[owner] = True
        wire = UpdateWire(sums, SHARE_A_SCALE)
        return _RidgeOfClients(_ByClient(rows, owner, wire), target, self.comm, weight=weight, add=self._add)

    def _add(self, sums: Tensor, wire: UpdateWire) -> Tensor:
        """A sum of terms, (N,), as those who gave and those who judge hear it."""
        self.sums += 1
        total = self.rounds.collect(sums, self.givers, label="gradients ridge", wire=wire)
        return self.rounds.tell(total, self.givers | self.judges, label="gradients ridge", wire=wire)

    def _hear(self, values: Tensor, label: str) -> None:
        """Count a sum that is not rounded: means, scores, or how sure nodes are."""
        if label.startswith("gradients"):
            self._add(values, EXACT)
            return
        sure = label in ("scores confident", "scores degrees")
        self.rounds.collect(values, self.everybody if sure else self.judges, label=label)
        self.rounds.tell(values[:1], self.everybody if sure else self.givers | self.judges, label=label)

    def _hop_rows(self, x: Tensor) -> list[Tensor]:
        """Inputs of each hop; before it clients ask for the rows that they read."""
        need = [torch.cat([self.train, self.val])]  # what each hop gives, the last hop's at the end
        for _ in range(self.config.hops - 1):
            read = native.mark_columns(self.block.csr, need[0], num_cols=self.block.num_src)
            read[need[0]] = True
            need.insert(0, read.nonzero()[:, 0])
        rows = x
        for hop, nodes in enumerate(need):
            asked = self._messages_to(nodes)
            self.rounds.ask(asked, label="halo asks")
            self.rounds.exchange(rows, asked, label="halo features")
            rows = self._made_by(hop + 1, nodes, x)
        return super()._hop_rows(x)

    def _made_by(self, hops: int, nodes: Tensor, x: Tensor) -> Tensor:
        """What some hops make of the inputs, for some nodes, as it travels: (N, F)."""
        precision = self.config.scores
        every = hop_rows(self.comm, self.block, self.route, x, wanted=nodes, hops=hops, precision=precision)
        rows = torch.zeros_like(x)
        rows[nodes] = quantize_dequantize(every[-1].double(), precision).to(x.dtype)
        return rows

    def _messages_to(self, nodes: Tensor) -> Tensor:
        """The messages that bring what some nodes read, (M,) bool."""
        links, reads = self.rounds.links, torch.zeros(self.block.num_dst, dtype=torch.bool)
        reads[nodes] = True
        used = links.of_edge[reads.repeat_interleave(self.edges)]
        asked = torch.zeros(links.row.numel(), dtype=torch.bool)
        asked[used[used >= 0]] = True
        return asked & self.asked


class _ByClient(Picked):
    """Rows of clients, whose terms of a sum are rounded each by itself; ``owner`` is (R,) int64."""

    def __init__(self, rows: Picked, owner: Tensor, wire: UpdateWire) -> None:
        order = owner.argsort(stable=True)
        super().__init__(rows._x, rows.index)
        self._rows, self.width = rows, rows.width
        self.wire, self._order = wire, order
        self._client = owner[order].unique_consecutive(return_inverse=True)[1]

    def take(self, index: Tensor) -> Tensor:
        """Some rows of all inputs: (R,) -> (R, F)."""
        return self._rows.take(index)

    def terms(self, values: Tensor) -> Tensor:
        """The sum of every client's ``X' V`` as it travels: (R, K) -> (F, K)."""
        out = torch.zeros(self.width * values.shape[1], dtype=self.dtype)
        for rows, client in self._groups(out.numel()):
            x, v = self.take(self.index[rows]), values[rows].to(self.dtype)
            some = int(client[-1]) + 1
            if some == 1:
                each = (x.t() @ v).reshape(1, -1)
            else:
                each = out.new_zeros(some, out.numel())
                each.index_add_(0, client, (x[:, :, None] * v[:, None, :]).flatten(1))
            out += self.wire.arrived(each).sum(0)
        return out.view(self.width, -1)

    def _groups(self, numbers: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Rows of a few clients at a time, and the client of each, from 0."""
        most = max(1, _TERM_NUMBERS // max(1, numbers))
        size = torch.bincount(self._client).tolist()
        begin, rows, first = 0, 0, 0
        for client, count in enumerate([*size, most + 1]):
            if rows and rows + count > most:
                some = slice(first, first + rows)
                yield self._order[some], self._client[some] - begin
                begin, first, rows = client, first + rows, 0
            rows += count


class _RidgeOfClients(Ridge):
    """Ridge regression whose terms travel from clients; ``add`` takes a sum and how it travels."""

    def __init__(
        self,
        rows: _ByClient,
        target: Tensor,
        comm: Comm,
        *,
        weight: Tensor | None,
        add: Callable[[Tensor, UpdateWire], Tensor],
    ) -> None:
        self._told, self._by_client = add, rows
        super().__init__(rows, target, comm, weight=weight)

    def _sum(self, values: Tensor) -> Tensor:
        terms = self._by_client.terms(values)
        return self._told(terms.reshape(-1), self._by_client.wire).view_as(terms).double()


class _Heard(Comm):
    """A Comm of one rank whose sums somebody hears of."""

    def __init__(self, comm: Comm, hear: Callable[[Tensor, str], None]) -> None:
        super().__init__(comm._transport)
        self._hear = hear

    def all_reduce(self, values: Tensor, *, label: str) -> Tensor:
        """The sum, which is what was given."""
        self._hear(values.reshape(-1), label)
        return super().all_reduce(values, label=label)


class _Passing(CompressedHalo):
    """Nobody holds rows that are not here; but what is passed on in the messages ``asked``, (M,) bool, is counted."""

    def __init__(self, rounds: SimulatedRounds, num_own: int, asked: Tensor) -> None:
        super().__init__(single_rank_comm(), empty_route(), num_own=num_own)
        self._rounds, self._asked = rounds, asked

    def start_fetch(self, x_own: Tensor, how: Fetch) -> Callable[[], Tensor]:
        """Nothing is brought: (D, F) -> (0, F)."""
        self._rounds.exchange(x_own, self._asked, label=self._label)
        return lambda: x_own[:0]
