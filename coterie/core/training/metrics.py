"""The metrics of a step: sums and means over its trees, scores and credit."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from coterie.core.protocols import Team
from coterie.core.rollout.rewards import branch_rewards
from coterie.core.types import Action, Credit, JointAction, Metrics, Node, RewardWeights, Scores, Tree

UNSELECTED = frozenset({"sampled", "all", "only"})
"""Rules that go on with what the policy does; any other rule selects by reward."""

UNIFORM = "uniform (all missing)"


@dataclass(frozen=True, slots=True)
class EpisodePath:
    """One path that was played out, or that a fault ended."""

    leaf: JointAction | None
    """None where no joint of the last node could go on."""
    turns: int
    """Turns begun, the last one included."""
    share: float
    """Probability of this path within its tree, if one walked from the root at random: with `expand: all` the
    leaves of a bushy side would outvote the others otherwise."""
    selected: bool
    """A choice by reward lies on the path: the best of several, not the policy."""

    def outcome(self, name: str) -> float | None:
        if self.leaf is None or self.leaf.outcome is None or name not in self.leaf.outcome:
            return None
        value = float(self.leaf.outcome[name])
        return value if math.isfinite(value) else None


def episodes(tree: Tree) -> Iterator[EpisodePath]:
    """Every root-to-leaf path of a tree; the shares sum to 1."""
    stack: list[tuple[Node, float, bool]] = [(tree.root, 1.0, False)]
    while stack:
        node, share, selected = stack.pop()
        selected = selected or node.rule not in UNSELECTED
        if not node.expanded:
            yield EpisodePath(None, node.turn + 1, share, selected)
        for index in reversed(node.expanded):
            joint = node.joints[index]
            part = share / len(node.expanded)
            if joint.child is None:
                yield EpisodePath(joint, node.turn + 1, part, selected)
            else:
                stack.append((joint.child, part, selected))


def step_metrics(
    trees: Sequence[Tree],
    scores: Scores,
    credit: Credit | None,
    reward_weights: RewardWeights,
    team: Team | None = None,
) -> Metrics:
    """The metrics of a step, or of an evaluation.

    Means leave missing values out; a mean over nothing is NaN. Units: shares in [0, 1], lengths in tokens,
    faults and selections in counts.

    * `success`, or `success_committed` where any path was chosen by reward (best of K is not what the policy
      does: invariant 11); `outcome[_committed]/<name>` for what else the environment tells of an episode;
      `turns_to_success` over the solved; `episodes/missing`: the share that a fault left without outcome;
    * `reward/<role>`: mean reward of the played branches; `score/<role>/<component>`;
      `missing/share`, `missing/<component>`;
    * `episodes/overflow`, where there are any: the number of episodes that a prompt ended (`team.overflow`);
    * `advantage/<role>/mean|std|abs` and what the estimator reports;
    * `length/<role>`, `empty/<role>`, `finish_length/<role>`, `faults/<role>/policy` (a share) over the
      actions that came back; `faults/policy`, `faults/system`, `tokens/generated`, `tokens/prompt` (as
      sent: a shared prompt counts for every call), `selection/uniform`.

    Args:
        team: names the roles that get a row though they did not act in this step.
    """
    metrics: Metrics = {**_outcomes(trees)}
    metrics.update(_rewards(trees, scores, reward_weights, tuple(team.members) if team is not None else ()))
    metrics.update(_components(scores))
    if credit is not None:
        metrics.update(_advantages(credit))
        metrics.update({name: float(value) for name, value in credit.metrics.items()})
    metrics.update(_actions(trees))
    metrics["selection/uniform"] = float(sum(node.rule == UNIFORM for tree in trees for node in tree.nodes()))
    if overflows := sum(not node.decisions for tree in trees for node in tree.nodes()):
        metrics["episodes/overflow"] = float(overflows)
    return metrics


def longest(node: Node, index: int) -> int:
    """The tokens of the longest action of a joint action."""
    branches = node.joints[index].branches.items()
    actions = [node.decisions[role].branches[branch] for role, branch in branches]
    return max((action.tokens for action in actions), default=0)


def _outcomes(trees: Sequence[Tree]) -> Metrics:
    played = [list(episodes(tree)) for tree in trees]
    chosen = any(episode.selected for tree in played for episode in tree)
    suffix = "_committed" if chosen else ""
    metrics = {f"success{suffix}": _tree_mean(played, "success")}
    leaves = [e.leaf for tree in played for e in tree if e.leaf is not None]
    for name in sorted({name for leaf in leaves for name in leaf.outcome or ()} - {"success"}):
        metrics[f"outcome{suffix}/{name}"] = _tree_mean(played, name)
    solved = [e for tree in played for e in tree if (e.outcome("success") or 0.0) >= 1.0]
    weight = math.fsum(e.share for e in solved)
    metrics["turns_to_success"] = (
        math.fsum(e.share * e.turns for e in solved) / weight if solved else math.nan
    )
    lost = math.fsum(e.share for tree in played for e in tree if e.outcome("success") is None)
    metrics["episodes/missing"] = lost / len(trees) if trees else math.nan
    return metrics


def _tree_mean(played: Sequence[Sequence[EpisodePath]], name: str) -> float:
    """Mean over trees of the mean over a tree's paths; a tree without any value is left out."""
    means = []
    for tree in played:
        present = [(e.share, value) for e in tree if (value := e.outcome(name)) is not None]
        if present:
            means.append(math.fsum(s * v for s, v in present) / math.fsum(s for s, _ in present))
    return _mean(means)


