"""What a site and a federation say of themselves: ``site.toml`` and ``federation.toml``. It opens no connection."""

import math
import tomllib
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, ValidationInfo

NAME = r"^[a-z0-9][a-z0-9-]{0,39}$"
COORDINATOR = "coordinator"


def _as_list(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


def _beside(value: Any, info: ValidationInfo) -> Any:
    """A path as written in a file is one beside that file."""
    if isinstance(value, str) and value and info.context:
        return info.context["folder"] / Path(value).expanduser()
    return value


SiteName = Annotated[str, Field(pattern=NAME)]
BesidePath = Annotated[Path, BeforeValidator(_beside)]
Address = Annotated[
    str, Field(pattern=r"^(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?):[0-9]{1,5}$")
]
# One certificate, or several while keys change hands.
Pins = Annotated[tuple[BesidePath, ...], BeforeValidator(_as_list), Field(min_length=1)]


class Policy(BaseModel):
    """What may leave a site, whoever asks.

    Attributes:
        features: of nodes that other sites' edges name, as they are; or of none.
        labels: never.
        embeddings: what layers make of such nodes, their scores and degrees; or of none.
        structure: ids that other sites named themselves; or, for sampled training, who neighbours those as well.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    features: Literal["never", "boundary"] = "boundary"
    labels: Literal["never"] = "never"
    embeddings: Literal["never", "boundary"] = "boundary"
    structure: Literal["boundary", "sampled"] = "boundary"


def _as_peer(value: Any) -> Any:
    """A peer of which only the certificates are given."""
    return {"certificate": value} if isinstance(value, str | list) else value


class Peer(BaseModel):
    """Another site, as a site lists it.

    Attributes:
        certificate: by which it is known.
        addresses: at which it may be called, host:port; none of one that only calls.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    certificate: Pins
    addresses: tuple[Address, ...] = ()


class SiteConfig(BaseModel):
    """One site.

    Attributes:
        name: by which others know it, the same in all files.
        listen: address and port; port 0 lets the system pick one.
        certificate, key: its own, PEM.
        coordinator: the certificates of who may coordinate.
        peers: each other site; one that is not listed is not let in and not called.
        cross_edges: a table of edges from nodes of other sites to own nodes, or None.
        ledger: the file that says what left.
        work: a folder for runs.
        max_bytes: that may leave, as the ledger counts; None: any number.
        max_message_bytes: that a peer may send at once, and may have sent unasked for.
        policy: what may leave.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: SiteName
    listen: str
    certificate: BesidePath
    key: BesidePath
    coordinator: Pins
    peers: dict[SiteName, Annotated[Peer, BeforeValidator(_as_peer)]] = Field(min_length=1)
    cross_edges: BesidePath | None = None
    ledger: BesidePath = Path("ledger.jsonl")
    work: BesidePath = Path("work")
    max_bytes: int | None = Field(None, ge=0)
    max_message_bytes: int = Field(1 << 30, ge=1 << 20)
    policy: Policy = Policy()


class Place(BaseModel):
    """Where a site is reached, and by which certificates it is known."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    address: str
    certificate: Pins


class FederationConfig(BaseModel):
    """Sites that train together, as their coordinator sees them.

    Attributes:
        certificate, key: the coordinator's own, PEM.
        sites: in the order of their ranks.
        out: the folder of the run.
        quorum: the share of the sites that a stage needs, two at least.
        patience: seconds for which a site that is away is waited for.
        run: settings of the run, as ``siafu train --config`` takes them.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    certificate: BesidePath
    key: BesidePath
    sites: dict[SiteName, Place] = Field(min_length=2)
    out: BesidePath = Path("run")
    quorum: float = Field(0.5, gt=0, le=1)
    patience: float = Field(60, ge=0)
    run: dict[str, Any] = Field(default_factory=dict)

    @property
    def least(self) -> int:
        """How many sites a stage needs."""
        return max(2, math.ceil(self.quorum * len(self.sites) - 1e-9))


C = TypeVar("C", SiteConfig, FederationConfig)


def read_config(path: Path, kind: type[C]) -> C:
    """Read and check a file; paths in it are beside it. Errors name the file and the key."""
    try:
        tree = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path}: not a TOML file: {error}") from None
    folder = path.absolute().parent
    defaults = {"ledger": "ledger.jsonl", "work": "work"} if kind is SiteConfig else {"out": "run"}
    try:
        return kind.model_validate(defaults | tree, context={"folder": folder})
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
