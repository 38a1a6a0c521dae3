"""A recorded step played again: its jobs, trees and scores, its credit, and the estimator's next state."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from coterie.analysis.recorded_engine import codecs_of
from coterie.analysis.replay.differences import Mismatch, compare_rows, differing_state, mismatch_of
from coterie.analysis.replay.side import PlayedTree, ReplaySide, divided
from coterie.api.episodes import Row, TreeId, tree_id
from coterie.api.open_run import to_its_end
from coterie.api.rollouts import as_read, rollout_rows, step_row
from coterie.compose.builder import ComponentBuilder
from coterie.core.errors import UserError
from coterie.core.plugins.origin import plugin_call
from coterie.core.protocols import AdvantageEstimator, Batch, Codec, NamedRewardSource, RolloutJob
from coterie.core.rollout.contracts import check_credit
from coterie.core.storage.jsonl import to_json
from coterie.core.training.run import Run
from coterie.core.types import Annotations, Credit, Key, Scores, Tree
from coterie.watchdog import watching


@dataclass(slots=True)
class PlayedStep:
    """A step that was played again."""

    step: int
    batch: Batch
    """The estimator's input."""
    credit: Credit | None
    """None: the estimator could not be run."""
    state: Any
    """The estimator's before the step, as recorded."""
    after: Any
    """The estimator's after the step."""
    differences: list[Mismatch] = field(default_factory=list)
    sources: Sequence[str] = ()
    """Reward sources whose scores were taken from the record."""
    feedback: bool = False
    """Whether the prompts after the transition mode's feedback were."""
    unread: Sequence[str] = ()
    """Policies without a tokenizer here."""
    tool_results: int = 0
    annotated: int = 0
    """Branches with annotations."""
    other_scores: Scores | None = None
    """With the scores of the sources that scored beside the run's in their place; None: there were none."""
    lost: int = 0
    """Joint actions that a system fault had lost: recorded, since nothing played can repeat it."""


def play_step(
    run: Run,
    step: int,
    rows: Sequence[Row],
    again: Collection[str] = (),
    beside: Sequence[NamedRewardSource] = (),
) -> PlayedStep:
    """Play a recorded step again and compare.

    Args:
        run: composed for this replay: its components are changed.
        rows: of the step's file, its first of kind `step`.
        beside: reward sources that score beside those of the run with their names.

    Raises:
        UserError: the environment runs programs, and the record has no results of them.
    """
    head, recorded = rows[0], list(rows[1:])
    jobs, differences = jobs_of(run, step, recorded)
    codecs, unread = codecs_of(run, recorded)
    side = ReplaySide.make(run, recorded, codecs, head.get("answers", {}), again, beside)
    played = to_its_end(watching(run.config.schedule.patience, side.play(jobs)))
    if side.unanswered:
        raise UserError(
            f"step {step} ran programs, and its record has no results of {len(side.unanswered)} of them",
            why="an environment that steps with results of a sandbox needs them to play again",
            fix="--again sandbox runs them again",
        )
    batch, other = _batch(run, played, recorded, beside)
    credit, after, failed = _credited(run, batch, head["state"])
    broken = [(_tree_of(each.job), "play", "played to its end", each.error) for each in played if each.error]
    differences += [*compare_head(step, head, run), *(_of_tree(step, *of) for of in broken)]
    differences += _compared(step, recorded, played, batch, credit, side)
    if failed:
        differences.append(Mismatch(step=step, field="estimator", recorded="credit", replayed=failed))
    if not differences:
        differences += _ends(step, recorded, run, codecs)
    return PlayedStep(
        step=step,
        batch=batch,
        credit=credit,
        state=head["state"],
        after=after,
        differences=differences,
        sources=side.sources,
        feedback=side.feedback,
        unread=unread,
        tool_results=sum(len(row["tool_results"]) for row in recorded if row["kind"] == "branch"),
        annotated=sum(bool(row["annotations"]) for row in recorded if row["kind"] == "branch"),
        other_scores=other,
        lost=len(side.lost),
    )


