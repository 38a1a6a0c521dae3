"""`coterie.compare`: evaluate what isn't yet, check that all of it is of the same tasks, compare."""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from coterie.analysis.comparison.report import ComparisonReport, SideValues, compared, summary
from coterie.analysis.comparison.sources import Recorded, Side, sides_of
from coterie.api.compare import TeamEvaluation
from coterie.api.evaluate import evaluate, run_folder
from coterie.api.run_record import configuration_digest, recorded_settings
from coterie.core.errors import UserError
from coterie.recipes import load

log = logging.getLogger("coterie")


def compare(
    *sides: Any,
    metric: str = "success",
    split: Literal["val", "test"] | None = None,
    tasks: int | None = None,
    samples: int | None = None,
    greedy: bool | None = None,
    overrides: Sequence[str] = (),
    all_pairs: bool = False,
    common: bool = False,
    evaluated: Callable[..., TeamEvaluation] = evaluate,
) -> ComparisonReport:
    """Compare runs or evaluations, paired by task.

    Runs are evaluated first, all on the tasks and with the draws of one seed: that of the first run or file.

    Args:
        sides: each `[NAME=]SOURCE[,SOURCE...]`, a path, an evaluation, or a list of those; or one mapping of
            names to them. A SOURCE is a file of `coterie eval --out`, a run's folder, with `@best`, `@latest`
            or `@STEP` if you like, a folder of runs, or a recipe. Several sources are seeds of one side.
        metric: `success`, or an outcome of the environment.
        split: as of `evaluate`, for runs; by default as of the first file, and so are the next three.
        tasks: as of `evaluate`.
        samples: as of `evaluate`.
        greedy: as of `evaluate`.
        overrides: settings as `key=value`, for the evaluation of runs.
        all_pairs: compare every pair; else every side with the first.
        common: compare the tasks that all have, where some have others.
        evaluated: called as `evaluate` is.

    Returns:
        the sides' means, and the differences: the later side minus the earlier one.

    Raises:
        UserError: the sides aren't of the same tasks and split, a side's runs aren't seeds of one
            configuration, one lacks the metric, or what `evaluate` raises.
    """
    named = sides_of(sides)
    play = _settings(named, {"split": split, "tasks": tasks, "samples": samples, "greedy": greedy}, overrides)
    for side in named:
        _check_seeds(side.name, [_known(source) for source in side.sources])
    recorded = {side.name: [_recorded(source, play, evaluated) for source in side.sources] for side in named}
    every = [each for seeds in recorded.values() for each in seeds]
    remarks = [*_check_same(every, common), *_warn_of_seeds(recorded)]
    values, left_out = _common_values(recorded, metric)
    remarks += left_out + _of_one_run(values)
    every_value = (v for side in values for of in side.seeds for given in of.values() for v in given)
    share = metric == "success" or all(0 <= value <= 1 for value in every_value)
    results = compared(values, _strata(every), share, all_pairs=all_pairs)
    say = "the interval leaves 0 out and the test doesn't show it; of few tasks, the test is the stricter"
    remarks += [f"{each.second} - {each.first}: {say}" for each in results if each.only_by_interval]
    return ComparisonReport(
        metric=metric,
        split=str(every[0].table.get("split", "")),
        tasks=len(values[0].seeds[0]),
        sides={side.name: summary(side, share) for side in values},
        comparisons=results,
        notes=remarks,
        per_task={side.name: _means(side, sorted(values[0].seeds[0])) for side in values},
    )


def _settings(sides: Sequence[Side], given: Mapping[str, Any], overrides: Sequence[str]) -> dict[str, Any]:
    """How runs are evaluated: as is asked for, else as the first file was, else as `coterie eval` does."""
    sources = [source for side in sides for source in side.sources]
    first = next((source.table for source in sources if isinstance(source, Recorded)), {})
    like_file = {name: first[name] for name in ("split", "samples", "greedy") if name in first}
    like_file |= {"tasks": len(first["per_task"] | first.get("contents", {}))} if first else {}
    play: dict[str, Any] = {"split": "test", **like_file}
    play |= {name: value for name, value in given.items() if value is not None}
    if not any(text.partition("=")[0] == "seed" for text in overrides):
        seed = first.get("seed") if first else _seed_of(sources[0])
        overrides = (*overrides, *(() if seed is None else (f"seed={seed}",)))
    return {**play, "overrides": overrides}


def _seed_of(source: str | Recorded) -> int | None:
    folder = run_folder(source) if isinstance(source, str) else None
    return None if folder is None else int(recorded_settings(folder).get("seed", 0))


def _recorded(
    source: str | Recorded, play: Mapping[str, Any], evaluated: Callable[..., TeamEvaluation]
) -> Recorded:
    return source if isinstance(source, Recorded) else Recorded(source, evaluated(source, **play).record())


def _known(source: str | Recorded) -> Recorded:
    """What is known of a run before it is evaluated: its seed and its configuration."""
    folder = run_folder(source) if isinstance(source, str) else None
    if folder is None:
        if isinstance(source, Recorded):
            return source
        load(source)  # an unknown recipe is refused before anything is played
        return Recorded(source, {})
    settings = recorded_settings(folder)
    known = {"run_seed": settings.get("seed", 0), "configuration": configuration_digest(settings)}
    return Recorded(str(source), known)


