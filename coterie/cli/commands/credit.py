"""`coterie credit`: what a run credited each role with, and what replacing its actions changes."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from coterie.cli.commands.eval import CheckpointParam
from coterie.cli.interrupt import interruptible
from coterie.cli.options import check_file, json_option, out_option, overwrite_option, plugin_option
from coterie.cli.output import number, print_json, share, table
from coterie.core.errors import UserError
from coterie.viewing.text import harmless

if TYPE_CHECKING:
    from coterie.analysis.credit.check import Counterfactual
    from coterie.analysis.credit.effects import TurnEffect
    from coterie.analysis.credit.report import CreditReport
    from coterie.stats import Interval

TURNS = ("role", "turn", "actions", "trained", "advantage", "spread", "positive", "flat groups", "alone",
         "gradient", "own share")  # fmt: skip
COMPONENTS = ("role", "turn", "component", "weight", "mean", "missing", "share of variance")
EFFECTS = ("role", "turn", "states", "return lost", "success lost", "preferred less avoided", "advantage")
"""The columns of the three tables."""


@click.command(short_help="Show what each role and turn earned, and check it.")
@click.argument("run", metavar="RUN", type=click.Path(path_type=Path))
@click.option("--step", metavar="N", type=int, help="Only this recorded step.")
@click.option("--last", metavar="N", type=click.IntRange(min=1), help="Only the last N recorded steps.")
@click.option("--check", is_flag=True, help="Also replace recorded actions, play on, and compare.")
@click.option(
    "--against",
    metavar="null|untrained|STEP",
    default="null",
    show_default=True,
    help="What replaces an action: silence, or what the untrained policy or that of a checkpoint does.",
)
@click.option(
    "--tasks", type=click.IntRange(min=1), default=16, show_default=True, help="Most tasks of the check."
)
@click.option(
    "--samples",
    type=click.IntRange(min=1),
    default=2,
    show_default=True,
    help="Times that each action, and its replacement, is played on.",
)
@click.option("--role", "roles", metavar="R", multiple=True, help="Check this role alone (repeatable).")
@click.option(
    "--checkpoint",
    metavar="best|latest|N",
    type=CheckpointParam(),
    help="Whose weights play on [the nearest to those that played the newest step].",
)
@out_option("FILE", more="the JSON", dir_okay=False)
@overwrite_option
@json_option
@plugin_option
@click.pass_context
def command(
    ctx: click.Context,
    run: Path,
    step: int | None,
    last: int | None,
    check: bool,
    out: Path | None,
    overwrite: bool,
    as_json: bool,
    **options: Any,
) -> None:
    """Show what RUN credited each role with in each turn: advantages, gradient tokens, what each component of
    the reward adds; roles that earn the same whatever they do; components that never vary.

    With --check, from recorded states one role's action is replaced, and the team plays on with both: the
    paired change of the return, with its interval, and whether advantages say the same.

    \b
        coterie credit runs/plan_path-20260101-120000 --last 10
        coterie credit runs/plan_path-20260101-120000 --check --tasks 32
        coterie credit runs/plan_path-20260101-120000 --check --against untrained --role planner
    """
    from coterie.analysis.credit.report import credit
    from coterie.cli.progress import progress

    if not check:
        _only_with_check(ctx)
    check_file(out, overwrite)
    with interruptible(at_once=True), progress("playout") if check else nullcontext() as shown:
        report = credit(run, step=step, last=last, check=check, progress=shown, **options)
    if out is not None:
        report.write(out)
    if as_json:
        print_json(report.as_dict())
    else:
        show(report)


def _only_with_check(ctx: click.Context) -> None:
    """Refuse options that only the check reads."""
    for name in ("against", "tasks", "samples", "roles", "checkpoint"):
        if ctx.get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE:
            option = "--role" if name == "roles" else f"--{name}"
            raise UserError(
                f"{option} is for the check alone", path=option, fix="add --check, or leave it out"
            )


def show(report: CreditReport) -> None:
    """Print a report."""
    steps = f"step {report.steps[0]}"
    if len(report.steps) > 1:
        steps = f"{len(report.steps)} recorded steps, {report.steps[0]} to {report.steps[-1]}"
    click.echo(f"{harmless(str(report.folder))}: {steps}; returns: {report.kind}\n")
    click.echo(_turns(report))
    click.echo("\n" + _components(report))
    if report.check is not None:
        click.echo("\n" + _check(report.check))
    lines = [*_findings(report)]
    if lines:
        click.echo("\n" + "\n".join(map(harmless, lines)))
    for note in (*report.notes, *(report.check.notes if report.check is not None else ())):
        click.echo(f"not known: {harmless(note)}" if note in report.notes else f"note: {harmless(note)}")


def _turns(report: CreditReport) -> str:
    rows = []
    for turn in report.turns:
        rows.append(
            (
                turn.role,
                str(turn.turn + 1),
                f"{turn.actions:,}",
                f"{turn.trained:,}",
                _signed(turn.mean),
                number(turn.spread),
                share(turn.positive),
                f"{turn.flat:,} of {turn.groups:,}" if turn.groups else "-",
                f"{turn.alone:,}",
                share(turn.gradient),
                share(turn.own_share),
            )
        )
    return table(TURNS, rows)


def _components(report: CreditReport) -> str:
    rows = [
        (
            turn.role,
            str(turn.turn + 1),
            component.name if component.owner != turn.role else component.component,
            f"{component.weight:g}",
            number(component.mean),
            share(component.missing),
            share(component.share),
        )
        for turn in report.turns
        for component in turn.components
        if component.weight
    ]
    return table(COMPONENTS, rows)


def _check(check: Counterfactual) -> str:
    replaced = {"null": "silence", "untrained": "the untrained policy"}
    by = replaced.get(str(check.against), f"the policy of step {check.against}")
    title = (
        f"each action replaced by {by}; the weights of step {check.checkpoint} play on; {check.tasks} tasks, "
        f"{check.samples} samples, 95 % intervals over tasks"
    )
    return (
        title
        + "\n\n"
        + table(
            EFFECTS,
            [
                (
                    effect.role,
                    str(effect.turn + 1),
                    f"{effect.states:,}",
                    _interval(effect.change),
                    _interval(effect.success),
                    _interval(effect.preferred),
                    effect.verdict or "-",
                )
                for effect in check.effects
            ],
        )
    )


def _interval(interval: Interval) -> str:
    """`+0.44 [+0.19, +0.75]`."""
    if interval.n == 0:
        return "-"
    low, high = (_signed(bound) for bound in (interval.lo, interval.hi))
    return f"{_signed(interval.mean)} [{low}, {high}]"


def _signed(value: float | None) -> str:
    if value is None or value != value:
        return "-"
    return f"{value + 0.0:+.2f}"


def _findings(report: CreditReport) -> list[str]:
    from coterie.analysis.credit.free_riders import dead_text, rider_text

    lines = [f"free-rider: {role} {rider_text(report.by_role[role])}" for role in report.free_riders]
    lines += [f"dead component: {each.name} {dead_text(each)}" for each in report.components if each.dead]
    return lines + [f"disagreement: {_disagreement(effect)}" for effect in report.disagreements]


def _disagreement(effect: TurnEffect) -> str:
    place = f"{effect.role} in turn {effect.turn + 1}"
    if effect.verdict == "uncredited":
        return (
            f"{place} has no advantage at all, and replacing its actions changes the return by "
            f"{_signed(-effect.change.mean)}"
        )
    if effect.preferred.mean < 0:
        return (
            f"{place}: actions with an advantage above 0 lead to {_signed(effect.preferred.mean)} of return "
            "against those below 0"
        )
    return (
        f"{place} has advantages of {_signed(effect.advantage.mean)} on average, and its actions add "
        f"{_signed(effect.change.mean)} to the return"
    )
