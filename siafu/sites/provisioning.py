"""Provisioning: the key of a site, its rotation, and a trial federation with keys, settings and a split graph."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as pa_csv
import torch
from torch import Tensor

from siafu import native
from siafu.files import atomic_writer, write_atomically
from siafu.graph import Graph, take_rows
from siafu.launch.sites.config import COORDINATOR, SiteConfig
from siafu.native import Csr
from siafu.partition.cross_site import node_ids
from siafu.partition.cut import NODE_FIELDS
from siafu.store import write_store
from siafu.wire.certificates import (
    DAYS,
    issue,
    make_authority,
    make_key,
    read_authority,
    read_certificate,
    request,
    sign_request,
    write_authority,
    write_key,
)

_PORT = 7400
_SITE = """\
name = "{name}"
listen = "127.0.0.1:{port}"
certificate = "site.pem"
key = "site.key"
coordinator = "peers/coordinator.pem"
cross_edges = "cross.csv"   # columns site, src, dst: edges from nodes of other sites to own ones
ledger = "ledger.jsonl"
# max_bytes = 1000000000

[policy]
features = "boundary"     # or never
labels = "never"
embeddings = "boundary"   # or never
structure = "boundary"    # or sampled, which method sampled needs
{peers}"""
_FEDERATION = """\
certificate = "site.pem"
key = "site.key"
out = "run"
quorum = 0.5
patience = 60
{sites}
[run]
method = "lazy"
"""


@dataclass(frozen=True)
class ProvisionedFiles:
    """Files that were made, and the next step."""

    files: tuple[Path, ...]
    next: str


def init_site(folder: Path, name: str) -> ProvisionedFiles:
    """Make a key, a self-signed certificate and a certificate signing request, in a new folder."""
    folder.mkdir(parents=True, exist_ok=True)
    key = make_key()
    write_key(key, folder / "site.key")
    write_atomically(folder / "site.pem", issue(name, key.public_key(), None, key))
    write_atomically(folder / "request.pem", request(name, key))
    files = tuple(folder / each for each in ("site.key", "site.pem", "request.pem"))
    return ProvisionedFiles(
        files,
        "give site.pem to the others, or have an authority sign request.pem and give what it made of it; site.key "
        "stays here",
    )


def init_trial(folder: Path, names: Sequence[str], *, days: float = DAYS) -> ProvisionedFiles:
    """Make an authority, a coordinator and sites that list each other, each in a folder of its own."""
    authority, parties = make_authority(days=days), [COORDINATOR, *names]
    (folder / "authority").mkdir(parents=True)
    write_authority(authority, folder / "authority")
    shown: dict[str, bytes] = {}
    for name in parties:
        (folder / name / "peers").mkdir(parents=True)
        key = make_key()
        write_key(key, folder / name / "site.key")
        shown[name] = issue(name, key.public_key(), authority, None, days=days)
        (folder / name / "site.pem").write_bytes(shown[name])
    for name in parties:
        for other in parties:
            if other != name:
                (folder / name / "peers" / f"{other}.pem").write_bytes(shown[other])
    for place, name in enumerate(names):
        peers = "".join(
            f'\n[peers.{other}]\ncertificate = "peers/{other}.pem"\n'
            f'addresses = ["127.0.0.1:{_PORT + at}"]   # at which it is called, and no other\n'
            for at, other in enumerate(names)
            if other != name
        )
        text = _SITE.format(name=name, port=_PORT + place, peers=peers)
        (folder / name / "site.toml").write_text(text, encoding="utf-8")
        _write_cross(folder / name / "cross.csv", [], torch.empty(0).long(), torch.empty(0).long())
    sites = "".join(
        f'\n[sites.{name}]\naddress = "127.0.0.1:{_PORT + place}"\ncertificate = "peers/{name}.pem"\n'
        for place, name in enumerate(names)
    )
    (folder / COORDINATOR / "federation.toml").write_text(_FEDERATION.format(sites=sites), encoding="utf-8")
    return ProvisionedFiles(
        tuple(folder / name for name in ("authority", *parties)),
        f"put a store into each folder, or deal one out with: siafu site split DATA {folder}; then in each: siafu site "
        f"serve --data store --config site.toml; and: siafu federate {folder}/{COORDINATOR}/federation.toml",
    )


def sign(file: Path, authority: Path, out: Path) -> ProvisionedFiles:
    """Sign a certificate signing request with an authority's key."""
    try:
        name, made = sign_request(file.read_bytes(), read_authority(authority))
    except ValueError as error:
        raise ValueError(f"{file}: {error}") from None
    write_atomically(out, made)
    return ProvisionedFiles(
        (out,), f"the certificate of {name}: it puts it in the place of its site.pem, and the others list it"
    )


