"""Comparison of a team with a changed one: external policies, two swapped policies, silent roles.

Both teams play the same tasks with the same keyed draws, so that the change alone causes the difference, and
the difference is paired by task. Of each task is kept what its episodes say besides success: for tables by
class, votes and comparisons.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal

from coterie.api.addresses import check_role
from coterie.api.at_k import AtK, at_k
from coterie.core.errors import ConfigError, PluginError, UserError
from coterie.core.plugins.origin import plugin_call
from coterie.core.storage.atomic import write_atomic
from coterie.core.storage.jsonl import to_json
from coterie.core.training.evaluation import Evaluation, evaluate
from coterie.core.training.run import Run
from coterie.core.types import Task, Tree
from coterie.core.types.digest import digest
from coterie.discovery.members import FingerprintsTasks, GivesFinalAnswers
from coterie.stats import Difference, Interval, clustered_bootstrap, paired_difference

log = logging.getLogger("coterie")


@dataclass(frozen=True, slots=True)
class Changes:
    """The changes that make the changed team, in this order: policies, then the swap, then silence."""

    policies: Mapping[str, str] = field(default_factory=dict)
    """role -> name of an external policy (`api/external_policies.py`)."""
    swap: tuple[str, str] | None = None
    """Two roles whose policies are exchanged."""
    null: Sequence[str] = ()
    """Silent roles: each of their actions is an empty message, and no token is generated."""

    def __bool__(self) -> bool:
        return bool(self.policies or self.swap or self.null)

    def as_list(self) -> list[dict[str, Any]]:
        """One entry for each change, in the order in which they are made."""
        changes: list[dict[str, Any]] = [
            {"change": "policy", "role": role, "policy": policy} for role, policy in self.policies.items()
        ]
        if self.swap is not None:
            changes.append({"change": "swap", "roles": list(self.swap)})
        return changes + [{"change": "null", "role": role} for role in self.null]

    def team(self, run: Run) -> dict[str, str | None]:
        """The changed team: role -> policy, None for a silent role.

        Raises:
            ConfigError: an unknown role, a swap within one policy, silence of all roles, or a change without
                effect.
        """
        self._check_roles(run)
        team: dict[str, str | None] = {**run.team.policies, **self.policies}
        if self.swap is not None:
            first, second = self.swap
            if team[first] == team[second]:
                raise ConfigError(
                    f"roles '{first}' and '{second}' are played by one policy, '{team[first]}'",
                    path="--swap",
                    why="swapping them changes nothing",
                    fix="swap roles of two policies",
                )
            team[first], team[second] = team[second], team[first]
        team |= dict.fromkeys(self.null)
        if not any(team.values()):
            raise ConfigError(
                "all roles are silenced",
                path="--null",
                why="a team in which every role is silent generates nothing",
                fix="leave one of them out",
            )
        swapped = dict([self.swap, self.swap[::-1]]) if self.swap is not None else {}
        for role in self.policies:
            if swapped.get(role, role) in self.null:
                raise ConfigError(
                    f"nothing uses the policy for '{role}'",
                    path="--policy",
                    why=f"'{swapped.get(role, role)}', which would be played by it, is silent",
                )
        if self.swap is not None and not any(team[role] for role in self.swap):
            raise ConfigError("the swap has no effect", path="--swap", why="both of its roles are silent")
        return team

    def _check_roles(self, run: Run) -> None:
        for option, roles in (("--swap", self.swap or ()), ("--null", self.null)):
            for role in roles:
                check_role(run, role, option)


@dataclass(frozen=True, slots=True)
class Comparison:
    """The team and a changed team on the same tasks and draws."""

    changes: Sequence[Mapping[str, Any]]
    """What was changed, in order: `change` is `policy`, `swap` or `null`."""
    team: Mapping[str, str | None]
    """role -> the policy that plays it in the changed team; None: the role is silent."""
    base: Interval
    changed: Interval
    difference: Difference
    """Changed minus base, paired by task."""
    per_task: Mapping[str, float]
    """task id -> mean success of the changed team minus the base team's."""
    changed_per_task: Mapping[str, Sequence[float]]
    """task id -> success of each sample of the changed team."""

    def as_dict(self) -> dict[str, Any]:
        return {
            "changes": [dict(change) for change in self.changes],
            "team": dict(self.team),
            "base": self.base.as_dict(),
            "changed": self.changed.as_dict(),
            "difference": self.difference.as_dict(),
            "per_task": dict(self.per_task),
        }


