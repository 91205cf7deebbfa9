"""The messages that one rank sends and receives in one collective call, and the checks on them."""

import torch
from torch import Tensor

from siafu.comm.errors import CollectiveMismatch, format_rank
from siafu.comm.transport import Envelope, IncomingMessage, MessageKind, Transfer, Transport


class CollectiveCall:
    """One rank's messages in one collective call. A call may have two stages, whose messages are told apart."""

    def __init__(self, transport: Transport, *, channel: int, number: int, label: str) -> None:
        self.transport = transport
        self.label = label
        self._envelopes = [
            Envelope(MessageKind.COLLECTIVE, channel, 2 * number + stage, label) for stage in (0, 1)
        ]
        self._sent: list[Transfer] = []

    def send(self, peer: int, values: Tensor, *, stage: int = 0) -> None:
        """Start to send; the values must not change before :meth:`wait_sent` returns."""
        self._sent.append(self.transport.send(peer, self._envelopes[stage], values))

    def start_receive(self, peer: int, into: Tensor | None = None, *, stage: int = 0) -> IncomingMessage:
        """Start to receive, into ``into`` if it is given."""
        return self.transport.start_receive(peer, self._envelopes[stage], into)

    def collect(
        self, arrival: IncomingMessage, shape: tuple[int, ...] | None, dtype: torch.dtype | None
    ) -> Tensor:
        """Wait for a message and return it; raises CollectiveMismatch for another label, shape or dtype."""
        self.transport.wait(arrival, self.label)
        values = arrival.values
        assert values is not None
        expected = tuple(values.shape) if shape is None else shape, values.dtype if dtype is None else dtype
        if arrival.label != self.label or (tuple(values.shape), values.dtype) != expected:
            raise self._mismatch_error(arrival, *expected)
        if arrival.into is not None and arrival.into is not values:
            arrival.into.copy_(values)  # it arrived before ``into`` was known
            return arrival.into
        return values

    def wait_sent(self) -> None:
        """Wait until all messages of this rank are sent."""
        for transfer in self._sent:
            self.transport.wait(transfer, self.label)

    def _mismatch_error(
        self, arrival: IncomingMessage, shape: tuple[int, ...], dtype: torch.dtype
    ) -> CollectiveMismatch:
        peer, hosts, values = arrival.peer, self.transport.hosts, arrival.values
        assert values is not None
        text = (
            f'{format_rank(peer, hosts)} sent {_describe(tuple(values.shape), values.dtype)} in "{arrival.label}" '
            f'where {format_rank(self.transport.rank, hosts)} expected {_describe(shape, dtype)} in "{self.label}"; '
            "every rank must make the same calls in the same order on a channel"
        )
        return CollectiveMismatch(text, peer=peer, host=hosts[peer], phase=self.label)


def _describe(shape: tuple[int, ...], dtype: torch.dtype) -> str:
    return f"{str(dtype).removeprefix('torch.')} {shape}"
