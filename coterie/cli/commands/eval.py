"""`coterie eval`: success with an interval, on tasks that chose no checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from coterie import logs
from coterie.cli.interrupt import interruptible
from coterie.cli.options import (
    json_option,
    layer_options,
    out_option,
    overrides,
    plugin_option,
    verbose_option,
)
from coterie.cli.output import columns, interval, number, print_json, share
from coterie.core.errors import UserError
from coterie.viewing.text import harmless

if TYPE_CHECKING:
    from coterie.api.compare import Comparison, TeamEvaluation


class Pair(click.ParamType):
    """A value `left=right`.

    Args:
        wanted: what the two sides are, for the error.
        example: a value of the option, for the error.
    """

    name = "pair"

    def __init__(self, wanted: str, example: str) -> None:
        self.wanted, self.example = wanted, example

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, str] | None:
        if isinstance(value, tuple):
            return value
        left, _, right = value.partition("=")
        if not left or not right:
            option = param.opts[0] if param is not None else ""
            raise UserError(
                f"'{value}' names no {self.wanted}", path=option, fix=f"e.g. {option} {self.example}"
            )
        return left, right


class Checkpoint(click.ParamType):
    """A checkpoint: `best`, `latest` or a step."""

    name = "checkpoint"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if isinstance(value, int) or value in ("best", "latest"):
            return value
        if value.isdecimal():
            return int(value)
        self.fail(f"'{value}' is neither best, latest nor a step.", param, ctx)


checkpoint_option = click.option(
    "--checkpoint",
    metavar="best|latest|N",
    type=Checkpoint(),
    default=None,
    show_default="best",
    help="Checkpoint of a run: the best on val, the latest, or that of step N.",
)


@click.command(short_help="Evaluate a run, or a recipe's untrained team.")
@click.argument("source", metavar="RECIPE|FILE|RUN_DIR[@best|latest|N]")
@click.argument("settings", metavar="[KEY=VALUE]...", nargs=-1)
@click.option(
    "--split",
    type=click.Choice(["val", "test"]),
    default="test",
    show_default=True,
    help="Checkpoints are chosen on val; test is for the report.",
)
@click.option("--tasks", type=click.IntRange(min=1), help="Number of tasks [the whole split, at most 1,000].")
@click.option(
    "--samples", type=click.IntRange(min=1), default=1, show_default=True, help="Episodes per task."
)
@click.option("--greedy", is_flag=True, help="Take the likeliest token instead of sampling.")
@click.option(
    "--policy",
    "policies",
    metavar="ROLE=CHECKPOINT",
    type=Pair("role and checkpoint", "planner=runs/other@best"),
    multiple=True,
    help="Also evaluate with an external policy in a role: RUN_DIR[@best|latest|N][:POLICY], or a folder "
    "that `coterie export` wrote (repeatable).",
)
@click.option(
    "--swap",
    metavar="ROLE=ROLE",
    type=Pair("two roles", "planner=executor"),
    help="Also evaluate with the policies of two roles exchanged.",
)
@click.option("--null", metavar="ROLE", multiple=True, help="Also evaluate with a silent role (repeatable).")
@out_option("FILE", more="the JSON, with the successes of every task", dir_okay=False)
@click.option("--overwrite", is_flag=True, help="Replace the file that --out names.")
@click.option("--show", metavar="N", type=click.IntRange(min=0), default=0, help="Print N episodes.")
@checkpoint_option
@layer_options
@json_option
@verbose_option
@plugin_option
def command(
    source: str,
    settings: tuple[str, ...],
    as_json: bool,
    show: int,
    out: Path | None,
    overwrite: bool,
    **options: Any,
) -> None:
    """Evaluate a run's checkpoint, or a recipe's untrained team.

    Prints mean success with its 95 % interval over tasks, the metrics, and those of each role.

    --policy, --swap and --null make a changed team, in this order. It plays the same tasks with the same
    draws, and the command prints the paired difference of the two teams. A run that --policy names without @
    is loaded from the checkpoint that --checkpoint names.

    \b
        coterie eval runs/plan_path-20260101-120000 --samples 4 --json
        coterie eval runs/plan_path-20260101-120000@40
        coterie eval runs/per_role-20260101-120000 --swap planner=executor
        coterie eval runs/per_role-20260101-120000 --null planner
        coterie eval runs/one --policy planner=runs/two@latest --policy executor=runs/three@120
    """
    from coterie.api.evaluate import evaluate as evaluate_source, run_folder

    options["policies"] = _by_role(options["policies"])
    _check_writable(out, overwrite)
    kept = logs.kept_for_now() if run_folder(source) is None else nullcontext()
    with interruptible(at_once=True), kept:
        evaluation = evaluate_source(source, overrides=overrides(settings), show=show, **options)
    if out is not None:
        evaluation.write(out)
    if as_json:
        result = evaluation.as_dict()
        print_json({**result, "episodes": list(evaluation.episodes)} if show else result)
        return
    for episode in evaluation.episodes:
        click.echo(harmless(episode) + "\n")
    print_evaluation(evaluation, options["split"])


def _by_role(pairs: tuple[tuple[str, str], ...]) -> dict[str, str]:
    by_role: dict[str, str] = {}
    for role, source in pairs:
        if role in by_role:
            raise UserError(
                f"'{role}' is given two policies: {by_role[role]} and {source}",
                path="--policy",
                fix="give each role one",
            )
        by_role[role] = source
    return by_role


def _check_writable(out: Path | None, overwrite: bool) -> None:
    """Fail before the evaluation, which may take hours, where its folder is missing or its file is there."""
    if out is not None and not out.parent.is_dir():
        raise UserError(f"there is no folder {out.parent}", path="--out", fix="create it first")
    if out is not None and out.exists() and not overwrite:
        fix = "name another file, or replace this one with --overwrite"
        raise UserError(f"{out} exists", path="--out", fix=fix)


def print_evaluation(evaluation: TeamEvaluation, split: str) -> None:
    """Print an evaluation for people: success first, then the other metrics in columns."""
    success = evaluation.success.as_dict()
    click.echo(f"success  {interval(success)}  95 % interval over {success['n']:,} {split} tasks\n")
    _print_values({name: value for name, value in evaluation.metrics.items() if name != "success"})
    for role, values in evaluation.roles.items():
        click.echo(f"\nrole {role}")
        _print_values(values)
    if evaluation.comparison is not None:
        print_comparison(evaluation.comparison)
    click.echo(f"\nconfiguration {evaluation.config_digest[:16]}{_facts(evaluation.facts)}")


def _facts(facts: Mapping[str, Any]) -> str:
    """The checkpoint and the digests of files, after the configuration's."""
    step = facts.get("checkpoint")
    files = [f"{name} {entry['sha256'][:12]}" for name, entry in facts.get("files", {}).items()
             if "sha256" in entry]  # fmt: skip
    played = "" if step is None else f"  checkpoint of step {step}"
    return played + (f"  files {', '.join(files)}" if files else "")


