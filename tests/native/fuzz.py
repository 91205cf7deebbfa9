"""Call every function of the compiled core with arrays that fit and arrays that do not, at random, for a while.

    python tests/native/fuzz.py --seconds 60 --seed 0

A call is made right, as ``siafu.native`` makes it, and then mutated: an array gets another type, size, number of
dimensions or stride, is left out, or an index that the function looks at is put out of range. A right call must
succeed; a wrong one must succeed or raise an ordinary exception. ``make sanitize`` runs this with a core that ends
the process at the first read or write out of bounds.
"""

import argparse
import random
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from siafu import native
from siafu.native import Csr, Dropout, SparseRows

REFUSALS = (TypeError, ValueError, IndexError, OverflowError, MemoryError, RuntimeError)
# Offsets and columns that row kernels trust; whoever hands in a graph has checked them (siafu/array_checks.py).
TRUSTED = {"indptr", "indices", "t_indptr", "t_indices", "origin", "add_indptr", "add_indices", "drop_indptr"}
TRUSTED |= {"drop_indices", "other_indptr", "other_indices", "out_indptr", "ends", "first_src", "name"}
TRUSTED |= {"fanout", "replace"}  # out_indptr is what count_draws said for the same
COUNTS = {"by_cell", "between", "same", "row_above", "row_same"}  # to which a kernel adds; they come as zeros
CHECKED_CSR = {
    "transpose_csr",
    "sort_rows",
    "deduplicate_rows",
    "count_distinct",
    "missing_loops",
    "split_rows",
}
CHECKED_CSR |= {
    "locality_order",
    "partition",
    "partition_quality",
    "sort_rows_by_id",
    "pair_rows",
    "replace_scores",
    "first_unsorted",
}
ROW_KERNELS = {
    "spmm",
    "spmm_bf16",
    "spmm_int8",
    "segment_max",
    "segment_max_backward",
}  # a row for each column


class Call:
    """A call that fits: a function's name, its arguments by name, and which of these no mutation may put wrong."""

    def __init__(self, function: str, /, **arguments: Any) -> None:
        self.name, self.arguments = function, arguments

    def make(self) -> Any:
        return getattr(native.core.kernels, self.name)(*self.arguments.values())


