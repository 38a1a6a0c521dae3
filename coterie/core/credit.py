"""Credit: groupings, returns, baselines and normalisers, from which estimators are put together.

An estimator answers four questions. Which branches share a baseline (*grouping*)? What is each worth
(*return*)? What is it compared with (*baseline*)? On what scale (*normaliser*)? The answers are functions
here, so that an algorithm is a short file that names its four.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from pydantic import Field

from coterie.core.config import PluginConfig
from coterie.core.errors import ConfigError
from coterie.core.plugins import Plugin
from coterie.core.protocols import Batch, Plan, Team
from coterie.core.scoring import Mix, branch_rewards
from coterie.core.types import TEAM, Credit, Key, Node, Scores, Tree


@dataclass(frozen=True, slots=True)
class Row:
    """One member of a group: a value, and the branches that it credits."""

    value: float | None
    """None: missing; the row is out of the baseline, the loss and every denominator."""
    branches: tuple[Key, ...]


@dataclass(frozen=True, slots=True)
class Group:
    """Rows that share a baseline."""

    role: str
    rows: tuple[Row, ...]


# ------------------------------------------------------------------------------------------- groupings


def by_decision(batch: Batch) -> Iterator[Group]:
    """The K branches of one decision, each with its immediate reward (AT-GRPO's e, i, t)."""
    for tree in batch.trees:
        for node in tree.nodes():
            for role, decision in node.decisions.items():
                rewards = branch_rewards(node, role, batch.scores, batch.mix)
                yield Group(
                    role,
                    tuple(
                        Row(
                            reward if decision.branches[branch].trainable else None,
                            (node.key.of_branch(role, branch),),
                        )
                        for branch, reward in enumerate(rewards)
                    ),
                )


def by_task(batch: Batch) -> Iterator[Group]:
    """The chains of one task, one value per (chain, role): the episode's return (GRPO)."""
    tasks: dict[tuple[str, int], dict[str, list[Row]]] = {}
    for tree in batch.trees:
        roles = tasks.setdefault((tree.task.id, tree.epoch), {})
        for path in tree.chains():
            for role in sorted({role for node, _ in path for role in node.decisions}):
                taken = [
                    (node.key.of_branch(role, branch), node.decisions[role].branches[branch])
                    for node, index in path
                    if role in node.decisions
                    for branch in (node.joints[index].pick[role],)
                ]
                value = episode_return(path, role, batch.scores, batch.mix)
                if not all(action.trainable for _, action in taken):
                    value = None
                roles.setdefault(role, []).append(Row(value, tuple(key for key, _ in taken)))
    for roles in tasks.values():
        for role, rows in roles.items():
            yield Group(role, tuple(rows))


# --------------------------------------------------------------------------------------------- returns


def episode_return(path: Sequence[tuple[Node, int]], role: str, scores: Scores, mix: Mix) -> float | None:
    """What a whole path pays a role, undiscounted.

    Increments are summed. A level is the value of a state, so a path is worth the *differences* of its
    levels, which telescope to the last one (invariant 10): staying unsolved never pays, and an early
    success is not punished for the turns it didn't need. A `counterfactual` is what a proposal would have
    earned on a fork; nobody was paid it, so it is in no sum.
    """
    total, levels = 0.0, {}
    for node, index in path:
        joint = node.joints[index]
        cells = [scores.at(node.key.of_joint(index))]
        if role in joint.pick:
            cells.append(scores.at(node.key.of_branch(role, joint.pick[role])))
        for cell in cells:
            for (owner, component), score in cell.items():
                weight = mix.weight(owner, component)
                kind = mix.kinds.get(component, "increment")
                if owner not in (role, TEAM) or weight == 0.0 or kind == "counterfactual":
                    continue
                if score.value is None:
                    return None
                if kind == "level":
                    levels[owner, component] = weight * score.value
                else:
                    total += weight * score.value
    return total + sum(levels.values())


# ------------------------------------------------------------------------------------------- baselines

Floats = np.ndarray[Any, np.dtype[np.float64]]


def mean_baseline(values: Floats) -> Floats:
    """Each value minus the group's mean. Shape (n,)."""
    centred: Floats = values - values.mean()
    return centred


def loo_baseline(values: Floats) -> Floats:
    """Each value minus the mean of the others: n/(n-1) times the above (RLOO, arXiv 2402.14740)."""
    n = len(values)
    return mean_baseline(values) * (n / (n - 1))


def no_baseline(values: Floats) -> Floats:
    return values.copy()


def max_baseline(values: Floats) -> Floats:
    """Each value minus the group's largest: biased, since no action can be better than its baseline."""
    below: Floats = values - values.max()
    return below


BASELINES: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "mean": mean_baseline,
    "loo": loo_baseline,
    "none": no_baseline,
    "max": max_baseline,
}
GROUPINGS: dict[str, Callable[[Batch], Iterator[Group]]] = {"decision": by_decision, "task": by_task}


# ------------------------------------------------------------------------------------------ normaliser


