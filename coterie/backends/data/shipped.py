"""Data sets that come with Coterie.

`cooperative`: problems of code in two parts; `posts`: short stories; `sums`: questions with a number as
answer.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib.resources import files
from typing import ClassVar

from coterie.backends.data.jsonl import read_objects
from coterie.backends.data.records import LocatedRecords
from coterie.core.plugins import Plugin, PluginConfig
from coterie.core.types.splits import Split

_CYCLE = 7
"""Of so many records in a row the last two are of val and test."""
_PLACES: Mapping[int, Split] = {5: "val", 6: "test"}


class Shipped(Plugin):
    """Records of a file beside this module."""

    class Config(PluginConfig):
        pass

    config: Config
    file: ClassVar[str] = ""
    published = True

    def records(self, split: Split) -> LocatedRecords:
        """The records of a split, in the order of the file."""
        with (files("coterie.backends.data") / self.file).open("rb") as lines:
            located = list(read_objects(lines, self.file))
        places = (_PLACES.get(index % _CYCLE, "train") for index in range(len(located)))
        return LocatedRecords(row for row, place in zip(located, places, strict=True) if place == split)


class Cooperative(Shipped):
    """Functions in two parts: `aux` returns data that the entry point needs (docs/code.md has the fields).

    Each has tests, a reference in two parts, one in a single function (`solo_solution`), and a size limit of
    the main role's code that the reference in two parts keeps and that in one exceeds. Easy, medium and hard
    ones stand by turns.
    """

    file = "cooperative.jsonl"


class Posts(Shipped):
    """Short stories to be summarised, with a title: `prompt`, `title`, `id` (docs/writing.md)."""

    file = "posts.jsonl"


class Sums(Shipped):
    """Sums and differences of two or three numbers, some as stories: `id`, `kind`, `question`, `answer`."""

    file = "sums.jsonl"
