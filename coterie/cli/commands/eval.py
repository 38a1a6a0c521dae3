"""`coterie eval`: success with an interval, on tasks that no checkpoint was chosen on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from coterie.cli.show import interval, number, print_json, share
from coterie.cli.words import json_option, overrides, plugin_option, scale_option
from coterie.core.errors import UserError

if TYPE_CHECKING:
    from coterie.core.evaluation import Evaluation


class Pair(click.ParamType):
    """`role=role`."""

    name = "pair"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, str] | None:
        if isinstance(value, tuple):
            return value
        one, _, other = value.partition("=")
        if not one or not other:
            raise UserError(
                f"'{value}' names no two roles", path="--swap", mend="e.g. --swap planner=executor"
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
    "--swap", metavar="ROLE=ROLE", type=Pair(), help="Also with the policies of two roles exchanged, paired."
)
@click.option("--show", metavar="N", type=click.IntRange(min=0), default=0, help="Print N episodes.")
@checkpoint_option
@scale_option
@json_option
@plugin_option
def command(source: str, words: tuple[str, ...], as_json: bool, show: int, **options: Any) -> None:
    """Evaluate a run's checkpoint, or the team that a recipe starts from.

    Prints mean success with its 95 % interval (a bootstrap over tasks), metrics, and what each role did.

    \b
        coterie eval runs/plan_path-20260101-120000 --samples 4 --json
        coterie eval runs/per_role-20260101-120000 --swap planner=executor
    """
    from coterie.core import api

    found = api.evaluate(source, overrides=overrides(words), show=show, **options)
    if as_json:
        told = found.as_dict()
        print_json({**told, "episodes": list(found.episodes)} if show else told)
        return
    for episode in found.episodes:
        click.echo(episode + "\n")
    print_evaluation(found, options["split"])


def print_evaluation(found: Evaluation, split: str) -> None:
    """For people: success first, then the rest in columns."""
    success = found.success.as_dict()
    click.echo(f"success  {interval(success)}  95 % interval over {success['n']:,} {split} tasks\n")
    _columns({name: value for name, value in found.metrics.items() if name != "success"})
    for role, values in found.roles.items():
        click.echo(f"\nrole {role}")
        _columns(values)
    if found.swap is not None:
        print_swap(found.swap)
    click.echo(f"\nconfiguration {found.config_digest[:16]}")


def print_swap(swap: Mapping[str, Any]) -> None:
    """Base and swapped team, and their paired difference."""
    one, other = swap["roles"]
    click.echo(f"\npolicies of {one} and {other} swapped, paired by task")
    for name in ("base", "swapped", "difference"):
        tail = ""
        if name == "difference":
            p = swap.get("p", swap[name].get("p"))
            tail = f"  p {p:.3g}" if p is not None else ""
        click.echo(f"  {name:<11}{interval(swap[name])}{tail}")
    changed = {task: value for task, value in swap["per_task"].items() if value}
    click.echo(f"  {len(changed)} of {len(swap['per_task'])} tasks differ" + (":" if changed else ""))
    for task, value in changed.items():
        click.echo(f"    {'+' if value > 0 else '-'}{share(abs(value)):<6}{task}")


def _columns(values: Mapping[str, Any]) -> None:
    width = max((len(name) for name in values), default=0)
    for name, value in values.items():
        click.echo(f"  {name:<{width}}  {number(value)}")
