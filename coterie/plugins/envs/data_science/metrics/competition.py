"""A competition: what of a data-science task is scored, and how."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class Competition:
    """The metric of a task and the columns that it compares.

    >>> Competition(metric="rmsle", id="datetime", targets=("count",))
    """

    metric: str
    """A name that `metric_named` knows, e.g. `rmsle` or `map@3`."""
    id: str = ""
    """Column that joins submission and answers; empty: the first column of the answers."""
    id_stated: bool = field(default=False, compare=False)
    """Whether the record itself names it: the answers have it then. DSBench's files may have another one than
    its prompts say."""
    targets: tuple[str, ...] = ()
    """Columns that are predicted; empty: all columns of the answers but the id and the row filter's."""
    labels: tuple[str, ...] = ()
    """The labels that a prediction may be; empty: not known, see `Labels`."""
    positive: str = ""
    """The label that a probability or F1 is about; empty: 1 of 0 and 1."""
    rows: tuple[str, str] | None = None
    """Row filter: only rows with this value in this column of the answers or of the test set count."""
    answer: str = ""
    """For probabilities of several labels: the column of the answers with the names of targets.

    Empty: the answers have a column of 0 and 1 for each target.
    """
    also: Mapping[str, str] = field(default_factory=dict)
    """Further names of columns that a submission may use, and the target that each stands for."""
    baseline: float | None = None
    """The metric's value that has quality 0."""
    reference: float | None = None
    """The metric's value that has quality 1."""

    def quality(self, value: float) -> float | None:
        """How far a value is on the way from the baseline to the reference; None: one of them isn't known.

        Never below 0, and above 1 where a submission beats the reference: the relative performance gap of
        DSBench (arXiv 2409.07703).
        """
        if self.baseline is None or self.reference is None:
            return None
        return max(0.0, (value - self.baseline) / (self.reference - self.baseline))
