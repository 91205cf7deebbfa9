"""Graphs that need no file, by name: ``karate``, ``community:nodes=20000,seed=0``, ``rmat:…``, ``transactions:…``."""

import difflib
from collections.abc import Callable, Mapping
from typing import Any

from siafu.data.generate import community, rmat
from siafu.data.karate import karate
from siafu.data.transactions import Transactions
from siafu.dynamic import DynamicGraph
from siafu.graph import Graph

# What each takes: the type of every setting. Those of nodes and edges have defaults here.
_SETTINGS: Mapping[str, Mapping[str, Callable[[str], Any]]] = {
    "karate": {"classes": int},
    "community": {
        **{"nodes": int, "degree": float, "features": int, "classes": int, "inside": float, "seed": int},
    },
    "rmat": {
        **{"nodes": int, "edges": int, "a": float, "b": float, "c": float},
        **{"features": int, "classes": int, "seed": int},
    },
    "transactions": {
        **{"nodes": int, "steps": int, "events": int, "again": float, "rings": float},
        **{"features": int, "seed": int},
    },
}
NAMES = tuple(_SETTINGS)


def is_bundled(name: str) -> bool:
    """Whether a name, apart from its settings, is one of the graphs made here."""
    return name.split(":", 1)[0] in _SETTINGS


def transactions(spec: str) -> Transactions | None:
    """What ``transactions:nodes=20000,steps=150`` asks for, which need not be made at once; None for other names."""
    name, _, text = spec.partition(":")
    return Transactions(**_parse(name, text) if text else {}) if name == "transactions" else None


def make(spec: str) -> Graph | DynamicGraph:
    """Make the graph of a name and settings, such as ``community:nodes=20000,classes=8``."""
    if payments := transactions(spec):
        return payments.graph()
    name, _, text = spec.partition(":")
    settings = _parse(name, text) if text else {}
    match name:
        case "karate":
            return karate(**settings)
        case "community":
            return community(settings.pop("nodes", 20_000), **settings)
        case _:
            return rmat(settings.pop("nodes", 2**16), settings.pop("edges", 2**20), **settings)


def _parse(name: str, text: str) -> dict[str, Any]:
    known = _SETTINGS[name]
    settings: dict[str, Any] = {}
    for part in text.split(","):
        key, equals, value = (piece.strip() for piece in part.partition("="))
        if key not in known:
            near = difflib.get_close_matches(key, known, n=1, cutoff=0)[0]
            raise ValueError(f"{name}: no setting {key!r}; did you mean {near!r}? It has {', '.join(known)}")
        if not equals or key in settings:
            raise ValueError(f"{name}: found {part!r}; expected each setting once, such as {key}=1")
        try:
            settings[key] = known[key](value)
        except ValueError:
            kind = "a whole number" if known[key] is int else "a number"
            raise ValueError(f"{name}: {key} is {value!r}; expected {kind}") from None
    return settings
