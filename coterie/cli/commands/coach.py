"""`coterie coach`: the report on a run's coach."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from coterie.cli.options import json_option
from coterie.cli.output import columns, print_json, share, table
from coterie.viewing.text import harmless, message

if TYPE_CHECKING:
    from coterie.api.coach_report import CoachReport
    from coterie.api.coach_statistics import Estimate


@click.command(short_help="Report how well a run's coach agrees with the verifier.")
@click.argument("run", metavar="RUN", type=click.Path(path_type=Path))
@click.option(
    "--source", metavar="NAME", help="The coach, where the run has several reward sources of the type."
)
@click.option(
    "--quality",
    metavar="COMPONENT",
    help="The verified score of single actions; default: the coach's own setting `quality`, or the "
    "environment's only component that scores roles.",
)
@json_option
def command(run: Path, source: str | None, quality: str | None, as_json: bool) -> None:
    """Report on the coach of RUN: agreement with the verifier, bias by role and task type, drift over steps,
    cost, missing scores.

    Warnings go to stderr as well as into the report.
    """
    from coterie.api.coach_report import coach_report

    report = coach_report(run, source, quality)
    if as_json:
        print_json(report.as_dict())
        return
    show(report)


def show(report: CoachReport) -> None:
    """Print a report; its warnings go to stderr."""
    for line in _lines(report):
        click.echo(line)
    for limit in report.limits:
        click.echo(f"not known: {harmless(limit)}")
    for warning in report.warnings:
        click.echo(f"{click.style('warning:', fg='yellow')} {message(warning)}", err=True)


def _lines(report: CoachReport) -> list[str]:
    missing, cost = report.missing / report.actions if report.actions else 0.0, report.cost
    lost = ", ".join(f"{entry['scores']:,} {kind}" for kind, entry in report.missing_reasons.items())
    head = [
        ("coach", report.source),
        (
            "scored",
            f"{report.actions - report.missing:,} of {report.actions:,} actions in {report.steps} steps",
        ),
        ("missing", f"{missing:.1%}" + f" ({lost})" * bool(lost)),
        (
            "questions",
            f"{cost['asked']:,}, {cost['asked_again']:,} of them after a malformed answer; "
            f"{cost['answers']:,} answers",
        ),
        ("quality", f"{report.verified} ({report.chosen_by})" if report.verified else "none"),
        ("models", ", ".join(report.versions) or "no version named"),
    ]
    head += [(f"spent by {name}", _spent(spent)) for name, spent in cost["spent"].items()]
    lines = [columns(head), ""]
    rows = [("all", *_agreement(report, None), "", "")]
    for role, mean in report.means.items():
        bias = None if report.effects is None else report.effects.roles.get(role)
        rows.append((role, *_agreement(report, role), f"{mean:.2f}", _estimate(bias)))
    lines.append(
        table(("role", f"with {report.verified or 'quality'}", "with success", "mean", "bias (ci95)"), rows)
    )
    if report.effects is not None and report.effects.kinds:
        kinds = [(kind or "-", _estimate(effect)) for kind, effect in report.effects.kinds.items()]
        lines += ["", table(("task type", "bias (ci95)"), kinds)]
    if report.effects is not None and report.effects.drift is not None:
        lines += ["", f"drift in 50 steps (ci95): {_estimate(report.effects.drift)}"]
    return lines


def _spent(spent: Mapping[str, Any]) -> str:
    text = (
        f"{spent['calls']:,} calls, {spent['input_tokens']:,} + {spent['output_tokens']:,} tokens, "
        f"cost {spent['money']:.6g}"
    )
    if not spent["assumed_calls"]:
        return text
    part = f"{spent['assumed_calls']:,} calls, {spent['assumed_tokens']:,} tokens"
    return f"{text} (of these assumed, as no usage came back: {part}, cost {spent['assumed_money']:.6g})"


def _agreement(report: CoachReport, role: str | None) -> tuple[str, str]:
    """The rank correlations with verified quality and with the episode's success."""
    cells = []
    for name in ("quality", "outcome"):
        entry = report.agreement[name]
        if entry is not None and role is not None:
            entry = entry["roles"][role]
        cells.append("-" if entry is None else share(entry["rho"]))
    return cells[0], cells[1]


def _estimate(effect: Estimate | None) -> str:
    """`+0.50 [+0.30, +0.70]`: an effect and its 95 % interval."""
    if effect is None:
        return "-"
    low, high = effect.ci95
    return f"{effect.value:+.2f} " + ("[-]" if math.isnan(low) else f"[{low:+.2f}, {high:+.2f}]")
