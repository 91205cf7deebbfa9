"""``Config``, the settings of a run: one small frozen model per component; read from and written to TOML."""

import difflib
import json
import tomllib
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator
from pydantic_core import PydanticCustomError

from siafu.applying import explain_unmet, flat_keys, unmet_condition
from siafu.comm.config import CommConfig
from siafu.data.config import DataConfig
from siafu.methods import METHODS
from siafu.methods.lazy.config import LazyConfig
from siafu.methods.pipeline.config import PipelineConfig
from siafu.methods.sampled.config import SampledConfig
from siafu.methods.snapshots.config import SnapshotsConfig
from siafu.nn.config import ModelConfig
from siafu.partition.config import PartitionConfig
from siafu.training.config import TrainConfig
from siafu.training.correct_and_smooth.config import CorrectAndSmoothConfig
from siafu.training.link.config import DEFAULTS as LINK_DEFAULTS
from siafu.training.link.config import LinkConfig

Tables = dict[str, Any]  # of settings, nested, as TOML has them
S = TypeVar("S", bound=BaseModel)
_NEAR = 0.7  # similarity of a misspelt key and one that it may stand for
_MOST_PROBLEMS = 5  # that are told at once


class Config(BaseModel):
    """The config of a run: all settings that decide its result, and the source of its data.

    Components have a table each; :mod:`siafu.resolve` replaces defaults that depend on the machine or the graph.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    method: str = "full"
    task: Literal["node", "link", "edge"] = "node"
    engine: Literal["auto", "local", "processes", "torchrun", "ray", "sites"] = "auto"
    ranks: int = Field(1, ge=1)
    threads: int = Field(
        0, ge=0
    )  # of each rank; 0: torch's number for one rank, else an equal share of the cores
    seed: int = Field(0, ge=0, lt=2**63)
    seeds: int = Field(1, ge=1)  # number of seeds to train with, from ``seed`` on
    baseline: bool = False  # also train an MLP, which does not see the graph
    source: str = ""  # the data set's name or path; empty for a graph given in Python
    fingerprint: str = ""  # checksum of the data, so that a run is not resumed on other data
    class_names: tuple[str, ...] = ()  # of the training data; predictions of other data use them, too
    data: DataConfig = DataConfig()
    model: ModelConfig = ModelConfig()
    train: TrainConfig = TrainConfig()
    partition: PartitionConfig = PartitionConfig()
    comm: CommConfig = CommConfig()
    sampled: SampledConfig = SampledConfig()
    pipeline: PipelineConfig = PipelineConfig()
    lazy: LazyConfig = LazyConfig()
    snapshots: SnapshotsConfig = SnapshotsConfig()
    link: LinkConfig = LinkConfig()
    correct_and_smooth: CorrectAndSmoothConfig = CorrectAndSmoothConfig()

    def of(self, settings: type[S]) -> S:
        """Return the table of one component, such as ``LazyConfig``."""
        return next(value for value in vars(self).values() if isinstance(value, settings))

    @property
    def max_epochs(self) -> int:
        """The maximum number of epochs of a run, over all of its stages."""
        return METHODS[self.method].max_epochs(self)

    @field_validator("method")
    @classmethod
    def _check_method(cls, value: str) -> str:
        if value not in METHODS:
            names = [f"'{name}'" for name in METHODS]
            known = f"{', '.join(names[:-1])} or {names[-1]}"
            raise PydanticCustomError("method", "Input should be {known}", {"known": known})
        return value

    @model_validator(mode="before")
    @classmethod
    def _apply_method_defaults(cls, values: Any) -> Any:
        """Apply the defaults of the method and the task to settings that are not given."""
        if not isinstance(values, dict):
            return values
        method = METHODS.get(values.get("method", ""))
        method_defaults = {} if method is None else method.defaults
        task_defaults = LINK_DEFAULTS if values.get("task") == "link" else {}
        return merge(method_defaults, task_defaults, values)


@dataclass(frozen=True)
class GivenSettings:
    """Tables of settings as the user gave them.

    Attributes:
        file: the tables of a TOML file, which serves several runs: settings in it that do not apply are left out.
        asked: the tables of flags, ``--set`` and keywords, which override the file; each setting in it must apply.
    """

    file: Tables = field(default_factory=dict)
    asked: Tables = field(default_factory=dict)

    @classmethod
    def of(cls, config: Mapping[str, Any] | Path | str | None, *asked: Mapping[str, Any]) -> Self:
        """Take the settings of a call in Python: a TOML file or tables, then tables that override them."""
        if isinstance(config, Path | str):
            return cls(read_toml(Path(config)), merge(*asked))
        return cls(asked=merge(config or {}, *asked))

    @property
    def tables(self) -> Tables:
        """All of them."""
        return merge(self.file, self.asked)

    @property
    def asked_keys(self) -> list[str]:
        """The keys of the settings that must apply, such as ``model.hidden``."""
        return flat_keys(self.asked, Config)

    def check(self) -> Config:
        """Build the config, and refuse settings that cannot apply whatever the graph is."""
        config = build(self.tables)
        undecided = {"method", "task", "model.kind"} - set(flat_keys(self.tables, Config))
        check_applying(config, self.asked_keys, undecided=undecided)
        return config

    def unused(self, config: Config) -> list[str]:
        """Return the keys of the file that do not apply to a run, without those that have their defaults."""
        return [
            key
            for key in flat_keys(self.file, Config)
            if unmet_condition(config, key) and not _has_default(self.file, key)
        ]


def check_applying(
    config: Config, keys: Iterable[str], *, kinds: Sequence[str] = (), undecided: Container[str] = ()
) -> None:
    """Refuse settings that do not apply to a run.

    Args:
        config: the config of the run.
        keys: the settings that the user asked for.
        kinds: the kinds of models that are tried, instead of the one of the config.
        undecided: settings that the graph decides later; settings that they rule out are not refused yet.
    """
    problems = []
    for key in keys:
        unmet = unmet_condition(config, key, kinds=kinds, undecided=undecided)
        if unmet is not None:
            problems.append(explain_unmet(config, key, unmet, kinds=kinds))
    if len(problems) > _MOST_PROBLEMS:
        others = len(problems) - _MOST_PROBLEMS
        problems = problems[:_MOST_PROBLEMS]
        problems.append(
            f"{others} other settings do not apply either; give a TOML file (--config, in Python config=PATH) to leave "
            "such settings out"
        )
    if problems:
        raise ValueError("\n".join(problems))


def without_unused(config: Config) -> Config:
    """Return a config without given settings that do not apply: they have their defaults again."""
    given = config.model_dump(exclude_unset=True)
    unused = {key for key in flat_keys(given, Config) if unmet_condition(config, key)}
    if not unused:
        return config
    for key in unused:
        table, _, name = key.rpartition(".")
        del given[table][name]
    return build(given)


def build(*layers: Mapping[str, Any]) -> Config:
    """Build a config from nested tables; later tables override earlier ones. Errors name the key."""
    try:
        return Config.model_validate(merge(*layers))
    except ValidationError as error:
        raise ValueError(_explain(error)) from None


def merge(*layers: Mapping[str, Any]) -> Tables:
    """Merge nested tables; later tables override earlier ones."""
    merged: Tables = {}
    for layer in layers:
        _merge(merged, layer)
    return merged


def read_toml(path: Path) -> Tables:
    """Read and check the tables of a TOML file of settings. Errors name the file and the key."""
    try:
        tables = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"{path}: not a TOML file: {error}") from None
    try:
        build(tables)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None
    return tables


def parse_toml(text: str) -> Config:
    """Read a config that :func:`write_toml` wrote."""
    return build(tomllib.loads(text))


def write_toml(config: Config) -> str:
    """Write the settings of a config that apply as TOML.

    Fields that are None are left out: only those that default to None may be None.
    """
    lines: list[str] = []
    for key, value in config.model_dump().items():
        if not isinstance(value, dict):
            lines.append(f"{key} = {_literal(value)}")
    for table, values in config.model_dump().items():
        if not isinstance(values, dict):
            continue
        used = {
            name: value
            for name, value in values.items()
            if value is not None and unmet_condition(config, f"{table}.{name}") is None
        }
        if used:
            lines += ["", f"[{table}]", *(f"{name} = {_literal(value)}" for name, value in used.items())]
    return "\n".join(lines) + "\n"


def from_assignments(assignments: list[str]) -> Tables:
    """Make tables from ``a.b=c`` texts; ``c`` is a TOML value, or else a string."""
    tables: Tables = {}
    for assignment in assignments:
        key, equals, text = assignment.partition("=")
        if not equals or not key.strip():
            raise ValueError(f"--set {assignment}: expected table.key=value, such as model.hidden=128")
        try:
            value = tomllib.loads(f"value = {text}")["value"]
        except tomllib.TOMLDecodeError:
            value = None if text == "None" else text
        _merge(tables, _nested(key.strip().split("."), value))
    return tables


def from_keywords(keywords: Mapping[str, Any]) -> Tables:
    """Make tables from keyword arguments, each of which must be a key of exactly one table."""
    tables: Tables = {}
    for key, value in keywords.items():
        if key in Config.model_fields:
            _merge(tables, {key: value})
            continue
        names = [name for name, fields in _table_keys().items() if key in fields]
        if len(names) > 1:
            choices = " or ".join(f"config={{{name!r}: {{{key!r}: …}}}}" for name in names)
            raise ValueError(f"{key} is ambiguous: it is a setting of {', '.join(names)}; give {choices}")
        if not names:
            raise ValueError(f"{key} is not a setting; did you mean {_nearest(key, _all_keys())}?")
        _merge(tables, {names[0]: {key: value}})
    return tables


def _has_default(tables: Tables, key: str) -> bool:
    table, _, name = key.rpartition(".")
    value, default = tables[table][name], getattr(Config.model_fields[table].default, name)
    return value == default or (isinstance(value, list) and tuple(value) == default)


def _table_keys() -> dict[str, list[str]]:
    found = {}
    for name, info in Config.model_fields.items():
        if isinstance(info.annotation, type) and issubclass(info.annotation, BaseModel):
            found[name] = list(info.annotation.model_fields)
    return found


def _all_keys() -> list[str]:
    return [*Config.model_fields, *(key for fields in _table_keys().values() for key in fields)]


def _merge(into: Tables, layer: Mapping[str, Any]) -> None:
    for key, value in layer.items():
        if isinstance(value, Mapping) and isinstance(into.get(key), dict):
            _merge(into[key], value)
        else:
            into[key] = dict(value) if isinstance(value, Mapping) else value


def _nested(path: list[str], value: Any) -> Tables:
    return {path[0]: _nested(path[1:], value) if len(path) > 1 else value}


def _literal(value: Any) -> str:
    """Format a value: JSON strings, numbers, booleans and lists are TOML, too, except for one character."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_literal(key)} = {_literal(each)}" for key, each in value.items()) + "}"
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def _suggest(key: str, *, table: str) -> str:
    """Name the settings nearest to a key: those of its table that are near, else of another, else the nearest here."""
    tables = {"": list(Config.model_fields), **_table_keys()}
    for names in ([table], [name for name in tables if name != table]):
        paths = {known: f"{name}.{known}".lstrip(".") for name in names for known in tables.get(name, ())}
        if near := difflib.get_close_matches(key, paths, n=2, cutoff=_NEAR):
            return " or ".join(paths[known] for known in near)
    return f"{table}.{_nearest(key, tables.get(table, []))}".lstrip(".")


