"""`coterie eval`: success with an interval, on tasks that chose no checkpoint."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from coterie import logs
from coterie.cli.interrupt import interruptible
from coterie.cli.options import (
    NumbersParam,
    check_file,
    json_option,
    layer_options,
    out_option,
    overwrite_option,
    plugin_option,
    sources_and_overrides,
    verbose_option,
)
from coterie.cli.output import columns, interval, number, print_json, share, table
from coterie.core.errors import UserError
from coterie.viewing.text import harmless

if TYPE_CHECKING:
    from coterie.api.at_k import AtK
    from coterie.api.compare import Comparison, TeamEvaluation


class PairParam(click.ParamType):
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


class CheckpointParam(click.ParamType):
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
    type=CheckpointParam(),
    default=None,
    show_default="best",
    help="Checkpoint of a run: the best on val, the latest, or that of step N.",
)


@click.command(short_help="Evaluate a run, or a recipe's untrained team.")
@click.argument(
    "arguments", metavar="RECIPE|FILE|RUN_DIR[@best|latest|N]... [KEY=VALUE]...", nargs=-1, required=True
)
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
@click.option(
    "--k",
    metavar="1,2,...",
    type=NumbersParam("numbers", "1,2,4"),
    help="Of pass@k and majority@k [powers of two up to --samples].",
)
@click.option("--greedy", is_flag=True, help="Take the likeliest token instead of sampling.")
@click.option(
    "--policy",
    "policies",
    metavar="ROLE=CHECKPOINT",
    type=PairParam("role and checkpoint", "planner=runs/other@best"),
    multiple=True,
    help="Also evaluate with an external policy in a role: RUN_DIR[@best|latest|N][:POLICY], or a folder "
    "that `coterie export` wrote (repeatable).",
)
@click.option(
    "--swap",
    metavar="ROLE=ROLE",
    type=PairParam("two roles", "planner=executor"),
    help="Also evaluate with the policies of two roles exchanged.",
)
@click.option("--null", metavar="ROLE", multiple=True, help="Also evaluate with a silent role (repeatable).")
@out_option("FILE", more="the JSON, with the successes of every task", dir_okay=False)
@overwrite_option
@click.option("--show", metavar="N", type=click.IntRange(min=0), default=0, help="Print N episodes.")
@checkpoint_option
@layer_options
@json_option
@verbose_option
@plugin_option
def command(
    arguments: tuple[str, ...],
    as_json: bool,
    show: int,
    out: Path | None,
    overwrite: bool,
    **options: Any,
) -> None:
    """Evaluate a run's checkpoint, or a recipe's untrained team; several of them in one table.

    Prints mean success with its 95 % interval over tasks, the metrics, those of each role, and success by
    category where tasks have one. With --samples it adds, each with an interval: avg@n, the mean over
    samples; pass@k, the best of k; and majority@k, the answer of most of k, where episodes end with one.

    --policy, --swap and --null make a changed team, in this order. It plays the same tasks with the same
    draws, and the command prints the paired difference of the two teams. A run that --policy names without @
    is loaded from the checkpoint that --checkpoint names. `coterie compare` compares runs.

    \b
        coterie eval runs/plan_path-20260101-120000 --samples 4 --json
        coterie eval runs/plan_path-20260101-120000@40
        coterie eval runs/one runs/two runs/three@latest --samples 8 --k 1,8 seed=0
        coterie eval runs/per_role-20260101-120000 --swap planner=executor
        coterie eval runs/per_role-20260101-120000 --null planner
        coterie eval runs/one --policy planner=runs/two@latest --policy executor=runs/three@120
    """
    sources, settings = sources_and_overrides(arguments)
    options["policies"] = _by_role(options["policies"])
    if len(sources) > 1:
        _check_alone(sources, options, show)
    check_file(out, overwrite)
    evaluations = [_evaluate(source, settings, show, options) for source in sources]
    if out is not None:
        _write(out, sources, evaluations)
    if len(sources) > 1:
        pairs = list(zip(sources, evaluations, strict=True))
        if as_json:
            print_json({"evaluations": [{"source": source, **each.as_dict()} for source, each in pairs]})
        else:
            print_several(dict(pairs), options["split"])
        return
    (evaluation,) = evaluations
    if as_json:
        result = evaluation.as_dict()
        print_json({**result, "episodes": list(evaluation.episodes)} if show else result)
        return
    for episode in evaluation.episodes:
        click.echo(harmless(episode) + "\n")
    print_evaluation(evaluation, options["split"])


def _evaluate(
    source: str, settings: tuple[str, ...], show: int, options: Mapping[str, Any]
) -> TeamEvaluation:
    from coterie.api.evaluate import evaluate, run_folder

    kept = logs.kept_for_now() if run_folder(source) is None else nullcontext()
    with interruptible(at_once=True), kept:
        return evaluate(source, overrides=settings, show=show, **options)


def _check_alone(sources: Sequence[str], options: Mapping[str, Any], show: int) -> None:
    """Refuse what is of one source where there are several."""
    if len(set(sources)) < len(sources):
        raise UserError("a source is named twice", why="it would be evaluated twice", fix="name it once")
    given = {"--policy": options["policies"], "--swap": options["swap"], "--null": options["null"]}
    for option, value in {**given, "--show": show}.items():
        if value:
            why = f"{len(sources)} sources make one table"
            raise UserError("this is for one source", path=option, why=why, fix="evaluate one at a time")


def _write(out: Path, sources: Sequence[str], evaluations: Sequence[TeamEvaluation]) -> None:
    """Write the evaluation, or several of them with their sources."""
    from coterie.core.storage.atomic import write_atomic
    from coterie.core.storage.jsonl import to_json

    if len(evaluations) == 1:
        evaluations[0].write(out)
        return
    records = [{"source": s, **each.record()} for s, each in zip(sources, evaluations, strict=True)]
    write_atomic(out, to_json({"evaluations": records}) + "\n")


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


# ------------------------------------------------------------------------------------------------- for people


def print_evaluation(evaluation: TeamEvaluation, split: str) -> None:
    """Print an evaluation for people: success first, then the other metrics in columns."""
    success = evaluation.success.as_dict()
    click.echo(f"success  {interval(success)}  95 % interval over {success['n']:,} {split} tasks\n")
    if evaluation.at_k:
        few = "tasks with fewer finished samples left out"
        rows = [
            (name, interval(row.as_dict()), f"{row.left_out} {few}" if row.left_out else "")
            for name, row in evaluation.at_k.items()
        ]
        click.echo(columns(rows, indent=2) + "\n")
    _print_values({name: value for name, value in evaluation.metrics.items() if name != "success"})
    for role, values in evaluation.roles.items():
        click.echo(f"\nrole {role}")
        _print_values(values)
    if evaluation.by_category:
        click.echo(f"\n{categories(evaluation)}")
    if evaluation.comparison is not None:
        print_comparison(evaluation.comparison)
    click.echo(f"\nconfiguration {evaluation.config_digest[:16]}{_facts(evaluation.facts)}")


def categories(evaluation: TeamEvaluation) -> str:
    """Success, and what there is of k samples, by class of tasks."""
    rows = [
        (category, f"{row['success'].interval.n:,}", *(interval(each.as_dict()) for each in row.values()))
        for category, row in evaluation.by_category.items()
    ]
    return table(("category", "tasks", *next(iter(evaluation.by_category.values()))), rows)


def print_several(evaluations: Mapping[str, TeamEvaluation], split: str) -> None:
    """Print several evaluations in one table, and those of each category in others.

    Columns are those that any of them has.
    """
    from coterie.api.at_k import AtK

    names = list(dict.fromkeys(name for each in evaluations.values() for name in each.at_k))
    rows = []
    for source, each in evaluations.items():
        cells = {"success": AtK("success", each.success), **each.at_k}
        rows.append((source, f"{each.success.n:,}", *_cells(cells, ["success", *names])))
    click.echo(f"95 % intervals over {split} tasks\n")
    click.echo(table(("source", "tasks", "success", *names), rows))
    classes = sorted({category for each in evaluations.values() for category in each.by_category})
    for category in classes:
        rows = [
            (source, f"{row['success'].interval.n:,}", *_cells(row, ["success", *names]))
            for source, each in evaluations.items()
            if (row := each.by_category.get(category))
        ]
        click.echo(f"\n{harmless(category) or 'no category'}")
        click.echo(table(("source", "tasks", "success", *names), rows))
    played = {source: each.tasks.contents for source, each in evaluations.items()}
    first = next(iter(played.values()))
    others = [source for source, contents in played.items() if contents != first]
    if others:
        seeds = ", ".join(f"{source}: seed {each.facts['seed']}" for source, each in evaluations.items())
        click.echo(f"\nnot on the same tasks ({seeds}); with a setting such as seed=0 they are", err=True)


def _cells(row: Mapping[str, AtK], names: Sequence[str]) -> list[str]:
    return [interval(row[name].as_dict()) if name in row else "-" for name in names]


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
