"""`coterie eval`: success with an interval, on tasks that chose no checkpoint."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from coterie import logs
from coterie.cli.evaluation_tables import print_evaluation, print_several
from coterie.cli.interrupt import interruptible
from coterie.cli.options import (
    json_option,
    layer_options,
    out_option,
    plugin_option,
    sources_and_overrides,
    verbose_option,
)
from coterie.cli.output import print_json
from coterie.core.errors import UserError
from coterie.viewing.text import harmless

if TYPE_CHECKING:
    from coterie.api.compare import TeamEvaluation


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


class Ks(click.ParamType):
    """Values of k as `1,2,4`."""

    name = "ks"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not isinstance(value, str):
            return value
        try:
            return tuple(int(part) for part in value.split(","))
        except ValueError:
            self.fail(f"'{value}' is no list of numbers; e.g. 1,2,4", param, ctx)


checkpoint_option = click.option(
    "--checkpoint",
    metavar="best|latest|N",
    type=Checkpoint(),
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
    type=Ks(),
    help="Of pass@k and majority@k [powers of two up to --samples].",
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
    _check_writable(out, overwrite)
    evaluations = [_evaluate(source, settings, show, options) for source in sources]
    if out is not None:
        _write(out, sources, evaluations)
    if len(sources) > 1:
        _show_several(sources, evaluations, options["split"], as_json)
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


def _show_several(
    sources: Sequence[str], evaluations: Sequence[TeamEvaluation], split: str, as_json: bool
) -> None:
    if as_json:
        pairs = zip(sources, evaluations, strict=True)
        print_json({"evaluations": [{"source": source, **each.as_dict()} for source, each in pairs]})
        return
    print_several(dict(zip(sources, evaluations, strict=True)), split)


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
