"""Reward: sources write scores beside the tree, and the reward weights sum them up.

Three kinds of failure are kept apart (invariant 3). A `SystemFault`, or any exception that a source did not
intend, leaves the score missing. A `PolicyFault` is caused by the output and gets the source's floor. The
scores of an action that the engine aborted are missing everywhere.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from coterie.core.errors import PluginError, PolicyFault, SystemFault
from coterie.core.plugins.origin import failure
from coterie.core.protocols import ActionView, EpisodeView, JointView, NamedRewardSource, SiblingsView
from coterie.core.rollout.contracts import check_source
from coterie.core.types import TEAM, Key, Node, RewardWeights, Score, Scores, Tree

SELECTION_SCOPES = ("action", "joint", "siblings")
"""Scopes that selection during play may use; an episode's score comes too late (invariant 11)."""


def joint_reward(
    node: Node, index: int, role: str, scores: Scores, reward_weights: RewardWeights
) -> float | None:
    """The reward of a joint action for a role: the joint's scores and those of the role's own action."""
    joint = node.joints[index]
    if joint.fault is not None:
        return None
    return stepped_reward(node.key, index, joint.branches, role, scores, reward_weights)


def stepped_reward(
    key: Key,
    index: int,
    branches: Mapping[str, int],
    role: str,
    scores: Scores,
    reward_weights: RewardWeights,
) -> float | None:
    """`joint_reward` while the node is still expanded.

    Args:
        key: of the node.
        index: of the joint action among those of the node.
        branches: the branch of each role in it.
    """
    of_joint = reward_weights.reward(scores.at(key.of_joint(index)), role)
    of_branch = reward_weights.reward(scores.at(key.of_branch(role, branches[role])), role)
    return None if of_joint is None or of_branch is None else of_joint + of_branch


def branch_rewards(
    node: Node, role: str, scores: Scores, reward_weights: RewardWeights
) -> list[float | None]:
    """One immediate reward per branch of the role's decision: the mean over the played joints with it.

    Recombined joints are outside (`sampler.commit: per_role`). None: missing, or never played.
    """
    rewards: list[list[float | None]] = [[] for _ in node.decisions[role].branches]
    for index, joint in enumerate(node.joints):
        if not joint.recombined:
            rewards[joint.branches[role]].append(joint_reward(node, index, role, scores, reward_weights))
    return [_mean(values) for values in rewards]


def _mean(values: Sequence[float | None]) -> float | None:
    present = [value for value in values if value is not None]
    return sum(present) / len(present) if present and len(present) == len(values) else None


async def ask(source: NamedRewardSource, view: Any) -> Any:
    """Call a source; returns its table, or a Score that stands for all of its components."""
    try:
        table = await source.plugin.score(view)
    except PluginError:  # the source breaks its contract
        raise
    except PolicyFault as fault:
        return Score(float(source.plugin.policy_fault), f"floor: {fault}", source.name)
    except SystemFault as fault:
        return Score(None, str(fault), source.name)
    except Exception as error:  # a source's bug must not become a number
        return Score(None, failure(source.plugin, "score", error), source.name)
    check_source(source.plugin, table, len(view.actions) if isinstance(view, SiblingsView) else None)
    return table


def write(scores: Scores, source: NamedRewardSource, key: Key, table: Any, roles: Sequence[str]) -> None:
    """Write what a source returned for one place.

    A component that is not a finite number is missing. Where the source failed as a whole, each of its
    components gets the same Score: under TEAM, so that every role of the place is concerned.
    """
    if isinstance(table, Score):
        for component in source.plugin.components:
            scores.add(key, TEAM, component, table)
        return
    for (role, component), value in table.items():
        if role != TEAM and role not in roles:
            scores.add(
                key,
                TEAM,
                component,
                Score(None, f"scored role '{role}', which does not act here", source.name),
            )
            continue
        number = None if value is None or not math.isfinite(value) else float(value)
        reason = "" if number is not None else ("no score" if value is None else f"{value} is no number")
        scores.add(key, role, component, Score(number, reason, source.name))


async def score_selection(
    reward_sources: Sequence[NamedRewardSource],
    scores: Scores,
    key: Key,
    *,
    roles: Sequence[str],
    joints: Sequence[tuple[int, JointView]],
    actions: Mapping[tuple[str, int], ActionView],
    siblings: Mapping[str, SiblingsView],
) -> None:
    """All scores of scopes action, joint and siblings at one node."""
    for source in reward_sources:
        if source.scope == "joint":
            for index, view in joints:
                write(scores, source, key.of_joint(index), await ask(source, view), roles)
        elif source.scope == "action":
            for (role, branch), action in actions.items():
                write(scores, source, key.of_branch(role, branch), await ask(source, action), roles)
        elif source.scope == "siblings":
            for role, group in siblings.items():
                answer = await ask(source, group)
                count = len(group.actions)
                rows = [answer] * count if isinstance(answer, Score) else list(answer)
                for branch, row in enumerate(rows):
                    write(scores, source, key.of_branch(role, branch), row, roles)


async def score_episodes(
    reward_sources: Sequence[NamedRewardSource], scores: Scores, trees: Sequence[Tree], roles: Sequence[str]
) -> None:
    """Scores of scope `episode`, one per leaf, after play."""
    episode = [source for source in reward_sources if source.scope == "episode"]
    for tree in trees if episode else ():
        for path in tree.chains():
            node, index = path[-1]
            view = EpisodeView(task=tree.task, path=path, leaf=node.joints[index])
            for source in episode:
                write(scores, source, node.key.of_joint(index), await ask(source, view), roles)


def missing_share(scores: Scores) -> tuple[int, int, dict[str, int]]:
    """(missing, all, missing by reason)."""
    missing = 0
    reasons: dict[str, int] = {}
    for _, _, _, score in scores:
        if score.value is None:
            missing += 1
            reasons[score.reason] = reasons.get(score.reason, 0) + 1
    return missing, len(scores), reasons
