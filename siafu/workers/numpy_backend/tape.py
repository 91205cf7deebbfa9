"""Reverse-mode differentiation of NumPy arrays: the few operations that stages are made of.

A value that wants no gradient is computed and nothing is recorded; of what does want one, each operation keeps what its
way back reads and no more.
"""

from collections.abc import Callable, Sequence

import numpy as np

Back = Callable[[np.ndarray], None]


class Value:
    """An array, and its gradient once :func:`go_back` has come by.

    Attributes:
        array: what was computed.
        wants: whether its gradient is asked for.
        grad: of the shape of ``array``; None where none came.
        free: whether nobody but the next operation reads the array, which may then overwrite it.
    """

    __slots__ = ("array", "back", "free", "grad", "reads", "wants")

    def __init__(self, array: np.ndarray, *, wants: bool = False) -> None:
        self.array, self.wants, self.free = array, wants, False
        self.grad: np.ndarray | None = None
        self.reads: tuple[Value, ...] = ()
        self.back: Back | None = None

    def add(self, grad: np.ndarray) -> None:
        """Take a gradient; the array may be another value's too, so it is never written to."""
        self.grad = grad if self.grad is None else self.grad + grad


def _made(array: np.ndarray, reads: tuple[Value, ...], back: Back, *, free: bool) -> Value:
    out = Value(array, wants=any(value.wants for value in reads))
    out.free = free
    if out.wants:
        out.reads, out.back = reads, back
    return out


def go_back(ends: Sequence[tuple[Value, np.ndarray]]) -> None:
    """Give every value that the ends were made of, and that wants it, its gradient; ``ends`` come with their own."""
    order: list[Value] = []
    seen: set[int] = set()
    for value, grad in ends:
        value.add(grad)
        _follow(value, order, seen)
    for value in reversed(order):
        if value.back is not None and value.grad is not None:
            value.back(value.grad)
            value.grad = None  # nobody reads that of what lies between


def _follow(value: Value, order: list[Value], seen: set[int]) -> None:
    """Append what a value was made of, then the value itself."""
    if id(value) in seen or not value.wants:
        return
    seen.add(id(value))
    for read in value.reads:
        _follow(read, order, seen)
    order.append(value)


def matmul(x: Value, weight: Value) -> Value:
    """``x W``: (R, I), (I, O) -> (R, O)."""

    def back(grad: np.ndarray) -> None:
        if weight.wants:
            weight.add(x.array.T @ grad)
        if x.wants:
            x.add(grad @ weight.array.T)

    return _made(x.array @ weight.array, (x, weight), back, free=True)


def add(one: Value, other: Value) -> Value:
    """The sum of arrays of one shape, or of rows and a bias: (R, O), (R, O) or (O,) -> (R, O)."""

    def back(grad: np.ndarray) -> None:
        if one.wants:
            one.add(grad)
        if other.wants:
            other.add(grad if other.array.ndim == grad.ndim else grad.sum(0))

    same = other.array.shape == one.array.shape
    room = one.array if one.free else other.array if other.free and same else None
    out = np.add(one.array, other.array, out=room)
    return _made(out, (one, other), back, free=True)


def scale_by_one_plus(x: Value, eps: Value) -> Value:
    """``(1 + eps) x``: (R, F), () -> (R, F)."""

    def back(grad: np.ndarray) -> None:
        if eps.wants:
            eps.add(np.asarray(np.vdot(grad, x.array), grad.dtype))
        if x.wants:
            x.add(grad * (1 + eps.array))

    return _made(x.array * (1 + eps.array), (x, eps), back, free=True)


def mix(one: Value, other: Value, share: float) -> Value:
    """``(1 - share) one + share other``: 2 x (R, F) -> (R, F)."""

    def back(grad: np.ndarray) -> None:
        if one.wants:
            one.add(grad * (1 - share))
        if other.wants:
            other.add(grad * share)

    out = np.multiply(one.array, 1 - share, out=one.array if one.free else None)
    out += share * other.array
    return _made(out, (one, other), back, free=True)


def head_scores(weight: Value, vector: Value) -> Value:
    """Each head's columns of a weight times the head's vector: (I, H F), (H, F) -> (I, H)."""
    heads, width = vector.array.shape
    by_head = weight.array.reshape(-1, heads, width)

    def back(grad: np.ndarray) -> None:
        if vector.wants:
            vector.add(np.einsum("ihf,ih->hf", by_head, grad))
        if weight.wants:
            weight.add((grad[:, :, None] * vector.array).reshape(weight.array.shape))

    return _made(np.einsum("ihf,hf->ih", by_head, vector.array), (weight, vector), back, free=True)


