"""The loss of pairs."""

from torch import Tensor
from torch.nn import functional

from siafu.nn.link import LinkHead


def pair_loss(
    head: LinkHead, h: Tensor, src: Tensor, dst: Tensor, y: Tensor, recency: Tensor | None = None
) -> Tensor:
    """The mean loss of pairs (P,), (P,) given the embeddings (N, H).

    ``y`` (P,) is 1 for edges and 0 for negatives; or, if the head has classes, the class of each pair, int64.
    """
    logit = head(h, src, dst, recency)
    if head.classes is not None:
        return functional.cross_entropy(logit, y)
    return functional.binary_cross_entropy_with_logits(logit, y.to(logit.dtype))
