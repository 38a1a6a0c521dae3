"""The protocols of kind `environment`, a turn-based Markov game, and of kind `data_source`, its records."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

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
    evaluation: bool = False
    """Whether the episode is of an evaluation."""


@runtime_checkable
class DataSource(Protocol):
    """Provides the records that an environment makes its tasks from."""

    def records(self, split: Split) -> Sequence[Mapping[str, Any]]:
        """The records of a split, in a fixed order. Their `where(index)`, if any, gives file and line."""
