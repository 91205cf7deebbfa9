"""All-gather of texts, and gather of named tensors on rank 0."""

import json

from torch import Tensor

from siafu.comm.comm import Comm
from siafu.comm.tensor_bytes import tensor_from_bytes


def all_gather_texts(comm: Comm, text: str, *, label: str) -> list[str]:
    """Return the texts of all ranks, in rank order. Collective."""
    texts = comm.all_gather(tensor_from_bytes(text.encode()), label=label)
    return [values.numpy().tobytes().decode() for values in texts]


def gather_tensors(comm: Comm, tensors: dict[str, Tensor], *, label: str) -> dict[int, dict[str, Tensor]]:
    """Return the named tensors of each rank on rank 0, and nothing on the others. Collective."""
    names = [json.loads(text) for text in all_gather_texts(comm, json.dumps(sorted(tensors)), label=label)]
    if comm.rank:
        for name in names[comm.rank]:
            comm.send(0, tensors[name], label=label)
        return {}
    received = {
        rank: {name: comm.receive(rank, label=label) for name in names[rank]}
        for rank in range(1, comm.world_size)
    }
    return {0: tensors, **received}
