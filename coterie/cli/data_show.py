"""`coterie data show`: tasks or records, and the prompts of an episode."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from coterie.cli.options import json_option, layer_options, out_option, overrides, plugin_option
from coterie.cli.output import print_json, table
from coterie.core.errors import UserError
from coterie.viewing.text import harmless, harmless_json

if TYPE_CHECKING:
    from coterie.compose import RolloutParts
    from coterie.core.types.splits import RecordLine, Split
    from coterie.data.leaks import Leaks, SharedFingerprints

SPLITS = ("train", "val", "test")
data_out_option = out_option("DIR", required=True, file_okay=False)
force_option = click.option("--force", is_flag=True, help="Replace the data set that is in DIR.")
TURNS = 2
"""Turns that are shown by default: in the second one, prompts hold what was said in the first."""


@click.command(short_help="Show tasks or records, and the prompts of every role.")
@click.argument("source", metavar="RECIPE|FILE|DIR|RECORDS")
@click.argument("settings", metavar="[KEY=VALUE]...", nargs=-1)
@click.option("--split", type=click.Choice(SPLITS), help="Split to show, except of a record file [test].")
@click.option("--tasks", type=click.IntRange(min=1), default=3, show_default=True, help="Number of tasks.")
@click.option("--turns", type=click.IntRange(min=0), help="Turns to play [2]; 0 shows the tasks alone.")
@click.option("--role", metavar="ROLE", help="Show the prompts of this role alone.")
@click.option(
    "--answer",
    "answers",
    metavar="ROLE=TEXT",
    multiple=True,
    help="What a role answers in every turn (repeatable) [the oracle's answer, else a sample].",
)
@layer_options
@json_option
@plugin_option
def show(
    source: str,
    settings: tuple[str, ...],
    split: Split | None,
    tasks: int,
    turns: int | None,
    role: str | None,
    answers: tuple[str, ...],
    overlays: tuple[str, ...],
    scale: str | None,
    as_json: bool,
) -> None:
    """Show tasks or records, and the prompts of every role; no model is loaded.

    The environment is played, for two turns or as many as --turns says. The roles answer what --answer gives
    them, else what the environment's oracle says, else a sample that names the role. Where a perfect oracle
    ends an episode before these turns, half of its choices, or all, are random. The output says whose answers
    they are.

    A chat template adds its own text and the role's tools to a prompt.

    \b
        coterie data show plan_path --role planner --tasks 1
        coterie data show plan_path --answer 'planner=[U, R]' --turns 1
    """
    from coterie.data import sources

    run, folder = opened(source, settings, scale, overlays)
    if run is None:
        for option, value in (("--role", role), ("--turns", turns), ("--answer", answers or None)):
            if value is not None:
                raise UserError(f"{source} holds records: it has no roles", path=option, fix="name a recipe")
        if split is not None and sources.is_file(source):
            raise UserError(f"{source} is one file", path="--split", fix="name the file of that split")
        name, records = _one_file(source, folder, split or "test")
        rows = [{"id": f"{name}, line {row.line}", "record": dict(row.record)} for row in records[:tasks]]
    else:
        rows = _rows(run, split or "test", tasks, TURNS if turns is None else turns, role, answers)
    if as_json:
        print_json(rows)
        return
    click.echo("\n\n".join(task_text(row) for row in rows))


def _rows(
    run: RolloutParts, split: Split, count: int, turns: int, role: str | None, answers: Sequence[str]
) -> list[dict[str, Any]]:
    """The tasks as plain data, each with the prompts of an episode."""
    from coterie.data import prompts, sources

    texts = _answers(answers)
    for option, value in (("--role", role), ("--answer", texts or None)):
        if turns == 0 and value is not None:
            why = "with --turns 0 nothing is played, so there are no prompts"
            raise UserError("this option has no effect", path=option, why=why, fix="leave one of them out")
    if role is not None:
        prompts.check_role(run, role, "--role")
    tasks = sources.tasks_of(run, split, count)
    rows = [sources.task_row(run, task) for task in tasks]
    if turns == 0:
        return rows
    for row, episode in zip(rows, prompts.play(run, tasks, turns, texts), strict=True):
        row |= {"noise": episode.noise, "end": episode.end}
        row["prompts"] = [asdict(shown) for shown in episode.prompts if role in (None, shown.role)]
    return rows


def _answers(pairs: Sequence[str]) -> dict[str, str]:
    """{role: text} of ROLE=TEXT."""
    texts: dict[str, str] = {}
    for pair in pairs:
        role, equals, text = pair.partition("=")
        if not equals:
            raise UserError(f"'{pair}' is no answer of a role", path="--answer", fix="write ROLE=TEXT")
        if role in texts:
            raise UserError(f"'{role}' is given two answers", path="--answer", fix="give each role one")
        texts[role] = text
    return texts


def opened(
    source: str, settings: Sequence[str], scale: str | None, overlays: Sequence[str]
) -> tuple[RolloutParts | None, Path | None]:
    """The run of a recipe or of a folder that `make` wrote, and the folder of a data set, else None."""
    from coterie.data import sources
    from coterie.data.task_files import MANIFEST, changed, read_manifest

    holds_data = sources.is_folder(source)
    if not holds_data and not sources.is_file(source):
        return sources.run_of(source, overrides(settings), scale, overlays), None
    if settings or overlays or scale is not None:
        given = " ".join(settings) or ("--with" if overlays else "--scale")
        raise UserError(f"{source} is data: it takes no settings", why=f"given: {given}")
    folder = Path(source)
    if not holds_data:
        return None, None
    if not (folder / MANIFEST).is_file():
        return None, folder
    manifest = read_manifest(folder)
    for name in changed(folder, manifest):
        click.echo(f"warning: {folder / name} is not the file that {MANIFEST} describes", err=True)
    return sources.made_run(folder, manifest), folder


def _one_file(source: str, folder: Path | None, split: Split) -> tuple[str, list[RecordLine]]:
    from coterie.data import sources

    path = Path(source)
    if folder is not None:
        paths = sources.split_files(folder)
        if split not in paths:
            raise UserError(
                f"{folder} has no split '{split}'", path="--split", fix=f"it has: {', '.join(paths)}"
            )
        path = paths[split]
    return path.name, sources.read_rows(path)


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