def _check_seeds(name: str, seeds: Sequence[Recorded]) -> None:
    """Refuse a side whose evaluations aren't of seeds of one configuration."""
    of: dict[int, Recorded] = {}
    for each in seeds:
        other = of.setdefault(each.seed, each) if each.seed is not None else each
        if other is not each:
            why = f"{other.label} and {each.label} have the seed {each.seed} both, and a seed counts once"
            raise UserError(f"{name}: two runs of one seed", why=why, fix="leave one out")
    kinds = {each.table["configuration"]: each.label for each in seeds if "configuration" in each.table}
    if len(kinds) > 1:
        why = f"{' and '.join(list(kinds.values())[:2])} differ in more than their seed"
        fix = "make them two sides; `coterie plot` shows in which settings they differ"
        raise UserError(f"{name} is not one configuration", why=why, fix=fix)


def _check_same(every: Sequence[Recorded], common: bool) -> list[str]:
    """Refuse evaluations that aren't of the same tasks; notes where that isn't known, or partly so."""
    first, unknown = every[0], [each.label for each in every if not each.contents]
    for each in every[1:]:
        if each.table.get("split") != first.table.get("split"):
            why = f"{first.label} is of {first.table.get('split')}, {each.label} of {each.table.get('split')}"
            raise UserError("different splits", why=why, fix="evaluate both on one split: --split")
        shared = first.played & each.played
        if first.played != each.played and (not common or not shared):
            raise _different_tasks(first, each, len(shared))
        both = first.contents.keys() & each.contents.keys()
        changed = sorted(task for task in both if first.contents[task] != each.contents[task])
        if changed:
            why = f"{len(changed)} tasks have another content in {each.label}, such as '{changed[0]}'"
            fix = "evaluate both with the same seed and the same data: coterie eval RUN seed=0 -o FILE"
            raise UserError(f"{first.label} and {each.label} are of other tasks", why=why, fix=fix)
        if not both:
            _check_data(first, each)
    if not unknown:
        return []
    more = f" and {len(unknown) - 1} more" if len(unknown) > 1 else ""
    say = f"{unknown[0]}{more} {'do' if more else 'does'} not say what the tasks hold"
    return [f"{say}: equal names are taken for equal tasks"]


def _different_tasks(first: Recorded, second: Recorded, shared: int) -> UserError:
    parts = [
        f"only {each.label} has {len(alone)}, such as '{min(alone)}'"
        for each, alone in ((first, first.played - second.played), (second, second.played - first.played))
        if alone
    ]
    fix = "evaluate both with the same --tasks and --split"
    return UserError(
        f"{first.label} and {second.label} have different tasks ({shared} are common)",
        why=f"{'; '.join(parts)}; a difference compares each task with itself",
        fix=f"{fix}, or compare the common ones: --common" if shared > 1 else fix,
    )


def _check_data(first: Recorded, second: Recorded) -> None:
    """Refuse evaluations whose environments read other files."""
    a, b = (
        {
            name: entry.get("sha256")
            for name, entry in (each.table.get("files") or {}).items()
            if name[:4] == "env."
        }
        for each in (first, second)
    )
    changed = [name for name in a.keys() & b.keys() if a[name] != b[name]]
    if changed:
        why = f"{changed[0]} names another content"
        raise UserError(
            f"{first.label} and {second.label} are of other tasks", why=why, fix="use the same data"
        )


def _common_values(
    recorded: Mapping[str, Sequence[Recorded]], metric: str
) -> tuple[list[SideValues], list[str]]:
    """The values of the tasks that all have a value of; a note says how many others are left out.

    Raises:
        UserError: there are fewer than two such tasks.
    """
    values = {name: [each.values(metric) for each in seeds] for name, seeds in recorded.items()}
    every = [of for seeds in values.values() for of in seeds]
    ids = set(every[0]).intersection(*every[1:])
    if len(ids) < 2:
        what = "there is no common task" if not ids else f"there is one common task, '{min(ids)}'"
        why = f"a spread over tasks needs two tasks with a value of '{metric}' on every side"
        raise UserError(what, why=why, fix="evaluate more tasks")
    count = len({task for each in (e for seeds in recorded.values() for e in seeds) for task in each.played})
    notes = []
    if count > len(ids):
        notes = [
            f"{count - len(ids)} of {count} tasks have no value of '{metric}' on some side, and are left out"
        ]
    return [
        SideValues(name, [each.label for each in recorded[name]], [{t: of[t] for t in ids} for of in seeds])
        for name, seeds in values.items()
    ], notes


def _warn_of_seeds(recorded: Mapping[str, Sequence[Recorded]]) -> list[str]:
    """A note where two sides differ in their seed alone."""
    notes: list[str] = []
    of: dict[Any, str] = {}
    for name, seeds in recorded.items():
        configuration = seeds[0].table.get("configuration")
        other = of.setdefault(configuration, name)
        alike = configuration is not None and other != name
        if alike and {each.seed for each in seeds}.isdisjoint(each.seed for each in recorded[other]):
            notes.append(
                f"{other} and {name} differ in their seed alone: as seeds they are one side, A={other},{name}"
            )
    return notes


def _of_one_run(values: Sequence[SideValues]) -> list[str]:
    single = [side.name for side in values if len(side.seeds) == 1]
    if len(single) == len(values):
        return ["each side is one run: the intervals say nothing of other seeds"]
    return [f"{name} is one run: the intervals take it as it is, without other seeds" for name in single]


def _strata(every: Sequence[Recorded]) -> dict[str, str]:
    """task id -> its class: the one that most evaluations give it."""
    known: dict[str, Counter[str]] = {}
    for each in every:
        for task, stratum in each.strata.items():
            known.setdefault(task, Counter())[stratum] += 1
    return {task: counts.most_common(1)[0][0] for task, counts in known.items()}


def _means(side: SideValues, tasks: Sequence[str]) -> dict[str, float]:
    return {
        task: math.fsum(math.fsum(of[task]) / len(of[task]) for of in side.seeds) / len(side.seeds)
        for task in tasks
    }
