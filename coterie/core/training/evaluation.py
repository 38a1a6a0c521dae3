"""Evaluation: every task played as the policy would play it, with an interval clustered by task."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import starmap
from pathlib import Path
from typing import Any

from coterie.core.concurrency.active_rollouts import together
from coterie.core.protocols import RolloutJob
from coterie.core.rollout.rewards import joint_reward
from coterie.core.storage.atomic import write_atomic
from coterie.core.storage.jsonl import to_json
from coterie.core.training.metrics import longest, step_metrics
from coterie.core.training.run import Run
from coterie.core.types import TEAM, Task, Tree
from coterie.core.types.splits import Split
from coterie.spans import span
from coterie.stats import Interval, clustered_bootstrap


@dataclass(frozen=True, slots=True)
class Evaluation:
    """The result of an evaluation."""

    success: Interval
    metrics: Mapping[str, float]
    roles: Mapping[str, Mapping[str, Any]]
    config_digest: str
    split: str
    per_task: Mapping[str, Sequence[float]]
    """task id -> success of each sample."""
    returns: Mapping[str, Sequence[float]] = field(default_factory=dict)
    """task id -> the reward of each sample's last joint action, as a mean over its roles."""
    lengths: Sequence[int] = ()
    """By episode, its generated tokens: of roles that act at once, those of the longest action."""
    seconds: float = 0.0
    """Of playing and scoring all episodes, as many at once as the engine takes."""
    trees: Sequence[Tree] = field(default=(), repr=False)
    facts: Mapping[str, Any] = field(default_factory=dict)
    """What the numbers are of: checkpoint (a step), samples, greedy, seed, versions, files."""

    def as_dict(self) -> dict[str, Any]:
        """The JSON of `coterie eval --json`."""
        return {
            "success": self.success.as_dict(),
            "metrics": dict(self.metrics),
            "roles": {role: dict(metrics) for role, metrics in self.roles.items()},
            "config_digest": self.config_digest,
            "split": self.split,
            **self.facts,
        }

    def flat(self) -> dict[str, Any]:
        """The entries of a row of metrics."""
        interval = self.success.as_dict()
        return {
            "success": interval["mean"],
            "success_ci95": interval["ci95"],
            "tasks": interval["n"],
            **{name: value for name, value in self.metrics.items() if name != "success"},
        }

    def write(self, path: Path) -> None:
        """Write the JSON, with every task's successes.

        Raises:
            WriteError: the file can't be written; nothing of it is there.
        """
        write_atomic(path, to_json({**self.as_dict(), "per_task": dict(self.per_task)}) + "\n")


async def evaluate(
    run: Run,
    split: Split,
    tasks: Sequence[Task],
    *,
    samples: int = 1,
    greedy: bool = False,
    policies: Mapping[str, str | None] | None = None,
    keep: bool = False,
    set_name: str = "",
) -> Evaluation:
    """Play each of the tasks of a split `samples` times.

    Args:
        set_name: the set of the rollout side that they are of; "": its environment and sampler play.
        policies: role -> policy where it differs from the team's; None: the role is silent.
        keep: whether the trees are in the result.
    """
    job = partial(
        RolloutJob,
        versions=run.versions,
        cohort=run.cohort(run.state.step, f" evaluation {set_name}"),
        evaluation=True,
        greedy=greedy,
        set_name=set_name,
        policies=dict(policies or {}),
    )
    jobs = [job(task=task, chain=sample) for task in tasks for sample in range(samples)]
    begin = time.perf_counter()
    rollouts = await run.play(jobs)
    scores, trees = await run.score(rollouts, evaluation=True), rollouts.trees
    seconds = time.perf_counter() - begin
    per_task: dict[str, list[float]] = {}
    returns: dict[str, list[float]] = {}
    paths = [(tree.task.id, path) for tree in trees for path in tree.chains()]
    for task, path in paths:
        node, index = path[-1]
        leaf = node.joints[index]
        if leaf.outcome is not None and not leaf.lost:
            per_task.setdefault(task, []).append(float(leaf.outcome["success"]))
            rewards = [joint_reward(node, index, role, scores, run.reward_weights) for role in leaf.branches]
            if rewards and None not in rewards:
                returns.setdefault(task, []).append(sum(filter(None, rewards)) / len(rewards))
    metrics = step_metrics(trees, scores, None, run.reward_weights)
    return Evaluation(
        success=clustered_bootstrap(per_task, seed=run.config.seed),
        metrics={name: value for name, value in metrics.items() if not _of_one_role(name)},
        roles=_role_metrics(metrics, run, policies),
        config_digest=run.resolved.digest(),
        split=split,
        per_task=per_task,
        returns=returns,
        lengths=[sum(starmap(longest, path)) for _, path in paths],
        seconds=seconds,
        trees=trees if keep else (),
        facts={"samples": samples, "greedy": greedy, "seed": run.config.seed, **run.facts},
    )


async def evaluate_if_due(run: Run, step: int) -> dict[str, Any]:
    """Evaluate on the run's sets, all at once, where the schedule says so, and remember the best.

    Returns:
        entries for the step's row of metrics: `eval/<set>/*` of each set with a name, and `eval/*` of the
        first: all of it where it has no name, else `success`, its interval and `tasks`.
    """
    # Not also at the last step: a run that is made longer afterwards must have the same rows.
    if not run.evaluate_every or step % run.evaluate_every:
        return {}
    begin, sets = time.perf_counter(), run.rollout_side.sets
    with span("evaluate"):
        evaluations = await together(
            evaluate(run, "val", each.tasks(run.config.seed), samples=each.samples, set_name=key)
            for key, each in sets.items()
        )
    seconds, best = time.perf_counter() - begin, evaluations[0]
    if best.success.mean > run.state.best:
        run.state.best, run.state.best_step = best.success.mean, step
    row = {f"eval/{name}": best.flat()[name] for name in ("success", "success_ci95", "tasks")}
    for each, evaluation in zip(sets.values(), evaluations, strict=True):
        row |= {"/".join(filter(None, ("eval", each.name, key))): v for key, v in evaluation.flat().items()}
        if run.folder is not None:
            facts = {"checkpoint": step, **({"set": each.name} if each.name else {}), **evaluation.facts}
            file = "-".join(filter(None, (f"step-{step:06d}", each.name)))
            replace(evaluation, facts=facts).write(run.folder.eval / f"{file}.json")
    return row | {"time/evaluate": seconds}


def _of_one_role(name: str) -> bool:
    """Whether a metric is of one role, such as `reward/<role>` and `faults/<role>/policy`."""
    head, _, rest = name.partition("/")
    if head in ("faults", "score"):  # `faults/policy` is of all roles, `score/team/<component>` of the team
        return "/" in rest and not rest.startswith(f"{TEAM}/")
    return head in ("reward", "length", "empty", "finish_length", "advantage", "groups")


def _role_metrics(
    metrics: Mapping[str, float], run: Run, policies: Mapping[str, str | None] | None
) -> dict[str, dict[str, Any]]:
    by_role: dict[str, dict[str, Any]] = {
        role: {"policy": {**run.team.policies, **(policies or {})}[role]} for role in run.team.members
    }
    for name, value in metrics.items():
        head, _, rest = name.partition("/")
        role, _, tail = rest.partition("/")
        if _of_one_role(name) and role in by_role:
            by_role[role]["/".join(filter(None, (head, tail)))] = value
    return by_role
