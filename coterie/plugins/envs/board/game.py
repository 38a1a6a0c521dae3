"""The base of the grid games (Plan-Path, Sudoku, Sokoban): tasks, the course of a turn, rewards, feedback,
records.

Beside it: what messages do, and what that pays (`effects.py`), values and prompts (`values.py`), how lists
are read and feedback is worded (`parsing.py`), the roles of a team (`roles.py`), grids and their rows of text
(`grid.py`).
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any, ClassVar

import numpy as np
from pydantic import Field

from coterie.core.plugins import Composed, Plugin, PluginConfig
from coterie.core.plugins.origin import plugin_call
from coterie.core.protocols import StepContext, TaskSource
from coterie.core.types import TEAM, Action, ComponentKind, Step, Task, as_tuple
from coterie.core.types.splits import Split
from coterie.plugins.envs.board.effects import Effect, message_rewards, team_rewards
from coterie.plugins.envs.board.grid import check_shape, rows_of
from coterie.plugins.envs.board.parsing import Wording, write
from coterie.plugins.envs.board.roles import (
    COMPACT_ROLES,
    MOVERS,
    PROPOSERS,
    ROLES,
    check_movers,
    check_programs,
    names_of,
)
from coterie.plugins.envs.board.values import BoardPlan, recorded
from coterie.plugins.envs.common.code import printing_program, program_feedback, propose, run_info
from coterie.plugins.envs.common.generated import DrawnTasks, FrozenTasks
from coterie.plugins.envs.common.teams import Rendering, check_not_lost, check_sandbox


class GameConfig(PluginConfig):
    """Settings of every game. A game adds `team`, the form of the team's reward (see `effects.py`)."""

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


