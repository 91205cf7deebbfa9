"""Store the user's node ids as raw arrays: integers as they are, strings as offsets and bytes.

Arrow is imported where there are ids: most stores have none.
"""

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import pyarrow as pa


def is_string(kind: "pa.DataType") -> bool:
    """Return whether an Arrow type is a string type."""
    from pyarrow import types

    return any(test(kind) for test in (types.is_string, types.is_large_string, types.is_string_view))


def names_to_arrays(names: Any) -> dict[str, np.ndarray]:
    """Convert ids (an Arrow array or a sequence of strings or integers) to the arrays of a store."""
    import pyarrow as pa

    names = names if isinstance(names, pa.Array | pa.ChunkedArray) else pa.array(names)
    names = names.combine_chunks() if isinstance(names, pa.ChunkedArray) else names
    if names.null_count:
        raise ValueError(f"node_names has {names.null_count} missing ids; expected one a node")
    if pa.types.is_integer(names.type):
        return {"node_names": names.cast(pa.int64()).to_numpy(zero_copy_only=False)}
    if not is_string(names.type):
        raise ValueError(f"node_names are {names.type}; expected strings or integers")
    offsets, text = strings_to_arrays(names)
    return {"node_names_offsets": offsets, "node_names_bytes": text}


def strings_to_arrays(strings: "pa.Array") -> tuple[np.ndarray, np.ndarray]:
    """Convert n Arrow strings to offsets, (n + 1,) int64 from 0, and bytes."""
    import pyarrow as pa

    strings = pa.concat_arrays([strings.cast(pa.large_string())])  # drops an offset that a slice may have
    _, offsets, data = strings.buffers()
    count = len(strings)
    starts = np.frombuffer(offsets, dtype=np.int64, count=count + 1) if count else np.zeros(1, np.int64)
    text = np.frombuffer(data, dtype=np.uint8)[starts[0] : starts[-1]] if data else np.empty(0, np.uint8)
    return starts - starts[0], text


def names_from_arrays(arrays: dict[str, np.ndarray]) -> "pa.Array | None":
    """Rebuild the ids from the arrays of a store; None where the store has none."""
    if not {"node_names", "node_names_offsets"} & arrays.keys():
        return None
    import pyarrow as pa

    if "node_names" in arrays:
        return pa.array(arrays["node_names"])
    try:
        return strings_from_arrays(arrays["node_names_offsets"], arrays["node_names_bytes"])
    except ValueError as error:
        raise ValueError(f"node_names_offsets and node_names_bytes {error}") from None


def strings_from_arrays(offsets: np.ndarray, text: np.ndarray) -> "pa.Array":
    """Rebuild Arrow strings from offsets and bytes; refuse those that make none."""
    import pyarrow as pa

    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(text)]
    strings = pa.Array.from_buffers(pa.large_string(), offsets.size - 1, buffers)
    try:
        strings.validate(full=True)
    except pa.ArrowInvalid as error:
        raise ValueError(f"make no strings: {error}") from None
    return strings
