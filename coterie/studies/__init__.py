"""Comparisons of methods (ways of making a team) on columns (games) over seeds, at equal training tokens.

A study is a value (`Study`) that a plugin registers through the hook `register_studies`. A column is a YAML
file that a plugin registers through `register_columns`. `coterie reproduce NAME` runs a study.
"""

from coterie.studies.catalogue import load_column as load_column
from coterie.studies.columns import Column as Column
from coterie.studies.study import (
    Analysis as Analysis,
    Claim as Claim,
    ClaimResult as ClaimResult,
    Method as Method,
    Study as Study,
    above as above,
    at_most_half as at_most_half,
    order as order,
)

__all__ = [
    "Analysis",
    "Claim",
    "Column",
    "Method",
    "Study",
    "ClaimResult",
    "above",
    "at_most_half",
    "load_column",
    "order",
]
