"""The protocol of kind `sampler`, its sampling plan, and the context it rolls out with."""

from __future__ import annotations

from collections.abc import Awaitable, Collection, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar, runtime_checkable

from coterie.core.protocols.environment import Environment
from coterie.core.protocols.reward import NamedRewardSource
from coterie.core.protocols.team import Team
from coterie.core.types import (
    Action,
    Decision,
    Fault,
    HistoryEntry,
    Key,
    Message,
    Prompt,
    RewardWeights,
    Sampling,
    Scores,
    Step,
    Task,
    Tree,
)
from coterie.core.types.digest import ids_sha256

T = TypeVar("T")


@runtime_checkable
class Sampler(Protocol):
    """Rolls out trees."""

    @property
    def plan(self) -> Plan:
        """The sampling plan."""

    def sampling(self, role: str) -> Sampling:
        """The sampling settings of a role."""

    def for_evaluation(self, greedy: bool) -> Sampler:
        """A copy that plays each task once, one branch per decision; `greedy` sets temperature 0."""

    async def play(self, task: Task, epoch: int, chain: int, ctx: RolloutContext) -> Tree:
        """The tree of one task and chain."""


class RolloutContext(Protocol):
    """Makes prompts, samples actions and steps the environment for a sampler, with keyed random draws."""

    environment: Environment
    team: Team
    reward_sources: Sequence[NamedRewardSource]
    reward_weights: RewardWeights
    scores: Scores
    """Scores written during this rollout: those of scope action, joint and siblings."""
    stop_above: float | None
    """An episode ends at a joint action whose reward, averaged over its roles, is at least this."""

    @property
    def evaluation(self) -> bool:
        """Whether the rollout is an evaluation: its decisions are not trainable."""

    def seed(self, key: Key, purpose: str) -> int:
        """64 bits keyed by (run seed, place, purpose)."""

    def digest(self, state: Any) -> str:
        """The digest of a state."""

    async def ask(
        self, role: str, state: Any, turn: int, history: tuple[HistoryEntry, ...], sampling: Sampling
    ) -> PromptRequest:
        """Make a role's prompt."""

    async def act(self, key: Key, request: PromptRequest) -> Action:
        """Sample one branch, tool calls included."""

    async def step(
        self, task: Task, key: Key, turn: int, state: Any, actions: Mapping[str, Action]
    ) -> Step | Fault:
        """Step the environment; a failure that the actions did not cause is returned as a fault."""

    async def gather(self, work: Sequence[Awaitable[T]]) -> list[T]:
        """Run concurrent branches or children as active rollouts; results are in the order of `work`."""

    def count(self, metric: str, value: float = 1.0) -> None:
        """Add to a metric of the step, e.g. `search/nodes`: a sum over its rollouts."""

    def mark_missing(self, key: Key, reason: str) -> None:
        """Add a missing score of every source for a joint action that a system fault prevented."""

    def mark_floor(self, key: Key, roles: Collection[str], reason: str) -> None:
        """Add the sources' floors for a joint action of these roles, whose step raised PolicyFault."""

    def later(self, work: Coroutine[Any, Any, None]) -> None:
        """Run scoring in the background; the rollout's scores are complete when it is done."""


@dataclass(frozen=True, slots=True)
class PromptRequest:
    """A role's prompt at a node, before its actions are sampled."""

    role: str
    policy: str
    observation: Any
    messages: tuple[Message, ...]
    prompt: Prompt
    sampling: Sampling
    overflow: str = ""
    """Why the prompt doesn't fit the policy's context; empty where it does. `act` samples nothing for it."""
    lost: str = ""
    """Why a system fault kept its feedback away; empty: none did. `act` samples nothing for it either."""

    def decision(self, branches: tuple[Action, ...], trainable: bool) -> Decision:
        """The decision with these sampled actions."""
        return Decision(
            role=self.role,
            policy=self.policy,
            observation=self.observation,
            messages=self.messages,
            prompt_ids=self.prompt.ids,
            prompt_sha256=ids_sha256(self.prompt.ids),
            branches=branches,
            trainable=trainable,
            temperature=self.sampling.temperature or 1.0,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How a sampler samples trees, for `AdvantageEstimator.check`."""

    chains: int
    """Trees per task."""
    branches: int
    """Sampled actions per decision."""
    expand: str
    """Joint actions from which the episode goes on: `best`, `sampled` or `all`."""
    pairing: str
    """Joint actions of roles that act at once: `aligned` (i-th branches) or `cross` (all combinations)."""
    recombines: bool = False
    """Whether a joint action of the best branch of each role is played too (`commit: per_role`)."""
