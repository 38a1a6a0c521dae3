"""The protocol of kind `sampler`, how it describes its sampling, and the context it rolls out with."""

from __future__ import annotations

from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from coterie.core.concurrency.request_batching import ActiveRollouts
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


@runtime_checkable
class Sampler(Protocol):
    """Grows trees."""

    @property
    def plan(self) -> Plan:
        """How it samples, for an estimator's `check`."""

    def sampling(self, role: str) -> Sampling:
        """How a role's tokens are drawn."""

    def for_evaluation(self, greedy: bool) -> Sampler:
        """The same, playing each task once as the policy would."""

    async def play(self, task: Task, epoch: int, chain: int, ctx: RolloutContext) -> Tree:
        """One tree."""


class RolloutContext(Protocol):
    """What a sampler rolls out with: prompts, actions and steps, with keyed draws and faults kept apart."""

    environment: Environment
    team: Team
    reward_sources: Sequence[NamedRewardSource]
    reward_weights: RewardWeights
    scores: Scores
    """The table that sources of scope action, joint and siblings are written to during play."""
    active_rollouts: ActiveRollouts
    """Counts concurrent branches and children: run them through its `gather`."""
    evaluation: bool
    """Whether it is an evaluation: nothing of it is trained on."""
    stop_above: float | None
    """A played joint that earns at least this, on average over the roles that acted, ends its episode."""

    def seed(self, key: Key, what: str) -> int:
        """64 bits keyed by (run seed, place, purpose)."""

    def digest(self, state: Any) -> str:
        """The digest of a state."""

    async def ask(
        self, role: str, state: Any, turn: int, history: tuple[HistoryEntry, ...], sampling: Sampling
    ) -> PromptRequest:
        """Make a role's prompt."""

    async def act(self, key: Key, asked: PromptRequest) -> Action:
        """Sample one branch, tool calls included."""

    async def step(
        self, task: Task, key: Key, turn: int, state: Any, actions: Mapping[str, Action]
    ) -> Step | Fault:
        """Step the environment; what is not the policy's doing comes back as a fault."""

    def mark_missing(self, key: Key, reason: str) -> None:
        """Write every source's score of a joint that a system fault kept from being played as missing."""

    def later(self, work: Coroutine[Any, Any, None]) -> None:
        """Score in the background."""


@dataclass(frozen=True, slots=True)
class PromptRequest:
    """A role's prompt at a node, before anything is sampled."""

    role: str
    policy: str
    observation: Any
    messages: tuple[Message, ...]
    prompt: Prompt
    sampling: Sampling

    def decided(self, branches: tuple[Action, ...], trainable: bool) -> Decision:
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
    """How trees are sampled, as an estimator's `check` sees it."""

    chains: int
    branches: int
    expand: str
    pairing: str
    recombines: bool = False
    """Where roles act at once, one more joint is played: the best branch of each (`commit: per_role`)."""
