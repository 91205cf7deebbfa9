"""The compiled core: ``kernels`` is the extension module, or None where it was not compiled."""

from importlib import import_module
from typing import Any

import torch  # noqa: F401  before _core: both then share the thread pool of torch's OpenMP library

NOT_COMPILED = (
    "compiled core not found: siafu runs in plain torch, about ten times slower; reinstall siafu (pip install siafu, "
    "with a C++20 compiler), and do not start Python in a source tree that shadows the installed package"
)

kernels: Any
try:
    kernels = import_module("siafu.native._core")
except ImportError:  # a source tree that was never built
    kernels = None


def compiled() -> bool:
    """Return whether the compiled core is in use."""
    return kernels is not None


def instruction_set() -> str:
    """The instruction set the kernels run on: ``avx512``, ``avx2``, ``baseline``, or ``reference`` without a core."""
    return kernels.isa() if kernels is not None else "reference"
