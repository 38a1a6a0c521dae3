"""The report: one HTML file with a run's curves, what each role did, and its episodes."""

from __future__ import annotations

from coterie.viewing.report.page import report as report