@dataclass(frozen=True, slots=True)
class EvaluatedTasks:
    """The tasks of an evaluation, those that no episode of which was finished among them."""

    contents: Mapping[str, str] = field(default_factory=dict)
    """task id -> a digest of the problem and its answer; empty: they can't be digested."""
    strata: Mapping[str, str] = field(default_factory=dict)
    """task id -> its class; empty: it has none."""
    outcomes: Mapping[str, Mapping[str, Sequence[float | None]]] = field(default_factory=dict)
    """outcome -> task id -> its value for each finished sample; None: it has none."""
    answers: Mapping[str, Sequence[str | None]] | None = None
    """task id -> the final answer of each finished sample; None: the environment gives none."""

    @property
    def classes(self) -> list[str]:
        """The strata, sorted; fewer than two are none."""
        names = sorted({stratum for stratum in self.strata.values() if stratum})
        return names if len(set(self.strata.values())) > 1 else []

    def as_dict(self) -> dict[str, Any]:
        """What the file of `coterie eval --out` has of them."""
        answers = {"answers": dict(self.answers)} if self.answers else {}
        strata = {"strata": dict(self.strata)} if any(self.strata.values()) else {}
        outcomes = {name: dict(values) for name, values in self.outcomes.items()}
        return {"contents": dict(self.contents), **strata, "outcomes": outcomes, **answers}


@dataclass(frozen=True, slots=True)
class TeamEvaluation(Evaluation):
    """An evaluation of a team, with episodes as text and a comparison where they were asked for."""

    episodes: Sequence[str] = ()
    comparison: Comparison | None = None
    at_k: Mapping[str, AtK] = field(default_factory=dict)
    """By name: `avg@n`, `pass@k`, and `majority@k` where the environment's episodes end with an answer."""
    by_category: Mapping[str, Mapping[str, AtK]] = field(default_factory=dict)
    """Of each class of tasks (`Task.stratum`), where there are several: `success`, and what `at_k` has."""
    tasks: EvaluatedTasks = field(default_factory=EvaluatedTasks, repr=False)

    @classmethod
    def of(
        cls,
        run: Run,
        evaluation: Evaluation,
        comparison: Comparison | None = None,
        *,
        show: int = 0,
        ks: Sequence[int] = (),
    ) -> TeamEvaluation:
        """The evaluation, whose trees become text and statistics of k samples.

        Args:
            evaluation: with its trees.
            show: number of tasks whose first episode is shown.
        """
        values = {field.name: getattr(evaluation, field.name) for field in fields(Evaluation)}
        samples, seed = evaluation.facts["samples"], run.config.seed
        shown = evaluation.trees[: show * samples : samples]
        tasks = evaluated_tasks(run, evaluation.trees)
        by_category = {}
        for name in tasks.classes:
            per_task = {id: of for id, of in evaluation.per_task.items() if tasks.strata[id] == name}
            success = AtK("success", clustered_bootstrap(per_task, seed=seed))
            rows = at_k(per_task, tasks.answers, ks, samples, seed=seed) if ks else {}
            by_category[name] = {"success": success, **rows}
        return cls(
            **{**values, "trees": ()},
            episodes=[episode_text(tree) for tree in shown],
            comparison=comparison,
            at_k=at_k(evaluation.per_task, tasks.answers, ks, samples, seed=seed) if ks else {},
            by_category=by_category,
            tasks=tasks,
        )

    def as_dict(self) -> dict[str, Any]:
        """The JSON of `coterie eval --json`."""
        result = Evaluation.as_dict(self)
        if self.at_k:
            result["at_k"] = {name: row.as_dict() for name, row in self.at_k.items()}
        if self.by_category:
            result["by_category"] = {
                category: {name: row.as_dict() for name, row in rows.items()}
                for category, rows in self.by_category.items()
            }
        return result if self.comparison is None else {**result, "comparison": self.comparison.as_dict()}

    def record(self) -> dict[str, Any]:
        """The JSON of `coterie eval --out`: also what every sample of a task was; those of the changed team
        are in the comparison."""
        result = {**self.as_dict(), "per_task": dict(self.per_task), **self.tasks.as_dict()}
        if self.comparison is not None:
            result["comparison"]["changed_per_task"] = dict(self.comparison.changed_per_task)
        return result

    def write(self, path: Path) -> None:
        """Write `record` as JSON.

        Raises:
            WriteError: the file can't be written; nothing of it is there.
        """
        write_atomic(path, to_json(self.record()) + "\n")


