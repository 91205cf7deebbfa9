"""A trial federation of three sites on the loopback, in this process: real certificates and TLS, free ports."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from siafu.config import build, write_toml
from siafu.graph import Graph
from siafu.inference import Run
from siafu.launch.sites.config import COORDINATOR, SiteConfig, read_config
from siafu.launch.sites.rpc import SiteServer
from siafu.run import train
from siafu.sites.coordinator import federate
from siafu.sites.provisioning import init_trial, split
from siafu.sites.service import SiteService, open_site_service
from siafu.sites.site_data import load_site_data
from siafu.training.procedure import Callbacks

NAMES = ("a", "b", "c")
LONG_S = 600.0  # so that no site counts as slow on a busy machine


@dataclass
class Trial:
    """A folder with a federation, and its running sites.

    Attributes:
        folder: contains a folder for each party.
        served: service and server of each running site.
        said: the log lines of each site.
        addresses: the address of each site that has served.
    """

    folder: Path
    served: dict[str, tuple[SiteService, SiteServer]] = field(default_factory=dict)
    said: dict[str, list[str]] = field(default_factory=lambda: {name: [] for name in NAMES})
    addresses: dict[str, str] = field(default_factory=dict)

    def serve(self, name: str) -> None:
        """Start a site, at its previous address if it had one."""
        config = read_config(self.folder / name / "site.toml", SiteConfig)
        listen = self.addresses.get(name, "127.0.0.1:0")
        peers = {
            other: peer.model_copy(
                update={"addresses": (self.addresses[other],)} if other in self.addresses else {}
            )
            for other, peer in config.peers.items()
        }  # sites of a lower rank serve already, and only they are called
        config = config.model_copy(update={"listen": listen, "peers": peers})
        site_data = load_site_data(config, self.folder / name / "store")
        self.served[name] = open_site_service(config, site_data, say=self.said[name].append)
        self.addresses[name] = self.served[name][1].address

    def end(self, name: str) -> None:
        """Stop a site abruptly."""
        site, server = self.served.pop(name)
        server.stop()
        site.close()

    def change(self, name: str, old: str, new: str) -> None:
        """Change a site's settings."""
        path = self.folder / name / "site.toml"
        text = path.read_text()
        assert old in text
        path.write_text(text.replace(old, new))

    def federate(self, out: str = "run", *, callbacks: Callbacks | None = None, **settings: Any) -> Run:
        """Train with the sites."""
        given = {"patience": LONG_S, "quorum": 0.5} | settings.pop("federation", {})
        settings = {"comm.deadline": LONG_S} | settings
        path = self.folder / COORDINATOR / "federation.toml"
        sites = "".join(
            f'[sites.{name}]\naddress = "{self.addresses.get(name, "127.0.0.1:1")}"\ncertificate = "peers/{name}.pem"\n'
            for name in NAMES
        )
        lines = [f"{key} = {value}" for key, value in given.items()]
        run = [
            f"{key} = {value!r}".replace("True", "true").replace("False", "false")
            for key, value in settings.items()
        ]
        own = ['certificate = "site.pem"', 'key = "site.key"']
        path.write_text("\n".join([*own, *lines, sites, "[run]", "threads = 1", *run]) + "\n")
        return federate(path, out=self.folder / out, callbacks=callbacks)


def owners(graph: Graph, seed: int = 0) -> torch.Tensor:
    """Assign nodes to sites at random."""
    return torch.from_numpy(np.random.default_rng(seed).integers(0, len(NAMES), graph.num_nodes))


def make_trial(folder: Path, graph: Graph) -> Trial:
    """Make a federation and split a graph among its sites; none serves yet."""
    init_trial(folder, NAMES)
    split(graph, owners(graph), folder, NAMES)
    return Trial(folder)


@contextmanager
def serving(folder: Path, graph: Graph) -> Iterator[Trial]:
    """Make a federation whose sites all serve."""
    with ended(make_trial(folder, graph)) as trial:
        for name in NAMES:
            trial.serve(name)
        yield trial


@contextmanager
def ended(trial: Trial) -> Iterator[Trial]:
    """Stop all running sites afterwards."""
    try:
        yield trial
    finally:
        for name in list(trial.served):
            trial.end(name)


def trained_here(graph: Graph, folder: Path, **settings: Any) -> Run:
    """Train the same run in one process, with the same partition and the settings that a federation begins with."""
    folder.mkdir(parents=True, exist_ok=True)
    np.save(folder / "owners.npy", owners(graph).numpy())
    tables: dict[str, Any] = {}
    for key, value in settings.items():
        table, _, name = key.rpartition(".")
        (tables.setdefault(table, {}) if table else tables)[name] = value
    tables |= {"ranks": len(NAMES), "engine": "local", "threads": 1}
    tables["partition"] = {"by": str(folder / "owners.npy")}
    tables.setdefault("data", {})["reorder"] = "off"
    (folder / "run.toml").write_text(write_toml(build(tables)))  # all settings, so that no recipe sets any
    return train(graph, config=folder / "run.toml", out=folder / "run", callbacks=Callbacks())
