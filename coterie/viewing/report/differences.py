"""In what runs differ, and what resumes changed. Secrets are compared, and not shown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from coterie.api.run_record import equal, stated
from coterie.recipes import flatten
from coterie.secret_settings import without_secrets
from coterie.viewing.report.reading import ReportedRun

ABSENT = object()
UNEQUAL_ANYWAY = {"summary"}
"""Settings that say nothing of what is learned."""


def settings(run: ReportedRun) -> dict[str, Any]:
    """A run's settings by dotted path, with the defaults of its plugins where it recorded them."""
    return stated(run.record.settings if run.record is not None else dict(run.config))


def differing(runs: Sequence[ReportedRun]) -> list[dict[str, Any]]:
    """Settings and versions that are not equal in all runs: `{"path", "values": [one a run]}`."""
    tables = [{**settings(run), **_versions(run)} for run in runs]
    rows = []
    for path in dict.fromkeys(path for table in tables for path in table):
        values = [table.get(path, ABSENT) for table in tables]
        if path not in UNEQUAL_ANYWAY and any(not _same(values[0], value) for value in values):
            rows.append({"path": path, "values": [shown(value, path) for value in values]})
    return rows


def changes(run: ReportedRun) -> list[dict[str, Any]]:
    """What resumes changed: `{"step", "path", "before", "after"}`."""
    rows = []
    for change in run.record.changes if run.record is not None else ():
        for kind in ("settings", "versions", "files"):
            for path, (before, after) in (change.get(kind) or {}).items():
                values = {"before": shown(before, path), "after": shown(after, path)}
                rows.append({"step": change["step"], "path": path, **values})
    return rows


def all_settings(run: ReportedRun) -> list[tuple[str, str]]:
    """Every setting of a run as text."""
    return [(path, shown(value, path)) for path, value in settings(run).items()]


def shown(value: Any, path: str = "") -> str:
    """A setting's value as text, without secrets; `path` is the setting's."""
    if value is ABSENT:
        return "(not set)"
    if value is None:
        return "null"
    if isinstance(value, Mapping):
        inner = flatten(dict(value))
        return ", ".join(f"{name}: {shown(of, f'{path}.{name}')}" for name, of in inner) or "{}"
    return str(without_secrets(value, path.split(".")))


def _versions(run: ReportedRun) -> dict[str, str]:
    return {f"version of {name}": of for name, of in (run.record.used if run.record else {}).items()}


def _same(first: Any, second: Any) -> bool:
    if first is ABSENT or second is ABSENT:
        return first is second
    return equal(first, second)
