"""The protocol of kind `reward`, and the views that reward sources score."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, runtime_checkable

from coterie.core.types import Action, ComponentKind, Decision, JointAction, Key, Message, Node, Score, Task

ScoreTable = Mapping[tuple[str, str], float | Score | None]
"""By (role or TEAM, component); a Score in place of a number carries a comment."""
CONCURRENCY = 64
"""Calls of a reward source at once, where neither it nor the configuration sets a bound."""


@runtime_checkable
class RewardSource(Protocol):
    """Scores actions, joint actions, sibling branches or episodes."""

    scope: Literal["action", "joint", "siblings", "episode", "trajectory"]
    """The view that `score` takes: `ActionView`, `JointView`, `SiblingsView` or, for `episode` and for
    `trajectory` (which scores each of the episode's actions), `EpisodeView`."""
    components: Mapping[str, ComponentKind]
    """Components of its scores, and their kinds."""
    weights: Mapping[str, float]
    """Default reward weights by component; 1 where absent."""
    policy_fault: float
    """The floor: the value of every component after a `PolicyFault`."""

    async def score(self, view: Any) -> ScoreTable | Sequence[ScoreTable]:
        """{(role or TEAM, component): value, None if missing}; for scope `siblings`, one table per branch,
        and for `trajectory` one per entry of `EpisodeView.actions`.

        Raises:
            SystemFault: a failure that the output did not cause; the scores are missing.
            PolicyFault: a failure that the output caused; every component is `policy_fault`.
            UserError: a failure that no call escapes, such as a spent budget: the run stops.
        """


@runtime_checkable
class ShowsFeedback(Protocol):
    def feedback(self, role: str, score: Score) -> str:
        """What roles that act later read of a role's score; empty: nothing. Cut at 4,000 characters.

        Not for scores that come after the next prompt (scopes `episode` and `trajectory`, `background`), and
        only with `sampler.branches` 1. A source whose settings decide sets it on itself in its constructor.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class ActionView:
    """Input of a source of scope `action`: one action of one role."""

    task: Task
    turn: int
    role: str
    observation: Any
    messages: tuple[Message, ...]
    action: Action
    state: Any
    """The state before the action."""
    info: Mapping[str, Any] = field(default_factory=dict)
    """`Step.info` of the first joint action with it; empty where its step failed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JointView:
    """Input of a source of scope `joint`: one joint action that was played."""

    task: Task
    turn: int
    actions: Mapping[str, Action]
    state: Any
    """The state before the joint action."""
    after: Any
    """The state that it reached."""
    emitted: Mapping[tuple[str, str], float | None]
    """`Step.scores`."""
    info: Mapping[str, Any]
    """`Step.info`."""
    terminated: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class SiblingsView:
    """Input of a source of scope `siblings`: all branches of one decision, to be ranked together."""

    task: Task
    turn: int
    role: str
    observation: Any
    actions: tuple[Action, ...]


@dataclass(frozen=True, slots=True)
class PlayedAction:
    """One action of an episode, with its place."""

    key: Key
    node: Node
    decision: Decision
    action: Action


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeView:
    """Input of a source of scope `episode` or `trajectory`: one path from the root to a leaf."""

    task: Task
    path: tuple[tuple[Node, int], ...]
    """The nodes, each with the index of the joint action taken."""
    leaf: JointAction
    """The last joint action."""

    @property
    def actions(self) -> Iterator[PlayedAction]:
        """The actions on the path, in order."""
        for node, index in self.path:
            for role, branch in node.joints[index].branches.items():
                decision = node.decisions[role]
                yield PlayedAction(
                    node.key.of_branch(role, branch), node, decision, decision.branches[branch]
                )


@dataclass(slots=True, eq=False)
class NamedRewardSource:
    """A reward source with its name in the configuration and what the configuration says of it."""

    name: str
    plugin: RewardSource
    weights: Mapping[str, float]
    concurrency: int = CONCURRENCY
    """Calls of `score` at once, over all episodes of the process."""
    per_role: Collection[str] = ()
    """As in `ScoresRoles`."""
    max_missing: float | None = None
    """Largest share of missing scores in a step; None: `schedule.max_missing`."""
    failed: bool = False
    """Whether a score has been missing."""
    _slots: tuple[asyncio.AbstractEventLoop, asyncio.Semaphore] | None = None

    @property
    def scope(self) -> str:
        return self.plugin.scope

    def slots(self) -> asyncio.Semaphore:
        """Bounds the calls at once; a run may be opened in several event loops, one after the other."""
        loop = asyncio.get_running_loop()
        if self._slots is None or self._slots[0] is not loop:
            self._slots = (loop, asyncio.Semaphore(self.concurrency))
        return self._slots[1]


View = ActionView | JointView | SiblingsView | EpisodeView
"""Input of a reward source; its `scope` decides which."""
