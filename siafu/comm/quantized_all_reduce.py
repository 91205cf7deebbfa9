"""Quantized all-reduce (sum) with error feedback."""

from collections.abc import Mapping

import torch
from torch import Tensor
from torch.nn.functional import pad

from siafu.comm.all_reduce import sum_in_rank_order
from siafu.comm.comm import Comm
from siafu.comm.config import Precision
from siafu.comm.quantization import ErrorFeedback, decode, encode

_WIDTH = 256  # values that share a scale


class QuantizedAllReduce:
    """Sums tensors over ranks: the terms and the sums are quantized on the wire.

    ``width`` values share a scale. With ``error_feedback``, each call must have the same number of values, and
    quantization errors are added to the next call. Without it, calls are independent and may differ in size.
    """

    def __init__(
        self, comm: Comm, precision: Precision, *, width: int = _WIDTH, error_feedback: bool = True
    ) -> None:
        self._comm, self._precision, self._width = comm, precision, width
        self._feedback = ErrorFeedback(precision) if error_feedback else None

    @property
    def is_exact(self) -> bool:
        """True if nothing is quantized."""
        return self._precision == "fp32" or self._comm.world_size == 1

    def all_reduce(self, values: Tensor, *, label: str) -> Tensor:
        """Sum over all ranks, added in rank order, the same bits on every rank: (N,) -> (N,). Collective."""
        if self.is_exact:
            return self._comm.all_reduce(values, label=label)
        width = self._width
        rows = pad(values.detach(), (0, -values.numel() % width)).view(-1, width)
        sizes = [len(each) for each in torch.arange(rows.shape[0]).tensor_split(self._comm.world_size)]
        mine = sizes[self._comm.rank]
        wire = self._encode("terms", rows)
        received = self._comm.all_to_all(wire, sizes, [mine] * len(sizes), label=label)
        terms = self._decode(received, [mine] * len(sizes), rows.dtype, label).view(len(sizes), mine, width)
        added = sum_in_rank_order(list(terms), torch.empty_like(terms[0]))
        sums = self._comm.all_gather(self._encode("sums", added), label=label)
        return self._decode(torch.cat(sums), sizes, rows.dtype, label).view(-1)[: values.numel()]

    def state(self) -> dict[str, Tensor]:
        """Return the residuals of error feedback, for a checkpoint."""
        return {} if self._feedback is None else self._feedback.state()

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Restore the residuals of error feedback."""
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