async def evaluate_team(
    run: Run,
    changes: Changes,
    split: Literal["train", "val", "test"],
    tasks: Sequence[Task],
    *,
    samples: int = 1,
    greedy: bool = False,
    show: int = 0,
    ks: Sequence[int] = (),
) -> TeamEvaluation:
    """Evaluate the team and, where there are changes, the changed team on the same tasks and draws.

    Returns:
        the evaluation of the unchanged team, with the `comparison` in it.

    Raises:
        ConfigError: changes that contradict each other or have no effect.
    """
    team = changes.team(run)
    base = await evaluate(run, split, tasks, samples=samples, greedy=greedy, keep=True)
    if not changes:
        return TeamEvaluation.of(run, base, show=show, ks=ks)
    changed = await evaluate(run, split, tasks, samples=samples, greedy=greedy, policies=team)
    common = [task for task in base.per_task if task in changed.per_task]
    unfinished = len(base.per_task.keys() | changed.per_task.keys()) - len(common)
    if unfinished:
        log.warning(
            "%d tasks were finished by one of the two teams only: the difference leaves them out", unfinished
        )
    try:
        difference = paired_difference(
            {task: changed.per_task[task] for task in common},
            {task: base.per_task[task] for task in common},
            seed=run.config.seed,
        )
    except ValueError as error:
        raise UserError(
            "the two teams can't be compared",
            why=str(error),
            fix="evaluate both on the same split with the same seed and number of tasks",
        ) from error
    return TeamEvaluation.of(
        run,
        base,
        Comparison(
            changes=changes.as_list(),
            team=team,
            base=base.success,
            changed=changed.success,
            difference=difference,
            per_task={task: _mean(changed.per_task[task]) - _mean(base.per_task[task]) for task in common},
            changed_per_task=changed.per_task,
        ),
        show=show,
        ks=ks,
    )


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def episode_text(tree: Tree) -> str:
    """One episode as text: every prompt and its answer."""
    lines = [f"task {tree.task.id}"]
    for path in tree.chains():
        for node, index in path:
            joint = node.joints[index]
            for role, branch in joint.branches.items():
                decision = node.decisions[role]
                prompt = "\n".join(message["content"] for message in decision.messages)
                lines.append(f"  turn {node.turn + 1}  {role} ({decision.policy or 'silent'})")
                lines += [f"    | {line}" for line in prompt.splitlines()]
                answer = decision.branches[branch].text.splitlines() or ["(nothing)"]
                lines += [f"    > {line}" for line in answer]
            if joint.fault is not None:
                lines.append(f"    ! {joint.fault.reason}")
        leaf = path[-1][0].joints[path[-1][1]]
        if leaf.outcome is not None:
            outcome = ", ".join(f"{name} {value:g}" for name, value in leaf.outcome.items())
            lines.append(f"  end: {outcome}")
        break
    return "\n".join(lines)


def evaluated_tasks(run: Run, trees: Sequence[Tree]) -> EvaluatedTasks:
    """The tasks of an evaluation's trees; samples are in the order of `Evaluation.per_task`.

    Raises:
        PluginError: the environment's `final_answer` returned neither a text nor None.
    """
    environment = run.environment
    voting = environment if isinstance(environment, GivesFinalAnswers) else None
    tasks = {tree.task.id: tree.task for tree in trees}
    outcomes: dict[str, dict[str, list[float | None]]] = {}
    answers: dict[str, list[str | None]] = {}
    for tree in trees:
        for path in tree.chains():
            node, index = path[-1]
            leaf, task = node.joints[index], tree.task
            if leaf.outcome is None or leaf.lost:
                continue
            for name, value in leaf.outcome.items():
                if name != "success":
                    number = float(value) if math.isfinite(value) else None
                    outcomes.setdefault(name, {}).setdefault(task.id, []).append(number)
            if voting is not None:
                answers.setdefault(task.id, []).append(_final_answer(voting, task, path))
    return EvaluatedTasks(
        contents={name: content_of(environment, task) for name, task in tasks.items()},
        strata={name: task.stratum for name, task in tasks.items()},
        outcomes=outcomes,
        answers=answers if voting is not None else None,
    )


def content_of(environment: Any, task: Task) -> str:
    """A digest (64 bits) of a task's problem and answer; empty: neither they nor a fingerprint can be had."""
    with suppress(TypeError):
        return digest((task.payload, task.answer))[:16]
    if isinstance(environment, FingerprintsTasks):
        with plugin_call(environment, "fingerprints"):
            return digest(environment.fingerprints(task)["content"])[:16]
    return ""


def _final_answer(environment: GivesFinalAnswers, task: Task, path: Sequence[tuple[Any, int]]) -> str | None:
    played = []
    for node, index in path:
        joint = node.joints[index]
        actions = {role: node.decisions[role].branches[branch] for role, branch in joint.branches.items()}
        played.append((actions, joint.info))
    with plugin_call(environment, "final_answer"):
        answer = environment.final_answer(task, played)
    if answer is not None and not isinstance(answer, str):
        raise PluginError(
            f"final_answer of {type(environment).__name__} returned {answer!r:.60}",
            why="answers are counted as texts",
            fix="return a text, or None where there is no answer",
        )
    return answer
