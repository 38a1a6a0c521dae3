"""The mutants: a good plugin of each kind, broken in one promise by an operator; `kinds` has the tables."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

TABLES = Path(__file__).parent / "kinds"

OPERATORS = {
    "drop": "lacks a member, a hook's mark, or a file",
    "await": "is async where it isn't, or isn't where it is",
    "arguments": "has arguments in another order, or other ones",
    "mutate": "changes what it was given",
    "remember": "keeps state on itself from call to call",
    "draw": "draws from a global generator",
    "type": "returns another type or shape",
    "number": "gives a number that is not finite, or out of range",
    "fault": "raises the wrong error, or swallows the right one",
    "settings": "takes unknown keys, or names some",
    "name": "uses a name that isn't declared, or another's",
    "shift": "is off by one: a version, a step, an index, a length",
    "leak": "leaves something open, running or undone",
    "same": "gives the same for what differs",
    "hang": "never returns",
    "pay": "pays for what is no progress",
}
"""What a mutant does wrong, by operator."""


@dataclass(frozen=True, slots=True)
class Mutant:
    """A plugin that breaks one promise.

    Args:
        promise: that it breaks.
        told: part of what the kit says of it.
        edits: texts of the original and what replaces them; in `file`, by default in the kind's module.
        without: a file that is removed.
    """

    kind: str
    operator: str
    promise: str
    told: str
    edits: tuple[tuple[str, str], ...] = ()
    file: str = ""
    without: str = ""

    def __str__(self) -> str:
        return f"{self.kind}-{self.operator}-{self.told}"


def mutants() -> list[Mutant]:
    """All mutants, by kind."""
    return [
        Mutant(kind=path.stem, **{**row, "edits": edits(row)})
        for path in sorted(TABLES.glob("*.yaml"))
        for row in yaml.safe_load(path.read_text(encoding="utf-8"))
    ]


def edits(row: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    return tuple((edit["old"], edit["new"]) for edit in row.get("edits", ()))
