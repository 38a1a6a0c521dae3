"""`coterie compare`: runs or evaluations, paired by task."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from coterie import logs
from coterie.cli.interrupt import interruptible
from coterie.cli.options import (
    check_file,
    json_option,
    out_option,
    overwrite_option,
    plugin_option,
    verbose_option,
)
from coterie.cli.output import interval, print_json, share, table

if TYPE_CHECKING:
    from coterie.analysis.comparison.report import ComparisonReport, PairedResult


@click.command(short_help="Compare runs or evaluations, paired by task.")
@click.argument("arguments", metavar="[NAME=]SOURCE[,SOURCE...]...", nargs=-1, required=True)
@click.option(
    "--metric",
    default="success",
    show_default=True,
    help="What is compared: success, or another outcome of the environment, such as turns.",
)
@click.option("--all-pairs", is_flag=True, help="Compare every pair, not only each with the first.")
@click.option("--common", is_flag=True, help="Compare the tasks that all have, where some have others.")
@click.option(
    "--split",
    type=click.Choice(["val", "test"]),
    help="Of runs: the split to evaluate on [that of the files, else test].",
)
@click.option(
    "--tasks", type=click.IntRange(min=1), help="Of runs: number of tasks [the whole split, at most 1,000]."
)
@click.option("--samples", type=click.IntRange(min=1), help="Of runs: episodes per task [1].")
@click.option("--greedy", is_flag=True, default=None, help="Of runs: take the likeliest token.")
@click.option(
    "--seed", type=int, help="Of runs: the seed of tasks and draws [that of the first run or file]."
)
@out_option("FILE", more="the JSON, with the means of every task", dir_okay=False)
@overwrite_option
@json_option
@verbose_option
@plugin_option
def command(
    arguments: tuple[str, ...],
    as_json: bool,
    out: Path | None,
    overwrite: bool,
    seed: int | None,
    **options: Any,
) -> None:
    """Compare sides, each with the first: the difference on the same tasks with its 95 % interval, whether it
    is shown, the smallest difference that so many tasks could show, and how many more the observed one needs.

    A side is a file of `coterie eval -o`, a run's folder, with @best, @latest or @STEP if you like, or a
    recipe. Runs are evaluated first, all on the same tasks and with the same draws. Several sources of one
    side, and a folder of runs, are seeds of one configuration; the interval then is one over tasks and seeds.
    p-values are corrected for the number of comparisons (Holm). Where tasks have a category, a table says
    where the difference lies.

    \b
        coterie compare before.json after.json
        coterie compare runs/grpo@best runs/at_grpo@best --samples 4
        coterie compare GRPO=runs/grpo-s0,runs/grpo-s1 AT-GRPO=runs/three --all-pairs
    """
    from coterie.analysis.comparison.comparing import compare

    check_file(out, overwrite)
    settings = () if seed is None else (f"seed={seed}",)
    with interruptible(at_once=True), logs.kept_for_now():
        report = compare(*arguments, overrides=settings, **options)
    if out is not None:
        report.write(out)
    if as_json:
        print_json(report.as_dict())
    else:
        _show(report)


def _show(report: ComparisonReport) -> None:
    split = f" {report.split}" if report.split else ""
    click.echo(f"{report.metric} on {report.tasks:,}{split} tasks, with 95 % intervals\n")
    sides = [
        (name, f"{side.seeds}", interval(side.interval.as_dict())) for name, side in report.sides.items()
    ]
    click.echo(table(("side", "runs", report.metric), sides))
    click.echo()
    head = ("difference", "mean and interval", "p", "p (Holm)", "result")
    click.echo(table(head, [_row(each) for each in report.comparisons]))
    click.echo()
    for each in report.comparisons:
        click.echo(_power(each, report.metric, report.tasks))
    strata = [each for each in report.comparisons if each.by_stratum]
    for each in strata:
        click.echo(f"\n{each.second} - {each.first} by category (p over all categories: Holm)")
        head = ("category", "tasks", "difference", "p (Holm)", "result")
        rows = [_stratum(name, of) for name, of in each.by_stratum.items()]
        click.echo(table(head, rows))
    for note in report.notes:
        click.echo(f"note: {note}", err=True)


def _row(each: PairedResult) -> tuple[str, ...]:
    name = f"{each.second} - {each.first}"
    difference = interval(each.difference.as_dict())
    return (name, difference, _p(each.difference.p), _p(each.p_holm), _verdict(each))


def _stratum(name: str, each: PairedResult) -> tuple[str, ...]:
    difference = interval(each.difference.as_dict())
    return (name or "none", f"{each.difference.n:,}", difference, _p(each.p_holm), _verdict(each))


def _verdict(each: PairedResult) -> str:
    return "shown" if each.shown else "not shown"


def _p(value: float) -> str:
    return "-" if value != value else f"{value:.3g}"


def _power(each: PairedResult, metric: str, tasks: int) -> str:
    """What so many tasks could show, and how many more are needed."""
    name = f"{each.second} - {each.first}"
    if each.detectable != each.detectable:
        return f"{name}: the tasks' differences don't spread, which says nothing of what could be shown"
    text = (
        f"{name}: {tasks:,} tasks show a difference from {share(each.detectable)} on (power 0.8, level 5 %)"
    )
    if each.detectable == float("inf") or (metric == "success" and each.detectable > 1):
        text = f"{name}: so few tasks that differ, or so few runs, can show no difference"
    if each.seed_share >= 0.005:
        text += f"; {each.seed_share:.0%} of the variance comes from seeds"
    if each.shown:
        return text
    observed = share(abs(each.difference.mean))
    if each.difference.mean == 0:
        return f"{text}; there is no difference to show"
    if each.tasks_needed is None:
        return f"{text}; no number of tasks shows the observed {observed}: more seeds may"
    if each.more_tasks == 0:
        return f"{text}; so many show a true {observed} in most cases, and not in this one"
    return f"{text}; the observed {observed} needs {each.more_tasks:,} tasks more"