class Maker:
    """Arguments that fit each other, of random sizes."""

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance
        self.draw = torch.Generator().manual_seed(chance.randrange(2**31))

    def size(self, most: int = 20) -> int:
        return self.chance.choice([0, 1, 2, 3, 7, self.chance.randint(0, most)])

    def some(self, most: int = 20) -> int:
        return max(1, self.size(most))

    def floats(self, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        return torch.randn(*shape, generator=self.draw, dtype=dtype)

    def below(self, limit: int, *shape: int, dtype: torch.dtype = torch.int32) -> Tensor:
        return torch.randint(max(1, limit), shape, generator=self.draw, dtype=dtype)

    def maybe(self, value: Any) -> Any:
        return value if self.chance.random() < 0.6 else None

    def offsets(self, rows: int, most: int = 6) -> Tensor:
        counts = self.below(most, rows, dtype=torch.int64)
        return torch.cat([torch.zeros(1, dtype=torch.int64), counts.cumsum(0)])

    def csr(self, rows: int, cols: int, most: int = 6, *, ordered: bool = False) -> tuple[Tensor, Tensor]:
        indptr = self.offsets(rows, most if cols else 1)
        indices = self.below(cols, int(indptr[-1]))
        if ordered:
            indices = native.sort_rows(native.Csr(indptr, indices)).indices
        return indptr, indices

    def span(self, rows: int) -> tuple[int, int]:
        first = self.chance.randint(0, rows)
        return first, self.chance.randint(first, rows)

    def long(self, count: int) -> Tensor:
        return torch.empty(count, dtype=torch.int64)

    def int(self, *shape: int) -> Tensor:
        return torch.empty(*shape, dtype=torch.int32)


def spmm(m: Maker) -> Call:
    kind = m.chance.choice(["spmm", "spmm64", "spmm_bf16", "spmm_int8"])
    dtype = torch.float64 if kind == "spmm64" else torch.float32
    dst, src, width = m.size(), m.some(), m.size(70)
    indptr, indices = m.csr(dst, src)
    x = m.floats(src, width, dtype=dtype)
    x = {"spmm_bf16": x.bfloat16().view(torch.uint16), "spmm_int8": x.to(torch.int8)}.get(kind, x)
    scale = {name: m.maybe(m.floats(n, dtype=dtype)) for name, n in (("pre", src), ("post", dst))}
    return Call(
        kind.removesuffix("64"),
        **{
            "indptr": indptr,
            "indices": indices,
            "x": x,
            "weight": m.maybe(m.floats(indices.numel(), dtype=dtype)),
        },
        **scale,
        loop=m.maybe(m.floats(min(dst, src), dtype=dtype)),
        out=m.floats(dst, width, dtype=dtype),
        ends=m.maybe(indptr[1:].clone()),
        first_src=0,
        add=m.chance.random() < 0.5,
        span=m.span(dst),
    )


def segment_max(m: Maker) -> Call:
    dst, src, width = m.size(), m.some(), m.size(40)
    indptr, indices = m.csr(dst, src)
    if m.chance.random() < 0.5:
        out, source = m.floats(dst, width), m.int(dst, width)
        ids = m.maybe(torch.randperm(src))
        arrays = {"x": m.floats(src, width), "out": out, "from_": source, "id": ids, "span": m.span(dst)}
        return Call("segment_max", indptr=indptr, indices=indices, **arrays)
    arrays = {"grad": m.floats(src, width), "from_": m.below(dst, src, width), "out": m.floats(dst, width)}
    return Call("segment_max_backward", indptr=indptr, indices=indices, **arrays, span=m.span(dst))


def epilogue(m: Maker) -> Call:
    rows, width = m.size(), m.size(40)
    row_id, how = (
        m.maybe(m.below(99, rows, dtype=torch.int64)),
        {
            "activation": m.chance.randint(0, 2),
            "key": m.chance.getrandbits(64),
            "threshold": m.chance.choice([0, m.chance.getrandbits(32)]),
            "scale": 1.5,
        },
    )
    x, out = m.floats(rows, width), m.floats(rows, width)
    if m.chance.random() < 0.5:
        return Call("epilogue", x=x, bias=m.maybe(m.floats(width)), row_id=row_id, **how, out=out)
    parts = m.maybe(m.floats(native.core.kernels.bias_parts, width))
    return Call(
        "epilogue_backward",
        grad=x,
        output=m.floats(rows, width),
        row_id=row_id,
        **how,
        out=out,
        bias_parts=parts,
    )


def attend(m: Maker) -> Call:
    dst, heads, width = m.size(), m.some(9), m.some(20)
    src = dst + m.size()
    indptr, indices = m.csr(dst, src)
    args = (heads, width, 0.2, m.chance.getrandbits(64), m.chance.choice([0, 1 << 30]), 1.25)
    node_id = m.maybe(torch.randperm(src))
    second, back = m.chance.random() < 0.5, m.chance.random() < 0.5
    wide, out, softmax = heads * width, m.floats(dst, heads * width), m.floats(dst, 2, heads)
    table = m.floats(src, 2 * wide if second else wide + 2 * heads)
    parts = [table[:, :wide], table[:, wide:]] if second else table.split([wide, heads, heads], 1)
    names = ["z_src", "z_dst"] if second else ["z", "score_src", "score_dst"]
    first: dict[str, Any] = {"indptr": indptr, "indices": indices}
    rows = dict(zip(names, parts, strict=True)) | ({"vector": m.floats(wide)} if second else {})
    if not back:
        rest = {"args": args, "node_id": node_id, "out": out, "softmax": softmax, "span": m.span(dst)}
        return Call("attend_v2" if second else "attend", **first, **rows, **rest)
    turned = native.transpose(native.Csr(indptr, indices), num_cols=src, origin=True)
    first |= {"t_indptr": turned.indptr, "t_indices": turned.indices, "origin": turned.origin}
    step = m.chance.randint(0, 1 if second else 2)
    rest = {"args": args, "node_id": node_id, "out": out, "softmax": softmax, "grad": m.floats(dst, wide)}
    grad, edges = m.floats(*table.shape), indices.numel()
    last = {"step": step, "span": m.span(src if step == 1 else dst)}
    if second:
        rest |= {"at_edge": m.floats(edges, 2, heads), "at_loop": m.floats(dst, 2, heads)}
        rest |= {"grad_src": grad[:, :wide], "grad_dst": grad[:, wide:]}
        rest |= {"vector_parts": m.floats(native.core.kernels.vector_parts, wide)}
        return Call("attend_v2_backward", **first, **rows, **rest, **last)
    rest |= {"at_dst": m.floats(dst, 4, heads), "grad_edge": m.floats(edges, heads)}
    grads = grad.split([wide, heads, heads], 1)
    rest |= dict(zip(("grad_z", "grad_score_src", "grad_score_dst"), grads, strict=True))
    return Call("attend_backward", **first, **rows, **rest, **last)


def structure(m: Maker) -> Call:
    rows = m.size()
    indptr, indices = m.csr(rows, rows, ordered=True)
    edges, csr = indices.numel(), {"indptr": indptr, "indices": indices}
    origin = m.maybe(torch.arange(edges))
    picked = m.below(rows, m.size() if rows else 0, dtype=torch.int64)
    taken = int((indptr[picked + 1] - indptr[picked]).sum())
    csr_like: dict[str, Callable[[], Call]] = {
        "first_fall": lambda: Call("first_fall", values=m.below(9, m.size(), dtype=torch.int64)),
        "first_outside": lambda: Call(
            "first_outside",
            values=m.below(9, m.size(), dtype=m.chance.choice([torch.int32, torch.int64])),
            limit=5,
        ),
        "first_unsorted": lambda: Call("first_unsorted", **csr),
        "build_csr": lambda: Call(
            "build_csr",
            row=m.below(rows, edges),
            col=m.below(99, edges),
            indptr=m.long(rows + 1),
            cols=m.int(edges),
            from_=m.maybe(m.long(edges)),
        ),
        "transpose_csr": lambda: Call(
            "transpose_csr",
            **csr,
            t_indptr=m.long(rows + 1),
            t_indices=m.int(edges),
            from_=m.maybe(m.long(edges)),
        ),
        "sort_rows": lambda: Call("sort_rows", **csr, from_=origin),
        "deduplicate_rows": lambda: Call("deduplicate_rows", **csr, from_=origin),
        "count_distinct": lambda: Call("count_distinct", **csr, out=m.long(rows)),
        "take_rows": lambda: Call(
            "take_rows",
            **csr,
            rows=picked,
            name=m.below(9, rows),
            out_indptr=m.long(picked.numel() + 1),
            out_indices=m.int(taken),
            from_=m.maybe(m.long(taken)),
        ),
        "mark_columns": lambda: Call(
            "mark_columns", **csr, rows=picked, mark=torch.zeros(rows, dtype=torch.uint8)
        ),
        "missing_loops": lambda: Call(
            "missing_loops",
            **csr,
            weight=m.maybe(m.floats(edges)),
            out=torch.empty(rows, dtype=torch.float64),
        ),
        "split_rows": lambda: Call("split_rows", **csr, column=m.size(), ends=m.long(rows)),
        "locality_order": lambda: Call(
            "locality_order", **csr, max_community=m.size(), rounds=m.size(4), order=m.long(rows)
        ),
        "sort_rows_by_id": lambda: Call("sort_rows_by_id", **csr, from_=origin, id=torch.randperm(rows)),
        "places_lacking": lambda: places_lacking(m, csr, rows),
        "apply_delta": lambda: apply_delta(m, csr, rows),
    }
    return m.chance.choice(list(csr_like.values()))()


def places_lacking(m: Maker, csr: dict[str, Tensor], rows: int) -> Call:
    other_indptr, other_indices = m.csr(rows, rows, ordered=True)
    return Call(
        "places_lacking",
        **csr,
        other_indptr=other_indptr,
        other_indices=other_indices,
        places=m.long(csr["indices"].numel()),
    )


def apply_delta(m: Maker, csr: dict[str, Tensor], rows: int) -> Call:
    add_indptr, add_indices = m.csr(rows, rows, ordered=True)
    drop_indptr, drop_indices = m.csr(rows, rows, 2, ordered=True)
    edges, told = csr["indices"].numel() + add_indices.numel() - drop_indices.numel(), m.chance.random() < 0.5
    return Call(
        "apply_delta",
        **csr,
        from_=torch.arange(csr["indices"].numel()) if told else None,
        add_indptr=add_indptr,
        add_indices=add_indices,
        add_from=torch.arange(add_indices.numel()) if told else None,
        drop_indptr=drop_indptr,
        drop_indices=drop_indices,
        out_indptr=m.long(rows + 1),
        out_indices=m.int(max(0, edges)),
        out_from=m.long(max(0, edges)) if told else None,
    )


def ascending(m: Maker) -> Call:
    core, values = native.core.kernels, m.below(2**40, m.size(), dtype=torch.int64).sort().values
    cols = m.some(2**20)
    row, col = m.below(9, values.numel()).sort().values, m.below(cols, values.numel())
    packed = torch.empty(core.ascending_bytes(values), dtype=torch.uint8)
    pairs = torch.empty(core.pairs_bytes(row, col, cols), dtype=torch.uint8)
    noise = m.below(256, m.size(60), dtype=torch.uint8)
    count = m.size()
    return m.chance.choice(
        [
            Call("ascending_bytes", values=values),
            Call("pack_ascending", values=values, out=packed),
            Call("unpack_ascending", data=noise, limit=m.chance.getrandbits(40), values=m.long(count)),
            Call("pairs_bytes", row=row, col=col, num_cols=cols),
            Call("pack_pairs", row=row, col=col, num_cols=cols, out=pairs),
            Call("unpack_pairs", data=noise, num_rows=9, num_cols=cols, row=m.int(count), col=m.int(count)),
        ]
    )


def partition(m: Maker) -> Call:
    nodes = m.some() + 1
    parts = m.chance.randint(2, nodes)
    indptr, indices = m.csr(nodes, nodes)
    train = m.maybe(m.below(2, nodes, dtype=torch.uint8))
    first = {"indptr": indptr, "indices": indices, "train": train}
    if m.chance.random() < 0.5:
        work = torch.empty(native.core.kernels.partition_bytes(nodes, parts), dtype=torch.uint8)
        rest = {"parts": parts, "seed": m.chance.getrandbits(64), "work": work, "part": m.int(nodes)}
        return Call("partition", **first, **rest)
    work = torch.empty(native.core.kernels.quality_bytes(nodes, parts), dtype=torch.uint8)
    counts = {name: m.long(parts) for name in ("nodes", "edges", "trained", "inside", "halo")}
    return Call("partition_quality", **first, part=m.below(parts, nodes), work=work, **counts)


def sample(m: Maker) -> Call:
    nodes = m.some()
    indptr, indices = m.csr(nodes, nodes, m.chance.choice([4, 40, 90, 300]))
    groups = m.some(4)
    group_ptr = m.offsets(groups)
    rows = m.below(nodes, int(group_ptr[-1]))
    kind, named = m.chance.choice(["count_draws", "draw_edges", "draw_met"]), m.maybe(m.below(99, nodes))
    asked: dict[str, Any] = {
        "indptr": indptr,
        "indices": indices,
        "name": None if kind == "draw_met" else named,
        "id": m.maybe(torch.randperm(nodes)),
        "rows": rows,
        "group_ptr": group_ptr,
        "key": m.below(2**60, groups, dtype=torch.int64),
        "fanout": m.chance.choice([-1, 0, 1, 5, 20, 70]),
        "replace": m.chance.random() < 0.5,
    }
    out_indptr = m.long(rows.numel() + 1)
    if kind == "count_draws":
        return Call(kind, **asked, out_indptr=out_indptr)
    native.core.kernels.count_draws(*asked.values(), out_indptr)
    count = int(out_indptr[-1])
    edge = m.maybe(m.long(count))
    if kind == "draw_edges":
        return Call(kind, **asked, out_indptr=out_indptr, source=m.int(count), edge=edge)
    rest = {"place": m.int(count), "edge": edge, "fresh": m.int(count), "num_fresh": m.long(groups)}
    return Call(kind, **asked, out_indptr=out_indptr, **rest)


def meeting(m: Maker) -> Call:
    groups = m.some(4)
    known_ptr, met_ptr = m.offsets(groups), m.offsets(groups)
    count = int(met_ptr[-1])
    if m.chance.random() < 0.5:
        return Call(
            "first_met",
            known=m.below(30, int(known_ptr[-1])),
            known_ptr=known_ptr,
            met=m.below(30, count),
            met_ptr=met_ptr,
            place=m.int(count),
            fresh=m.int(count),
            num_fresh=m.long(groups),
        )
    rows = torch.randperm(groups)
    to = torch.zeros(groups + 1, dtype=torch.int64)
    to[1:] = met_ptr.diff()[rows.argsort()].cumsum(0)
    arrays = {"from_": met_ptr, "values": m.below(9, count), "rows": rows, "to": to, "out": m.int(count)}
    return Call("spread_rows", **arrays)


def pairs(m: Maker) -> Call:
    core, src, dst = native.core.kernels, m.some(), m.some()
    trained = ["pair_scores", "pair_rows", "pair_rows_backward"]
    kind = m.chance.choice([*trained, "count_above", "replace_scores", "distinct_rows"])
    width = core.PAIR_WIDTH * m.some(4) if kind.startswith("pair_rows") else m.size()
    a, b, w = m.floats(src, width), m.floats(dst, width), m.maybe(m.floats(width))
    indptr, indices = m.csr(src, dst)
    if kind == "pair_scores":
        count = m.size()
        ends = {"src": m.below(src, count), "dst": m.below(dst, count)}
        return Call(kind, a=a, b=b, w=w, **ends, out=m.floats(count))
    if kind == "pair_rows":
        return Call(kind, indptr=indptr, indices=indices, a=a, b=b, w=w, score=m.floats(indices.numel()))
    if kind == "pair_rows_backward":
        parts = m.maybe(torch.zeros(core.PAIR_PARTS, width))
        rest = {"grad": m.floats(indices.numel()), "grad_a": m.floats(src, width), "weight_parts": parts}
        return Call(kind, indptr=indptr, indices=indices, a=a, b=b, w=w, **rest)
    if kind == "count_above":
        return count_above(m, a, b, w)
    return replace_scores(m, indptr) if kind == "replace_scores" else distinct_rows(m, a)


def distinct_rows(m: Maker, a: Tensor) -> Call:
    rows = m.size()
    x = a[m.below(a.shape[0], rows).long()]
    slot = m.int(1 << (rows + m.size()).bit_length())
    hashes = torch.empty(rows, dtype=torch.uint64)
    return Call("distinct_rows", x=x, hash=hashes, slot=slot, group=m.int(rows), first=m.int(rows))


def count_above(m: Maker, a: Tensor, b: Tensor, w: Tensor | None) -> Call:
    core, width, rows, cols = native.core.kernels, a.shape[1], m.size(), m.size(40)
    panels = -(-cols // core.PAIR_COLUMNS)
    threads, pos_ptr = m.some(3), m.offsets(rows, 3)
    levels = tallies(m, threads)
    by_cell = torch.zeros(threads, levels["marked"].numel(), dtype=torch.int32).view(torch.uint32)
    return Call(
        "count_above",
        a=a,
        b=b,
        w=w,
        row=m.below(a.shape[0], rows),
        row_times=m.below(9, rows),
        col=m.below(b.shape[0], cols),
        col_times=m.below(9, panels * core.PAIR_COLUMNS),
        pos_ptr=pos_ptr,
        pos=m.floats(int(pos_ptr[-1])),
        **{name: levels.pop(name) for name in ("level", "first", "marked")},
        panels=m.floats(panels, width, core.PAIR_COLUMNS),
        tiles=m.floats(threads, core.PAIR_CHUNK, width),
        by_cell=by_cell,
        **levels,
        row_above=torch.zeros(int(pos_ptr[-1]), dtype=torch.int64),
        row_same=torch.zeros(int(pos_ptr[-1]), dtype=torch.int64),
    )


def replace_scores(m: Maker, indptr: Tensor) -> Call:
    rows, pairs = indptr.numel() - 1, int(indptr[-1])
    pos_ptr = m.offsets(rows, 3)
    return Call(
        "replace_scores",
        indptr=indptr,
        given=m.floats(pairs),
        computed=m.floats(pairs),
        pos_ptr=pos_ptr,
        pos=m.floats(int(pos_ptr[-1])),
        **tallies(m, m.some(3)),
        row_above=torch.zeros(int(pos_ptr[-1]), dtype=torch.int64),
        row_same=torch.zeros(int(pos_ptr[-1]), dtype=torch.int64),
        span=m.span(rows),
    )


def tallies(m: Maker, threads: int) -> dict[str, Tensor]:
    """Levels, none at times, and counts of each thread."""
    odd = torch.tensor([float("inf"), float("-inf"), float("nan"), 1e38, 0.0])
    level = torch.cat([m.floats(m.size()), odd[m.below(5, m.size(3)).long()]]).unique()
    cells, levels = 3 + m.size(60), level.numel()
    return {
        "level": level,
        "first": m.int(cells + 1),
        "marked": torch.empty(cells, dtype=torch.uint8),
        "between": torch.zeros(threads, levels + 1, dtype=torch.int64),
        "same": torch.zeros(threads, levels, dtype=torch.int64),
    }


def product(m: Maker) -> Call:
    rows, width, ins = m.size(), m.some(40), [m.size(40) for _ in range(m.chance.randint(1, 2))]
    terms = [(m.floats(rows, i), m.floats(i, width)) for i in ins]
    row_id = m.maybe(m.below(99, rows, dtype=torch.int64))
    how = (m.chance.randint(0, 2), m.chance.getrandbits(64), m.chance.choice([0, 1 << 30]), 1.5)
    after = m.maybe((m.maybe(m.floats(width)), row_id, *how))
    if m.chance.random() < 0.5:
        add = m.maybe(m.floats(rows, width) if m.chance.random() < 0.5 else m.floats(width))
        return Call("product", terms=terms, add=add, out=m.floats(rows, width), after=after)
    size, grad = (sum(ins) + 1) * width, m.floats(rows, width + 3)[:, :width]
    return Call(
        "product_backward",
        terms=terms,
        grad=grad,
        output=m.floats(rows, width),
        after=after,
        sums=m.floats(m.some(3), size),
        out=m.floats(size),
        grad_x=[m.maybe(m.floats(rows, i)) for i in ins],
    )


def sparse_rows(m: Maker) -> Call:
    rows, width, out = m.size(), m.some(40), m.some(40)
    x = SparseRows.from_dense(m.floats(rows, width) * (m.floats(rows, width) > 1))
    row_id = m.maybe(m.below(99, rows, dtype=torch.int64))
    drop = (m.chance.getrandbits(64), m.chance.choice([0, 1 << 30]), 1.5)
    given = (x.indptr, x.indices, x.values, width, row_id, *drop)
    how = (m.chance.randint(0, 2), m.chance.getrandbits(64), m.chance.choice([0, 1 << 30]), 1.5)
    after = m.maybe((m.maybe(m.floats(out)), m.maybe(m.below(99, rows, dtype=torch.int64)), *how))
    index = m.below(rows, m.size() if rows else 0, dtype=torch.int64)
    match m.chance.choice(["product", "backward", "sum", "take", "dense"]):
        case "product":
            add = m.maybe(m.floats(rows, out) if m.chance.random() < 0.5 else m.floats(out))
            arrays = {"weight": m.floats(width, out), "add": add, "out": m.floats(rows, out), "after": after}
            return Call("sparse_product", x=given, **arrays)
        case "backward":
            pad = native.core.kernels.sparse_pad
            sums = m.floats(m.some(3), width + 1, -(-out // pad) * pad)
            arrays = {"grad": m.floats(rows, out + 3)[:, :out], "output": m.floats(rows, out), "after": after}
            return Call("sparse_product_backward", x=given, **arrays, sums=sums, out=m.floats(width + 1, out))
        case "sum":
            return sparse_sum(m, x, given)
        case "take":
            picked = x.take(index)
            arrays = {"out_indices": picked.indices, "out_values": picked.values}
            return Call("sparse_take", x=given, index=index, out_indptr=picked.indptr, **arrays)
        case _:
            picked_rows = m.maybe(index)
            count = rows if picked_rows is None else index.numel()
            return Call("sparse_dense", x=given, index=picked_rows, out=m.floats(count, width))


def sparse_sum(m: Maker, x: SparseRows, given: tuple[Any, ...]) -> Call:
    sources, num_dst = len(x), m.size() if len(x) else 0
    indptr, indices = m.csr(num_dst, sources)
    scales = {
        "weight": m.maybe(m.floats(indices.numel())),
        "pre": m.maybe(m.floats(sources)),
        "post": m.maybe(m.floats(num_dst)),
        "loop": m.maybe(m.floats(min(num_dst, sources))),
    }
    plain = replace(x, row_id=given[4], dropout=Dropout(*given[5:]))
    counted = native.sparse_sum(Csr(indptr, indices), plain, **scales)
    outs: dict[str, Any] = {"out_indptr": torch.zeros(num_dst + 1, dtype=torch.int64)}
    outs |= {"out_indices": None, "out_values": None}
    if m.chance.random() < 0.5:
        outs = {"out_indptr": counted.indptr, "out_indices": counted.indices, "out_values": counted.values}
    return Call("sparse_sum", indptr=indptr, indices=indices, x=given, **scales, **outs)


def lstm(m: Maker) -> Call:
    steps, rows, hidden = m.some(4), m.size(60), m.some(9)
    ins = [m.some(9) for _ in range(m.chance.randint(1, 2))]
    same = [m.chance.random() < 0.3 for _ in ins]
    shapes = [(rows, i) if s else (steps, rows, i) for i, s in zip(ins, same, strict=True)]
    given: dict[str, Any] = {
        "inputs": [(m.floats(*shape), m.floats(i, 4 * hidden)) for i, shape in zip(ins, shapes, strict=True)],
        "weight_h": m.floats(hidden, 4 * hidden),
        "bias": m.floats(4 * hidden),
        "present": m.maybe(m.below(2, steps, rows, dtype=torch.uint8)),
        "before": (m.floats(rows, hidden), m.floats(rows, hidden)),
    }
    gates = m.maybe(m.floats(steps, rows, 4 * hidden))
    state = (m.floats(rows, hidden), m.floats(rows, hidden))
    if m.chance.random() < 0.5:
        return Call("lstm", **given, out=m.floats(steps, rows, hidden), after=m.maybe(state), gates=gates)
    size = (sum(ins) + hidden + 1) * 4 * hidden
    return Call(
        "lstm_backward",
        **given,
        gates=gates,
        grad=m.floats(steps, rows, hidden),
        grad_h=m.maybe(m.floats(rows, hidden)),
        grad_c=m.maybe(m.floats(rows, hidden)),
        grad_x=[m.maybe(m.floats(*shape)) for shape in shapes],
        grad_before=state,
        sums=m.floats(m.some(3), size),
        sum=m.floats(size),
    )


def gather(m: Maker) -> Call:
    rows, width, count = m.some(), m.size(40), m.size()
    index = m.below(rows, count, dtype=torch.int64)
    kind = m.chance.choice(["gather", "argmax", "widen", "int8", "expect_rows", "expect_all", "take"])
    if kind == "argmax":
        return Call("argmax_rows", x=m.floats(rows, max(1, width)), index=index, out=index.clone())
    if kind == "gather":
        more = m.maybe(m.floats(m.some(), width))
        return Call("gather", rows=m.floats(rows, width), more=more, index=index, out=m.floats(count, width))
    if kind in ("widen", "int8"):
        x = m.floats(rows, width)
        x = x.bfloat16().view(torch.uint16) if kind == "widen" else x.to(torch.int8)
        return Call("gather_widen", rows=x, index=index, out=m.floats(count, width))
    if kind == "expect_rows":
        return Call("expect_rows", rows=m.floats(rows, width), index=index)
    if kind == "expect_all":
        return Call("expect_all", rows=m.floats(rows, width))
    return Call("take", num_bytes=m.some(2**20))


def adam(m: Maker) -> Call:
    size, rates = m.size(99), {name: 0.5 for name in ("decay", "mean_rate", "square_keep", "square_rate")}
    grad, mean, more = m.floats(size), m.floats(size), m.floats(size)
    if m.chance.random() < 0.5:
        return Call(
            "adam_moments", grad=grad, parameter=m.maybe(m.floats(size)), mean=mean, square=more, **rates
        )
    return Call("adam_move", mean=mean, root=more, parameter=grad, divisor=0.5, eps=1e-8, rate=-0.1)


def switches(m: Maker) -> Call:
    if m.chance.random() < 0.5:
        return Call("use_baseline", on=m.chance.random() < 0.5)
    sizes = {"num_nodes": m.chance.choice([-1, 0, 9, 2**40]), "parts": m.chance.choice([-1, 0, 3, 2**40])}
    return Call(m.chance.choice(["partition_bytes", "quality_bytes"]), **sizes)


MAKERS = (
    spmm,
    segment_max,
    epilogue,
    attend,
    structure,
    structure,
    ascending,
    partition,
    sample,
    meeting,
    pairs,
)
MAKERS += (product, sparse_rows, sparse_rows, lstm, gather, adam, switches)
UNMADE = {"isa", "keep_given_back"}  # without arguments, and the one that counts who asked


def wrong_array(m: Maker, array: Tensor, *, values: bool, fewer: bool = True) -> Any:
    """An array of another type, size, number of dimensions or stride, or (``values``) with a number out of range.

    Without ``fewer`` it has no fewer rows.
    """
    ways: list[Callable[[], Any]] = [
        *([lambda: array[:-1].clone(), lambda: array[: array.shape[0] // 2].clone()] if fewer else []),
        lambda: array.double() if array.dtype == torch.float32 else array.float(),
        lambda: array.to(torch.int16),
        lambda: torch.cat([array, array[:1], array[:1]]),
        lambda: array[None],
        lambda: array.reshape(-1) if array.ndim > 1 else array[:, None],
        lambda: torch.stack([array, array], -1)[..., 0],
        lambda: array[..., :-1].clone(),
        *([lambda: torch.empty(0, dtype=array.dtype)] if fewer else []),
        lambda: array.numpy(),
        lambda: array.tolist(),
        lambda: None,
        lambda: "array",
    ]
    if values and array.numel() and not array.is_floating_point():
        ways += [lambda: _out_of_range(m, array)] * 6
    return m.chance.choice(ways)()


def _out_of_range(m: Maker, array: Tensor) -> Tensor:
    out = array.clone()
    kind, place = torch.iinfo(array.dtype), m.chance.randrange(out.numel())
    odd = [
        each for each in (-1, 21, 10**6, min(kind.max, 2**63 - 1), kind.min) if kind.min <= each <= kind.max
    ]
    out.view(-1)[place] = m.chance.choice(odd)
    return out


def mutate(m: Maker, call: Call) -> None:
    """Put one argument wrong."""
    name = m.chance.choice(list(call.arguments))
    value = call.arguments[name]
    trusted = name in COUNTS or (name in TRUSTED and call.name not in CHECKED_CSR)
    if isinstance(value, Tensor):
        rows_trusted = call.name in ROW_KERNELS and name in ("x", "grad")
        rows_trusted |= call.name == "draw_met" and name == "indptr"  # its columns are nodes with a row each
        value = wrong_array(m, value, values=not trusted, fewer=not rows_trusted)
    elif isinstance(value, list | tuple) and value and name != "span":
        place = m.chance.randrange(len(value))
        each = value[place]
        if isinstance(each, tuple):
            inner = list(each)
            inner[0] = wrong_array(m, inner[0], values=False) if isinstance(inner[0], Tensor) else 1
            each = tuple(inner)
        else:
            each = wrong_array(m, each, values=False) if isinstance(each, Tensor) else -1
        changed = [*value[:place], each, *value[place + 1 :]]
        value = m.chance.choice([changed, changed + changed, changed[:-1]])
        value = tuple(value) if isinstance(call.arguments[name], tuple) else value
    elif name == "span":
        value = m.chance.choice([(-1, 1), (0, 10**6), (5, 2), (0,), None])
    elif not trusted:
        value = m.chance.choice([-1, 3, 10**6, 2**31, 2**63, 2**70, -(2**70), None, 1.5])
        if call.name == "take":
            value = m.chance.choice([-1, 0, 2**50, 2**63, None])
    call.arguments[name] = value


def check_all_are_called() -> None:
    made = {Maker(random.Random(seed)) for seed in range(600)}
    called = {maker(m).name for m in made for maker in MAKERS}
    there = {
        name
        for name in dir(native.core.kernels)
        if callable(getattr(native.core.kernels, name)) and name[0] != "_"
    }
    assert there - called == UNMADE, f"not called: {sorted(there - called - UNMADE)}"


def fuzz(seconds: float, seed: int, *, calls: int = 0) -> Counter[str]:
    """Call for so long, or so often; returns how many calls there were of each outcome."""
    found, end, number = Counter[str](), time.monotonic() + seconds, 0
    while time.monotonic() < end if not calls else number < calls:
        m = Maker(random.Random(f"{seed} {number}"))
        number += 1
        call = m.chance.choice(MAKERS)(m)
        wrong = m.chance.random() < 0.6
        if wrong:
            mutate(m, call)
        try:
            call.make()
            found["mutated, taken" if wrong else "right, taken"] += 1
        except REFUSALS as error:
            if not wrong and call.name not in ("partition_bytes", "quality_bytes"):
                raise AssertionError(
                    f"call {number - 1} of seed {seed}, {call.name}, was right: {error}"
                ) from error
            found["refused"] += 1
        found[call.name] += 1
    native.core.kernels.use_baseline(False)
    return found


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    assert native.compiled(), "the core was not compiled; nothing to fuzz"
    check_all_are_called()
    found = fuzz(given.seconds, given.seed)
    total = sum(found[key] for key in ("right, taken", "mutated, taken", "refused"))
    print(
        f"{total:,} calls, seed {given.seed}: "
        + ", ".join(f"{key} {count:,}" for key, count in sorted(found.items()))
    )


if __name__ == "__main__":
    main()
