"""Snapshots as a key frame and what changes after it: the bytes to hold them, and the time to hand them to a worker.

    python benchmarks/deltas.py             generated graphs, and the public sets of the data home
    python benchmarks/deltas.py --wire      also hand chunks over between two network namespaces at 100 Mb/s; needs root
    python benchmarks/deltas.py --shares    instead, what ranks get that see no store, beside the log as it lies

Bytes are held against int32 CSR, one a snapshot (columns and row offsets of 4 bytes, no values), and against int64
edge lists as PyTorch Geometric keeps them. What is unpacked is checked to be what was packed. Times to walk over the
snapshots say what deltas do not save: on one machine with everything in memory they cost time. A chunk that is handed
over is packed, sent, unpacked and walked over; its share of the time of a run is that beside epochs of CD-GCN on it.
"""

import argparse
import json
import os
import socket
import sys
import tempfile
import time
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import torch
from core import require_core
from namespaces import Host, refusal, two_hosts

from siafu import native
from siafu.data import data_home, load
from siafu.dynamic import Chunk, DynamicGraph, Snapshots, unpack
from siafu.graph import Block
from siafu.methods.snapshots.config import SnapshotsConfig, TaskConfig
from siafu.methods.snapshots.shard_plan import plan_shards
from siafu.nn.model import ModelConfig
from siafu.nn.temporal import Step, build_temporal, checkpointed_backward, span_alone
from siafu.partition.log_shard import pack_events, split_steps
from siafu.training.link.config import LinkConfig

_RATE, _RATE_BYTES = "100mbit", 100e6 / 8
_PORT = 4747  # inside a namespace of its own
_WAIT_S = 300
_SETS = ("ucsocial", "bitcoinotc", "bitcoinalpha", "chess", "amlsim_20K_cycle200")


