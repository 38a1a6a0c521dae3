"""Comparison of runs or evaluations: paired by task, over seeds, with what so many tasks can show."""

from __future__ import annotations

from coterie.analysis.comparison.comparing import compare
from coterie.analysis.comparison.report import ComparisonReport, PairedResult, SideSummary

__all__ = ["ComparisonReport", "PairedResult", "SideSummary", "compare"]
