"""Evaluation: every task played as the policy would play it, with an interval clustered by task."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from coterie.core.checkpoint import write_atomic
from coterie.core.errors import ConfigError, did_you_mean
from coterie.core.record import step_metrics
from coterie.core.stats import Interval, clustered_bootstrap, paired_difference
from coterie.core.types import Tree

if TYPE_CHECKING:
    from coterie.core.run import Run


@dataclass(frozen=True, slots=True)
class Evaluation:
    """What came out."""

    success: Interval
    metrics: Mapping[str, float]
    roles: Mapping[str, Mapping[str, Any]]
    config_digest: str
    split: str
    per_task: Mapping[str, Sequence[float]]
    """task id -> success of each sample."""
    episodes: Sequence[str] = ()
    swap: Mapping[str, Any] | None = None
    trees: Sequence[Tree] = field(default=(), repr=False)

    def as_dict(self) -> dict[str, Any]:
        """The JSON of `coterie eval --json`."""
        found: dict[str, Any] = {
            "success": self.success.as_dict(),
            "metrics": dict(self.metrics),
            "roles": {role: dict(own) for role, own in self.roles.items()},
            "config_digest": self.config_digest,
            "split": self.split,
        }
        if self.swap is not None:
            found["swap"] = dict(self.swap)
        return found

    def flat(self) -> dict[str, Any]:
        """For a row of metrics."""
        interval = self.success.as_dict()
        return {
            "success": interval["mean"],
            "success_ci95": interval["ci95"],
            "tasks": interval["n"],
            **{name: value for name, value in self.metrics.items() if name != "success"},
        }

    def write(self, path: Path) -> None:
        write_atomic(path, json.dumps({**self.as_dict(), "per_task": dict(self.per_task)}, indent=1))


async def evaluate(
    run: Run,
    split: Literal["train", "val", "test"],
    tasks: int,
    *,
    samples: int = 1,
    greedy: bool = False,
    policies: Mapping[str, str] | None = None,
    show: int = 0,
) -> Evaluation:
    """Play `tasks` tasks of a split, `samples` times each.

    Args:
        policies: role -> policy where it differs from the team's.
        show: how many episodes to render as text.
    """
    source = run.environment.tasks(split, run.config.seed)
    if len(source) == 0:
        raise ConfigError(f"the {split} split has no tasks", path="env")
    sampler = run.sampler.for_evaluation(greedy)
    play = run.new_play(evaluation=True, policies=policies)
    items = [
        (source[index], 0, sample) for index in range(min(tasks, len(source))) for sample in range(samples)
    ]
    trees = await run.play_with(sampler, play, items)
    scores = await run.score(trees, play)
    per_task: dict[str, list[float]] = {}
    for tree in trees:
        for _, leaf in tree.leaves():
            if leaf.outcome is not None and leaf.fault is None:
                per_task.setdefault(tree.task.id, []).append(float(leaf.outcome["success"]))
    metrics = step_metrics(trees, scores, None, run.mix)
    return Evaluation(
        success=clustered_bootstrap(per_task, seed=run.config.seed),
        metrics=_team_metrics(metrics),
        roles=_role_metrics(metrics, run, policies),
        config_digest=run.resolved.digest(),
        split=split,
        per_task=per_task,
        episodes=[render(tree, scores, run) for tree in trees[: show * samples : samples]],
    )


async def evaluate_swap(
    run: Run,
    pair: tuple[str, str],
    split: Literal["train", "val", "test"],
    tasks: int,
    *,
    samples: int = 1,
    greedy: bool = False,
    show: int = 0,
) -> Evaluation:
    """The team, and the team with the policies of two roles swapped, on the same tasks and draws.

    Raises:
        ConfigError: an unknown role, or two roles of one policy, whose swap changes nothing.
    """
    for role in pair:
        if role not in run.team.roles:
            raise ConfigError(
                f"unknown role '{role}'", path="--swap", mend=did_you_mean(role, run.team.roles)
            )
    one, other = (run.team.policies[role] for role in pair)
    if one == other:
        raise ConfigError(
            f"roles '{pair[0]}' and '{pair[1]}' are played by one policy, '{one}'",
            path="--swap",
            why="swapping them changes nothing",
            mend="swap roles of two policies",
        )
    base = await evaluate(run, split, tasks, samples=samples, greedy=greedy, show=show)
    swapped = await evaluate(
        run, split, tasks, samples=samples, greedy=greedy, policies={pair[0]: other, pair[1]: one}
    )
    both = [task for task in base.per_task if task in swapped.per_task]
    difference = paired_difference(
        {task: swapped.per_task[task] for task in both},
        {task: base.per_task[task] for task in both},
        seed=run.config.seed,
    )
    swap = {
        "roles": list(pair),
        "base": base.success.as_dict(),
        "swapped": swapped.success.as_dict(),
        "difference": difference.as_dict(),
        "per_task": {task: _mean(swapped.per_task[task]) - _mean(base.per_task[task]) for task in both},
    }
    return Evaluation(
        success=base.success,
        metrics=base.metrics,
        roles=base.roles,
        config_digest=base.config_digest,
        split=split,
        per_task=base.per_task,
        episodes=base.episodes,
        swap=swap,
    )


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _team_metrics(metrics: Mapping[str, float]) -> dict[str, float]:
    return {
        name: value
        for name, value in metrics.items()
        if name.split("/")[0]
        not in ("reward", "score", "length", "empty", "finish_length", "advantage", "groups")
    }


def _role_metrics(
    metrics: Mapping[str, float], run: Run, policies: Mapping[str, str] | None
) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {
        role: {"policy": (policies or {}).get(role, run.team.policies[role])} for role in run.team.roles
    }
    for name, value in metrics.items():
        head, _, rest = name.partition("/")
        role, _, tail = rest.partition("/")
        if head in ("reward", "score", "length", "empty", "finish_length") and role in found:
            found[role]["/".join(filter(None, (head, tail)))] = value
    return found


def render(tree: Tree, scores: Any, run: Run) -> str:
    """One episode as text: who was told what, and answered what."""
    lines = [f"task {tree.task.id}"]
    for path in tree.chains():
        for node, index in path:
            joint = node.joints[index]
            for role, branch in joint.pick.items():
                decision = node.decisions[role]
                prompt = "\n".join(message["content"] for message in decision.messages)
                lines.append(f"  turn {node.turn + 1}  {role} ({decision.policy})")
                lines += [f"    | {line}" for line in prompt.splitlines()]
                lines.append(f"    > {decision.branches[branch].text or '(nothing)'}")
            if joint.fault is not None:
                lines.append(f"    ! {joint.fault.reason}")
        leaf = path[-1][0].joints[path[-1][1]]
        if leaf.outcome is not None:
            told = ", ".join(f"{name} {value:g}" for name, value in leaf.outcome.items())
            lines.append(f"  end: {told}")
        break
    return "\n".join(lines)
