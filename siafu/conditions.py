"""``Condition``: when a setting applies. Each table of settings lists the conditions of its settings as ``applies``."""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

Value = bool | int | float | str


class Condition(NamedTuple):
    """A condition on another setting, with which a setting applies.

    Attributes:
        key: the other setting, such as method or model.kind.
        values: its values that decide.
        excludes: whether the setting applies with all values but these, instead of with these alone.
        note: words about the values, for messages.
        advice: a value with which the setting applies, to suggest; None where no other value can be advised.
    """

    key: str
    values: tuple[Value, ...]
    excludes: bool
    note: str
    advice: Value | None

    def holds(self, found: Iterable[Value]) -> bool:
        """Return whether one of the values of the other setting meets the condition."""
        return any((value in self.values) != self.excludes for value in found)


Applies = Mapping[str, tuple[Condition, ...]]  # by the settings of a table; all conditions must hold

ALWAYS: tuple[Condition, ...] = ()


def when(key: str, *values: Value, note: str = "") -> Condition:
    """Make the condition that another setting has one of these values; the first is suggested."""
    return Condition(key, values, False, note, values[0])


def unless(key: str, *values: Value, advice: Value | None = None) -> Condition:
    """Make the condition that another setting has none of these values."""
    return Condition(key, values, True, "", advice)
