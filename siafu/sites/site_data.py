"""What one site has: its store, its cross edges, its keys and lists; read once, and its keys again when they change."""

import json
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from xxhash import xxh3_64_hexdigest

import siafu
from siafu.data.config import DataConfig
from siafu.graph import Graph
from siafu.launch.sites.config import COORDINATOR, SiteConfig
from siafu.launch.sites.rpc import Listed
from siafu.launch.sites.schema import make
from siafu.partition.cross_site import CrossEdges, no_cross_edges, node_ids, read_cross_edges
from siafu.store import Store, open_store
from siafu.store.manifest import MANIFEST
from siafu.training.inputs import resolve
from siafu.wire.certificates import SiteCertificate, read_certificate, read_identity
from siafu.wire.tls import Certificate


@dataclass(frozen=True, eq=False)
class Holdings:
    """What a site trains on.

    Attributes:
        config: of the site.
        store: its graph on disk.
        graph: its own nodes and the edges among them.
        cross: edges from nodes of other sites.
        fold: which of several splits is used.
    """

    config: SiteConfig
    store: Store
    graph: Graph
    cross: CrossEdges
    fold: int

    def about(self, *, state: str, ledger_bytes: int, expires: float) -> Any:
        """What the coordinator may know of it: sizes and names, no value of a node."""
        graph, policy = self.graph, self.config.policy
        kind, outputs = _task(graph)
        data = resolve(DataConfig(), graph)
        return make(
            "About",
            name=self.config.name,
            version=siafu.__version__,
            time=time.time(),
            nodes=graph.num_nodes,
            edges=graph.num_edges,
            cross_edges=self.cross.src_id.numel(),
            features=0 if graph.x is None else graph.x.shape[1],
            task=kind,
            outputs=outputs,
            classes=graph.class_names or (),
            counts=data.normalize == "rows",
            fingerprint=self.fingerprint(),
            names=self.cross.sites,
            may_features=policy.features,
            may_embeddings=policy.embeddings,
            may_structure=policy.structure,
            expires=expires,
            state=state,
            ledger_bytes=ledger_bytes,
            split=[_count(mask) for mask in (graph.train_mask, graph.val_mask, graph.test_mask)],
            fold=self.fold,
        )

    def fingerprint(self) -> str:
        """A checksum of all that a run reads here."""
        manifest = json.loads((self.store.path / MANIFEST).read_bytes())
        cross = self.cross
        digest = [manifest["checksum"], *cross.sites, str(self.fold)]
        for values in (cross.site, cross.src_id, cross.dst_row, cross.weight):
            digest.append("" if values is None else xxh3_64_hexdigest(values.numpy().tobytes()))
        return xxh3_64_hexdigest("|".join(digest).encode())


def hold(config: SiteConfig, data: Path, *, fold: int = 0) -> Holdings:
    """Open what a site has, and refuse what is wrong with it."""
    store = open_store(data)
    graph = store.graph(fold=fold)
    ids = node_ids(graph)
    if ids.unique().numel() != ids.numel():
        raise ValueError(f"{data}: some ids stand for two nodes; expected one id a node")
    cross = no_cross_edges()
    if config.cross_edges is not None:
        cross = read_cross_edges(config.cross_edges, graph, own=config.name, known=sorted(config.peers))
    return Holdings(config, store, graph, cross, fold)


class Keys:
    """The own key and the lists of a site, read again when one of their files changes."""

    def __init__(self, config: SiteConfig) -> None:
        self._config = config
        self._seen: tuple[Any, ...] = ()
        self.read()

    def read(self) -> tuple[Certificate, Listed]:
        """The newest ones; where new ones are wrong, the last that were right."""
        stamp = self._stamp()
        if stamp != self._seen:
            try:
                self._now = self._load()
            except ValueError:
                if not self._seen:
                    raise
            self._seen = stamp
        return self._now

    @property
    def own(self) -> SiteCertificate:
        """The own certificate."""
        return read_certificate(self._config.certificate)

    def troubles(self) -> list[str]:
        """What is or will soon be wrong with any certificate."""
        now, (_, listed) = datetime.now(UTC), self.read()
        every = [self.own, *(pin for pins in listed.pins.values() for pin in pins)]
        found = [each.validity_error(now) or each.expiry_warning(now) for each in every]
        return [text for text in found if text]

    def _load(self) -> tuple[Certificate, Listed]:
        config = self._config
        own = self.own
        if own.name != config.name:
            raise ValueError(
                f"{config.certificate}: is of {own.name}, but this site is called {config.name}; give its own"
            )
        identity = read_identity(config.certificate, config.key)
        pins = {name: _pins(name, peer.certificate) for name, peer in config.peers.items()}
        pins[COORDINATOR] = _pins(COORDINATOR, config.coordinator)
        listed = Listed(pins)
        if listed.name_of(own.fingerprint) is not None:
            raise ValueError(
                f"{config.certificate}: also listed as another's; each has a certificate of its own"
            )
        return identity, listed

    def _stamp(self) -> tuple[Any, ...]:
        config = self._config
        listed = [path for peer in config.peers.values() for path in peer.certificate]
        files = [config.certificate, config.key, *config.coordinator, *listed]
        return tuple(
            (path.stat().st_mtime_ns, path.stat().st_ino) if path.is_file() else None for path in files
        )


def _pins(name: str, paths: tuple[Path, ...]) -> tuple[SiteCertificate, ...]:
    pins = tuple(read_certificate(path) for path in paths)
    for path, pin in zip(paths, pins, strict=True):
        if pin.name != name:
            raise ValueError(
                f"{path}: is the certificate of {pin.name}, but is listed for {name}; put the right one"
            )
    return pins


def _task(graph: Graph) -> tuple[str, int]:
    y = graph.y
    if y is None:
        return "none", 0
    if y.dtype == torch.int64:
        found = int(y.max()) + 1 if y.numel() else 0
        return "class", max(found, len(graph.class_names or ()))
    width = 1 if y.ndim == 1 else y.shape[1]
    return ("regression" if y.is_floating_point() else "labels"), width


def _count(mask: torch.Tensor | None) -> int:
    return 0 if mask is None else int(mask.sum())
