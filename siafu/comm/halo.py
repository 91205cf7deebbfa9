"""Halo exchange: gather the rows that a part reads but does not own, and return their gradients to the owners."""

from collections.abc import Callable
from functools import cached_property

import torch
from torch import Tensor

from siafu import native
from siafu.comm.comm import Comm
from siafu.comm.config import Precision
from siafu.comm.quantization import ErrorFeedback, decode, encode
from siafu.comm.route import Route
from siafu.comm.sparse_rows import exchange_sparse_rows
from siafu.context import ExchangeMode
from siafu.native import Csr, SparseRows


class Halo:
    """Halo exchange over a :class:`Comm`: rows travel along the route, their gradients in the opposite direction.

    It implements :class:`siafu.context.HaloExchange`. If they are quantized, rows and gradients of training passes use
    error feedback.
    """

    has_halo = True

    def __init__(self, comm: Comm, route: Route, *, num_own: int, precision: Precision = "fp32") -> None:
        self._comm, self._route, self._num_own, self._precision = comm, route, num_own, precision
        self._label, self._exchange_number = "halo", 0
        self._feedback = ErrorFeedback(
            precision
        )  # what rounding lost of rows sent while learning goes with the next

    def begin(self, label: str) -> None:
        """Start a pass over the model: label its exchanges, and number them from 0 for error feedback."""
        self._label, self._exchange_number = label, 0

    def start_gather(self, x_own: Tensor, mode: ExchangeMode) -> Callable[[], Tensor]:
        """Start to gather the halo rows; the returned function waits for them: (D, F) -> (H, F). Collective."""
        whole = x_own.is_contiguous()
        rows = native.gather(x_own, self._route.index) if whole else x_own[self._route.index]
        self._comm.record_sent_rows(self._label, self._route.index.split(list(self._route.send)))
        return self._start(rows, self._route.send, self._route.recv, mode)

    def gather_sparse(self, x_own: SparseRows) -> SparseRows:
        """Gather the halo rows of sparse rows, never rounded: the length of each row, then its numbers. Collective."""
        self._comm.record_sent_rows(self._label, self._route.index.split(list(self._route.send)))
        return exchange_sparse_rows(
            self._comm, x_own.take(self._route.index), self._route.send, self._route.recv, label=self._label
        )

    def start_reduce(self, grad_halo: Tensor) -> Callable[[Tensor], None]:
        """Start to send halo gradients to the owners of the rows, (H, F). Collective.

        The returned function adds the received gradients to those of the own rows, (D, F).
        """
        wait_gradients = self._start(grad_halo.contiguous(), self._route.recv, self._route.send, "training")

        def add(grad_own: Tensor) -> None:
            if grad_own.is_contiguous():
                native.spmm(self._gradient_positions, wait_gradients(), add_to=grad_own)
            else:
                grad_own += native.spmm(self._gradient_positions, wait_gradients())

        return add

    def all_reduce(self, values: Tensor, *, label: str = "moments") -> Tensor:
        """Sum values over all parts. Collective."""
        return self._comm.all_reduce(values, label=label)

    def state(self) -> dict[str, Tensor]:
        """Return the residuals of error feedback, for a checkpoint."""
        return self._feedback.state()

    def load_state(self, state: dict[str, Tensor]) -> None:
        """Restore the residuals of error feedback."""
        self._feedback.load(state)

    def _start(
        self, rows: Tensor, send: tuple[int, ...], recv: tuple[int, ...], mode: ExchangeMode
    ) -> Callable[[], Tensor]:
        width, dtype, label = rows.shape[1], rows.dtype, self._label
        precision: Precision = "fp32" if mode == "exact" else self._precision
        if mode == "training":
            wire = self._feedback.encode(self._exchange_number, rows)
            self._exchange_number += 1
        else:
            wire = encode(rows, precision)
        pending = self._comm.start_all_to_all(wire, send, recv, label=label)

        def finish() -> Tensor:
            received = decode(pending.wait(), precision, width, dtype)
            self._comm.check_rows(received, recv, label=label)
            return received

        return finish

    @cached_property
    def _gradient_positions(self) -> Csr:
        """Map each own row to the positions of its received gradients, so that they are added in rank order."""
        place = torch.arange(self._route.index.numel(), dtype=torch.int32)
        return native.build_csr(self._route.index.to(torch.int32), place, num_rows=self._num_own)
