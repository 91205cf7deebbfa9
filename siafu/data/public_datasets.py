"""Public data sets by name: their archives, and the conversion to files of the data home.

The checksum of an archive is stored beside it as ``NAME.sha256`` and compared with a later download.
"""

import tempfile
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Literal
from urllib.parse import urlsplit

from siafu.data import linqs, snap
from siafu.data.download import fetch, sha256, unpack
from siafu.data.npz import write_npz
from siafu.event_log import Progress, no_progress

_LINQS = "https://linqs-data.soe.ucsc.edu/public"
_SNAP = "https://snap.stanford.edu"
_UNPACKED = 200  # how many times larger than its limit an archive may become


@dataclass(frozen=True)
class PublicDataset:
    """A published data set.

    Attributes:
        name: the name that users write.
        url: of the archive.
        kind: the layout of the archive; ``ratings`` is a dynamic graph, ``ogb`` becomes a store.
        sha256: of the archive, if known.
        limit_bytes: an upper bound on the size of the archive.
        licence: of the data.
        nodes, edges, features, classes: its sizes; edges as stored here.
    """

    name: str
    url: str
    kind: Literal["content", "pubmed", "ogb", "ogb_undirected", "musae", "ratings"]
    sha256: str | None
    limit_bytes: int
    licence: str
    nodes: int
    edges: int
    features: int
    classes: int

    @property
    def archive(self) -> str:
        """The name of the archive."""
        return PurePosixPath(urlsplit(self.url).path).name

    def path(self, home: Path) -> Path:
        """Return its path in a data home."""
        match self.kind:
            case "ogb" | "ogb_undirected":
                return home / self.name
            case "ratings":
                return home / "temporal" / f"{self.name}.npz"
            case _:
                return home / f"{self.name}.npz"


# fmt: off
PUBLIC_DATASETS = {source.name: source for source in (
    PublicDataset("cora", f"{_LINQS}/lbc/cora.tgz", "content",
           "0d4ed463d1627bb7f3e8420effe8f5545fd492ae8f88dab44ce86cee7b26d7e8", 1_000_000,
           "not stated; cite Sen et al. 2008", 2_708, 10_556, 1_433, 7),
    PublicDataset("citeseer", f"{_LINQS}/lbc/citeseer.tgz", "content", None, 2_000_000,
           "not stated; cite Sen et al. 2008", 3_312, 9_072, 3_703, 6),
    PublicDataset("pubmed", f"{_LINQS}/Pubmed-Diabetes.tgz", "pubmed", None, 50_000_000,
           "not stated; cite Namata et al. 2012", 19_717, 88_648, 500, 3),
    PublicDataset("ogbn-arxiv", f"{_SNAP}/ogb/data/nodeproppred/arxiv.zip", "ogb",
           "49f85c801589ecdcc52cfaca99693aaea7b8af16a9ac3f41dd85a5f3193fe276", 200_000_000,
           "ODC-BY", 169_343, 1_166_243, 128, 40),
    PublicDataset("ogbn-products", f"{_SNAP}/ogb/data/nodeproppred/products.zip", "ogb_undirected", None,
           3_000_000_000, "Amazon licence", 2_449_029, 123_718_280, 100, 47),
    PublicDataset("musae_github", f"{_SNAP}/data/git_web_ml.zip", "musae", None, 20_000_000,
           "not stated; cite Rozemberczki et al. 2021", 37_700, 578_006, 4_005, 2),
    PublicDataset("bitcoinotc", f"{_SNAP}/data/soc-sign-bitcoinotc.csv.gz", "ratings", None, 5_000_000,
           "not stated; cite Kumar et al. 2016", 5_881, 35_592, 0, 0),
    PublicDataset("bitcoinalpha", f"{_SNAP}/data/soc-sign-bitcoinalpha.csv.gz", "ratings", None, 5_000_000,
           "not stated; cite Kumar et al. 2016", 3_783, 24_186, 0, 0),
)}
# fmt: on


