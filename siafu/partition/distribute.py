"""Give each rank its part: read it from a shared folder, else receive it from rank 0."""

import tempfile
from pathlib import Path

import torch

from siafu.comm import Comm
from siafu.comm.tensor_bytes import tensor_from_bytes
from siafu.partition.cut import Part
from siafu.partition.parts import AGAIN, PARTITION, Partition, PartitionManifest, is_partition
from siafu.store.manifest import ArraySpec, parse_checksummed
from siafu.store.reader import verify_array

_CHUNK_BYTES = 1 << 26
_LABEL = "parts"


def distribute_part(comm: Comm, path: Path) -> Part:
    """Return this rank's part of the partition at ``path``, a folder that rank 0 can read. Collective.

    Ranks that cannot read the folder receive their part from rank 0, write it to a temporary folder and map it from
    there. So a part may be larger than memory. The temporary folder is deleted as soon as it is mapped.
    """
    read = None if comm.rank else tensor_from_bytes((path / PARTITION).read_bytes())
    text = comm.broadcast(read, label=_LABEL).numpy().tobytes()
    manifest = parse_checksummed(text, PartitionManifest, str(path / PARTITION), again=AGAIN)
    _check_ranks(comm, path, manifest)
    seen = is_partition(path) and (path / PARTITION).read_bytes() == text
    lacking = [
        rank for rank, sees in enumerate(comm.all_gather(torch.tensor([seen]), label=_LABEL)) if not sees
    ]
    if seen:
        part = Partition(path, manifest).part(comm.rank)
        for rank in lacking if comm.rank == 0 else []:
            for spec in manifest.parts[rank].arrays.values():
                verify_array(
                    path, spec, again=AGAIN
                )  # else it would be told of a file that the user never saw
                send_file(comm, rank, path / spec.file, label=_LABEL)
        return part
    with tempfile.TemporaryDirectory(prefix="siafu-part-") as folder:
        for spec in manifest.parts[comm.rank].arrays.values():
            receive_file(comm, Path(folder), spec, label=_LABEL)
        return Partition(Path(folder), manifest).part(comm.rank)


def _check_ranks(comm: Comm, path: Path, manifest: PartitionManifest) -> None:
    if len(manifest.parts) != comm.world_size:
        raise ValueError(
            f"{path}: has {len(manifest.parts)} parts for {comm.world_size} ranks; expected one each: make another "
            f'with "siafu partition --parts {comm.world_size}"'
        )


def send_file(comm: Comm, rank: int, file: Path, *, label: str) -> None:
    """Send the bytes of a file to a rank that calls :func:`receive_file`."""
    with file.open("rb") as source:
        while chunk := source.read(_CHUNK_BYTES):
            comm.send(rank, tensor_from_bytes(chunk), label=label)


def receive_file(comm: Comm, folder: Path, spec: ArraySpec, *, label: str) -> None:
    """Receive the bytes of an array from rank 0 and write them to a folder."""
    with (folder / spec.file).open("wb") as sink:
        left = spec.num_bytes
        while left > 0:
            chunk = comm.receive(0, label=label)
            sink.write(chunk.numpy().data)
            left -= chunk.numel()
