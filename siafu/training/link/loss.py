"""What scores of pairs lose."""

from torch import Tensor
from torch.nn import functional

from siafu.nn.link import LinkHead


def pair_loss(
    head: LinkHead, h: Tensor, src: Tensor, dst: Tensor, y: Tensor, recency: Tensor | None = None
) -> Tensor:
    """The mean loss of pairs (P,), (P,) by the rows (N, H).

    ``y`` (P,) is 1 for edges and 0 for others; or, where the head tells classes apart, the class of each, int64.
    """
    logit = head(h, src, dst, recency)
    if head.classes is not None:
        return functional.cross_entropy(logit, y)
    return functional.binary_cross_entropy_with_logits(logit, y.to(logit.dtype))
