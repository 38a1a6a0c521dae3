"""A column of a CSV file as text, and the faults of its values, in words for who wrote the file."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coterie.core.errors import MissingExtra

MISSING = frozenset({"", "nan", "na", "n/a", "null", "none", "<na>", "nat"})
"""What a missing value is written as, in lower case."""
EXACT = 2.0**53
"""Whole numbers below it are exact as floats."""
_SHOWN = 40
"""Characters of a wrong value that a message shows."""


@contextmanager
def importing(package: str) -> Iterator[None]:
    """The import of a package of extra `data-science`, when a submission is first scored.

    Raises:
        MissingExtra: the package is not installed.
    """
    try:
        yield
    except ImportError as error:
        raise MissingExtra(
            package, "data-science", needed_by="the metrics of environment data_science"
        ) from error


def pandas() -> Any:
    """The module `pandas`. Raises MissingExtra where it is not installed."""
    with importing("pandas"):
        import pandas
    return pandas


def sklearn_metrics() -> Any:
    """The module `sklearn.metrics`. Raises MissingExtra where scikit-learn is not installed."""
    with importing("scikit-learn"):
        import sklearn.metrics
    return sklearn.metrics


def scipy_stats() -> Any:
    """The module `scipy.stats`. Raises MissingExtra where scipy is not installed."""
    with importing("scipy"):
        import scipy.stats
    return scipy.stats


class Invalid(Exception):
    """A file can't be scored; the message says why.

    Args:
        why: what is wrong, and what is expected.
        column: the column that is wrong, where it is only one.
        row: the first wrong row, from 0, where it is a value.
    """

    def __init__(self, why: str, *, column: str = "", row: int | None = None) -> None:
        super().__init__(why)
        self.column, self.row = column, row


@dataclass(frozen=True, slots=True, eq=False)
class TableColumn:
    """The values of a column as text without surrounding white space, with the ids of its rows."""

    name: str
    cells: NDArray[np.object_]
    """Shape (rows,), of str."""
    ids: NDArray[np.object_]

    def refuse(self, wrong: NDArray[np.bool_], what: str, fix: str) -> None:
        """Raise for the rows that are wrong.

        Args:
            wrong: shape (rows,).
            what: of one value, such as "is no number".
            fix: what is expected instead.

        Raises:
            Invalid: some row is wrong.
        """
        count = int(wrong.sum())
        if not count:
            return
        row = int(np.argmax(wrong))
        value = self.cells[row]
        shown = repr(value if len(value) <= _SHOWN else value[:_SHOWN] + "...")
        more = f" (and {count - 1:,} more)" if count > 1 else ""
        where = f"column '{self.name}', id {self.ids[row]}{more}"
        raise Invalid(f"{where}: {shown} {what}; {fix}", column=self.name, row=row)

    def present(self, known: frozenset[str] = frozenset()) -> None:
        """Raise where a value is missing.

        Args:
            known: values that are none, though they look like it, such as the label `None`.

        Raises:
            Invalid: a value is missing.
        """
        missing = self.each(lambda cell: cell.lower() in MISSING and cell not in known)
        self.refuse(missing, "is a missing value", "every row needs one")

    def numbers(self) -> NDArray[np.float64]:
        """The values as finite numbers.

        Raises:
            Invalid: a value is missing, is no number or is infinite.
        """
        values = parsed(self.cells)
        wrong = ~np.isfinite(values)
        if wrong.any():
            self.present()
            self.refuse(np.isnan(values), "is no number", "write a finite number")
            self.refuse(wrong, "is infinite", "write a finite number")
        return values

    def each(self, test: Callable[[str], bool]) -> NDArray[np.bool_]:
        """A test of every value, made once for equal ones."""
        codes, unique = pandas().factorize(self.cells)
        return np.array([test(cell) for cell in unique], dtype=bool)[codes]

    def map(self, change: Callable[[str], Any]) -> NDArray[np.object_]:
        """Every value changed, once for equal ones."""
        codes, unique = pandas().factorize(self.cells)
        changed = np.empty(len(unique), dtype=object)
        changed[:] = [change(cell) for cell in unique]
        return changed[codes]


def parsed(cells: NDArray[np.object_]) -> NDArray[np.float64]:
    """Texts as numbers; NaN: it is none."""
    values = pandas().to_numeric(pandas().Series(cells, dtype=object), errors="coerce")
    return values.to_numpy(dtype=np.float64, na_value=np.nan)


def label_of(text: str) -> str:
    """A label in one spelling: `1.0`, `01` and `True` are `1`; what is no number stays as it is."""
    text = text.strip()
    if text.lower() in ("true", "false"):
        return "1" if text.lower() == "true" else "0"
    number = number_of(text)
    if not abs(number) < EXACT:
        return text
    return str(int(number)) if number.is_integer() else repr(number)


def number_of(text: str) -> float:
    """A text as a number; NaN: it is none."""
    try:
        return float(text) if "_" not in text else float("nan")
    except ValueError:
        return float("nan")