class BoardGame(Plugin, ABC):
    """A game of turns on a grid: proposers write plans, then a mover's message changes the state.

    Its values are a `BoardState`, a `BoardPlan`, an `Effect` (what a message does, such as a walk) and a
    `BoardObservation`. A problem (the payload of a task) has `rows()`, the grid as rows of text, and
    `content`, a text that is equal for equal problems.
    """

    config: Any
    """A `GameConfig` with the fields `team` and `size`, and where these may differ, `width` and `height`."""
    roles = ROLES
    components: Mapping[str, ComponentKind]
    weights: Mapping[str, float]
    quality: ClassVar[str]
    """The component of a message's quality, beside `format` and `legal`."""
    repeatable_gains: ClassVar[tuple[str, ...]] = ("team", "progress")
    """Components that pay again when a state is left and reached again, unless `team` is `potential`."""
    left_name: ClassVar[str]
    """The outcome that says what is left."""
    wording: ClassVar[Wording]
    marks: ClassVar[str]
    """The marks of the rows of text that records have."""
    attempts: int = 20_000
    """Rejected draws after which generation fails."""
    drawn_as: str
    """The beginning of the text that keys a draw."""
    tool_plan: ClassVar[type[BoardPlan]] = BoardPlan
    width: int
    height: int
    limit: int | None = None
    """The most items of a message that are played; None: all."""
    skip: bool = False
    """Whether an illegal item is skipped; else the message stops there."""

    def __init__(self, config: Any, build: Any) -> None:
        super().__init__(config, build)
        self.width = getattr(config, "width", None) or config.size
        self.height = getattr(config, "height", None) or config.size
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
        return () if self.config.team == "potential" else self.repeatable_gains

    # ---- tasks ---------------------------------------------------------------------------------------------

    def tasks(self, split: Split, seed: int) -> TaskSource:
        """Tasks of a split: those of `data`, else generated ones, disjoint by content under any seed."""
        if self.config.data is not None:
            with plugin_call(self.config.data, "records"):
                return FrozenTasks(self.config.data.records(split), self.task_of, split)
        return DrawnTasks(split=split, seed=seed, count=self.config.task_count(split), game=self)

    def record(self, task: Task) -> dict[str, Any]:
        """The task as JSON, such as `{"grid": ["S.#", ...]}`."""
        return {"grid": task.payload.rows()}

    def task_of(self, record: Mapping[str, Any], id: str) -> Task:
        """The task of a record; only its field `grid` is read.

        Raises:
            ValueError: the record is no task of this game and size that the oracle solves.
        """
        text, shape = rows_of(record, self.marks)
        check_shape(shape, (self.width, self.height))
        return Task(id=id, payload=self.problem_of(text))

    def fingerprints(self, task: Task) -> Mapping[str, str]:
        """What no two splits may share: `content`."""
        return {"content": task.payload.content}

    def picture(self, task: Task) -> str:
        """The grid, for people."""
        return "\n".join(task.payload.rows())

    @abstractmethod
    def drawn(self, purpose: str, split: Split) -> Any:
        """A random problem, a function of `purpose`; None for one that meets no setting, or is of another
        split."""

    def scarce(self) -> tuple[str, str, str, str]:
        """What is drawn, and of the error where no draw gave a problem: path, why, fix."""
        return "task", self.build.path, "the settings leave too few for three splits", "use a larger grid"

    def problem_of(self, text: str) -> Any:
        """The problem of a record's marks, row by row.

        Raises:
            ValueError: they are no problem that the oracle solves.
        """
        raise NotImplementedError

    # ---- a turn --------------------------------------------------------------------------------------------

    def acting_roles(self, state: Any) -> tuple[str, ...] | None:
        return () if state.solved else None

    async def step(self, state: Any, actions: Mapping[str, Action], ctx: StepContext) -> Step:
        """The step of one stage.

        Raises:
            SystemFault: an action was lost, or the sandbox failed.
        """
        check_not_lost(actions)
        scores: dict[tuple[str, str], float | None] = {}
        info: dict[str, Any] = {}
        plan, mover, played = None, "", None
        for role, action in actions.items():
            if role in PROPOSERS:
                plan = await self._propose(state, role, action.parsed)
                effect = plan.fork
            else:
                effect = self._effect_of(state, action.parsed)
            if role in self._movers:
                # An unreadable message changes nothing, and counts as a turn.
                mover, played = role, effect or replace(self.effect(state, ()), readable=False)
            empty = not action.text.strip() if effect is None else not effect.written
            value = 0.0 if effect is None else self.quality_of(state, effect)
            local = message_rewards(effect, self.quality, value, empty=empty)
            scores |= {(role, component): score for component, score in local.items()}
            info[role] = {"readable": False} if effect is None else self.info(state, effect)
            if role == "tool" and plan is not None:
                info[role] |= run_info(plan.run)
        if played is not None:
            after = self._state_after(state, mover, played, plan)
        else:
            after = replace(state, plan=plan)
            plan_rewards = self.team_rewards(state, plan.fork if plan is not None else None)
            scores |= {(TEAM, f"plan_{name}"): value for name, value in plan_rewards.items()}
        scores |= {(TEAM, name): value for name, value in self.team_rewards(state, played).items()}
        return Step(state=after, scores=scores, info=info)

    def _state_after(self, state: Any, mover: str, effect: Effect, plan: Any) -> Any:
        """The state after a mover's message. The mover didn't see a plan of the same stage: unless that plan
        is the move itself, it is the plan of the next turn."""
        plan_moved = mover in PROPOSERS
        return replace(
            state,
            turn=state.turn + 1,
            last_plan=plan if plan_moved else state.plan,
            last_mover=mover,
            last_effect=effect,
            plan=None if plan_moved else plan,
            **self.changes(effect),
        )

    async def _propose(self, state: Any, role: str, parsed: Any) -> BoardPlan:
        """The plan of the planner or the tool."""
        if role != "tool":
            return self.plan(state, parsed)
        run, items = await propose(self.config.sandbox, parsed, lambda text: self.items_of(state, text))
        fork = None if items is None else self.effect(state, items)
        return self.tool_plan(author="tool", run=run, items=items or (), fork=fork)

    def plan(self, state: Any, parsed: Any) -> BoardPlan:
        """The plan of a planner's message."""
        fork = self._effect_of(state, parsed)
        return BoardPlan(items=() if fork is None else fork.items, fork=fork)

    def _effect_of(self, state: Any, parsed: Any) -> Any:
        """The effect that a mover's message would have; None where it can't be read."""
        items = self.items_of(state, parsed)
        return None if items is None else self.effect(state, items)

    def outcome(self, state: Any) -> dict[str, float]:
        """`success`; the number of messages that moved; what is left."""
        return {"success": float(state.solved), "turns": float(state.turn), self.left_name: float(state.left)}

    def digest(self, state: Any) -> str:
        """A digest that is stable across processes: states consist of ints, strings and tuples."""
        return hashlib.blake2b(recorded(state).encode(), digest_size=16).hexdigest()

    def items_of(self, state: Any, parsed: Any) -> tuple[Any, ...] | None:
        """The items of a parsed action or a text; None where it can't be read."""
        return self.wording.as_items(parsed)

    @abstractmethod
    def effect(self, state: Any, items: Sequence[Any]) -> Any:
        """The `Effect` of a message's items."""

    @abstractmethod
    def changes(self, effect: Any) -> dict[str, Any]:
        """The fields of the game in a state that an effect changes."""

    def first(self, state: Any) -> int:
        """What was left where the episode started, at least 1; by default the state's field `first`."""
        return int(state.first)

    def left_after(self, state: Any, effect: Any) -> int:
        """What is left after an effect."""
        return int(replace(state, **self.changes(effect)).left)

    def quality_of(self, state: Any, effect: Any) -> float:
        """The quality of a message that can be read, in [0, 1]; by default what it gained over its items."""
        return max(0.0, (state.left - self.left_after(state, effect)) / max(1, effect.tried))

    def team_rewards(self, state: Any, effect: Any) -> dict[str, float]:
        """The team's components for an effect (None: no message)."""
        after = state.left if effect is None else self.left_after(state, effect)
        return team_rewards(self.config.team, state.left, after, self.first(state))

    def info(self, state: Any, effect: Any) -> dict[str, Any]:
        """An effect as plain data, for coaches and records."""
        illegal = [list(refused) for refused in effect.illegal]
        return {"readable": True, self.wording.items: list(effect.items), "illegal": illegal}

    # ---- prompts -------------------------------------------------------------------------------------------

    def seen(self, state: Any, role: str) -> dict[str, Any]:
        """The fields of every game's observation but for `plan`."""
        shown = state.plan if role == "plan" else None
        return {
            "role": role,
            "turn": state.turn,
            "rendering": self.config.rendering,
            "program": None if shown is None else shown.run,
            "proposal": None if shown is None or shown.fork is None else shown.items,
        }

    def written(self, role: str, words: Sequence[str]) -> str:
        """A message of these words, or for the tool a program that prints them."""
        return printing_program(list(words)) if role == "tool" else write(words, self.config.rendering)

    def demonstrate(self, state: Any, role: str, noise: float, rng: np.random.Generator) -> str:
        """The oracle's message, each item random with probability `noise`."""
        every = self.every_item()
        items = [
            every[int(rng.integers(len(every)))] if rng.random() < noise else item
            for item in self.oracle(state)
        ]
        return self.written(role, list(map(self.wording.word, items[: self.limit])))

    def oracle(self, state: Any) -> Sequence[Any]:
        """The items that solve the game from a state."""
        raise NotImplementedError

    def every_item(self) -> Sequence[Any]:
        """Every item that a message may have, for the vocabulary and for noise."""
        raise NotImplementedError

    def vocabulary(self) -> Iterable[str]:
        """Every word of the compact rendering at this size."""
        return (*COMPACT_ROLES, "plan", ":", *map(self.wording.word, self.every_item()))

    def legal_items(self, plan: BoardPlan | None) -> tuple[Any, ...]:
        """The items of a plan that were played on its fork; for an oracle that follows it."""
        fork = plan.fork if plan is not None else None
        if fork is None:
            return ()
        refused = {number for number, _ in fork.illegal}
        return tuple(item for number, item in enumerate(fork.items[: fork.tried], 1) if number not in refused)

    # ---- feedback ------------------------------------------------------------------------------------------

    def diagnose(self, state: Any, role: str) -> str:
        """Feedback on the role's last message; empty in its first turn.

        For a planner it is on the plan of the last turn. For a tool it is on the newest program, although the
        mover didn't see it in the last turn where both act at once.
        """
        if state.last_effect is None:
            return ""
        sentences = [self.effect_feedback(state, role)]
        plan = (state.plan or state.last_plan) if role == "tool" else state.last_plan
        if plan is not None and plan.author == role:
            before = [self._program_feedback(plan)] if role == "tool" else []
            if self.reports_plan(plan, moved=role == state.last_mover):
                before.append(self._plan_feedback(plan))
            sentences = [*before, *sentences]
        return " ".join(filter(None, sentences))

    def effect_feedback(self, state: Any, role: str) -> str:
        """Sentences for a role on the last message that moved."""
        return self.wording.sentences(state.last_effect, self._names(state, role), skip=self.skip)

    def reports_plan(self, plan: BoardPlan, *, moved: bool) -> bool:
        """Whether sentences on its plan come before those on the message that moved.

        Args:
            moved: the plan is that message.
        """
        return not moved and (plan.fork is not None or plan.author == "planner")

    def plan_refusals(self, plan: BoardPlan) -> str:
        """Sentences on the refused items of a plan."""
        sentence = "{Item} {number} of your plan ({word}) {reason}."
        return self.wording.refusals(plan.fork.items, plan.fork.illegal, sentence)

    def places(self, state: Any, effect: Any) -> dict[str, str]:
        """`start` and `end` of an effect, for the sentences of the wording."""
        return {}

    def _names(self, state: Any, role: str) -> dict[str, str]:
        who, whose = names_of(state.last_mover, to=role)
        return {"who": who, "whose": whose, **self.places(state, state.last_effect)}

    def _plan_feedback(self, plan: BoardPlan) -> str:
        if plan.fork is None:
            return "Your last plan couldn't be read."
        return self.plan_refusals(plan) if plan.fork.written else "Your last plan was empty."

    def _program_feedback(self, plan: BoardPlan) -> str:
        assert plan.run is not None
        proposal = None if plan.fork is None else self.wording.listed(plan.items)
        return program_feedback(plan.run, proposal, self.wording.items)
