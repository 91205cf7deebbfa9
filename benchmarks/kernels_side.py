"""One checkout's kernels, or those of torch and PyG, in a process of its own: it runs one when it is told its name.

Started by ``kernels.py``. It reads names of cases from standard input, one a line, and answers each with one line of
JSON: the seconds of one call. Arrays are made when their case is first named, and kept until another is.
"""

import argparse
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from kernel_cases import CASES, Arrays, Case
from torch import Tensor

Call = Callable[[], object]


def siafu_call(case: Case, arrays: Arrays) -> Call:
    from siafu import native

    if case.kind in ("product", "weights"):
        return _siafu_product(native, case, arrays)
    csr, turned = native.Csr(*arrays.csr), native.Csr(*arrays.transposed)
    if case.kind == "spmm":
        x, out = arrays.rows(case.width), torch.empty(arrays.num_nodes, case.width)
        return lambda: native.spmm(csr, x, out=out)
    how, second = native.Attention(case.heads), case.kind == "gatv2"
    z = arrays.rows(2 * case.columns if second else case.columns + 2 * case.heads)
    vector = arrays.rows(case.columns)[: case.heads].reshape(-1)[: case.columns].view(case.heads, case.width)

    def forward() -> tuple[Tensor, Tensor]:
        if second:
            return native.attend_v2(csr, z, vector, how, into=saved)
        return native.attend(csr, z, how, into=saved)

    saved = torch.empty(arrays.num_nodes, case.columns), torch.empty(arrays.num_nodes, 2, case.heads)
    forward()
    grad = arrays.rows(case.columns)

    def backward() -> object:
        with native.arrays_reused():
            if second:
                return native.attend_v2_backward(csr, turned, (z, vector), saved, grad, how)
            return native.attend_backward(csr, turned, z, saved, grad, how)

    return backward if case.backward else forward


def _siafu_product(native: Any, case: Case, arrays: Arrays) -> Call:
    x, weight = arrays.rows(case.inputs), arrays.rows(case.width)[: case.inputs].contiguous()
    out = torch.empty(arrays.num_nodes, case.width)
    if case.kind == "product":
        return lambda: native.product([native.Term(x, weight)], out=out)
    grad = arrays.rows(case.width)
    return lambda: native.product_backward([native.Term(x, weight)], grad)


def peer_call(case: Case, arrays: Arrays) -> Call | None:
    """Return torch's or PyG's own operation, None if there is none."""
    if case.kind in ("product", "weights"):
        x, weight = arrays.rows(case.inputs), arrays.rows(case.width)[: case.inputs].contiguous()
        out, grad = torch.empty(arrays.num_nodes, case.width), arrays.rows(case.width)
        if case.kind == "product":
            return lambda: torch.mm(x, weight, out=out)
        return lambda: (x.t() @ grad, grad.sum(0))
    indptr, indices, _ = arrays.csr
    if case.kind == "spmm":
        shape = (arrays.num_nodes, arrays.num_nodes)
        adjacency = torch.sparse_csr_tensor(indptr, indices, torch.ones(indices.numel()), shape)
        x = arrays.rows(case.width)
        return lambda: adjacency @ x
    return _pyg(case, arrays) if case.kind == "gat" and case.heads * case.width <= 64 else None


def _pyg(case: Case, arrays: Arrays) -> Call:
    from torch_geometric.utils import scatter, softmax

    (indptr, indices, _), heads = arrays.csr, case.heads
    src, dst = indices.long(), torch.arange(arrays.num_nodes).repeat_interleave(indptr.diff())
    z = arrays.rows(case.columns + 2 * heads).requires_grad_(case.backward)
    grad = arrays.rows(case.columns).view(-1, heads, case.width)

    def run() -> Tensor:
        row, of_src, of_dst = z.split([case.columns, heads, heads], dim=1)
        score = torch.nn.functional.leaky_relu(of_src[src] + of_dst[dst], 0.2)
        alpha = softmax(score, dst, num_nodes=arrays.num_nodes)[:, :, None]
        return scatter(row.reshape(-1, heads, case.width)[src] * alpha, dst, 0, arrays.num_nodes)

    if not case.backward:
        return run
    out = run()
    return lambda: torch.autograd.grad(out, z, grad, retain_graph=True)


def serve(side: str, arrays: Arrays) -> None:
    print(json.dumps({"ready": True}), flush=True)
    held: tuple[str, Call | None] = ("", None)
    for line in sys.stdin:
        name = line.strip()
        if name != held[0]:
            held = ("", None)
            held = name, (siafu_call if side == "siafu" else peer_call)(CASES[name], arrays)
        start = time.perf_counter()
        if held[1] is not None:
            held[1]()
        print(json.dumps({"seconds": held[1] and time.perf_counter() - start}), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("side", choices=["siafu", "peer"])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    serve(args.side, Arrays(args.folder))


if __name__ == "__main__":
    main()
