"""Split expressions, as `datasets` writes them: `test[:20]`, `train+validation`, `test[10%:20%]`."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

_PART = re.compile(r"\s*(\w[\w.-]*)\s*(?:\[\s*(-?\d+%?)?\s*:\s*(-?\d+%?)?\s*\])?\s*")


class WrongExpression(ValueError):
    """What is wrong with an expression, and how to write it."""


@dataclass(frozen=True, slots=True)
class Part:
    """Rows of one published split, from `start` up to `stop`; None: its end. Shares are in percent."""

    split: str
    start: str | None
    stop: str | None

    def indices(self, size: int) -> range:
        """The rows of a split with `size` rows."""
        start = 0 if self.start is None else _row(self.start, size)
        stop = size if self.stop is None else _row(self.stop, size)
        return range(start, max(start, stop))


def parse(expression: str) -> tuple[Part, ...]:
    """The parts of an expression.

    Raises:
        WrongExpression: it is none.
    """
    parts = []
    for text in expression.split("+"):
        match = _PART.fullmatch(text)
        if match is None:
            raise WrongExpression(
                f"'{text.strip()}' is no split: write test, test[:20], test[20:30], test[-10:], "
                "test[10%:20%], or several joined by +"
            )
        for bound in (match[2], match[3]):
            if bound is not None and bound.endswith("%") and abs(int(bound[:-1])) > 100:
                raise WrongExpression(f"'{text.strip()}' has a share of more than 100%")
        parts.append(Part(match[1], match[2], match[3]))
    return tuple(parts)


def chosen(expression: str, sizes: Mapping[str, int]) -> Iterator[tuple[str, int]]:
    """(published split, index) of every row that an expression chooses, in its order.

    Args:
        sizes: of the published splits that it names.

    Raises:
        WrongExpression: a part chooses nothing.
    """
    for part in parse(expression):
        rows = part.indices(sizes[part.split])
        if not rows:
            raise WrongExpression(
                f"'{expression}' chooses no row: the split '{part.split}' has {sizes[part.split]}"
            )
        yield from ((part.split, index) for index in rows)


def _row(bound: str, size: int) -> int:
    """A bound as an index, as Python slices it; a share is rounded to the nearest row."""
    number = round(int(bound[:-1]) * size / 100) if bound.endswith("%") else int(bound)
    return min(max(number + size if number < 0 else number, 0), size)