def jobs_of(run: Run, step: int, rows: Sequence[Row]) -> tuple[list[RolloutJob], list[Mismatch]]:
    """The jobs of a step, and the first tree that the step's record has and its jobs haven't.

    The level of a curriculum is read off the ids of the recorded tasks; versions of weights are not needed.
    """
    level = _level(run, rows)
    tasks = run.orders[level or 0].step(step - 1, run.config.schedule.tasks_per_step)
    jobs = [
        RolloutJob(task=task, epoch=epoch, chain=chain, level=level)
        for task, epoch in tasks
        for chain in range(run.sampler.plan.chains)
    ]
    known = list(dict.fromkeys(map(tree_id, rows)))
    wanted = [_tree_of(job) for job in jobs]
    if set(known) == set(wanted):  # rows that stand elsewhere are told of as such
        return jobs, []
    for at in range(max(len(known), len(wanted))):
        left = known[at] if at < len(known) else None
        right = wanted[at] if at < len(wanted) else None
        if left != right and (left not in wanted or right not in known):
            mismatch = _of_tree(step, left or right, "task", _tree_text(left), _tree_text(right))
            return [job for job in jobs if _tree_of(job) in known], [mismatch]
    return jobs, []


def _level(run: Run, rows: Sequence[Row]) -> int | None:
    if run.curriculum is None:
        return None
    names = {row["task_id"] for row in rows}
    fitting = [
        (len(level.suffix), index)
        for index, level in enumerate(run.curriculum.levels)
        if all(name.endswith(level.suffix) for name in names)
    ]
    return max(fitting)[1] if fitting else 0


def compare_head(step: int, head: Row, run: Run) -> list[Mismatch]:
    """The differences of the row of kind `step`, but for the estimator's state."""
    made = as_read(step_row(step, run.reward_weights, head["state"]))
    names = ("step", "weights", "team_weight", "kinds")
    return [
        mismatch for name in names for mismatch in differing_state(step, name, head.get(name), made[name])
    ]


def as_json(state: Any) -> Any:
    """An estimator's state as a row or a checkpoint has it."""
    return json.loads(to_json({"state": state}))["state"]


def _batch(
    run: Run, played: Sequence[PlayedTree], rows: Sequence[Row], beside: Sequence[NamedRewardSource]
) -> tuple[Batch, Scores | None]:
    """The estimator's input, and `PlayedStep.other_scores`."""
    scores, other = Scores(), None
    trees = [each.tree for each in played if each.tree is not None]
    for each in played:
        if each.tree is not None:
            scores.merge(each.scores)
    if beside:
        components = {name for source in beside for name in source.plugin.components}
        scores, other = divided(scores, components)
    batch = Batch(
        trees=trees,
        scores=scores,
        annotations=annotations_of(trees, rows),
        reward_weights=run.reward_weights,
    )
    return batch, other


def _compared(
    step: int,
    recorded: Sequence[Row],
    played: Sequence[PlayedTree],
    batch: Batch,
    credit: Credit | None,
    side: ReplaySide,
) -> list[Mismatch]:
    """The differences of the rows, but for those of trees that couldn't be played to their end."""
    weights, annotations = batch.reward_weights, batch.annotations
    made = rollout_rows(batch.trees, batch.scores, credit, weights, annotations=annotations)
    broken = {_tree_of(each.job) for each in played if each.tree is None}
    kept = [row for row in recorded if tree_id(row) not in broken] if broken else recorded
    return compare_rows(step, kept, [as_read(row) for row in made], _exempt(side, recorded))