def _rewards(
    trees: Sequence[Tree], scores: Scores, reward_weights: RewardWeights, roles: Sequence[str]
) -> Metrics:
    rewards: dict[str, list[float]] = {role: [] for role in roles}
    for tree in trees:
        for node in tree.nodes():
            for role in node.decisions:
                immediate = branch_rewards(node, role, scores, reward_weights)
                rewards.setdefault(role, []).extend(r for r in immediate if r is not None)
    return {f"reward/{role}": _mean(values) for role, values in rewards.items()}


def _components(scores: Scores) -> Metrics:
    present: dict[tuple[str, str], list[float]] = {}
    missing: dict[str, list[bool]] = {}
    for _, role, component, score in scores:
        values = present.setdefault((role, component), [])
        if score.value is not None:
            values.append(score.value)
        missing.setdefault(component, []).append(score.value is None)
    metrics = {
        f"score/{role}/{component}": _mean(present[role, component]) for role, component in sorted(present)
    }
    total = sum(map(len, missing.values()))
    metrics["missing/share"] = sum(map(sum, missing.values())) / total if total else 0.0
    metrics.update({f"missing/{name}": sum(missing[name]) / len(missing[name]) for name in sorted(missing)})
    return metrics


def _advantages(credit: Credit) -> Metrics:
    by_role: dict[str, list[np.ndarray]] = {}
    for key, advantage in credit.advantage.items():
        by_role.setdefault(key.role, []).append(np.atleast_1d(np.asarray(advantage, dtype=np.float64)))
    metrics: Metrics = {}
    for role in sorted(by_role):
        values = np.concatenate(by_role[role])
        if values.size:
            metrics[f"advantage/{role}/mean"] = float(values.mean())
            metrics[f"advantage/{role}/std"] = float(values.std())
            metrics[f"advantage/{role}/abs"] = float(np.abs(values).mean())
    return metrics


@dataclass(slots=True)
class _Tally:
    """Counts over one role's actions."""

    lengths: list[int] = field(default_factory=list)
    empty: int = 0
    truncated: int = 0
    faulty: int = 0

    def add(self, action: Action) -> None:
        self.lengths.append(action.tokens)
        self.empty += not action.text.strip()
        self.truncated += bool(action.calls) and action.calls[-1].finish == "length"
        self.faulty += action.fault is not None


def _actions(trees: Sequence[Tree]) -> Metrics:
    tallies: dict[str, _Tally] = {}
    faults = {"policy": 0, "system": 0}
    generated = prompt = 0
    for tree in trees:
        for key, _, action in tree.actions():
            generated += action.tokens
            prompt += sum(len(call.prompt_ids) for call in action.calls)
            if action.fault is not None:
                faults[action.fault.kind] += 1
            if action.trainable:  # what the system aborted has no length of its own
                tallies.setdefault(key.role, _Tally()).add(action)
        for node in tree.nodes():
            for joint in node.joints:
                of_actions = [node.decisions[role].branches[i].fault for role, i in joint.branches.items()]
                # A fault of an action was counted with the action.
                if joint.fault is not None and joint.fault not in of_actions:
                    faults[joint.fault.kind] += 1
    metrics: Metrics = {}
    for role, tally in tallies.items():
        count = len(tally.lengths)
        metrics[f"length/{role}"] = sum(tally.lengths) / count
        metrics[f"empty/{role}"] = tally.empty / count
        metrics[f"finish_length/{role}"] = tally.truncated / count
        metrics[f"faults/{role}/policy"] = tally.faulty / count
    metrics.update({f"faults/{kind}": float(count) for kind, count in faults.items()})
    metrics["tokens/generated"], metrics["tokens/prompt"] = float(generated), float(prompt)
    return metrics


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values) if values else math.nan
