"""The data source `cooperative`: our problems of code that fall into two parts."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.resources import files

from coterie.backends.data.jsonl import read_objects
from coterie.backends.data.records import Records
from coterie.core.plugins import Plugin, PluginConfig
from coterie.core.types.splits import Split

FILE = "cooperative.jsonl"
_CYCLE = 7
"""Of so many problems in a row the last two are of val and test."""
_PLACES: Mapping[int, Split] = {5: "val", 6: "test"}


class Cooperative(Plugin):
    """Functions in two parts: `aux` returns data that the entry point needs (docs/code.md has the fields).

    Each has tests, a reference in two parts, one in a single function (`solo_solution`), and a size limit of
    the main role's code that the reference in two parts keeps and that in one exceeds.
    """

    class Config(PluginConfig):
        pass

    config: Config
    published = True

    def records(self, split: Split) -> Records:
        """The problems of a split, easy, medium and hard by turns."""
        path = files("coterie.backends.data") / FILE
        with path.open("rb") as lines:
            located = list(read_objects(lines, FILE))
        places = (_PLACES.get(index % _CYCLE, "train") for index in range(len(located)))
        return Records(row for row, place in zip(located, places, strict=True) if place == split)
