"""What became of a component: `Checked`, and the promise that it breaks."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any


class NotChecked(UserWarning):
    """A component, or a part of it, that `coterie_check` could not check: why, and what to give."""


@dataclass(frozen=True, slots=True)
class Broken:
    """A promise that a component breaks."""

    promise: str
    what: str
    """What is wrong, with the values that show it."""
    where: str = ""
    """The class and the method, and the line of the plugin where that is known."""
    fix: str = ""
    example: str = ""
    """The smallest call of the check that fails, as Python."""


@dataclass(slots=True)
class Checked:
    """A component, and what `coterie check` looked at."""

    kind: str
    """The kind; "plugin" for the hooks of an entry point or file."""
    name: str
    distribution: str
    kept: list[str] = field(default_factory=list)
    """Promises that are kept, as far as they were looked at."""
    broken: list[Broken] = field(default_factory=list)
    unchecked: list[str] = field(default_factory=list)
    """What was not checked: why, and what to give."""
    notes: list[str] = field(default_factory=list)
    """Where settings and arguments came from, and what the component printed."""
    seconds: float = 0.0
    tried: bool = True
    """Whether the check of its kind was called: else only its registration was looked at."""

    @property
    def ok(self) -> bool:
        return not self.broken

    @property
    def state(self) -> str:
        """In a word: "broken", "not checked", "in part" or "ok"."""
        if self.broken:
            return "broken"
        return "not checked" if not self.tried else "in part" if self.unchecked else "ok"

    @property
    def label(self) -> str:
        return f"{self.kind} {self.name}"

    def table(self) -> dict[str, Any]:
        """The same as JSON has it."""
        return {**asdict(self), "state": self.state, "seconds": round(self.seconds, 3)}

    @classmethod
    def of(cls, table: Mapping[str, Any]) -> Checked:
        """The reverse of `table`."""
        fields = {key: table[key] for key in cls.__dataclass_fields__}
        return cls(**{**fields, "broken": [Broken(**part) for part in table["broken"]]})


def warn_of_unchecked(results: Sequence[Checked]) -> None:
    """Warn of each component that was not checked, or not wholly."""
    for result in results:
        for reason in result.unchecked:
            warnings.warn(f"{result.label}: not checked: {reason}", NotChecked, stacklevel=3)