class Normaliser(PluginConfig):
    """On what scale advantages are.

    `scale` divides by the values' standard deviation; `whiten` re-centres the advantages first, which
    makes every baseline of a group the same.
    """

    type: Literal["none", "scale", "whiten"] = "scale"
    ddof: int = Field(1, ge=0, le=1)
    eps: float = Field(1e-6, ge=0)
    eps_mode: Literal["add", "clamp"] = "add"

    def __call__(self, advantages: np.ndarray, values: np.ndarray) -> np.ndarray:
        """Advantages of one group, shape (n,), on the scale of its values."""
        if self.type == "none":
            return advantages
        if self.type == "whiten":
            advantages = advantages - advantages.mean()
        deviation = float(values.std(ddof=self.ddof)) if len(values) > self.ddof else 0.0
        scale = deviation + self.eps if self.eps_mode == "add" else max(deviation, self.eps)
        return advantages / scale if scale > 0 else np.zeros_like(advantages)


# ------------------------------------------------------------------------------------------- estimator


class GroupConfig(PluginConfig):
    """What every group-relative estimator can be told."""

    alpha: float = Field(1.0, description="Weight of the team's components in the reward.")
    normalise: Normaliser = Normaliser()
    zero_variance: Literal["keep", "drop"] = Field(
        "keep",
        description="Groups whose rewards are all equal: `keep` them at advantage 0 (they count in the "
        "loss's denominators), or `drop` them from the update. Counted either way.",
    )


class GroupEstimator(Plugin):
    """An estimator that compares the rows of groups; a subclass names the grouping and the baseline."""

    Config: type[PluginConfig] = GroupConfig
    grouping: str = "decision"
    baseline: str = "mean"
    needs: tuple[str, ...] = ()

    @property
    def weights(self) -> Mapping[str, float]:
        """The Mix weights that the algorithm sets: `team` is alpha."""
        return {TEAM: self.config.alpha}

    @property
    def sums_over_turns(self) -> bool:
        """Whether its return adds up what was earned in several turns."""
        return self.grouping == "task"

    def check(self, plan: Plan, team: Team) -> None:
        """Refuse plans whose groups would have one member."""
        size, key = (plan.branches, "branches") if self.grouping == "decision" else (plan.chains, "chains")
        if size < 2:
            raise ConfigError(
                f"groups would have one member: {key} is {size}",
                path=f"sampler.{key}",
                why=f"this algorithm compares the {key} of one {self.grouping} with each other, and a single "
                "one equals its own mean",
                mend=f"set sampler.{key} to 2 or more",
            )

    def __call__(self, batch: Batch, state: Any) -> tuple[Credit, Any]:
        groups = list(GROUPINGS[self.grouping](batch))
        return credit_groups(
            groups,
            BASELINES[self.baseline],
            self.config.normalise,
            drop_zero_variance=self.config.zero_variance == "drop",
        ), state


def credit_groups(
    groups: Sequence[Group],
    baseline: Callable[[np.ndarray], np.ndarray],
    normalise: Normaliser,
    *,
    drop_zero_variance: bool = False,
) -> Credit:
    """Credit of groups: advantage = normalise(baseline(values)) over the rows whose value is present.

    A group with fewer than two present rows has nothing to compare and is not trained. A branch that
    lies in several rows (a shared start of two paths) gets the mean of their advantages.
    """
    advantage: dict[Key, list[float]] = {}
    returns: dict[Key, list[float]] = {}
    counts: dict[str, dict[str, int]] = {}
    for group in groups:
        count = counts.setdefault(group.role, {"all": 0, "small": 0, "flat": 0, "missing": 0})
        rows = [row for row in group.rows if row.value is not None]
        count["all"] += 1
        count["missing"] += len(group.rows) - len(rows)
        if len(rows) < 2:
            count["small"] += 1
            continue
        values = np.array([row.value for row in rows], dtype=np.float64)
        flat = bool(values.max() == values.min())
        count["flat"] += flat
        if flat and drop_zero_variance:
            continue
        # A mean of equal numbers can differ from them in the last bit; with a tiny deviation below
        # it that would become an advantage of order 1.
        numbers = (
            np.zeros_like(values)
            if flat and baseline is not no_baseline
            else normalise(baseline(values), values)
        )
        for row, number in zip(rows, numbers, strict=True):
            for key in row.branches:
                advantage.setdefault(key, []).append(float(number))
                returns.setdefault(key, []).append(float(row.value))  # type: ignore[arg-type]
    metrics: dict[str, float] = {}
    for role, count in counts.items():
        whole = max(count["all"], 1)
        metrics[f"groups/{role}/zero_variance"] = count["flat"] / whole
        metrics[f"groups/{role}/too_small"] = count["small"] / whole
        metrics[f"groups/{role}/missing_rows"] = float(count["missing"])
    return Credit(
        advantage={key: math.fsum(v) / len(v) for key, v in advantage.items()},
        returns={key: math.fsum(v) / len(v) for key, v in returns.items()},
        metrics=metrics,
    )


def trainable_branches(trees: Sequence[Tree]) -> Iterator[tuple[Node, str, int]]:
    """(node, role, branch) of everything that was sampled from a trained policy."""
    for tree in trees:
        for node in tree.nodes():
            for role, decision in node.decisions.items():
                if decision.trainable:
                    for branch in range(len(decision.branches)):
                        yield node, role, branch
