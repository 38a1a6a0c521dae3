"""What the games (Plan-Path, Sudoku, Sokoban) share: tasks, splits by content, and the course of a turn.

Beside it: who may sit with whom (`seats.py`), what is paid (`terms.py`), programs (`programs.py`), grids
(`cells.py`), and how lists of words are read (`words.py`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar

from pydantic import Field

from coterie.core.errors import ConfigError, SystemFault
from coterie.core.plugins import Composed, Plugin, PluginConfig
from coterie.core.protocols import StepContext, TaskSource
from coterie.core.types import TEAM, Action, ComponentKind, Step, Task, as_tuple
from coterie.core.types.splits import Split
from coterie.plugins.envs.common import code as programs
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
"""Which part of the hash range belongs to a split."""


class GameConfig(PluginConfig):
    """Settings that every game has."""

    train_tasks: int = Field(1_000_000, ge=1)
    val_tasks: int = Field(1000, ge=1)
    test_tasks: int = Field(1000, ge=1)
    plan_moves: bool = Field(
        False,
        description="The message of the planner (or the tool) moves the world: for one that plays alone.",
    )
    rendering: Rendering = Field("compact", description="A few words, or English with a picture.")
    sandbox: Annotated[Any, Composed("sandbox")] = Field(
        None, description="Runs the program of the role `tool`. Default: the run's table `sandbox`."
    )
    data: Annotated[Any, Composed("data_source")] = Field(
        None,
        description="Tasks that `coterie data make` wrote, instead of generated ones. Default: the run's "
        "table `data`.",
    )

    def vouched(self, split: Split) -> int:
        """Generated tasks of a split."""
        return {"train": self.train_tasks, "val": self.val_tasks, "test": self.test_tasks}[split]


# --------------------------------------------------------------------------------------------------- tasks


def split_of(content: str) -> Split:
    """The split that a content belongs to: a function of it alone, never of a seed."""
    digest = hashlib.blake2b(content.encode(), digest_size=8).digest()
    share = int.from_bytes(digest, "little") / 2.0**64
    return "train" if share < SHARES["train"][1] else "val" if share < SHARES["val"][1] else "test"


@dataclass(frozen=True, slots=True)
class Generated:
    """The tasks of one split: endless in kind, `count` in number; task i is a function of (split, seed, i).

    Problems are drawn until one is of the wanted kind and belongs to the split. Small grids are few, so two
    tasks of a split may be the same problem; tasks of two splits never are.
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

    def draw(self, index: int) -> Any:
        """The problem.

        Raises:
            ConfigError: draws of the wanted kind are so rare that none was found.
        """
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class FrozenTasks:
    """Tasks of a split from records, whose order is the file's."""

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
    """The field `grid` of a record, a list of rows of text, as its marks row by row, and (width, height).

    Raises:
        ValueError: there is none, it is no rectangle, or it has other marks.
    """
    if "grid" not in record:
        raise ValueError(f"the record has no field 'grid' (fields: {', '.join(record) or 'none'})")
    rows = record["grid"]
    rectangle = (
        isinstance(rows, Sequence)
        and not isinstance(rows, str)
        and bool(rows)
        and all(isinstance(row, str) and row and len(row) == len(rows[0]) for row in rows)
    )
    if not rectangle:
        raise ValueError(f"a grid is a list of rows of one length, not {rows!r}")
    text = "".join(rows)
    strange = sorted(set(text) - set(marks))
    if strange:
        raise ValueError(f"a grid is made of {' '.join(marks)}, not of {' '.join(strange)}")
    return text, (len(rows[0]), len(rows))


def check_shape(shape: tuple[int, int], wanted: tuple[int, int]) -> None:
    """Hold (width, height) of a record against the environment's; raises ValueError."""
    if shape != wanted:
        (width, height), (columns, rows) = shape, wanted
        raise ValueError(
            f"the grid has {height} rows and {width} columns, the environment {rows} and {columns}"
        )


# ----------------------------------------------------------------------------------------------- the game


def told_of(state: Any, role: str) -> Any:
    """The role's own plan whose fate it is told; None where there is none.

    A planner's is that of the last turn; a tool's its newest program, though the last turn wasn't made under
    it where both speak at once.
    """
    plan = (state.plan or state.last_plan) if role == "tool" else state.last_plan
    return plan if plan is not None and plan.author == role else None


