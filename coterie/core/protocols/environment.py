"""The protocol of kind `environment`: a turn-based Markov game."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from coterie.core.types import Action, ComponentKind, Step, Task
from coterie.core.types.splits import Split


@runtime_checkable
class Environment(Protocol):
    """A turn-based Markov game. A state is a value: never mutated, picklable, cheap to fork."""

    roles: tuple[str, ...]
    """Roles it knows how to observe; empty: any."""
    components: Mapping[str, ComponentKind]
    """Score components that its steps emit, and what kind of number each is."""
    weights: Mapping[str, float]
    """Default weight of each component in the Mix (1 where absent)."""

    def tasks(self, split: Split, seed: int) -> TaskSource:
        """The tasks of a split; splits are disjoint by content."""

    def reset(self, task: Task, seed: int) -> Any:
        """The state in which the task starts."""

    def acting_roles(self, state: Any) -> tuple[str, ...] | None:
        """Who acts now: () = the game is over, None = as `team.order` says."""

    def observe(self, state: Any, role: str) -> Any:
        """What the role sees of the state."""

    async def step(self, state: Any, actions: Mapping[str, Action], ctx: StepContext) -> Step:
        """The state after the roles of one stage acted, and what that earned. Never mutates `state`."""

    def outcome(self, state: Any) -> Mapping[str, float]:
        """Metrics of an ended episode; `success` (0 or 1, or a share) is required."""

    # Optional: digest(state) -> str; diagnose(state, role) -> str; vocabulary() -> Iterable[str];
    # demonstrate(state, role, noise, rng) -> str, the oracle's message, for warm starts.
    # For `coterie data`: record(task) -> dict, what JSON holds of it; task_of(record, id) -> Task, the way
    # back (ValueError where it is no task of this game; more fields than `record` gives do no harm);
    # fingerprints(task) -> {"content": str, "solution"?: str, ...}, what no two splits may share;
    # picture(task) -> str, for people.


class TaskSource(Protocol):
    """Tasks by index; `len` is None-free: an endless generator says how many it will vouch for."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int) -> Task: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class StepContext:
    """What an environment's step may use besides its arguments."""

    task: Task
    turn: int
    seed: int
    """Keyed by the joint: the environment's own randomness derives from it."""
