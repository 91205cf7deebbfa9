"""Named tensors and a small state in one file: weights and checkpoints.

The file is in the safetensors format. Its metadata holds the state as JSON and a checksum over the state and every
tensor's name, type, shape and bytes, so that no flipped bit goes unnoticed. The file holds no time, path or name of a
machine: equal contents are equal bytes.
"""

import json
from pathlib import Path
from typing import Any

import torch
import xxhash
from safetensors import SafetensorError
from safetensors.torch import load as load_bytes
from safetensors.torch import save as save_bytes
from torch import Tensor

from siafu.files import write_atomically


def save_tensors(path: Path, tensors: dict[str, Tensor], state: dict[str, Any]) -> int:
    """Write tensors and state under a temporary name, then rename; returns the bytes written."""
    text = json.dumps(state, sort_keys=True, separators=(",", ":"), allow_nan=False)
    tensors = {name: _copy(tensors[name]) for name in sorted(tensors)}
    metadata = {"siafu": json.dumps([text, _digest(tensors, text)])}  # one key: the order of several varies
    data = save_bytes(tensors, metadata)
    write_atomically(path, data)
    return len(data)


def load_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Read a file of :func:`save_tensors`; refuse anything else."""
    return parse_tensors(path.read_bytes(), str(path))


def parse_tensors(data: bytes, what: str) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Parse the bytes of such a file into tensors and state; ``what`` names it in errors."""
    try:
        tensors = load_bytes(data)
        size = int.from_bytes(data[:8], "little")
        text, expected = json.loads(json.loads(data[8 : 8 + size])["__metadata__"]["siafu"])
        found = _digest(tensors, text)
        state = json.loads(text)
    except (SafetensorError, ValueError, KeyError, TypeError, AttributeError, RuntimeError) as error:
        raise ValueError(f"{what}: not a tensor file of siafu, or damaged ({error})") from None
    if found != expected:
        raise ValueError(f"{what}: damaged: its checksum is {found}, expected {expected}")
    return tensors, state


def _copy(tensor: Tensor) -> Tensor:
    """Copy a tensor, so that no two tensors share memory, as the format requires."""
    return tensor.detach().clone(memory_format=torch.contiguous_format)


def _digest(tensors: dict[str, Tensor], text: str) -> str:
    digest = xxhash.xxh3_128(text.encode())
    for name in sorted(tensors):
        tensor = tensors[name]
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()
