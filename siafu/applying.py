"""Find which settings of a config apply, by the conditions beside each table, and explain why others do not."""

from collections.abc import Container, Mapping, Sequence
from typing import Any

from pydantic import BaseModel

from siafu.conditions import Condition, Value
from siafu.methods import METHODS
from siafu.nn.config import AUTO_KINDS, TEMPORAL

# The settings that have a flag of their own, and the noun for their values.
_NOUNS = {"method": "method", "task": "task", "model.kind": "model"}


def conditions_of(tables: type[BaseModel], key: str) -> tuple[Condition, ...]:
    """Return the conditions of a setting such as ``lazy.quorum``; settings without a table always apply."""
    table, _, name = key.rpartition(".")
    if not table:
        return ()
    info = tables.model_fields.get(table)
    return getattr(info and info.annotation, "applies", {}).get(name, ())


def unmet_condition(
    config: BaseModel,
    key: str,
    *,
    kinds: Sequence[str] = (),
    undecided: Container[str] = (),
) -> Condition | None:
    """Return the first condition of a setting that a config does not meet; None if the setting applies.

    Args:
        config: the config of a run.
        key: the setting.
        kinds: the kinds of models that are tried, instead of the one of the config.
        undecided: other settings whose values may change; a setting that they rule out may yet apply.
    """
    unmet = (
        each for each in conditions_of(type(config), key) if not each.holds(_values(config, each.key, kinds))
    )
    first = next(unmet, None)
    return None if first is None or first.key in undecided else first


def explain_unmet(config: BaseModel, key: str, condition: Condition, *, kinds: Sequence[str] = ()) -> str:
    """Explain why a setting does not apply: where it belongs, what was found, and what to do."""
    values = _values(config, condition.key, kinds)
    noun, found = _NOUNS.get(condition.key), _listed(values, "and")
    if condition.excludes:
        where = f"to {_counted(noun, values)} {found}" if noun else f"while {condition.key} is {found}"
        problem = f"{key} does not apply {where}"
    elif noun:
        belongs = f"{_counted(noun, condition.values)} {_listed(condition.values, 'and')}{condition.note}"
        problem = f"{key} is a setting of {belongs}, but the {_are(noun, values)} {found}"
    else:
        needed = _listed(condition.values, "or")
        problem = f"{key} applies only while {condition.key} is {needed}, but it is {found}"
    fix = _fix(condition, values)
    return f"{problem}; {fix}leave it out"


def flat_keys(tables: Mapping[str, Any], config: type[BaseModel]) -> list[str]:
    """Return the keys of given settings, such as ``model.hidden``; a value may itself be a table."""
    found = list[str]()
    for key, value in tables.items():
        info = config.model_fields.get(key)
        of_table = info is not None and hasattr(info.annotation, "applies") and isinstance(value, Mapping)
        found += [f"{key}.{name}" for name in value] if of_table else [key]
    return found


def _values(config: BaseModel, key: str, kinds: Sequence[str]) -> tuple[Value, ...]:
    """Return the values of a setting that decides about others: several if several kinds of models are tried."""
    if key == "model.kind" and kinds:
        return tuple(kinds)
    table, _, name = key.rpartition(".")
    holder = getattr(config, table) if table else config
    unused = unmet_condition(config, key) is not None
    value = type(holder).model_fields[name].default if unused else getattr(holder, name)
    return AUTO_KINDS if key == "model.kind" and value == "auto" else (value,)


def _fix(condition: Condition, values: Sequence[Value]) -> str:
    """Return the nearest change with which the setting applies, if the same graph allows it."""
    advice, key = condition.advice, condition.key
    if advice is None or any(_over_time(key, advice) != _over_time(key, value) for value in values):
        return ""
    noun = _NOUNS.get(key)
    return f"add --{noun} {advice} or " if noun else f"set {key} to {_text(advice)} or "


def _over_time(key: str, value: Value) -> bool:
    """Whether a method or a kind of model is for graphs that change over time."""
    return value in TEMPORAL or (key == "method" and METHODS[str(value)].over_time)


def _counted(noun: str, values: Sequence[Value]) -> str:
    return noun if len(values) == 1 else f"{noun}s"


def _are(noun: str, values: Sequence[Value]) -> str:
    return f"{noun} is" if len(values) == 1 else f"{noun}s to try are"


def _listed(values: Sequence[Value], word: str) -> str:
    *others, last = map(_text, values)
    return f"{', '.join(others)} {word} {last}" if others else last


def _text(value: Value) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
