"""A problem of mathematics."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """A problem; the last two fields are of generated ones."""

    text: str
    words: str = ""
    """The problem in few words, for the compact rendering: `has 7 gets 5 loses 3`."""
    expression: str = ""
    """What is to be computed: `7 + 5 - 3`. Empty where it isn't known."""
