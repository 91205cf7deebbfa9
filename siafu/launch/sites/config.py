"""Settings of a site (``site.toml``) and of a federation (``federation.toml``). It opens no connection."""

import math
import tomllib
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, ValidationInfo

NAME_PATTERN = r"^[a-z0-9][a-z0-9-]{0,39}$"
COORDINATOR = "coordinator"


def _as_list(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


def _relative_to_file(value: Any, info: ValidationInfo) -> Any:
    """Resolve a path relative to the folder of the file that it is written in."""
    if isinstance(value, str) and value and info.context:
        return info.context["folder"] / Path(value).expanduser()
    return value


SiteName = Annotated[str, Field(pattern=NAME_PATTERN)]
RelativePath = Annotated[Path, BeforeValidator(_relative_to_file)]
Address = Annotated[
    str, Field(pattern=r"^(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?):[0-9]{1,5}$")
]
# One certificate, or several while keys change hands.
Pins = Annotated[tuple[RelativePath, ...], BeforeValidator(_as_list), Field(min_length=1)]


class SitePolicy(BaseModel):
    """The data that may leave a site. *Boundary nodes* are own nodes that other sites' edges name.

    Attributes:
        features: features of boundary nodes, or none.
        labels: none, ever.
        embeddings: hidden rows, scores and degrees of boundary nodes, or none.
        structure: ids that other sites named themselves; or, for sampled training, the neighbours of those as well.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    features: Literal["never", "boundary"] = "boundary"
    labels: Literal["never"] = "never"
    embeddings: Literal["never", "boundary"] = "boundary"
    structure: Literal["boundary", "sampled"] = "boundary"


def _as_peer(value: Any) -> Any:
    """Expand a peer that is given by its certificates alone."""
    return {"certificate": value} if isinstance(value, str | list) else value


class PeerConfig(BaseModel):
    """Another site, as a site lists it.

    Attributes:
        certificate: the certificates that identify it.
        addresses: the addresses at which it may be called, host:port; empty if it only calls.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    certificate: Pins
    addresses: tuple[Address, ...] = ()


class SiteConfig(BaseModel):
    """The settings of one site.

    Attributes:
        name: the name of the site, the same in all files.
        listen: address and port; port 0 lets the system pick one.
        certificate, key: its own, PEM.
        coordinator: the certificates of the coordinator.
        peers: the other sites; a site that is not listed is neither admitted nor called.
        cross_edges: a table of edges from nodes of other sites to own nodes, or None.
        ledger: the file of the ledger, an audit log of all data that left.
        work: a folder for runs.
        max_bytes: the bytes of data that may leave, as the ledger counts them; None for no limit.
        max_message_bytes: the bytes that a peer may send in one message, and in all messages not yet expected.
        policy: the data that may leave.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: SiteName
    listen: str
    certificate: RelativePath
    key: RelativePath
    coordinator: Pins
    peers: dict[SiteName, Annotated[PeerConfig, BeforeValidator(_as_peer)]] = Field(min_length=1)
    cross_edges: RelativePath | None = None
    ledger: RelativePath = Path("ledger.jsonl")
    work: RelativePath = Path("work")
    max_bytes: int | None = Field(None, ge=0)
    max_message_bytes: int = Field(1 << 30, ge=1 << 20)
    policy: SitePolicy = SitePolicy()


class SiteEndpoint(BaseModel):
    """The address of a site, and the certificates that identify it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    address: str
    certificate: Pins


class FederationConfig(BaseModel):
    """The settings of a federation, for its coordinator.

    Attributes:
        certificate, key: the coordinator's own, PEM.
        sites: the sites in the order of their ranks.
        out: the folder of the run.
        quorum: the share of the sites that a stage needs; two sites at least.
        patience: seconds to wait for an absent site.
        run: settings of the run, as ``siafu train --config`` takes them.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    certificate: RelativePath
    key: RelativePath
    sites: dict[SiteName, SiteEndpoint] = Field(min_length=2)
    out: RelativePath = Path("run")
    quorum: float = Field(0.5, gt=0, le=1)
    patience: float = Field(60, ge=0)
    run: dict[str, Any] = Field(default_factory=dict)

    @property
    def min_sites(self) -> int:
        """The number of sites that a stage needs."""
        return max(2, math.ceil(self.quorum * len(self.sites) - 1e-9))


C = TypeVar("C", SiteConfig, FederationConfig)


def read_config(path: Path, kind: type[C]) -> C:
    """Read and check a settings file; its paths are relative to its folder. Errors name the file and the key."""
    try:
        found = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path}: not a TOML file: {error}") from None
    folder = path.absolute().parent
    defaults = {"ledger": "ledger.jsonl", "work": "work"} if kind is SiteConfig else {"out": "run"}
    try:
        return kind.model_validate(defaults | found, context={"folder": folder})
    except ValidationError as error:
        raise ValueError(f"{path}: {_explain(error)}") from None


def _explain(error: ValidationError) -> str:
    problems = []
    for detail in error.errors():
        key = ".".join(str(part) for part in detail["loc"])
        match detail["type"]:
            case "extra_forbidden":
                problems.append(f"{key} is not a setting")
            case "missing":
                problems.append(f"{key} is missing")
            case _:
                wanted = detail["msg"].removeprefix("Input should be ").removeprefix("Value error, ")
                problems.append(f"{key} is {detail['input']!r}; expected {wanted}")
    return "\n".join(problems)
