"""The inbox of a site: it limits messages that arrive before they are expected, and refuses NaN and infinity."""

import torch
from torch import Tensor

from siafu.comm.receive_queue import ReceiveQueue, message_bytes
from siafu.comm.transport import Envelope, IncomingMessage
from siafu.wire.frames import FrameError

MAX_UNEXPECTED = 4096  # messages; sites that make the same calls are ahead of each other by a few


class SiteInbox(ReceiveQueue):
    """An inbox that holds peers to limits; raises FrameError for a message that breaks one.

    ``most_bytes`` bounds one message together with all others of its sender that are not expected yet.
    """

    def __init__(self, *, most_bytes: int) -> None:
        super().__init__()
        self._most = most_bytes

    def begin_message(
        self, peer: int, envelope: Envelope, shape: tuple[int, ...], dtype: torch.dtype
    ) -> IncomingMessage:
        """Allocate memory for a message whose first bytes have arrived."""
        size, (count, there) = message_bytes(shape, dtype), self.unexpected(peer)
        if size + there > self._most or count >= MAX_UNEXPECTED:
            raise FrameError(
                f"a message of {size} bytes after {count} unexpected ones of {there} bytes; expected at most "
                f"{self._most} bytes and {MAX_UNEXPECTED} messages"
            )
        try:
            return super().begin_message(peer, envelope, shape, dtype)
        except ValueError as error:
            raise FrameError(str(error)) from None

    def finish_message(self, arrival: IncomingMessage, envelope: Envelope) -> None:
        """Finish a message that is complete."""
        assert arrival.values is not None
        check_finite(arrival.values, envelope.label)
        super().finish_message(arrival, envelope)


def check_finite(values: Tensor, label: str) -> None:
    """Raise FrameError for NaN or infinity, which would spoil the model."""
    if values.is_floating_point() and not bool(values.isfinite().all()):
        raise FrameError(
            f'NaN or infinite numbers in "{label}", which are not used; its training diverged, or its data hold them'
        )
