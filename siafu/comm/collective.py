"""One collective call: the messages that it sends and expects, and what must hold of them."""

import torch
from torch import Tensor

from siafu.comm.errors import OutOfStep, name_rank
from siafu.comm.transport import Envelope, IncomingMessage, MessageKind, Transfer, Transport


class Call:
    """The messages of one call. A call may have two stages, whose messages don't mix."""

    def __init__(self, transport: Transport, *, channel: int, number: int, label: str) -> None:
        self.transport = transport
        self.label = label
        self._envelopes = [
            Envelope(MessageKind.COLLECTIVE, channel, 2 * number + stage, label) for stage in (0, 1)
        ]
        self._sent: list[Transfer] = []

    def send(self, peer: int, values: Tensor, *, stage: int = 0) -> None:
        """Start to send; values must not change before :meth:`settle` returned."""
        self._sent.append(self.transport.send(peer, self._envelopes[stage], values))

    def start_receive(self, peer: int, into: Tensor | None = None, *, stage: int = 0) -> IncomingMessage:
        """Start to receive, into the given memory where there is some."""
        return self.transport.start_receive(peer, self._envelopes[stage], into)

    def collect(
        self, arrival: IncomingMessage, shape: tuple[int, ...] | None, dtype: torch.dtype | None
    ) -> Tensor:
        """Wait for a message; it must have this label, shape and dtype."""
        self.transport.wait(arrival, self.label)
        values = arrival.values
        assert values is not None
        wanted = tuple(values.shape) if shape is None else shape, values.dtype if dtype is None else dtype
        if arrival.label != self.label or (tuple(values.shape), values.dtype) != wanted:
            raise self._out_of_step(arrival, *wanted)
        if arrival.into is not None and arrival.into is not values:
            arrival.into.copy_(values)  # it came before it was expected
            return arrival.into
        return values

    def settle(self) -> None:
        """Wait until all is sent."""
        for transfer in self._sent:
            self.transport.wait(transfer, self.label)

    def _out_of_step(self, arrival: IncomingMessage, shape: tuple[int, ...], dtype: torch.dtype) -> OutOfStep:
        peer, hosts, values = arrival.peer, self.transport.hosts, arrival.values
        assert values is not None
        text = (
            f'{name_rank(peer, hosts)} sent {_describe(tuple(values.shape), values.dtype)} in "{arrival.label}" where '
            f'{name_rank(self.transport.rank, hosts)} expected {_describe(shape, dtype)} in "{self.label}"; '
            "every rank must make the same calls in the same order on a channel"
        )
        return OutOfStep(text, peer=peer, host=hosts[peer], phase=self.label)


def _describe(shape: tuple[int, ...], dtype: torch.dtype) -> str:
    return f"{str(dtype).removeprefix('torch.')} {shape}"
