"""The base of the games (Plan-Path, Sudoku, Sokoban): tasks, splits by content, and the course of a turn.

Beside it: the roles of a team (`roles.py`), reward components (`rewards.py`), programs (`code.py`), grids
(`grid.py`), and parsers of lists (`parsing.py`).
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar

from pydantic import Field

from coterie.core.errors import ConfigError, SystemFault
from coterie.core.plugins import Composed, Plugin, PluginConfig
from coterie.core.plugins.origin import plugin_call
from coterie.core.protocols import StepContext, TaskSource
from coterie.core.types import TEAM, Action, ComponentKind, Step, Task, as_tuple
from coterie.core.types.splits import Split
from coterie.plugins.envs.common.code import run_info
from coterie.plugins.envs.common.parsing import Rendering
from coterie.plugins.envs.common.roles import (
    MOVERS,
    PROPOSERS,
    ROLES,
    check_movers,
    check_programs,
    check_sandbox,
)

SHARES: dict[Split, tuple[float, float]] = {"train": (0.0, 0.8), "val": (0.8, 0.9), "test": (0.9, 1.0)}
"""The part of the hash range of each split."""


class GameConfig(PluginConfig):
    """Settings of every game."""

    train_tasks: int = Field(1_000_000, ge=1)
    val_tasks: int = Field(1000, ge=1)
    test_tasks: int = Field(1000, ge=1)
    plan_moves: bool = Field(
        False,
        description="The message of the planner (or the tool) changes the state: for one that plays alone.",
    )
    rendering: Rendering = Field("compact", description="Prompts in a few words, or English with a picture.")
    sandbox: Annotated[Any, Composed("sandbox")] = Field(
        None, description="Runs the programs of the role `tool`. Default: the run's table `sandbox`."
    )
    data: Annotated[Any, Composed("data_source")] = Field(
        None,
        description="Tasks that `coterie data make` wrote, instead of generated ones. Default: the run's "
        "table `data`.",
    )

    def task_count(self, split: Split) -> int:
        """The number of generated tasks of a split."""
        return {"train": self.train_tasks, "val": self.val_tasks, "test": self.test_tasks}[split]


# --------------------------------------------------------------------------------------------------- tasks


def split_of(content: str) -> Split:
    """The split of a task's content: a function of the content alone, never of a seed."""
    digest = hashlib.blake2b(content.encode(), digest_size=8).digest()
    share = int.from_bytes(digest, "little") / 2.0**64
    return "train" if share < SHARES["train"][1] else "val" if share < SHARES["val"][1] else "test"


@dataclass(frozen=True, slots=True)
class Generated(ABC):
    """The `count` generated tasks of one split; task i is a function of (split, seed, i).

    Problems are drawn until one meets the settings and belongs to the split. There are few small grids, so
    two tasks of a split may be the same problem; tasks of two splits never are.
    """

    split: Split
    seed: int
    count: int

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Task:
        if not 0 <= index < self.count:
            raise IndexError(index)
        return Task(id=f"{self.split}-{index}", payload=self.draw(index))

    @abstractmethod
    def draw(self, index: int) -> Any:
        """The problem.

        Raises:
            ConfigError: no draw met the settings.
        """


@dataclass(frozen=True, slots=True)
class FrozenTasks:
    """Tasks of a split from records, in the order of the file."""

    records: Sequence[Mapping[str, Any]]
    read: Callable[[Mapping[str, Any], str], Task]
    """(record, id) -> Task; raises ValueError, KeyError or TypeError on a record of another game."""
    split: Split

    def __len__(self) -> int:
        return len(self.records)

    def __getitem__(self, index: int) -> Task:
        if not 0 <= index < len(self.records):
            raise IndexError(index)
        try:
            return self.read(self.records[index], f"{self.split}-{index}")
        except (ValueError, KeyError, TypeError) as error:
            raise ConfigError(
                f"record {index} of the {self.split} split is no task of this game",
                path="env.data",
                why=f"{type(error).__name__}: {error}",
                fix="make the file with `coterie data make` for the same environment",
            ) from error


def rows_of(record: Mapping[str, Any], marks: str) -> tuple[str, tuple[int, int]]:
    """The field `grid` of a record, a list of rows of text: its marks row by row, and (width, height).

    Raises:
        ValueError: the record has no such field, it is no rectangle, or it has other marks.
    """
    if "grid" not in record:
        raise ValueError(f"the record has no field 'grid' (fields: {', '.join(record) or 'none'})")
    rows = record["grid"]
    rectangular = (
        isinstance(rows, Sequence)
        and not isinstance(rows, str)
        and bool(rows)
        and all(isinstance(row, str) and row and len(row) == len(rows[0]) for row in rows)
    )
    if not rectangular:
        raise ValueError(f"a grid is a list of rows of one length, not {rows!r}")
    text = "".join(rows)
    unknown = sorted(set(text) - set(marks))
    if unknown:
        raise ValueError(f"a grid is made of {' '.join(marks)}, not of {' '.join(unknown)}")
    return text, (len(rows[0]), len(rows))


def check_shape(shape: tuple[int, int], wanted: tuple[int, int]) -> None:
    """Check (width, height) of a record against the environment's; raises ValueError."""
    if shape != wanted:
        (width, height), (columns, rows) = shape, wanted
        raise ValueError(
            f"the grid has {height} rows and {width} columns, the environment {rows} and {columns}"
        )


# ----------------------------------------------------------------------------------------------- the game


def reported_plan(state: Any, role: str) -> Any:
    """The role's own plan that its feedback reports on; None where there is none.

    For a planner it is the plan of the last turn. For a tool it is the newest program, although the mover
    didn't see it in the last turn where both act at once.
    """
    plan = (state.plan or state.last_plan) if role == "tool" else state.last_plan
    return plan if plan is not None and plan.author == role else None