def concat(values: Sequence[Value]) -> Value:
    """Arrays side by side: (..., F), (..., G), ... -> (..., F + G + ...)."""
    ends = np.cumsum([value.array.shape[-1] for value in values])

    def back(grad: np.ndarray) -> None:
        for value, end in zip(values, ends, strict=True):
            if value.wants:
                value.add(grad[..., end - value.array.shape[-1] : end])

    return _made(np.concatenate([value.array for value in values], -1), tuple(values), back, free=True)


def mean_of_heads(x: Value, heads: int) -> Value:
    """(R, H F) -> (R, F)."""

    def back(grad: np.ndarray) -> None:
        x.add(np.tile(grad / heads, (1, heads)))

    rows, width = x.array.shape
    return _made(x.array.reshape(rows, heads, width // heads).mean(1), (x,), back, free=True)


def maximum(values: Sequence[Value]) -> Value:
    """The largest of each element; those that are equally large share its gradient."""
    out = values[0].array
    for value in values[1:]:
        out = np.maximum(out, value.array)

    def back(grad: np.ndarray) -> None:
        largest = [value.array == out for value in values]
        grad = grad / np.add.reduce(largest, dtype=grad.dtype)
        for value, mask in zip(values, largest, strict=True):
            if value.wants:
                value.add(grad * mask)

    return _made(out, tuple(values), back, free=False)


def layer_norm(x: Value, gain: Value, bias: Value, *, eps: float) -> Value:
    """``(x - mean) / sqrt(var + eps) * gain + bias`` of each row: (R, F), (F,), (F,) -> (R, F)."""
    width = x.array.shape[1]
    unit = np.subtract(x.array, x.array.mean(1, keepdims=True), out=x.array if x.free else None)
    inverse = 1 / np.sqrt(np.einsum("rf,rf->r", unit, unit)[:, None] / width + eps)
    unit *= inverse
    out = unit * gain.array
    out += bias.array

    def back(grad: np.ndarray) -> None:
        if gain.wants:
            gain.add(np.einsum("rf,rf->f", grad, unit))
        if bias.wants:
            bias.add(grad.sum(0))
        if x.wants:
            grad = grad * gain.array
            grad -= unit * (np.einsum("rf,rf->r", grad, unit)[:, None] / width) + grad.mean(1, keepdims=True)
            x.add(np.multiply(grad, inverse, out=grad))

    return _made(out, (x, gain, bias), back, free=True)


def activated(x: Value, activation: str, *, kept: np.ndarray | None = None, scale: float = 1.0) -> Value:
    """``none``, ``relu`` or ``elu`` of each element, then dropout: what is ``kept`` (R, F) is scaled, the rest zero."""
    match activation:
        case "relu":
            return _relu(x, kept, scale)
        case "elu":
            return _elu(x, kept, scale)
        case _:
            return _dropped(x, kept, scale)


def _dropped(x: Value, kept: np.ndarray | None, scale: float) -> Value:
    if kept is None:
        return x

    def back(grad: np.ndarray) -> None:
        x.add(_cut(grad * kept, None, scale))

    return _made(_cut(x.array * kept, None, scale), (x,), back, free=True)


def _relu(x: Value, kept: np.ndarray | None, scale: float) -> Value:
    """ReLU and dropout. Zeros of the output were negative or dropped, so backward needs no mask."""
    out = _cut(np.maximum(x.array, 0, out=x.array if x.free else None), kept, scale)

    def back(grad: np.ndarray) -> None:
        x.add(_cut(grad * (out > 0), None, scale))

    return _made(out, (x,), back, free=False)


def _elu(x: Value, kept: np.ndarray | None, scale: float) -> Value:
    out = np.minimum(x.array, 0)
    np.exp(out, out=out)  # three times as fast as expm1, and off by no more than the least step at 1
    out -= 1
    _cut(np.maximum(out, x.array, out=out), kept, scale)  # e^x - 1 >= x, and here it is 0 where x is positive

    def back(grad: np.ndarray) -> None:
        slope = np.minimum(out, 0)
        slope += scale
        x.add(_cut(np.multiply(slope, grad, out=slope), kept, 1.0))

    return _made(out, (x,), back, free=False)


def _cut(array: np.ndarray, kept: np.ndarray | None, scale: float) -> np.ndarray:
    """Drop and scale elements where they are; a product, since assignment by a mask takes ten times as long."""
    if kept is not None:
        array *= kept
    if scale != 1:
        array *= scale
    return array
