"""Tasks, files and leaks, as the commands of `coterie data` print them for people."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from coterie.cli.output import table
from coterie.data.leaks import Leaks, SharedFingerprints
from coterie.viewing.text import harmless, harmless_json

BY = {"given": "given", "oracle": "the oracle's", "sample": "a sample"}
"""By the origin of an answer: how it is told."""


def task_text(row: Mapping[str, Any]) -> str:
    """A task as text: its id, its picture or record, an episode's prompts and answers, and its end."""
    lines = [click.style(harmless(row["id"]), bold=True)]
    if row.get("picture"):
        lines.append(harmless(row["picture"]))
    elif row.get("record") is not None:
        record = json.dumps(row["record"], indent=2, ensure_ascii=False, default=str)
        lines.append(harmless_json(record))
    for prompt in row.get("prompts", ()):
        lines += _prompt_lines(prompt, row["noise"])
    if "end" in row:
        lines.append(f"\nend: {harmless(row['end'])}")
    return "\n".join(lines)


def _prompt_lines(prompt: Mapping[str, Any], noise: float) -> list[str]:
    name, answer = prompt["role"], prompt["answer"]
    unreached = " (not reached: as it would be in the last state)" if answer is None else ""
    lines = []
    for message in prompt["messages"]:
        title = click.style(f"{name}, turn {prompt['turn'] + 1}, {message['role']}", bold=True)
        lines.append(f"\n{title}{unreached}\n{harmless(message['content'])}")
    if answer is not None:
        errors = f" with noise {noise:g}" if prompt["by"] == "oracle" and noise else ""
        fault = f", can't be read ({prompt['fault']})" if prompt["fault"] is not None else ""
        lines.append(harmless(f"{name}'s answer, {BY[prompt['by']]}{errors}{fault}: {answer}"))
    return lines


def show_files(folder: Path, manifest: Mapping[str, Any], notes: Sequence[str]) -> None:
    """Print the files that a manifest names."""
    rows = [
        [split, f"{entry['records']:,}", str(folder / entry["file"]), entry["sha256"][:16]]
        for split, entry in manifest["splits"].items()
    ]
    click.echo(table(["split", "records", "file", "sha256"], rows))
    for note in notes:
        click.echo(f"note: {note}")


def show_leaks(leaks: Leaks, sizes: Mapping[str, int], notes: Sequence[str]) -> None:
    """Print what splits share, what occurs twice within one, and what was compared.

    Args:
        sizes: number of tasks by split; of these the first `leaks.sizes` were compared.
    """
    if leaks.shared:
        rows = [_leak_row(leak, leaks.sizes) for leak in leaks.shared]
        click.echo(table(["shared", "count", "splits", "e.g."], rows) + "\n")
    if leaks.repeats:
        rows = [_leak_row(leak, leaks.sizes) for leak in leaks.repeats]
        click.echo(table(["repeated", "count", "within", "e.g."], rows) + "\n")
    compared = ", ".join(
        f"{split} {size:,}" + (f" of {sizes[split]:,}" if sizes[split] > size else "")
        for split, size in leaks.sizes.items()
    )
    verdict = click.style("leak", fg="red") if leaks.shared else click.style("nothing is shared", fg="green")
    click.echo(f"{verdict}: compared {compared}")
    for note in notes:
        click.echo(f"note: {note}")


def _leak_row(leak: SharedFingerprints, sizes: Mapping[str, int]) -> list[str]:
    first, second = leak.splits
    if first == second:
        splits = f"{first} ({leak.tasks[0]:,} more of {sizes[first]:,})"
    else:
        splits = " and ".join(
            f"{split} ({tasks:,} of {sizes[split]:,})"
            for split, tasks in zip(leak.splits, leak.tasks, strict=True)
        )
    return [leak.kind, f"{leak.count:,}", splits, "; ".join(" = ".join(pair) for pair in leak.examples)]
