"""A sum over ranks whose terms travel in fewer bytes; what rounding loses goes with the next one."""

from collections.abc import Mapping

import torch
from torch import Tensor
from torch.nn.functional import pad

from siafu.comm.codec import Feedback, decode
from siafu.comm.comm import Comm
from siafu.comm.config import Precision
from siafu.comm.reduce import add_in_order

_WIDTH = 256  # numbers that share a scale


class RoundedSum:
    """Sums of values that are as many each time. Every method but those of its state is collective."""

    def __init__(self, comm: Comm, precision: Precision) -> None:
        self._comm, self._precision = comm, precision
        self._feedback = Feedback(precision)

    @property
    def exact(self) -> bool:
        """Whether nothing is rounded."""
        return self._precision == "fp32" or self._comm.world_size == 1

    def add(self, values: Tensor, *, label: str) -> Tensor:
        """The sum over all ranks, added in rank order, the same bits on every rank: (N,) -> (N,)."""
        if self.exact:
            return self._comm.all_reduce(values, label=label)
        rows = pad(values.detach(), (0, -values.numel() % _WIDTH)).view(-1, _WIDTH)
        sizes = [len(each) for each in torch.arange(rows.shape[0]).tensor_split(self._comm.world_size)]
        mine = sizes[self._comm.rank]
        wire = self._feedback.encode("terms", rows)
        came = self._comm.all_to_all(wire, sizes, [mine] * len(sizes), label=label)
        terms = decode(came, self._precision, _WIDTH, rows.dtype).split(mine)
        added = add_in_order(terms, torch.empty_like(terms[0]))
        sums = self._comm.all_gather(self._feedback.encode("sums", added), label=label)
        return decode(torch.cat(sums), self._precision, _WIDTH, rows.dtype).view(-1)[: values.numel()]

    def state(self) -> dict[str, Tensor]:
        """What rounding lost and is still to be sent."""
        return self._feedback.state()

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Go on from such a state."""
        self._feedback.load(state)
