"""The rows that a part reads but does not own: brought before they are read, their gradients given back afterwards."""

from collections.abc import Callable
from functools import cached_property

import torch
from torch import Tensor

from siafu import native
from siafu.comm.comm import Comm
from siafu.comm.config import Precision
from siafu.comm.quantization import ErrorFeedback, decode, encode
from siafu.comm.route import Route
from siafu.graph import Fetch
from siafu.native import Csr


class Halo:
    """:class:`siafu.graph.Others` over a :class:`Comm`: rows go along the route, their gradients against it."""

    def __init__(self, comm: Comm, route: Route, *, num_own: int, precision: Precision = "fp32") -> None:
        self._comm, self._route, self._num_own, self._precision = comm, route, num_own, precision
        self._label, self._place = "halo", 0
        self._feedback = ErrorFeedback(
            precision
        )  # what rounding lost of rows sent while learning goes with the next

    def begin(self, label: str) -> None:
        """A pass over the model begins: its exchanges are counted under ``label``, and from the first place on."""
        self._label, self._place = label, 0

    def start_fetch(self, x_own: Tensor, how: Fetch) -> Callable[[], Tensor]:
        """Have the rows of the halo brought: (D, F) -> (H, F). Collective."""
        whole = x_own.is_contiguous()
        rows = native.gather(x_own, self._route.index) if whole else x_own[self._route.index]
        self._comm.record_sent_rows(self._label, self._route.index.split(list(self._route.send)))
        return self._start(rows, self._route.send, self._route.recv, how)

    def start_give_back(self, grad_halo: Tensor) -> Callable[[Tensor], None]:
        """Give gradients of the halo to their owners; the function adds what came to the own ones. Collective."""
        arrived = self._start(grad_halo, self._route.recv, self._route.send, "learning")

        def add(grad_own: Tensor) -> None:
            if grad_own.is_contiguous():
                native.spmm(self._arrivals, arrived(), add_to=grad_own)
            else:
                grad_own += native.spmm(self._arrivals, arrived())

        return add

    def total(self, values: Tensor) -> Tensor:
        """The sum over all parts. Collective."""
        return self._comm.all_reduce(values, label="moments")

    def state(self) -> dict[str, Tensor]:
        """What rounding lost and is still to be sent."""
        return self._feedback.state()

    def load_state(self, state: dict[str, Tensor]) -> None:
        """Go on from such a state."""
        self._feedback.load(state)

    def _start(
        self, rows: Tensor, send: tuple[int, ...], recv: tuple[int, ...], how: Fetch
    ) -> Callable[[], Tensor]:
        width, dtype, label = rows.shape[1], rows.dtype, self._label
        precision: Precision = "fp32" if how == "exact" else self._precision
        if how == "learning":
            wire = self._feedback.encode(self._place, rows)
            self._place += 1
        else:
            wire = encode(rows, precision)
        pending = self._comm.start_all_to_all(wire, send, recv, label=label)

        def finish() -> Tensor:
            came = decode(pending.wait(), precision, width, dtype)
            self._comm.check_rows(came, recv, label=label)
            return came

        return finish

    @cached_property
    def _arrivals(self) -> Csr:
        """For each own row the places at which its gradients arrive, so that they are added in the order of ranks."""
        place = torch.arange(self._route.index.numel(), dtype=torch.int32)
        return native.build_csr(self._route.index.to(torch.int32), place, num_rows=self._num_own)