class Game(Plugin):
    """A game of turns: plans are kept for who moves next, then the one who moves moves.

    A state has `turn`, `plan` (of the turn that is played), `last_plan` (that the last message was written
    under), `last_mover` and `solved`; a plan has an `author`, `fork`, what it alone would do, and `run`, what
    the tool's program did.
    """

    config: GameConfig
    roles = ROLES
    components: Mapping[str, ComponentKind]
    weights: Mapping[str, float]
    repeatable_gains: ClassVar[tuple[str, ...]] = ("team", "progress")
    """Components that pay again when a state is left and reached again, in every form but `potential`."""

    def __init__(self, config: Any, build: Any) -> None:
        super().__init__(config, build)
        self._movers = (*MOVERS, *PROPOSERS) if config.plan_moves else MOVERS
        order = as_tuple(build.run.team.order)
        check_movers(order, self._movers, build.path)
        check_programs(order, config.rendering, build.path)
        check_sandbox(order, config.sandbox, build.run, build.path)
        self.concurrent = any("tool" in stage for stage in order)
        """Its steps wait for the sandbox."""

    @property
    def not_summable(self) -> tuple[str, ...]:
        """Components that no return may sum over turns: an episode could earn them again and again."""
        return () if self.config.team == "potential" else self.repeatable_gains  # type: ignore[attr-defined]

    def tasks(self, split: Split, seed: int) -> TaskSource:
        """Tasks of a split, disjoint by content from the others' under any seed; or those of `data`."""
        if self.config.data is not None:
            return FrozenTasks(self.config.data.records(split), self.task_of, split)
        return self._generated(split, seed)

    def acting_roles(self, state: Any) -> tuple[str, ...] | None:
        return () if state.solved else None

    async def step(self, state: Any, actions: Mapping[str, Action], ctx: StepContext) -> Step:
        """One stage.

        Raises:
            SystemFault: an action was lost, or the sandbox failed; the joint can't be played.
        """
        lost = [role for role, action in actions.items() if action.fault and action.fault.kind == "system"]
        if lost:
            raise SystemFault(f"the action of '{lost[0]}' was lost")
        scores: dict[tuple[str, str], float | None] = {}
        info: dict[str, Any] = {}
        plan, mover, made = None, "", None
        for role, action in actions.items():
            if role in PROPOSERS:
                plan = await self._propose(state, role, action.parsed)
                message = plan.fork
            else:
                message = self._read(state, action.parsed)
            if role in self._movers:
                # Unreadable: the world stands still, and that is a turn as well.
                mover, made = role, message or self._unreadable(state)
            empty = not action.text.strip() if message is None else not message.written
            local = self._local(state, message, empty=empty)
            scores |= {(role, component): value for component, value in local.items()}
            info[role] = {"readable": False} if message is None else self._about(state, message)
            if role == "tool" and plan is not None:
                info[role] |= programs.about(plan.run)
        if made is not None:
            after = self._moved(state, mover, made, plan)
        else:
            after = replace(state, plan=plan)
            worth = self._team(state, plan.fork if plan is not None else None)
            scores |= {(TEAM, f"plan_{name}"): value for name, value in worth.items()}
        scores |= {(TEAM, name): value for name, value in self._team(state, made).items()}
        return Step(state=after, scores=scores, info=info)

    def _moved(self, state: Any, mover: str, made: Any, plan: Any) -> Any:
        """After a message that moved. A plan made in the same stage wasn't seen by who moved: it is for the
        next turn, unless it is what moved."""
        own = mover in PROPOSERS
        return replace(
            state,
            turn=state.turn + 1,
            last_plan=plan if own else state.plan,
            last_mover=mover,
            plan=None if own else plan,
            **self._changes(made),
        )

    def digest(self, state: Any) -> str:
        """Stable across processes: every part of a state is made of ints, strings and tuples."""
        return hashlib.blake2b(repr(state).encode(), digest_size=16).hexdigest()

    # ---- what a game says ----------------------------------------------------------------------------------

    def _generated(self, split: Split, seed: int) -> Generated:
        raise NotImplementedError

    def task_of(self, record: Mapping[str, Any], id: str) -> Task:
        """The task of a record.

        Raises:
            ValueError: it is no task of this game, of this size, that the oracle solves.
        """
        raise NotImplementedError

    async def _propose(self, state: Any, role: str, parsed: Any) -> Any:
        """The plan of the planner or the tool."""
        raise NotImplementedError

    def _read(self, state: Any, parsed: Any) -> Any:
        """What a mover's message does, without doing it; None where it can't be read."""
        raise NotImplementedError

    def _unreadable(self, state: Any) -> Any:
        """What a message does that can't be read: nothing."""
        return replace(self._read(state, ()), readable=False)

    def _changes(self, made: Any) -> dict[str, Any]:
        """The fields of a state that a message changes."""
        raise NotImplementedError

    def _team(self, state: Any, made: Any) -> dict[str, float]:
        """What a message (None: none) earns the team."""
        raise NotImplementedError

    def _local(self, state: Any, message: Any, *, empty: bool) -> dict[str, float]:
        """What a message (None: it can't be read) earns its role."""
        raise NotImplementedError

    def _about(self, state: Any, message: Any) -> dict[str, Any]:
        """A message's fate as plain data, for coaches and records."""
        raise NotImplementedError
