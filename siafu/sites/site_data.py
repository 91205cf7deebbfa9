"""The data of one site: its store and its cross edges."""

import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from xxhash import xxh3_64_hexdigest

import siafu
from siafu.data.config import DataConfig
from siafu.graph import Graph
from siafu.launch.sites.config import SiteConfig
from siafu.launch.sites.schema import make
from siafu.partition.cross_site import CrossEdges, no_cross_edges, node_ids, read_cross_edges
from siafu.store import Store, open_store
from siafu.store.manifest import MANIFEST
from siafu.training.inputs import resolve


@dataclass(frozen=True, eq=False)
class SiteData:
    """The data that a site trains on.

    Attributes:
        config: the settings of the site.
        store: its graph on disk.
        graph: its own nodes and the edges among them.
        cross: edges from nodes of other sites.
        fold: the split that is used, where there are several.
    """

    config: SiteConfig
    store: Store
    graph: Graph
    cross: CrossEdges
    fold: int

    def about(self, *, state: str, ledger_bytes: int, expires: float) -> Any:
        """Describe the data to the coordinator: sizes and names, no values of nodes."""
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
        """Checksum all data that a run reads at this site."""
        manifest = json.loads((self.store.path / MANIFEST).read_bytes())
        cross = self.cross
        digest = [manifest["checksum"], *cross.sites, str(self.fold)]
        for values in (cross.site, cross.src_id, cross.dst_row, cross.weight):
            digest.append("" if values is None else xxh3_64_hexdigest(values.numpy().tobytes()))
        return xxh3_64_hexdigest("|".join(digest).encode())


def load_site_data(config: SiteConfig, data: Path, *, fold: int = 0) -> SiteData:
    """Open and check the store and the cross edges of a site."""
    store = open_store(data)
    graph = store.graph(fold=fold)
    if graph.columns is not None:
        raise ValueError(
            f"{data}: its features are columns of a table, which each site would encode by statistics of its own; "
            "encode them alike at all sites and import them as numbers (siafu import --features)"
        )
    ids = node_ids(graph)
    if ids.unique().numel() != ids.numel():
        raise ValueError(f"{data}: some ids stand for two nodes; expected one id a node")
    cross = no_cross_edges()
    if config.cross_edges is not None:
        cross = read_cross_edges(config.cross_edges, graph, own=config.name, known=sorted(config.peers))
    return SiteData(config, store, graph, cross, fold)


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
