"""`coterie eval`: success with an interval, on tasks that no checkpoint was chosen on."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from coterie.cli.options import json_option, overrides, plugin_option, scale_option
from coterie.cli.output import interval, number, print_json, share
from coterie.core.errors import UserError

if TYPE_CHECKING:
    from coterie.api.compare import Comparison, TeamEvaluation


class Pair(click.ParamType):
    """`left=right`.

    Args:
        wanted: what the two are, for the error.
        example: of the option's value.
    """

    name = "pair"

    def __init__(self, wanted: str, example: str) -> None:
        self.wanted, self.example = wanted, example

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, str] | None:
        if isinstance(value, tuple):
            return value
        one, _, other = value.partition("=")
        if not one or not other:
            option = param.opts[0] if param is not None else ""
            raise UserError(
                f"'{value}' names no {self.wanted}", path=option, fix=f"e.g. {option} {self.example}"
            )
        return one, other


class Checkpoint(click.ParamType):
    """`best`, `latest` or a step."""

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
    default="best",
    show_default=True,
    help="Of a run: the best on val, the latest, or a step's.",
)


@click.command(short_help="Evaluate a run, or what a recipe starts from.")
@click.argument("source", metavar="RECIPE|FILE|RUN_DIR")
@click.argument("words", metavar="[KEY=VALUE]...", nargs=-1)
@click.option(
    "--split",
    type=click.Choice(["val", "test"]),
    default="test",
    show_default=True,
    help="Checkpoints are chosen on val; test is for the report.",
)
@click.option("--tasks", type=click.IntRange(min=1), help="How many tasks [all of them, at most 1,000].")
@click.option(
    "--samples", type=click.IntRange(min=1), default=1, show_default=True, help="Episodes for each task."
)
@click.option("--greedy", is_flag=True, help="Take the likeliest token instead of sampling.")
@click.option(
    "--policy",
    "policies",
    metavar="ROLE=CHECKPOINT",
    type=Pair("role and checkpoint", "planner=runs/other@best"),
    multiple=True,
    help="Also with a role played by weights from elsewhere: RUN_DIR[@best|latest|N][:POLICY], or a folder "
    "that `coterie export` wrote (repeatable).",
)
@click.option(
    "--swap",
    metavar="ROLE=ROLE",
    type=Pair("two roles", "planner=executor"),
    help="Also with the policies of two roles exchanged.",
)
@click.option(
    "--null", metavar="ROLE", multiple=True, help="Also with a role that says nothing (repeatable)."
)
@click.option(
    "--out",
    metavar="FILE",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Write the JSON with every task's successes, too.",
)
@click.option("--show", metavar="N", type=click.IntRange(min=0), default=0, help="Print N episodes.")
@checkpoint_option
@scale_option
@json_option
@plugin_option
def command(
    source: str, words: tuple[str, ...], as_json: bool, show: int, out: Path | None, **options: Any
) -> None:
    """Evaluate a run's checkpoint, or the team that a recipe starts from.

    Prints mean success with its 95 % interval (a bootstrap over tasks), metrics, and what each role did.

    --policy, --swap and --null make a changed team, in this order. It plays the same tasks with the same
    draws, and what it does better or worse is told as a paired difference. Without @, a run in --policy is
    taken at the checkpoint that --checkpoint names.

    \b
        coterie eval runs/plan_path-20260101-120000 --samples 4 --json
        coterie eval runs/per_role-20260101-120000 --swap planner=executor
        coterie eval runs/per_role-20260101-120000 --null planner
        coterie eval runs/one --policy planner=runs/two@latest --policy executor=runs/three@120
    """
    from coterie.api.evaluate import evaluate as evaluate_source

    options["policies"] = _by_role(options["policies"])
    _check_writable(out)
    found = evaluate_source(source, overrides=overrides(words), show=show, **options)
    if out is not None:
        _write(found, out)
    if as_json:
        told = found.as_dict()
        print_json({**told, "episodes": list(found.episodes)} if show else told)
        return
    for episode in found.episodes:
        click.echo(episode + "\n")
    print_evaluation(found, options["split"])


def _by_role(pairs: tuple[tuple[str, str], ...]) -> dict[str, str]:
    found: dict[str, str] = {}
    for role, source in pairs:
        if role in found:
            raise UserError(
                f"'{role}' is given two policies: {found[role]} and {source}",
                path="--policy",
                fix="give each role one",
            )
        found[role] = source
    return found


def _check_writable(out: Path | None) -> None:
    """Before the evaluation, which may take hours."""
    if out is not None and not out.parent.is_dir():
        raise UserError(f"there is no folder {out.parent}", path="--out", fix="make it first")


def _write(found: TeamEvaluation, out: Path) -> None:
    try:
        found.write(out)
    except OSError as error:
        raise UserError(f"{out} can't be written", path="--out", why=str(error)) from error


def print_evaluation(found: TeamEvaluation, split: str) -> None:
    """For people: success first, then the rest in columns."""
    success = found.success.as_dict()
    click.echo(f"success  {interval(success)}  95 % interval over {success['n']:,} {split} tasks\n")
    _columns({name: value for name, value in found.metrics.items() if name != "success"})
    for role, values in found.roles.items():
        click.echo(f"\nrole {role}")
        _columns(values)
    if found.comparison is not None:
        print_comparison(found.comparison)
    click.echo(f"\nconfiguration {found.config_digest[:16]}")


def print_comparison(found: Comparison) -> None:
    """Both teams, and their paired difference."""
    changes = "; ".join(_told(change) for change in found.changes)
    click.echo(f"\n{changes}: paired by task")
    for name, one in (("base", found.base), ("changed", found.changed), ("difference", found.difference)):
        p = found.difference.as_dict()["p"] if name == "difference" else None
        tail = f"  p {p:.3g}" if p is not None else ""
        click.echo(f"  {name:<11}{interval(one.as_dict())}{tail}")
    differ = {task: value for task, value in found.per_task.items() if value}
    click.echo(f"  {len(differ)} of {len(found.per_task)} tasks differ" + (":" if differ else ""))
    for task, value in differ.items():
        click.echo(f"    {'+' if value > 0 else '-'}{share(abs(value)):<6}{task}")


def _told(change: Mapping[str, Any]) -> str:
    if change["change"] == "policy":
        return f"{change['role']} played by {change['policy']}"
    if change["change"] == "swap":
        return f"policies of {' and '.join(change['roles'])} swapped"
    return f"{change['role']} silent"


def _columns(values: Mapping[str, Any]) -> None:
    width = max((len(name) for name in values), default=0)
    for name, value in values.items():
        click.echo(f"  {name:<{width}}  {number(value)}")