def print_comparison(comparison: Comparison) -> None:
    """Print both teams and their paired difference."""
    changes = "; ".join(_change_text(change) for change in comparison.changes)
    click.echo(f"\n{changes}: paired by task")
    difference = comparison.difference.as_dict()
    p = f"p {difference['p']:.3g}" if difference["p"] is not None else ""
    rows = [
        ("base", interval(comparison.base.as_dict()), ""),
        ("changed", interval(comparison.changed.as_dict()), ""),
        ("difference", interval(difference), p),
    ]
    click.echo(columns(rows, indent=2))
    differ = {task: value for task, value in comparison.per_task.items() if value}
    click.echo(f"  {len(differ)} of {len(comparison.per_task)} tasks differ" + (":" if differ else ""))
    if differ:
        signed = [(f"{'+' if value > 0 else '-'}{share(abs(value))}", task) for task, value in differ.items()]
        click.echo(columns(signed, indent=4))


def _change_text(change: Mapping[str, Any]) -> str:
    if change["change"] == "policy":
        return f"{change['role']} played by {change['policy']}"
    if change["change"] == "swap":
        return f"policies of {' and '.join(change['roles'])} swapped"
    return f"{change['role']} silent"


def _print_values(values: Mapping[str, Any]) -> None:
    if values:
        click.echo(columns([(name, number(value)) for name, value in values.items()], indent=2))
