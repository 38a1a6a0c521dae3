"""What an evaluation's episodes say of each task besides success: for tables by class, votes, comparisons."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from coterie.core.errors import PluginError
from coterie.core.plugins.origin import plugin_call
from coterie.core.training.run import Run
from coterie.core.types import Task, Tree
from coterie.core.types.digest import digest
from coterie.discovery.members import FingerprintsTasks, GivesFinalAnswers


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
