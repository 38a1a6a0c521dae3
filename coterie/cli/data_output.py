"""How the commands of `coterie data` print tasks, files and leaks for people."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from coterie.cli.output import table
from coterie.data.leaks import Leaks, Shared


def task_text(row: Mapping[str, Any]) -> str:
    """A task for people."""
    lines = [click.style(row["id"], bold=True)]
    if row.get("picture"):
        lines.append(row["picture"])
    elif row.get("record") is not None:
        lines.append(json.dumps(row["record"], indent=2, ensure_ascii=False, default=str))
    for message in row.get("messages", ()):
        lines.append(
            f"\n{click.style(row['role'] + ', ' + message['role'], bold=True)}\n{message['content']}"
        )
    return "\n".join(lines)


def show_files(folder: Path, manifest: Mapping[str, Any], notes: Sequence[str]) -> None:
    """A table of what was written."""
    rows = [
        [split, f"{about['records']:,}", str(folder / about["file"]), about["sha256"][:16]]
        for split, about in manifest["splits"].items()
    ]
    click.echo(table(["split", "records", "file", "sha256"], rows))
    for note in notes:
        click.echo(f"note: {note}")


def show_leaks(leaks: Leaks, there: Mapping[str, int], notes: Sequence[str]) -> None:
    """For people: what is shared, what is there twice, and what was compared."""
    if leaks.shared:
        rows = [_leak(shared, leaks.sizes) for shared in leaks.shared]
        click.echo(table(["shared", "count", "splits", "e.g."], rows) + "\n")
    if leaks.repeats:
        rows = [_leak(shared, leaks.sizes) for shared in leaks.repeats]
        click.echo(table(["repeated", "count", "within", "e.g."], rows) + "\n")
    looked_at = ", ".join(
        f"{split} {size:,}" + (f" of {there[split]:,}" if there[split] > size else "")
        for split, size in leaks.sizes.items()
    )
    verdict = click.style("leak", fg="red") if leaks.shared else click.style("nothing is shared", fg="green")
    click.echo(f"{verdict}: compared {looked_at}")
    for note in notes:
        click.echo(f"note: {note}")


def _leak(shared: Shared, sizes: Mapping[str, int]) -> list[str]:
    first, second = shared.splits
    if first == second:
        where = f"{first} ({shared.tasks[0]:,} more of {sizes[first]:,})"
    else:
        where = " and ".join(
            f"{split} ({tasks:,} of {sizes[split]:,})"
            for split, tasks in zip(shared.splits, shared.tasks, strict=True)
        )
    return [shared.kind, f"{shared.count:,}", where, "; ".join(" = ".join(pair) for pair in shared.examples)]
