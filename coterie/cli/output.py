"""Output of the commands: numbers, tables, JSON, warnings."""

from __future__ import annotations

import json
import logging
import math
import os
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from coterie.viewing.text import harmless, harmless_json, message

if TYPE_CHECKING:
    from rich.table import Table
    from rich.text import Text

    Cell = str | Text
    """Text is styled; a string is printed as it is, with no markup in it."""

FULL_WIDTH = 2**31
"""Columns of the console that tables are rendered on: no cell is ever wrapped or shortened."""


def share(value: float | None) -> str:
    """A share between 0 and 1 as `.41` or `1.00`; `-` where there is none."""
    if value is None or math.isnan(value):
        return "-"
    text = f"{value:.2f}"
    return text.replace("0.", ".", 1) if text.startswith(("0.", "-0.")) else text


def number(value: Any) -> str:
    """Any metric in short form; `-` where there is none."""
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


def table(head: Sequence[str], rows: Iterable[Sequence[Cell]]) -> str:
    """Left-aligned columns under a bold head, as text."""
    return columns([bold(head), *rows])


def bold(head: Sequence[str]) -> list[Cell]:
    """The names of columns in bold."""
    from rich.text import Text

    return [Text(name, style="bold") for name in head]


def columns(rows: Sequence[Sequence[Cell]], *, indent: int = 0) -> str:
    """Left-aligned columns without a head, as text; empty where there is no row.

    Args:
        indent: spaces before the first column.
    """
    from rich.table import Table
    from rich.text import Text

    grid = Table.grid(padding=(0, 2, 0, 0))
    for row in rows:
        grid.add_row(*(Text(harmless(cell)) if isinstance(cell, str) else cell for cell in row))
    return "\n".join(" " * indent + line for line in rendered(grid).splitlines())


def rendered(grid: Table) -> str:
    """A rich table as text. Cells are neither wrapped nor shortened, whatever the terminal's width.

    The text holds ANSI styles, which `click.echo` removes where stdout is no terminal.
    """
    from rich.console import Console

    console = Console(
        file=sys.stdout,  # for its encoding alone
        force_terminal=True,
        color_system="standard",
        legacy_windows=False,
        width=FULL_WIDTH,
        height=1,  # without it, a dumb terminal would be 80 columns wide
    )
    with console.capture() as captured:
        console.print(grid)
    # Padding stands inside the style of a bold head.
    return "\n".join(re.sub(r" +((?:\x1b\[\d*m)*)$", r"\1", line) for line in captured.get().splitlines())


def print_json(value: Any) -> None:
    """Print strict JSON, and nothing else on stdout; a number that is not finite becomes null.

    Control characters in texts are escaped.
    """
    from coterie.core.storage.jsonl import finite

    click.echo(harmless_json(json.dumps(finite(value), indent=2, ensure_ascii=False, allow_nan=False)))


SHOWN = ("coterie.usage", "coterie.dtype")
"""Loggers whose records of level INFO are printed too."""


class _Warnings(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        label = record.levelname.lower()
        click.echo(f"{click.style(label + ':', fg='yellow')} {message(record.getMessage())}", err=True)


def show_warnings() -> None:
    """Print the package's log records from level WARNING on to stderr, as `warning: ...`; `info: ...` for the
    usage of remote models, and for what `dtype: auto` is where that was measured."""
    log = logging.getLogger("coterie")
    if not any(isinstance(handler, _Warnings) for handler in log.handlers):
        log.addHandler(_Warnings(logging.WARNING))
        for shown in map(logging.getLogger, SHOWN):
            shown.setLevel(logging.INFO)
            shown.addHandler(_Warnings(logging.INFO))


def can_draw() -> bool:
    """Whether stdout is a terminal that text can be drawn on again and again."""
    return sys.stdout.isatty() and os.environ.get("TERM", "") not in ("", "dumb", "unknown")


def console_of(*, on_terminal: bool, piped_width: int | None = None) -> Any:
    """A rich console on stdout, without colours where TERM or NO_COLOR says so.

    Args:
        piped_width: characters of a line where stdout is no terminal.
    """
    from rich.console import Console

    plain = not on_terminal or os.environ.get("TERM", "") in ("", "dumb", "unknown")
    return Console(
        file=sys.stdout,
        width=None if on_terminal else piped_width,
        force_terminal=on_terminal,
        no_color=True if plain else None,
        color_system=None if plain else "auto",
        markup=False,
        highlight=False,
        emoji=False,
    )
