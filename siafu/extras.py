"""Optional packages: which extra of siafu brings each, and an error that says how to install it."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple


class Extra(NamedTuple):
    """An optional package.

    Attributes:
        name: the extra of siafu that brings it.
        purpose: the reason to install it.
    """

    name: str
    purpose: str

    @property
    def install(self) -> str:
        """The command that installs it."""
        return f"pip install 'siafu[{self.name}]'"


# By the name under which Python imports it.
EXTRAS = {
    "pymetis": Extra("metis", "partition with METIS"),
    "kaminpar": Extra("kaminpar", "partition with KaMinPar"),
    "ray": Extra("ray", "run on a Ray cluster"),
    "boto3": Extra("aws", "run workers on AWS Lambda"),
    "grpc": Extra("sites", "train among sites"),
    "google.protobuf": Extra("sites", "messages of sites"),
    "optuna": Extra("tune", "search recipes and models"),
    "torch_geometric": Extra("pyg", "convert graphs from and to PyG, NeighborLoader"),
}


class MissingExtra(ValueError, ImportError):
    """An optional package is needed, but is not installed or cannot be imported."""


@contextmanager
def require_extra(what: str, package: str) -> Iterator[None]:
    """Import an optional package inside this context; on failure the error says how to install it."""
    try:
        yield
    except ImportError as error:
        install = EXTRAS[package].install
        if isinstance(error, ModuleNotFoundError):
            raise MissingExtra(f"{what} needs {package}, which is not installed: {install}") from error
        raise MissingExtra(
            f"{what} needs {package}, which does not load ({error}); install it again: {install}"
        ) from error