def download_dataset(
    source: PublicDataset, home: Path, *, mirror: str | None = None, progress: Progress = no_progress
) -> Path:
    """Download a data set, convert it into the data home, and return its path.

    An archive that the user put into the data home is used instead of a download.

    Args:
        source: which one.
        home: the data home; made if it isn't there.
        mirror: an address with copies of the archives, in place of where they are published.
        progress: callback for progress.
    """
    home.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{source.name}-", dir=home) as made:
        archive = _archive(source, home, Path(made), mirror=mirror, progress=progress)
        digest = _check_digest(source, home, archive)
        _store(source, archive, Path(made), home, progress)
        kept = Path(made) / "sha256"
        kept.write_text(f"{digest}  {source.archive}\n", encoding="ascii")
        kept.replace(_checksum_path(source, home))
    return source.path(home)


def _archive(
    source: PublicDataset, home: Path, folder: Path, *, mirror: str | None, progress: Progress
) -> Path:
    if (given := home / source.archive).is_file():
        return given
    url = source.url if mirror is None else f"{mirror.rstrip('/')}/{source.archive}"
    try:
        fetch(url, folder / source.archive, limit_bytes=source.limit_bytes, progress=progress)
    except ConnectionError as error:
        target = source.path(home)
        layout = "python -m pydoc siafu.data.npz" if target.suffix == ".npz" else "siafu import --help"
        raise ConnectionError(
            f"{source.name} is not in {home} and cannot be downloaded: {error}; put {source.archive} "
            f"(from {source.url}) or {target.relative_to(home)} (layout: {layout}) into {home}"
        ) from error
    return folder / source.archive


def _checksum_path(source: PublicDataset, home: Path) -> Path:
    return home / f"{source.name}.sha256"


def _check_digest(source: PublicDataset, home: Path, archive: Path) -> str:
    """Return the archive's checksum; refuse one that differs from the known or an earlier one."""
    digest = sha256(archive)
    if source.sha256 not in (None, digest):
        raise ValueError(
            f"{source.archive}: its sha256 is {digest}; expected {source.sha256}: it was cut off or is not "
            f"the archive of {source.name}"
        )
    kept = _checksum_path(source, home)
    earlier = kept.read_text(encoding="ascii", errors="replace").split()[:1] if kept.is_file() else [digest]
    if earlier != [digest]:
        raise ValueError(
            f"{source.archive}: its sha256 is {digest}, but it was {' '.join(earlier)} at an earlier "
            f"download ({kept}); what is published was changed: delete that file to take it as it is now"
        )
    return digest


def _store(source: PublicDataset, archive: Path, folder: Path, home: Path, progress: Progress) -> None:
    """Convert the archive to a file or a store of the data home."""
    limit_bytes = source.limit_bytes * _UNPACKED
    if source.kind == "ratings":
        write_npz(source.path(home), snap.read_ratings(archive, limit_bytes=limit_bytes))
        return
    progress(f"unpack {source.archive}", 0, None)
    unpacked = folder / "unpacked"
    unpack(archive, unpacked, limit_bytes=limit_bytes)
    match source.kind:
        case "content":
            write_npz(source.path(home), linqs.read_content(unpacked))
            progress(f"{source.name}: {linqs.SPLIT}", 1, 1)
        case "pubmed":
            write_npz(source.path(home), linqs.read_pubmed(unpacked))
            progress(f"{source.name}: {linqs.SPLIT}", 1, 1)
        case "musae":
            write_npz(source.path(home), snap.read_musae(unpacked))
            progress(f"{source.name}: {snap.SPLIT}", 1, 1)
        case _:
            _import_ogb(source, unpacked, home, progress)


def _import_ogb(source: PublicDataset, unpacked: Path, home: Path, progress: Progress) -> None:
    from siafu.data.importing import import_graph  # pyarrow's readers: only where they are needed

    (folder,) = [path.parent for path in unpacked.rglob("raw") if path.is_dir()][:1] or [unpacked]
    both = source.kind == "ogb_undirected"
    import_graph(source.path(home), edges=folder, undirected=both, name=source.name, progress=progress)
