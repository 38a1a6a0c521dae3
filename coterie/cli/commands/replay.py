"""`coterie replay`: recorded steps played again without a model, and compared with their record."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from coterie.cli.options import check_file, json_option, out_option, plugin_option
from coterie.cli.output import columns, number, print_json, share, table
from coterie.core.errors import ConfigError, MissingExtra

if TYPE_CHECKING:
    from coterie.analysis.replay.credit_again import OtherCredit
    from coterie.analysis.replay.replay import Replay


@click.command(short_help="Play recorded steps again without a model, and compare.")
@click.argument("run", metavar="RUN", type=click.Path(path_type=Path, readable=False))
@click.option("--step", metavar="N", type=int, help="The step to play again [the last recorded one].")
@click.option("--all", "every", is_flag=True, help="Play all recorded steps again.")
@click.option(
    "--again",
    metavar="WHAT",
    multiple=True,
    help="Ask again in place of taking it from the record: sandbox, coach (repeatable).",
)
@click.option(
    "--estimator",
    metavar="TYPE[,key=value...]",
    help="Also give credit by this algorithm, on the same data.",
)
@click.option(
    "--reward",
    "rewards",
    metavar="NAME.key=value",
    multiple=True,
    help="Also give credit with this setting of a reward source (repeatable).",
)
@click.option(
    "--weights",
    metavar="COMPONENT=VALUE",
    multiple=True,
    help="Also give credit with this reward weight; `team` is the team's (repeatable).",
)
@out_option("FILE", more="of other credit: a row an action, .parquet or .jsonl", dir_okay=False)
@plugin_option
@json_option
def command(run: Path, out: Path | None, as_json: bool, weights: tuple[str, ...], **options: Any) -> None:
    """Play recorded steps of RUN again, and compare every value with the record, bit for bit.

    The environment, the roles' parsers and prompts, the transition mode, the rewards, the sampler's choices
    and the estimator run again on the recorded tokens. No model is loaded. Results of tools and programs, and
    a coach's scores, are taken from the record. The exit code is 1 where something differs.

    \b
    coterie replay RUN --all
    coterie replay RUN --step 40 --again sandbox
    coterie replay RUN --all --estimator rloo -o credit.parquet
    """
    from coterie.analysis.replay.replay import replay

    _check(out, bool(options["estimator"] or options["rewards"] or weights), options)
    progress = None if as_json or not sys.stderr.isatty() else _progress
    result = replay(run, weights=_numbers(weights), progress=progress, **options)
    if out is not None and result.other is not None:
        from coterie.data.sources import write_records

        write_records(out, result.other.actions)
    if as_json:
        print_json(result.as_dict())
    else:
        _print(result, out)
    if not result.same:
        raise click.exceptions.Exit(1)


def _check(out: Path | None, other: bool, options: Mapping[str, Any]) -> None:
    """Refuse options that contradict each other, before anything is played."""
    if options["step"] is not None and options["every"]:
        raise ConfigError("--step and --all name different steps", path="--step", fix="leave one of them out")
    if out is None:
        return
    if not other:
        why = "the file has a row an action with its advantage by two rules"
        fix = "add --estimator, --reward or --weights"
        raise ConfigError("there is nothing to write", path="--out", why=why, fix=fix)
    if out.suffix not in (".parquet", ".jsonl"):
        what = f"{out} is neither Parquet nor JSON lines"
        raise ConfigError(what, path="--out", fix="end it with .parquet or .jsonl")
    if out.suffix == ".parquet" and importlib.util.find_spec("pyarrow") is None:
        raise MissingExtra("pyarrow", "data", needed_by=f"-o {out}", instead="a file that ends with .jsonl")
    check_file(out, overwrite=True)


def _numbers(weights: tuple[str, ...]) -> dict[str, float]:
    numbers: dict[str, float] = {}
    for text in weights:
        component, equals, value = text.partition("=")
        try:
            numbers[component] = float(value)
        except ValueError:
            equals = ""
        if not equals or not component or abs(numbers[component]) > 1e100:
            fix = "write COMPONENT=NUMBER, as in --weights passed=0.5"
            raise ConfigError(f"'{text}' is no weight", path="--weights", fix=fix)
    return numbers


def _progress(done: int, steps: int) -> None:
    click.echo(f"\r{done} of {steps} steps", nl=done == steps, err=True)


def _print(result: Replay, out: Path | None) -> None:
    from coterie.analysis.replay.differences import shown

    steps = f"step {result.steps[0]}" if len(result.steps) == 1 else f"{len(result.steps)} steps"
    if result.first is None:
        click.echo(f"the replay of {steps} equals the record, bit for bit")
    else:
        first = result.first
        click.echo(click.style("the replay differs from the record", fg="red"))
        click.echo(f"first at {shown(first.place)}: {shown(first.field)}")
        click.echo(f"  recorded  {shown(first.recorded)}\n  replayed  {shown(first.replayed)}")
        others = len(result.differences) - 1
        if others:
            fields = list(result.as_dict()["by_field"].items())[:6]
            listed = ", ".join(f"{name} {count}" for name, count in fields)
            click.echo(f"{others} more values differ, of which most follow from it: {listed}")
    rows = [(name, f"{count:,}") for name, count in result.equal.items() if count]
    click.echo("\nequal")
    click.echo(columns(rows, indent=2))
    if result.taken:
        click.echo("\ntaken from the record, not compared")
        click.echo("\n".join(f"  {shown(text)}" for text in result.taken))
    if result.other is not None:
        _print_other(result.other)
        if out is not None:
            click.echo(f"\n{len(result.other.actions):,} actions written to {out}")


def _print_other(other: OtherCredit) -> None:
    from coterie.analysis.replay.differences import shown

    click.echo(f"\ncredit on the same data with {', '.join(other.changes)}")
    if other.start == "empty":
        click.echo("  the estimator's state begins empty: its run would have reached another one by then")
    head = ("role", "turn", "actions", "other sign", "share", "zero in one", "mean change")
    rows: list[tuple[str, ...]] = [
        (
            row.role,
            str(row.turn + 1),
            f"{row.actions:,}",
            f"{row.flipped:,}",
            share(row.share),
            f"{row.vanished:,}",
            number(row.mean_change),
        )
        for row in other.table
    ]
    click.echo(table(head, rows))
    click.echo("\nthe largest changes")
    names = ("step", "task", "chain", "turn", "role", "branch", "advantage", "by the other rule")
    largest = [
        (*map(str, (row["step"], row["task"], row["chain"], row["turn"] + 1, row["role"], row["branch"])),
         number(row["advantage"]), number(row["other_advantage"]))
        for row in other.largest
    ]  # fmt: skip
    click.echo(table(names, largest))
    single = sum(row.one_only for row in other.table)
    if single:
        click.echo(shown(f"{single:,} actions are trained by one of the two rules only"))
