"""Reward: sources write scores beside the tree, and the reward weights sum them up.

Three kinds of failure are kept apart (invariant 3). A `SystemFault`, or any exception that a source did not
intend, leaves the score missing. A `PolicyFault` is caused by the output and gets the source's floor. The
scores of an action that the engine aborted are missing everywhere.

A failure belongs to the role whose action the source was asked about (scopes `action` and `siblings`). A
source of scope `joint` or `episode` names the owners of its scores itself, so a failure of its call is the
team's and *whole* (`Score.whole`): it concerns every role. Components that the source declares as `per_role`
are the exception.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from coterie.core.concurrency.active_rollouts import together
from coterie.core.errors import PolicyFault, UserError
from coterie.core.plugins.origin import failure, origin_of
from coterie.core.protocols import EpisodeView, NamedRewardSource, View
from coterie.core.rollout.contracts import check_async, check_source
from coterie.core.types import TEAM, Action, Key, Node, RewardWeights, Score, Scores, Tree
from coterie.core.types.messages import encodable
from coterie.spans import span

log = logging.getLogger("coterie")
LARGEST_SCORE = 1e100
"""Largest absolute value of a score; a larger one is missing, since sums of such overflow."""


def joint_reward(
    node: Node, index: int, role: str, scores: Scores, reward_weights: RewardWeights
) -> float | None:
    """The reward of a joint action for a role: the joint's scores and those of the role's own action."""
    joint = node.joints[index]
    if joint.lost:
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
    rewards = [joint_reward(node, index, role, scores, reward_weights) for index in range(len(node.joints))]
    return mean_by_branch(node.joints, role, len(node.decisions[role].branches), rewards)


def mean_by_branch(
    joints: Sequence[Any], role: str, branches: int, values: Sequence[float | None]
) -> list[float | None]:
    """By branch of a role, the mean value of the joint actions that were played with it.

    A branch is None where one of its joint actions is: the others met other actions of the partners, so a
    mean over them would compare it with its siblings unfairly. Recombined joint actions are outside.

    Args:
        joints: of one node, finished or not: with `branches` and `recombined`.
        branches: number of the role's branches.
        values: by joint action; None: missing.
    """
    parts: list[list[float | None]] = [[] for _ in range(branches)]
    for joint, value in zip(joints, values, strict=True):
        if not joint.recombined:
            parts[joint.branches[role]].append(value)
    return [None if not part or None in part else sum(part) / len(part) for part in parts]  # type: ignore[arg-type]


async def ask(source: NamedRewardSource, view: Any, place: Key | str = "") -> Any:
    """Call a source; returns its table, or a Score that stands for all of its components."""
    whole = source.scope in ("joint", "episode")
    try:
        with span("judge", place, source=source.name, scope=source.scope) as about:
            async with source.slots():
                table = await check_async(source.plugin, "score", source.plugin.score(view))
            about["scores"] = table
    except UserError as error:  # the source breaks its contract, or no call of it can pass
        error.path = error.path or f"rewards.{source.name}"
        raise
    except PolicyFault as fault:
        return Score(float(source.plugin.policy_fault), f"floor: {fault}", source.name, whole)
    except asyncio.CancelledError as error:
        task = asyncio.current_task()
        if task is None or task.cancelling():  # this call was cancelled, not one inside the source
            raise
        return _missing(source, failure(source.plugin, "score", error), whole)
    except (Exception, SystemExit) as error:  # SystemFault, or a bug, which must not become a number
        return _missing(source, failure(source.plugin, "score", error), whole)
    several = source.scope in ("siblings", "trajectory")
    check_source(source.plugin, table, len(list(view.actions)) if several else None, source.per_role)
    return table


def _missing(source: NamedRewardSource, reason: str, whole: bool = False) -> Score:
    """A missing score. The first one of a source is told at once; the others are counted."""
    reason = encodable(reason)
    if not source.failed:
        source.failed = True
        origin = str(origin_of(source.plugin))
        full = reason if origin in reason else f"{origin}: score: {reason}"
        log.warning("rewards.%s: a score is missing: %s. Later ones are only counted", source.name, full)
    return Score(None, reason, source.name, whole)


@dataclass(frozen=True, slots=True)
class Question:
    """A view that a source is asked about."""

    source: NamedRewardSource
    view: View
    places: Sequence[tuple[Key, Action | None]]
    """Keys of the scores, each with the action that it is of; several for `siblings` and `trajectory`."""
    roles: Sequence[str]
    """Roles that the answer may name beside TEAM."""
    owners: Sequence[str] = ()
    """Of a failure, by place; TEAM where it is empty."""

    async def ask(self) -> Any:
        """The source's answer. It isn't asked about actions that were all lost."""
        if any(action is None or action.trainable for _, action in self.places):
            return await ask(self.source, self.view, self.places[0][0])
        return Score(None)

    def write(self, scores: Scores, answer: Any) -> None:
        """Write an answer; the scores of an action that the engine aborted are missing."""
        several = self.source.scope in ("siblings", "trajectory") and not isinstance(answer, Score)
        rows = answer if several else [answer] * len(self.places)
        owners = self.owners or [TEAM] * len(self.places)
        for (key, action), row, owner in zip(self.places, rows, owners, strict=True):
            if action is not None and action.fault is not None and not action.trainable:
                row = Score(None, action.fault.reason)
            roles = self.roles if owner == TEAM else (owner,)
            write(scores, self.source, key, row, roles, owner)


def write(
    scores: Scores, source: NamedRewardSource, key: Key, table: Any, roles: Sequence[str], owner: str = TEAM
) -> None:
    """Write what a source returned for one place.

    A component that is no number up to 1e100 is missing. Where the source failed as a whole, each of its
    components gets the same Score, under the owner.
    """
    if not isinstance(table, Score):
        stray = [role for role, _ in table if role != TEAM and role not in roles]
        if not stray:
            for (role, component), value in table.items():
                scores.add(key, role, component, _score(source, value))
            return
        table = _missing(source, f"scored role '{stray[0]}', which does not act here", owner == TEAM)
    for component in source.plugin.components:
        if owner == TEAM and component in source.per_role and roles:
            for role in roles:
                scores.add(key, role, component, replace(table, whole=False))
        else:
            scores.add(key, owner, component, table)


def _score(source: NamedRewardSource, value: Any) -> Score:
    given = value if isinstance(value, Score) else Score(value)
    if given.value is None:
        score = _missing(source, given.reason or "no score")
    elif not abs(number := float(given.value)) <= LARGEST_SCORE:  # NaN is not
        score = _missing(source, f"{number} is no number up to 1e100")
    else:
        score = Score(number, "", source.name)
    return replace(score, comment=encodable(given.comment)) if given.comment else score


async def answer(questions: Sequence[Question], scores: Scores) -> None:
    """Ask all questions, at the same time where their sources allow it, and write the answers in order."""
    answers: list[Any] = [None] * len(questions)

    async def ask_in_turn(indices: Sequence[int]) -> None:
        for index in indices:
            answers[index] = await questions[index].ask()

    at_once = [index for index, question in enumerate(questions) if question.source.concurrency > 1]
    if len(at_once) > 1:
        in_turn = [index for index, question in enumerate(questions) if question.source.concurrency == 1]
        await together(ask_in_turn(part) for part in (in_turn, *([i] for i in at_once)))
    else:  # a task costs more than a quick call
        await ask_in_turn(range(len(questions)))
    for question, received in zip(questions, answers, strict=True):
        question.write(scores, received)


async def score_episodes(
    reward_sources: Sequence[NamedRewardSource], scores: Scores, trees: Sequence[Tree], roles: Sequence[str]
) -> None:
    """Scores of scopes `episode`, one per leaf, and `trajectory`, one per action, after play."""
    late = [source for source in reward_sources if source.scope in ("episode", "trajectory")]
    questions: list[Question] = []
    for tree in trees if late else ():
        for path in tree.chains():
            node, index = path[-1]
            view = EpisodeView(task=tree.task, path=path, leaf=node.joints[index])
            places = [(played.key, played.action) for played in view.actions]
            owners = [played.decision.role for played in view.actions]
            for source in late:
                if source.scope == "trajectory":
                    questions += [Question(source, view, places, roles, owners)] if places else []
                elif node.decisions:  # a path that a prompt ended has floors
                    questions.append(Question(source, view, [(node.key.of_joint(index), None)], roles))
    await answer(questions, scores)
