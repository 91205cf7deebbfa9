"""A sum over ranks whose terms travel in fewer bytes; what rounding loses goes with the next one."""

from collections.abc import Mapping

import torch
from torch import Tensor
from torch.nn.functional import pad

from siafu.comm.all_reduce import add_in_order
from siafu.comm.comm import Comm
from siafu.comm.config import Precision
from siafu.comm.quantization import ErrorFeedback, decode, encode

_WIDTH = 256  # numbers that share a scale


class QuantizedAllReduce:
    """Sums of values that are as many each time. Every method but those of its state is collective.

    ``width`` numbers share a scale. Where sums have nothing to do with each other, nothing of what one of them lost
    belongs into the next: then ``remember`` is false, and there may be another number of values each time.
    """

    def __init__(
        self, comm: Comm, precision: Precision, *, width: int = _WIDTH, remember: bool = True
    ) -> None:
        self._comm, self._precision, self._width = comm, precision, width
        self._feedback = ErrorFeedback(precision) if remember else None

    @property
    def exact(self) -> bool:
        """Whether nothing is rounded."""
        return self._precision == "fp32" or self._comm.world_size == 1

    def add(self, values: Tensor, *, label: str) -> Tensor:
        """The sum over all ranks, added in rank order, the same bits on every rank: (N,) -> (N,)."""
        if self.exact:
            return self._comm.all_reduce(values, label=label)
        width = self._width
        rows = pad(values.detach(), (0, -values.numel() % width)).view(-1, width)
        sizes = [len(each) for each in torch.arange(rows.shape[0]).tensor_split(self._comm.world_size)]
        mine = sizes[self._comm.rank]
        wire = self._encode("terms", rows)
        came = self._comm.all_to_all(wire, sizes, [mine] * len(sizes), label=label)
        terms = self._decode(came, [mine] * len(sizes), rows.dtype, label).view(len(sizes), mine, width)
        added = add_in_order(list(terms), torch.empty_like(terms[0]))
        sums = self._comm.all_gather(self._encode("sums", added), label=label)
        return self._decode(torch.cat(sums), sizes, rows.dtype, label).view(-1)[: values.numel()]

    def state(self) -> dict[str, Tensor]:
        """What rounding lost and is still to be sent."""
        return {} if self._feedback is None else self._feedback.state()

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Go on from such a state."""
        if self._feedback is not None:
            self._feedback.load(state)

    def _decode(self, wire: Tensor, recv: list[int], dtype: torch.dtype, label: str) -> Tensor:
        rows = decode(wire, self._precision, self._width, dtype)
        self._comm.check_rows(rows, recv, label=label)
        return rows

    def _encode(self, key: str, rows: Tensor) -> Tensor:
        if self._feedback is None:
            return encode(rows, self._precision)
        return self._feedback.encode(key, rows)