def main() -> None:
    """Measure what was asked for, and print a table and one line of JSON."""
    options = _parse()
    if options.receive:
        _receive()
        return
    if options.send:
        _send(options.send, Path(options.file))
        return
    torch.set_num_threads(1)
    if options.shares:
        print(json.dumps([_share(options, ranks) for ranks in (2, 4, 8)]))
        return
    found = [_measured(*case) for case in _cases(options)]
    _print(found)
    if options.wire:
        found += [_wire(options)]
    print(json.dumps(found))


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--nodes", type=int, default=20_000)
    parser.add_argument("--edges", type=int, default=200_000, help="of a snapshot")
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--wire", action="store_true")
    parser.add_argument("--shares", action="store_true")
    parser.add_argument("--receive", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--send", default="", help=argparse.SUPPRESS)
    parser.add_argument("--file", default="", help=argparse.SUPPRESS)
    return parser.parse_args()


def _cases(options: argparse.Namespace) -> Iterable[tuple[str, Snapshots]]:
    for churn in (0.10, 0.05, 0.01):
        graph = churning(options.nodes, options.edges, options.steps, churn=churn)
        yield f"{churn:.0%} churn", Snapshots(graph, life=1)
    yield "edge life 10", Snapshots(events_alone(options), life=10)
    home = data_home(os.environ)
    for name in _SETS:
        if (home / "temporal" / f"{name}.npz").is_file():
            graph = load(name, home=home)
            assert isinstance(graph, DynamicGraph)
            yield name, Snapshots(graph, life=10)


def churning(num_nodes: int, num_edges: int, steps: int, *, churn: float) -> DynamicGraph:
    """Snapshots of random edges, of which a share is replaced at every step."""
    generator = torch.Generator().manual_seed(0)
    pairs = torch.randint(num_nodes, (2, num_edges), generator=generator)
    snapshots = [pairs]
    for _ in range(steps - 1):
        picked = torch.randperm(num_edges, generator=generator)[: round(churn * num_edges)]
        pairs = pairs.clone()
        pairs[:, picked] = torch.randint(num_nodes, (2, picked.numel()), generator=generator)
        snapshots.append(pairs)
    return DynamicGraph.from_snapshots(snapshots, num_nodes=num_nodes)


def events_alone(options: argparse.Namespace) -> DynamicGraph:
    """Random events, so many a step that a snapshot of edge life 10 has the edges asked for."""
    graph = churning(options.nodes, options.edges // 10, options.steps + 9, churn=1)
    return replace(graph, name="events")


def _measured(name: str, snapshots: Snapshots) -> dict[str, object]:
    steps = range(snapshots.life - 1, snapshots.steps.stop)  # full snapshots alone
    began = time.perf_counter()
    chunk = snapshots.pack(steps.start, steps.stop)
    packed_s = time.perf_counter() - began
    blocks = list(snapshots.walk(steps.start, steps.stop))
    _check(chunk, blocks)
    began = time.perf_counter()
    for _ in unpack(chunk).walk(steps.start, steps.stop):
        pass
    walk_s = time.perf_counter() - began
    began = time.perf_counter()
    for step in steps:
        Snapshots(snapshots.graph, life=snapshots.life).block(step)
    built_s = time.perf_counter() - began
    csr = sum(4 * (block.num_edges + block.num_dst + 1) for block in blocks)
    lists = sum(16 * block.num_edges for block in blocks)
    return {
        "case": name,
        "steps": len(steps),
        "edges": max(block.num_edges for block in blocks),
        "packed_bytes": chunk.num_bytes,
        "csr_bytes": csr,
        "csr_ratio": csr / chunk.num_bytes,
        "list_ratio": lists / chunk.num_bytes,
        "hand_over_csr_s": csr / _RATE_BYTES,
        "hand_over_packed_s": chunk.num_bytes / _RATE_BYTES,
        "pack_s": packed_s,
        "walk_s": walk_s,
        "build_s": built_s,
    }


def _check(chunk: Chunk, blocks: list[Block]) -> None:
    again = unpack(Chunk.from_bytes(chunk.to_bytes()))
    for block, wanted in zip(again.walk(chunk.start, chunk.stop), blocks, strict=True):
        assert torch.equal(block.indptr, wanted.indptr), "an unpacked snapshot differs"
        assert torch.equal(block.indices, wanted.indices), "an unpacked snapshot differs"


def _print(found: list[dict[str, object]]) -> None:
    head = (
        "case",
        "steps",
        "edges",
        "CSR MB",
        "packed MB",
        "less",
        "lists",
        "pack s",
        "unpack+walk s",
        "build s",
    )
    print("".join(f"{word:>14}" for word in head), file=sys.stderr)
    for row in found:
        size = f"{row['steps']:>14}{row['edges']:>14}{row['csr_bytes'] / 1e6:>14.2f}{row['packed_bytes'] / 1e6:>14.3f}"
        less = f"{row['csr_ratio']:>13.1f}x{row['list_ratio']:>13.1f}x"
        times = f"{row['pack_s']:>14.3f}{row['walk_s']:>14.3f}{row['build_s']:>14.3f}"
        print(f"{row['case'][:14]:>14}{size}{less}{times}", file=sys.stderr)


def _share(options: argparse.Namespace, ranks: int) -> dict[str, object]:
    """What each rank of a run of CD-GCN gets of the events, packed: links of the next step, edge life 10."""
    graph = events_alone(options)
    wanted = TaskConfig(
        "link", SnapshotsConfig(edge_life=10, window=0, blocks=1), LinkConfig(evaluation=10), 0
    )
    shares = plan_shards(graph, ModelConfig(kind="cd-gcn", hidden=8), wanted, ranks=ranks)
    sent = [
        sum(pack_events(graph, steps, weighted=False).num_bytes for steps in split_steps(graph, share.events))
        for share in shares
    ]
    log, steps = 8 * graph.num_events, [len(share.events) for share in shares]
    print(
        f"{ranks} ranks, {graph.num_steps} steps: of a log of {log / 1e6:.2f} MB each gets {min(sent) / 1e6:.2f} to "
        f"{max(sent) / 1e6:.2f} MB ({min(steps)} to {max(steps)} steps), at least {log / max(sent):.1f}x less",
        file=sys.stderr,
    )
    return {"ranks": ranks, "log_bytes": log, "share_bytes": sent, "share_steps": steps}


def _wire(options: argparse.Namespace) -> dict[str, object]:
    """Hand a chunk of edge life 10 from one host to another: as int32 CSR of every snapshot, and packed."""
    if why := refusal():
        raise SystemExit(f"--wire {why}")
    snapshots = Snapshots(events_alone(options), life=10)
    began = time.perf_counter()
    packed = snapshots.pack(9, snapshots.steps.stop).to_bytes()
    pack_s, began = time.perf_counter() - began, time.perf_counter()
    blocks = list(unpack(Chunk.from_bytes(packed)).walk(9, snapshots.steps.stop))
    unpack_s = time.perf_counter() - began
    whole = [part.int() for block in blocks for part in (block.indptr, block.indices)]
    with tempfile.TemporaryDirectory() as folder:
        sent = {}
        for name, data in {"packed": packed, "csr": torch.cat(whole).view(torch.uint8)}.items():
            path = Path(folder) / f"{name}.bin"
            path.write_bytes(data.numpy().tobytes())
            with two_hosts(Path(folder), rate=_RATE) as (sender, receiver):
                sent[name] = _sent(sender, receiver, path)
    packed_s, epoch_s = pack_s + sent["packed"] + unpack_s, _epoch_s(blocks)
    print(
        f"over the wire at {_RATE}: CSR {sent['csr']:.2f} s, packed {packed_s:.2f} s ({pack_s:.2f} s of it packing, "
        f"{unpack_s:.2f} s unpacking): {sent['csr'] / packed_s:.1f}x; an epoch of CD-GCN {epoch_s:.2f} s",
        file=sys.stderr,
    )
    found = {"case": "wire", "csr_s": sent["csr"], "packed_s": packed_s, "ratio": sent["csr"] / packed_s}
    for epochs in (1, 10, 100):
        shares = [each / (each + epochs * epoch_s) for each in (sent["csr"], packed_s)]
        print(
            f"share of a run of {epochs} epochs: CSR {shares[0]:.1%}, packed {shares[1]:.1%}", file=sys.stderr
        )
        found[f"shares_of_{epochs}_epochs"] = shares
    return found


def _epoch_s(blocks: list[Block]) -> float:
    """Seconds of an epoch of CD-GCN on some snapshots, one layer of 64; the second, since the first makes arrays."""
    steps, num_nodes = [Step(block) for block in blocks], blocks[0].num_dst
    model = build_temporal(ModelConfig(kind="cd-gcn", layers=1, hidden=64), in_features=64)
    span = span_alone(steps, torch.randn(num_nodes, 64))
    with native.arrays_reused():
        for _ in range(2):
            began = time.perf_counter()
            checkpointed_backward(
                model,
                lambda _: span,
                lambda _, place, h: h.square().mean(),
                num_segments=1,
                state=model.begin(num_nodes),
            )
    return time.perf_counter() - began


def _sent(sender: Host, receiver: Host, path: Path) -> float:
    """Send a file from host to host; returns the seconds until the receiver had all of it and said so."""
    me, environ = [sys.executable, str(Path(__file__).resolve())], dict(os.environ)
    taking = receiver.start([*me, "--receive"], environ=environ)
    assert taking.stdout is not None
    assert taking.stdout.readline().strip() == "ready", taking.communicate()[1]
    giving = sender.start([*me, "--send", receiver.address, "--file", str(path)], environ=environ)
    out, errors = giving.communicate(timeout=_WAIT_S)
    if giving.returncode:
        raise RuntimeError(errors)
    return float(out)


def _receive() -> None:
    with socket.create_server(("", _PORT)) as server:
        server.settimeout(_WAIT_S)
        print("ready", flush=True)
        peer, _ = server.accept()
        with peer:
            peer.settimeout(_WAIT_S)
            left = int.from_bytes(_exactly(peer, 8))
            while left:
                left -= len(peer.recv(min(left, 1 << 20)))
            peer.sendall(b"!")


def _exactly(peer: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        data += peer.recv(count - len(data))
    return data


def _send(address: str, path: Path) -> None:
    data = path.read_bytes()
    with socket.create_connection((address, _PORT), timeout=_WAIT_S) as peer:
        began = time.perf_counter()
        peer.sendall(len(data).to_bytes(8) + data)
        assert peer.recv(1) == b"!"
        print(time.perf_counter() - began)


if __name__ == "__main__":
    require_core()
    main()