def annotations_of(trees: Sequence[Tree], rows: Sequence[Row]) -> Annotations:
    """The recorded per-token arrays by branch key, in the dtype that they had."""
    of_branch = {
        (row["node"], row["role"], row["branch"]): row["annotations"]
        for row in rows
        if row["kind"] == "branch" and row["annotations"]
    }
    table: Annotations = {}
    for tree in trees if of_branch else ():
        for node in tree.nodes():
            text = node.key.text()
            for role, decision in node.decisions.items():
                for branch in range(len(decision.branches)):
                    for name, values in of_branch.get((text, role, branch), {}).items():
                        key: Key = node.key.of_branch(role, branch)
                        table.setdefault(name, {})[key] = _array(values)
    return table


def _array(values: Sequence[float | None]) -> np.ndarray:
    wide = np.array([np.nan if value is None else value for value in values], dtype=np.float64)
    narrow = wide.astype(np.float32)
    return narrow if np.array_equal(narrow, wide, equal_nan=True) else wide


def new_estimator(run: Run) -> AdvantageEstimator:
    """The estimator of a run, made anew: one that keeps something on itself from step to step, and not in its
    state, gives other credit than in the run, as it would after a resume."""
    made: AdvantageEstimator = ComponentBuilder(run.config).make(
        "estimator", run.config.algorithm, "algorithm"
    )
    with plugin_call(made, "check"):
        made.check(run.sampler.plan, run.team)
    return made


def _credited(run: Run, batch: Batch, state: Any) -> tuple[Credit | None, Any, str]:
    """Credit, the next state, and why there is none."""
    try:
        estimator = new_estimator(run)
        with plugin_call(estimator, "__call__"):
            returned = estimator(batch, state)
        check_credit(estimator, returned, batch.trees)
    except Exception as error:  # a record that was changed may break any estimator
        return None, None, f"{type(error).__name__}: {error}"
    credit, after = returned
    return credit, as_json(after), ""


def _exempt(side: ReplaySide, rows: Sequence[Row]) -> Any:
    """Whether a field of a row is taken from the record."""
    silent = {
        (row["node"], row["role"])
        for row in rows
        if row["kind"] == "branch"
        and not row["calls"]
        and ": tell raised" in (row["fault"] or {}).get("reason", "")
    }

    def exempt(row: Row, name: str) -> bool:
        if row["kind"] == "branch":
            return side.feedback and name.startswith("calls[") and ".prompt_ids" in name
        later = side.feedback and not row["node"].endswith("/n")
        return (
            row["kind"] == "node"
            and name.startswith("prompt")
            and (later or (row["node"], row["role"]) in silent)
        )

    return exempt


def _ends(step: int, rows: Sequence[Row], run: Run, codecs: Mapping[str, Codec]) -> Iterator[Mismatch]:
    """Calls that say how they ended, and whose last token is another one than that says."""
    for row in rows:
        stops = codecs[row["policy"]].stop_ids if row["kind"] == "branch" and row["calls"] else None
        if not stops or run.sampler.sampling(row["role"]).stop:
            continue
        for index, call in enumerate(row["calls"]):
            last, name = call["token_ids"][-1:], f"calls[{index}]"
            if call["finish"] == "stop" and (not last or last[0] not in stops):
                where, sides = f"{name}.token_ids[{len(call['token_ids']) - 1}]", (last, "a token that stops")
            elif call["finish"] == "length" and last and last[0] in stops:
                where, sides = f"{name}.finish", ("length", "stop")
            elif call["finish"] not in ("stop", "length", "abort"):
                where, sides = f"{name}.finish", (call["finish"], "stop, length or abort")
            else:
                continue
            yield mismatch_of(step, row, where, *sides, {})


def _of_tree(step: int, tree: TreeId | None, field: str, recorded: str, replayed: str) -> Mismatch:
    task, epoch, chain = tree or ("", 0, 0)
    return Mismatch(
        step=step, field=field, recorded=recorded, replayed=replayed, task=task, epoch=epoch, chain=chain
    )


def _tree_of(job: RolloutJob) -> TreeId:
    return job.task.id, job.epoch, job.chain


def _tree_text(tree: TreeId | None) -> str:
    return "nothing" if tree is None else f"task {tree[0]} (epoch {tree[1]}, chain {tree[2]})"
