"""The protocol of kind `reward`, and the views that reward sources are given."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, runtime_checkable

from coterie.core.types import Action, ComponentKind, JointAction, Message, Node, Task


@runtime_checkable
class RewardSource(Protocol):
    """Where reward comes from.

    Raise `SystemFault` for what is not the policy's doing (the scores are missing) and `PolicyFault`
    for what the output caused (every component gets `policy_fault`).
    """

    scope: Literal["action", "joint", "siblings", "episode"]
    components: Mapping[str, ComponentKind]
    weights: Mapping[str, float]
    """Default weights in the Mix."""
    policy_fault: float
    """The floor."""

    async def score(
        self, view: Any
    ) -> Mapping[tuple[str, str], float | None] | Sequence[Mapping[tuple[str, str], float | None]]:
        """{(role or TEAM, component): value or None}; for scope `siblings` one such table a branch."""

    # Optional: calls_per_view: int, how often one `score` asks something outside (a judge, a coach):
    # `coterie plan` counts them.


@dataclass(frozen=True, slots=True, kw_only=True)
class ActionView:
    """What a source of scope `action` sees: one role's one action."""

    task: Task
    turn: int
    role: str
    observation: Any
    messages: tuple[Message, ...]
    action: Action
    state: Any
    """Before the action."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JointView:
    """What a source of scope `joint` sees: one played combination."""

    task: Task
    turn: int
    actions: Mapping[str, Action]
    state: Any
    """Before."""
    after: Any
    """State reached."""
    emitted: Mapping[tuple[str, str], float | None]
    """Scores that the environment's step gave."""
    info: Mapping[str, Any]
    terminated: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class SiblingsView:
    """What a source of scope `siblings` sees: all branches of one decision, to be ranked together."""

    task: Task
    turn: int
    role: str
    observation: Any
    actions: tuple[Action, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeView:
    """What a source of scope `episode` sees: one path from root to leaf."""

    task: Task
    path: tuple[tuple[Node, int], ...]
    """(node, joint taken)."""
    leaf: JointAction


@dataclass(frozen=True, slots=True)
class NamedRewardSource:
    """A reward source as the run uses it: named, with its roles and weights."""

    name: str
    plugin: RewardSource
    weights: Mapping[str, float]

    @property
    def scope(self) -> str:
        return self.plugin.scope


View = ActionView | JointView | SiblingsView | EpisodeView