def rotate(config: SiteConfig, *, authority: Path | None, finish: bool) -> ProvisionedFiles:
    """Make a new key and certificate beside the old ones; with ``finish``, replace the old ones by them."""
    after, secret = (path.with_name(f"next-{path.name}") for path in (config.certificate, config.key))
    if finish:
        if not after.is_file() or not secret.is_file():
            raise ValueError(f'{after}: there is none; make one with "siafu site rotate" first')
        read_certificate(after)
        secret.replace(config.key)
        after.replace(config.certificate)
        return ProvisionedFiles(
            (config.certificate, config.key), "the others may now take the old certificate off their lists"
        )
    key = make_key()
    write_key(key, secret)
    signer = None if authority is None else read_authority(authority)
    write_atomically(after, issue(config.name, key.public_key(), signer, key))
    return ProvisionedFiles(
        (after, secret),
        f"give {after.name} to the others, who list it beside the old one: peers.{config.name}.certificate = "
        f'["old.pem", "new.pem"]; when all have, run "siafu site rotate --finish"',
    )


def split(graph: Graph, owner: Tensor, folder: Path, names: Sequence[str]) -> dict[str, dict[str, int]]:
    """Split a graph among sites: each gets a store and a table of cross edges; ``owner`` is (N,), indices of names."""
    csr, ids = Csr(graph.indptr, graph.indices), node_ids(graph)
    counts: dict[str, dict[str, int]] = {}
    for place, name in enumerate(names):
        rows = (owner == place).nonzero()[:, 0]
        name_of = torch.full((graph.num_nodes,), 0, dtype=torch.int32)
        name_of[rows] = torch.arange(rows.numel(), dtype=torch.int32)
        every = torch.arange(graph.num_nodes, dtype=torch.int32)
        taken = native.take_rows(csr, rows, name=every, origin=graph.edge_weight is not None)
        dst = torch.arange(rows.numel()).repeat_interleave(taken.indptr.diff())
        src = taken.indices.long()
        inside = owner[src] == place
        weight = None if graph.edge_weight is None else graph.edge_weight[taken.origin]
        own = native.build_csr(dst[inside].int(), name_of[src[inside]], num_rows=rows.numel())
        nodes: dict[str, Any] = {each: take_rows(getattr(graph, each), rows) for each in NODE_FIELDS}
        part = Graph(
            own.indptr,
            own.indices,
            edge_weight=_rows(weight, inside),  # rows ascend, so edges stay in their order
            **nodes,
            node_id=ids[rows],
            name=graph.name,
            class_names=graph.class_names,
        )
        (folder / name).mkdir(parents=True, exist_ok=True)
        write_store(part, folder / name / "store")
        crossing = ~inside
        owners = [names[int(each)] for each in owner[src[crossing]]]
        ends = ids[src[crossing]], ids[rows[dst[crossing]]]
        _write_cross(folder / name / "cross.csv", owners, *ends, weight=_rows(weight, crossing))
        counts[name] = {"nodes": rows.numel(), "edges": int(inside.sum()), "cross_edges": int(crossing.sum())}
    return counts


def _rows(values: Tensor | None, rows: Tensor) -> Tensor | None:
    return None if values is None else values[rows]


def _write_cross(
    path: Path, sites: Sequence[str], src: Tensor, dst: Tensor, *, weight: Tensor | None = None
) -> None:
    columns: dict[str, Any] = {
        "site": pa.array(sites, pa.string()),
        "src": pa.array(np.asarray(src)),
        "dst": pa.array(np.asarray(dst)),
        **({} if weight is None else {"weight": pa.array(np.asarray(weight))}),
    }
    with atomic_writer(path) as file:
        pa_csv.write_csv(pa.table(columns), file)
