"""DistDGL's side of ``distdgl.py``, under a Python that has DGL: cuts the graph, and is one host of the two.

    python distdgl_side.py partition ARRAYS PARTS
    python distdgl_side.py host PARTS --place 0 ...      starts this host's server, then trains as its one trainer

What DGL's own launcher would set over ssh is set here. A trainer prints a line of JSON for each epoch: its seconds, and
the bytes that the host's interfaces other than the loopback sent in it.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch
from sampled_side import FANOUTS, dgl_graph, dgl_model, learning
from side import Arrays

NAME, HOSTS = "community", 2
_META = "widths.json"


def partition(arrays: Arrays, folder: Path) -> None:
    """Cut the graph by METIS, one part a host."""
    import dgl

    graph = dgl_graph("sage", arrays).formats(["coo", "csr", "csc"])
    graph.ndata.update({"x": arrays.x, "y": arrays.y, "train_mask": arrays.train})
    dgl.distributed.partition_graph(graph, NAME, HOSTS, str(folder), part_method="metis")
    (folder / _META).write_text(json.dumps({"x": arrays.x.shape[1], "classes": arrays.num_classes}))


class _Widths:
    """What a model needs to know of the arrays, which are on no host whole."""

    def __init__(self, folder: Path) -> None:
        told = json.loads((folder / _META).read_text())
        self.x, self.num_classes = torch.empty(0, told["x"]), told["classes"]


def host(args: argparse.Namespace) -> None:
    """Start this host's server and train; both end together."""
    shared = {
        "DGL_NUM_SAMPLER": "0",
        "DGL_NUM_CLIENT": str(HOSTS),
        "DGL_NUM_SERVER": "1",
        "DGL_CONF_PATH": str(args.folder / f"{NAME}.json"),
        "DGL_IP_CONFIG": str(args.folder / "ip_config.txt"),
        "DGL_GRAPH_FORMAT": "csc",
        "DGL_KEEP_ALIVE": "0",
        "DGL_DIST_MODE": "distributed",
        "OMP_NUM_THREADS": str(args.threads),
    }
    os.environ.update(shared)
    as_server = {"DGL_ROLE": "server", "DGL_SERVER_ID": str(args.place)}
    start = "import os, dgl; dgl.distributed.initialize(os.environ['DGL_IP_CONFIG'])"
    server = subprocess.Popen([sys.executable, "-c", start], env=os.environ | as_server, stdout=sys.stderr)
    try:
        train(args)
        server.wait(60)
    finally:
        server.kill()


def train(args: argparse.Namespace) -> None:
    import dgl
    from torch.nn.parallel import DistributedDataParallel

    os.environ.update({"DGL_ROLE": "client", "DGL_GROUP_ID": "0"})
    os.environ.update({"MASTER_ADDR": args.master, "MASTER_PORT": str(args.port)})
    torch.set_num_threads(args.threads)
    dgl.distributed.initialize(os.environ["DGL_IP_CONFIG"])
    torch.distributed.init_process_group("gloo", rank=args.place, world_size=HOSTS)
    graph = dgl.distributed.DistGraph(NAME, part_config=os.environ["DGL_CONF_PATH"])
    book, mask = graph.get_partition_book(), graph.ndata["train_mask"]
    seeds = dgl.distributed.node_split(mask, book, force_even=True)
    sampler = dgl.dataloading.NeighborSampler(list(FANOUTS))
    sizes = {"batch_size": args.batch // HOSTS, "shuffle": True, "drop_last": False}
    loader = dgl.dataloading.DistNodeDataLoader(graph, seeds, sampler, **sizes)
    epoch = learning(DistributedDataParallel(dgl_model("sage", _Widths(args.folder))))
    x, y = graph.ndata["x"], graph.ndata["y"]
    for _ in range(args.epochs):
        torch.distributed.barrier()
        start, sent = time.perf_counter(), sent_bytes()
        epoch((blocks, x[nodes], y[own]) for nodes, own, blocks in loader)
        torch.distributed.barrier()
        told = {"seconds": time.perf_counter() - start, "bytes": sent_bytes() - sent}
        print(json.dumps(told), flush=True)
    dgl.distributed.exit_client()  # the servers end when all clients have


def sent_bytes() -> int:
    """What this host's interfaces have sent to others."""
    lines = Path("/proc/net/dev").read_text().splitlines()[2:]
    named: dict[str, Any] = {line.split(":")[0].strip(): line.split(":")[1].split() for line in lines}
    return sum(int(counts[8]) for name, counts in named.items() if name != "lo")


def main() -> None:
    parser = argparse.ArgumentParser()
    commands = parser.add_subparsers(dest="command", required=True)
    cutting = commands.add_parser("partition")
    cutting.add_argument("arrays", type=Path)
    cutting.add_argument("folder", type=Path)
    training = commands.add_parser("host")
    training.add_argument("folder", type=Path)
    training.add_argument("--place", type=int, required=True)
    training.add_argument("--master", required=True)
    training.add_argument("--port", type=int, default=29500)
    training.add_argument("--batch", type=int, required=True, help="of both hosts together")
    training.add_argument("--epochs", type=int, default=2)
    training.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    if args.command == "partition":
        partition(Arrays(args.arrays), args.folder)
    else:
        host(args)


if __name__ == "__main__":
    main()