def _nearest(key: str, known: list[str]) -> str:
    near = difflib.get_close_matches(key, known, n=1, cutoff=0)
    return near[0] if near else ", ".join(known)


def _explain(error: ValidationError) -> str:
    problems = []
    expected: dict[
        tuple[str, str], list[str]
    ] = {}  # by key and value: a union has an error for each of its members
    for detail in error.errors():
        path = _field_path(detail["loc"])
        key = ".".join(path)
        if detail["type"] == "extra_forbidden":
            near = _suggest(path[-1], table=path[0] if len(path) > 1 else "")
            problems.append(f"{key} is not a setting; did you mean {near}?")
        else:
            expected.setdefault((key, repr(detail["input"])), []).append(_expected(key, detail["msg"]))
    problems += [f"{key} is {value}; expected {' or '.join(each)}" for (key, value), each in expected.items()]
    return "\n".join(problems)


def _field_path(location: tuple[int | str, ...]) -> list[str]:
    """The keys of a setting, and the place within a list, without the members of a union."""
    depth = 2 if location and location[0] in _table_keys() else 1
    return [str(part) for place, part in enumerate(location) if place < depth or isinstance(part, int)]


def _expected(key: str, message: str) -> str:
    """Return the expectation in a message of pydantic, to be read after "expected"."""
    if key in _table_keys():
        return f"a table; its settings are {', '.join(f'{key}.{name}' for name in _table_keys()[key])}"
    wanted = message.removeprefix("Value error, ").removeprefix("Input should be ")
    return f"a number {wanted}" if wanted.startswith(("greater", "less")) else wanted
