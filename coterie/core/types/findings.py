"""Findings: the checks of a team's work that transition modes write their feedback from."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One check of what a team made, or a remark on it."""

    name: str
    """What was checked, such as `syntax` or `tests`."""
    passed: bool | None
    """None: a remark, which makes no difference to success."""
    summary: str = ""
    """The result in one line, without details; empty: modes without details leave the finding out."""
    details: tuple[str, ...] = ()
    """The result in lines, with places, messages and reasons; empty: `summary`."""


def all_passed(findings: tuple[Finding, ...]) -> bool:
    """Whether every check passed; False without any check."""
    checks = [finding.passed for finding in findings if finding.passed is not None]
    return bool(checks) and all(checks)
