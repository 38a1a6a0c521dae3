"""How the commands print: numbers, tables, JSON, warnings."""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Mapping, Sequence
from typing import Any

import click


def share(value: float | None) -> str:
    """A share of one as `.41`, `1.00`, `-` where there is none."""
    if value is None or math.isnan(value):
        return "-"
    text = f"{value:.2f}"
    return text.replace("0.", ".", 1) if text.startswith(("0.", "-0.")) else text


def number(value: Any) -> str:
    """Any metric, short; `-` where there is none."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return "-"
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return str(value)
    return f"{value:,}" if isinstance(value, int) else f"{value:,.4g}"


def duration(seconds: float) -> str:
    """`8s`, `1m20s`, `2h05m`."""
    whole = max(0, round(seconds))
    if whole < 60:
        return f"{whole}s"
    minutes, rest = divmod(whole, 60)
    return f"{minutes}m{rest:02d}s" if minutes < 60 else f"{minutes // 60}h{minutes % 60:02d}m"


def interval(value: Mapping[str, Any]) -> str:
    """`{"mean", "ci95", "n"}` as `.812  [.787, .836]`."""
    low, high = value["ci95"]
    return f"{_three(value['mean'])}  [{_three(low)}, {_three(high)}]"


def _three(value: float | None) -> str:
    if value is None or math.isnan(value):
        return "-"
    return f"{value:.3f}".replace("0.", ".", 1) if abs(value) < 1 else f"{value:.3f}"


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Left-aligned columns; the last is as long as it is."""
    widths = [max(len(row[column]) for row in (head, *rows)) for column in range(len(head))]
    lines = [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    ]
    title = "  ".join(cell.ljust(width) for cell, width in zip(head, widths, strict=True)).rstrip()
    return "\n".join([click.style(title, bold=True), *lines])


def print_json(value: Any) -> None:
    """The only thing on stdout, for machines: strict JSON, so a number that is not finite is null."""
    click.echo(json.dumps(_finite(value), indent=2, ensure_ascii=False, allow_nan=False))


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _finite(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


class _Warnings(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        label = record.levelname.lower()
        click.echo(f"{click.style(label + ':', fg='yellow')} {record.getMessage()}", err=True)


def show_warnings() -> None:
    """What the package logs as a warning or worse goes to stderr as `warning: ...`."""
    log = logging.getLogger("coterie")
    if not any(isinstance(handler, _Warnings) for handler in log.handlers):
        log.addHandler(_Warnings(logging.WARNING))