class Game(Plugin, ABC):
    """A game of turns: proposers write plans, then a mover's message changes the state.

    A state has `turn`, `plan` (of the current turn), `last_plan` (the plan that the last mover saw),
    `last_mover` and `solved`. A plan has an `author`, `fork` (its effect if played alone) and `run` (of the
    tool's program). An effect is what a message does to the game, such as a walk.
    """

    config: GameConfig
    roles = ROLES
    components: Mapping[str, ComponentKind]
    weights: Mapping[str, float]
    repeatable_gains: ClassVar[tuple[str, ...]] = ("team", "progress")
    """Components that pay again when a state is left and reached again, unless `team` is `potential`."""

    def __init__(self, config: Any, build: Any) -> None:
        super().__init__(config, build)
        self._movers = (*MOVERS, *PROPOSERS) if config.plan_moves else MOVERS
        order = as_tuple(build.run.team.order)
        check_movers(order, self._movers, build.path)
        check_programs(order, config.rendering, build.path)
        check_sandbox(order, config.sandbox, build.run, build.path)
        self.concurrent = any("tool" in stage for stage in order)
        """Whether steps wait, here for the sandbox."""

    @property
    def not_summable(self) -> tuple[str, ...]:
        """Components that no return may sum over turns, since an episode could earn them repeatedly."""
        return () if self.config.team == "potential" else self.repeatable_gains  # type: ignore[attr-defined]

    def tasks(self, split: Split, seed: int) -> TaskSource:
        """Tasks of a split: those of `data`, else generated ones, disjoint by content under any seed."""
        if self.config.data is not None:
            with plugin_call(self.config.data, "records"):
                return FrozenTasks(self.config.data.records(split), self.task_of, split)
        return self._generated(split, seed)

    def acting_roles(self, state: Any) -> tuple[str, ...] | None:
        return () if state.solved else None

    async def step(self, state: Any, actions: Mapping[str, Action], ctx: StepContext) -> Step:
        """The step of one stage.

        Raises:
            SystemFault: an action was lost, or the sandbox failed.
        """
        lost = [role for role, action in actions.items() if action.fault and action.fault.kind == "system"]
        if lost:
            raise SystemFault(f"the action of '{lost[0]}' was lost")
        scores: dict[tuple[str, str], float | None] = {}
        info: dict[str, Any] = {}
        plan, mover, played = None, "", None
        for role, action in actions.items():
            if role in PROPOSERS:
                plan = await self._propose(state, role, action.parsed)
                effect = plan.fork
            else:
                effect = self._read(state, action.parsed)
            if role in self._movers:
                # An unreadable message changes nothing, and counts as a turn.
                mover, played = role, effect or self._unreadable(state)
            empty = not action.text.strip() if effect is None else not effect.written
            local = self._local_rewards(state, effect, empty=empty)
            scores |= {(role, component): value for component, value in local.items()}
            info[role] = {"readable": False} if effect is None else self._info(state, effect)
            if role == "tool" and plan is not None:
                info[role] |= run_info(plan.run)
        if played is not None:
            after = self._state_after(state, mover, played, plan)
        else:
            after = replace(state, plan=plan)
            plan_rewards = self._team_rewards(state, plan.fork if plan is not None else None)
            scores |= {(TEAM, f"plan_{name}"): value for name, value in plan_rewards.items()}
        scores |= {(TEAM, name): value for name, value in self._team_rewards(state, played).items()}
        return Step(state=after, scores=scores, info=info)

    def _state_after(self, state: Any, mover: str, effect: Any, plan: Any) -> Any:
        """The state after a mover's message. The mover didn't see a plan of the same stage: unless that plan
        is the move itself, it is the plan of the next turn."""
        plan_moved = mover in PROPOSERS
        return replace(
            state,
            turn=state.turn + 1,
            last_plan=plan if plan_moved else state.plan,
            last_mover=mover,
            plan=None if plan_moved else plan,
            **self._changes(effect),
        )

    def digest(self, state: Any) -> str:
        """A digest that is stable across processes: states consist of ints, strings and tuples."""
        return hashlib.blake2b(repr(state).encode(), digest_size=16).hexdigest()

    # ---- of each game --------------------------------------------------------------------------------------

    @abstractmethod
    def _generated(self, split: Split, seed: int) -> Generated:
        """The generated tasks of a split."""

    @abstractmethod
    def task_of(self, record: Mapping[str, Any], id: str) -> Task:
        """The task of a record.

        Raises:
            ValueError: the record is no task of this game and size that the oracle solves.
        """

    @abstractmethod
    async def _propose(self, state: Any, role: str, parsed: Any) -> Any:
        """The plan of the planner or the tool."""

    @abstractmethod
    def _read(self, state: Any, parsed: Any) -> Any:
        """The effect that a mover's message would have; None where it can't be read."""

    def _unreadable(self, state: Any) -> Any:
        """The effect of a message that can't be read: none."""
        return replace(self._read(state, ()), readable=False)

    @abstractmethod
    def _changes(self, effect: Any) -> dict[str, Any]:
        """The fields of a state that an effect changes."""

    @abstractmethod
    def _team_rewards(self, state: Any, effect: Any) -> dict[str, float]:
        """The team's components for an effect (None: no message)."""

    @abstractmethod
    def _local_rewards(self, state: Any, effect: Any, *, empty: bool) -> dict[str, float]:
        """A role's components for its message's effect (None: the message can't be read)."""

    @abstractmethod
    def _info(self, state: Any, effect: Any) -> dict[str, Any]:
        """An effect as plain data, for coaches and records."""
