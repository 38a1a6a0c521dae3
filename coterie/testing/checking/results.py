"""What became of a component: `Checked`, the promise that it breaks, and the report of it as text."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from coterie.viewing.text import message, one_line


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


SHORT = 8
"""Largest number of components whose promises are named one by one."""


def of_component(result: Checked, *, every: bool = True) -> str:
    """A component's lines: what is kept, broken, not checked.

    Args:
        every: whether the promises that are kept are named, and not only counted.
    """
    state = "BROKEN" if result.broken else result.state
    head = f"{result.kind} {one_line(result.name)}"
    if result.distribution != result.name:
        head += f" of {one_line(result.distribution)}"
    lines = [f"{head}: {state} ({result.seconds:.1f} s)"]
    for broken in result.broken:
        lines.append(f"  broken: {one_line(broken.promise)}")
        where = f"{broken.where}: " if broken.where else ""
        lines += _indented("    ", f"{where}{broken.what}")
        if broken.fix:
            lines += _indented("    fix: ", broken.fix)
        if broken.example:
            lines += _indented("    example: ", broken.example)
    if result.kept:
        names = "; ".join(one_line(text) for text in result.kept)
        lines.append(f"  kept: {names}" if every or result.broken else f"  kept: {len(result.kept)} promises")
    lines += [f"  not checked: {one_line(text, 600)}" for text in result.unchecked]
    lines += [f"  note: {one_line(text, 300)}" for text in result.notes]
    return "\n".join(lines)


def _indented(label: str, text: str) -> list[str]:
    """The text after a label; its further lines stand under it."""
    first, *rest = message(text, 4000).splitlines() or [""]
    return [f"{label}{first}", *(f"{' ' * len(label)}{line.strip()}" for line in rest)]


def summary(results: Sequence[Checked]) -> str:
    """The last line: how many components keep their promises."""
    counts = Counter(result.state for result in results)
    parts = [
        f"{counts[state]} {state}" for state in ("ok", "broken", "in part", "not checked") if counts[state]
    ]
    count = f"{len(results)} component{'s' * (len(results) != 1)}"
    return f"{count}: {', '.join(parts)}"


def whole(results: Sequence[Checked]) -> str:
    """Every component and the summary."""
    every = len(results) <= SHORT
    return "\n".join([*(of_component(result, every=every) for result in results), summary(results)])
