"""`coterie episodes`: recorded episodes, readably."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from coterie.cli.options import json_option
from coterie.cli.output import can_draw, console_of, print_json, table
from coterie.viewing.text import encodable

if TYPE_CHECKING:
    from coterie.viewing.episode_view import Detail
    from coterie.viewing.find_episodes import Search


@click.command(short_help="Print the episodes that match, readably.")
@click.argument("run", metavar="RUN", type=click.Path(path_type=Path, readable=False))
@click.option("--step", "steps", metavar="N", type=int, multiple=True, help="Only of this step; repeatable.")
@click.option(
    "--role", metavar="R", help="Only episodes in which the role acted, and of them its actions alone."
)
@click.option(
    "--where", metavar="CONDITION", help="Such as 'success == 0 and turns > 2'; --fields lists the names."
)
@click.option(
    "--sort",
    metavar="FIELDS",
    help="Such as -advantage (the largest first) or 'reward.planner, -turns'. Missing values come last. "
    "Default: the newest step first.",
)
@click.option("-n", "most", type=click.IntRange(min=1), default=5, show_default=True, help="Most episodes.")
@click.option("--full", is_flag=True, help="Print long prompts, answers and tool results whole.")
@click.option("--fields", is_flag=True, help="List the fields that conditions have, and end.")
@json_option
def command(
    run: Path,
    steps: tuple[int, ...],
    role: str | None,
    where: str | None,
    sort: str | None,
    most: int,
    full: bool,
    fields: bool,
    as_json: bool,
) -> None:
    """Print recorded episodes of RUN: prompts, answers, scores, advantages, faults, tool results, outcome.

    RUN may also be a folder of runs, such as that of `coterie run --seeds`.

    Steps are recorded every `schedule.record_every`; evaluations are not. Without --sort, files are read from
    the newest on until -n episodes match; with it, all of them.

    \b
    coterie episodes RUN --where 'faults.executor > 0' --role executor
    coterie episodes RUN --step 40 --where 'success == 0' --sort -spread -n 3
    """
    from coterie.viewing.episode_fields import FIELDS, OF_ROLES
    from coterie.viewing.episode_view import Detail
    from coterie.viewing.find_episodes import Query, find
    from coterie.viewing.where import parse, parse_sort

    if fields:
        click.echo(table(("field", "meaning"), FIELDS.items()))
        click.echo(f"\nof one role, as in reward.planner: {', '.join(OF_ROLES)}")
        return
    condition = parse(where) if where is not None else None
    keys = parse_sort(sort) if sort is not None else ()
    query = Query(tuple(dict.fromkeys(steps)), role, condition, keys, most)
    search = find(run, query)
    if as_json:
        print_json([match.as_dict(role) for match in search.matches])
    else:
        _print(search, Detail(full, role))


def _print(search: Search, detail: Detail) -> None:
    from rich.padding import Padding
    from rich.text import Text

    from coterie.viewing.episode_view import episode_lines

    console = console_of(on_terminal=sys.stdout.isatty(), piped_width=10_000)  # in a pipe, lines are whole
    console.soft_wrap = not can_draw()
    for number, match in enumerate(search.matches):
        for line in [Text("")] * (number > 0) + [*episode_lines(match, detail)]:
            text = Text(encodable(line.plain, console.encoding), style=line.style, spans=line.spans)
            indent = len(text.plain) - len(text.plain.lstrip(" "))
            if indent and console.is_terminal:  # what is wrapped stays below its beginning
                console.print(Padding(text[indent:], (0, 0, 0, indent)))
            else:
                console.print(text)
    click.echo(_summary(search), err=True)


def _summary(search: Search) -> str:
    steps = f"step {search.steps[0]}" if len(search.steps) == 1 else f"{len(search.steps)} recorded steps"
    if not search.matches:
        return f"none of the {search.episodes} episodes of {steps} matches"
    shown = len(search.matches)
    if search.whole:
        return f"{shown} of {search.matching} that match, among {search.episodes} episodes of {steps}"
    return f"{shown} shown, the newest first, from {steps}; earlier steps were not read (-n, --sort)"
