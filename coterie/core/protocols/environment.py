"""The protocol of kind `environment`: a turn-based Markov game."""

from __future__ import annotations

from collections.abc import Awaitable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np

from coterie.core.types import Action, ComponentKind, Step, Task
from coterie.core.types.splits import Split


@runtime_checkable
class Environment(Protocol):
    """A turn-based Markov game. A state is a value: never mutated, picklable, cheap to fork."""

    roles: tuple[str, ...]
    """Roles that `observe` accepts; empty: any."""
    components: Mapping[str, ComponentKind]
    """Components of the scores that `step` returns, and their kinds."""
    weights: Mapping[str, float]
    """Default reward weights by component; 1 where absent."""

    def tasks(self, split: Split, seed: int) -> TaskSource:
        """The tasks of a split. No content occurs in two splits."""

    def reset(self, task: Task, seed: int) -> Any:
        """The initial state of a task."""

    def acting_roles(self, state: Any) -> tuple[str, ...] | None:
        """The roles that act in a state; (): the episode is over; None: `team.order` decides."""

    def observe(self, state: Any, role: str) -> Any:
        """The role's observation of a state."""

    async def step(self, state: Any, actions: Mapping[str, Action], ctx: StepContext) -> Step:
        """The next state and its scores, after the roles of one stage acted. Never mutates `state`.

        Raises:
            PolicyFault: the actions made it fail. The episode ends in `state`, with the sources' floors.
            SystemFault: something else did. The episode is lost, and its scores are missing.
        """

    def outcome(self, state: Any) -> Mapping[str, float]:
        """Metrics of an ended episode; `success` (0, 1 or a share) is required."""


@runtime_checkable
class DigestsStates(Protocol):
    def digest(self, state: Any) -> str:
        """The digest of a state that `core/types/digest.py` can't digest."""


@runtime_checkable
class Diagnoses(Protocol):
    def diagnose(self, state: Any, role: str) -> str | Awaitable[str]:
        """Feedback for a role, for transition modes; empty: none. It may be a coroutine."""


@runtime_checkable
class HasVocabulary(Protocol):
    def vocabulary(self) -> Iterable[str]:
        """Words of observations, prompts and answers, for `tokenizer: words`."""


@runtime_checkable
class Demonstrates(Protocol):
    def demonstrate(self, state: Any, role: str, noise: float, rng: np.random.Generator) -> str:
        """The oracle's message, for warm starts; a choice is random with probability `noise`."""


@runtime_checkable
class StepsConcurrently(Protocol):
    concurrent: bool
    """Whether `step` waits (for a sandbox), so that joint actions are stepped at once."""


@runtime_checkable
class HasNotSummable(Protocol):
    not_summable: Sequence[str] | set[str] | frozenset[str]
    """Components that must not be summed over turns."""


@runtime_checkable
class HasFields(Protocol):
    fields: Sequence[str] | None
    """Fields of its observations, so that a prompt template can be checked; None: unknown."""


@runtime_checkable
class RecordsTasks(Protocol):
    """For `coterie data`: tasks as data."""

    def record(self, task: Task) -> Mapping[str, Any]:
        """The task as JSON."""

    def task_of(self, record: Mapping[str, Any], id: str) -> Task:
        """The task of a record, whose unknown fields are ignored. ValueError: no task of this game."""


@runtime_checkable
class FingerprintsTasks(Protocol):
    def fingerprints(self, task: Task) -> Mapping[str, str]:
        """{"content": ..., "solution": ...}: values that no two splits may share; `content` is required."""


@runtime_checkable
class DrawsTasks(Protocol):
    def picture(self, task: Task) -> str:
        """The task, drawn for people."""


class TaskSource(Protocol):
    """Tasks by index. The length of an endless generator is the number of tasks that the split offers."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int) -> Task: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class StepContext:
    """The task, turn and seed of a step."""

    task: Task
    turn: int
    seed: int
    """64 bits keyed by the joint action. The environment's randomness derives from them."""
