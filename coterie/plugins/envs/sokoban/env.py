"""The environment `sokoban`: a planner names pushes, an executor walks and pushes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Literal

import numpy as np
from pydantic import Field, model_validator

from coterie.core.types import Task
from coterie.core.types.splits import Split
from coterie.plugins.envs.common.code import program, propose
from coterie.plugins.envs.common.grid import MOVES, bits
from coterie.plugins.envs.common.parsing import write
from coterie.plugins.envs.common.turn_game import Game, GameConfig
from coterie.plugins.envs.sokoban import feedback, messages, tasks as boards
from coterie.plugins.envs.sokoban.board import Board, Walk, deadlocked, follow, play
from coterie.plugins.envs.sokoban.rewards import COMPONENTS, WEIGHTS, Form, local_terms, team_terms
from coterie.plugins.envs.sokoban.solver import solve
from coterie.plugins.envs.sokoban.state import Observation, Plan, State


class Sokoban(Game):
    """Push every box onto a target, over several turns.

    Source: Sokoban of PettingLLMs, arXiv 2510.11062: 6x6, drawn by reverse play. What differs here and
    why: `size` is the inside, without the walls around it; the team's reward can't be farmed (see
    `rewards.py`); the splits are disjoint by content; planner and executor speak different languages
    (pushes, moves) and may see different things (`views`).

    Roles: `planner` (names pushes; doesn't move the world), `executor`, `solver` (alone: writes moves);
    and in prose `tool` (writes a program that prints moves), `plan` (sees what it did, and moves).
    """

    class Config(GameConfig):
        size: int = Field(6, ge=2, le=50, description="Rows and columns of the inside.")
        width: int | None = Field(None, ge=1, le=50, description="Columns, where they differ from `size`.")
        height: int | None = Field(None, ge=1, le=50, description="Rows, where they differ from `size`.")
        boxes: int = Field(1, ge=1)
        wall_density: float = Field(0.1, ge=0, lt=1, description="Probability that an inner cell is a wall.")
        min_pushes: int = Field(1, ge=1, description="Fewest pushes that a solution takes.")
        max_pushes: int | None = Field(None, ge=1, description="Most pushes that the best solution takes.")
        max_moves: int | None = Field(
            None, ge=1, description="Moves of a message that are played; null: all."
        )
        max_pushes_planned: int | None = Field(
            None, ge=1, description="Pushes of a plan that are read; null: all."
        )
        team: Form = Field(
            "progress",
            description="The team's reward: `progress` for immediate credit, "
            "`potential` for returns that sum over turns.",
        )
        walk: Literal["stop", "skip"] = Field("stop", description="What an illegal move does to the rest.")
        stop_at_deadlock: bool = Field(False, description="End the episode where the boxes are seen stuck.")
        push_words: messages.PushWords = Field(
            "cells",
            description="Pushes with the box's cell (`r1c2R`), with its offset from the player (`+1-2R`), or "
            "of the only box (`pR`).",
        )
        views: Literal["full", "split"] = Field(
            "full", description="`split`: the executor doesn't see the targets."
        )

        @model_validator(mode="after")
        def _fits_together(self) -> Sokoban.Config:
            if self.push_words == "offsets" and self.rendering == "prose":
                raise ValueError("push_words: offsets is for the compact rendering; prose names cells")
            if self.push_words == "directions" and self.boxes > 1:
                raise ValueError("push_words: directions doesn't say which box, so it is for boxes: 1")
            cells = (self.width or self.size) * (self.height or self.size)
            if self.boxes + 2 > cells:
                raise ValueError(f"{self.boxes} boxes leave no room to push in {cells} cells")
            if self.max_pushes is not None and self.max_pushes < self.min_pushes:
                raise ValueError(f"max_pushes ({self.max_pushes}) is below min_pushes ({self.min_pushes})")
            return self

    config: Config
    components = COMPONENTS
    weights = WEIGHTS
    repeatable_gains = ("team", "progress", "pushed")

    def __init__(self, config: Config, build: Any) -> None:
        super().__init__(config, build)
        self.width, self.height = config.width or config.size, config.height or config.size
        self._skip = config.walk == "skip"

    # ---- the game ------------------------------------------------------------------------------------------

    def _generated(self, split: Split, seed: int) -> boards.Boards:
        config = self.config
        return boards.Boards(
            split=split,
            seed=seed,
            count=config.vouched(split),
            width=self.width,
            height=self.height,
            boxes=config.boxes,
            wall_density=config.wall_density,
            min_pushes=config.min_pushes,
            max_pushes=config.max_pushes,
            path=self.build.path,
        )

    def reset(self, task: Task, seed: int) -> State:
        """The state at the start; nothing is drawn here."""
        board: Board = task.payload
        return State(board=board, boxes=board.boxes, player=board.player)

    def acting_roles(self, state: State) -> tuple[str, ...] | None:
        lost = self.config.stop_at_deadlock and deadlocked(state.board, state.boxes)
        return () if lost else super().acting_roles(state)

    def observe(self, state: State, role: str) -> Observation:
        board, plan = state.board, state.plan
        blind = self.config.views == "split" and role == "executor"
        pushes = plan.pushes if plan is not None else ()
        told = plan if role == "plan" else None
        return Observation(
            role=role,
            turn=state.turn,
            height=self.height,
            width=self.width,
            player=state.here,
            boxes=board.cells(state.boxes),
            targets=None if blind else board.cells(board.targets),
            walls=board.cells(board.walls),
            plan=pushes if role == "executor" else None,
            program=told.run if told is not None else None,
            proposal=told.moves if told is not None and told.fork is not None else None,
            push_words=self.config.push_words,
            rendering=self.config.rendering,
            max_moves=self.config.max_moves,
            max_pushes_planned=self.config.max_pushes_planned,
        )

    def outcome(self, state: State) -> dict[str, float]:
        """`success`; messages that moved; boxes that are on no target; `deadlocked` where seen to be lost."""
        return {
            "success": float(state.solved),
            "turns": float(state.turn),
            "boxes_left": float(state.board.left(state.boxes)),
            "deadlocked": float(deadlocked(state.board, state.boxes)),
        }

    # ---- tasks as data -------------------------------------------------------------------------------------

    def record(self, task: Task) -> dict[str, Any]:
        """The task as JSON (see `tasks.py`)."""
        return boards.record(task)

    def task_of(self, record: Mapping[str, Any], id: str) -> Task:
        """The task of a record.

        Raises:
            ValueError: it is no board of this size and number of boxes that the oracle solves.
        """
        return boards.task_of(record, id, width=self.width, height=self.height, boxes=self.config.boxes)

    def fingerprints(self, task: Task) -> dict[str, str]:
        """What no two splits may share: `content`."""
        return {"content": boards.content(task.payload)}

    def picture(self, task: Task) -> str:
        """The board, for people."""
        return "\n".join(boards.rows(task.payload))

    # ---- the optional part ---------------------------------------------------------------------------------

    def diagnose(self, state: State, role: str) -> str:
        """What became of the role's last message; empty in its first turn."""
        return feedback.sentences(state, role, skip=self._skip)

    def vocabulary(self) -> Iterable[str]:
        """Every word of the compact rendering at this size."""
        return messages.vocabulary(self.width, self.height, self.config.push_words)

    def demonstrate(self, state: State, role: str, noise: float, rng: np.random.Generator) -> str:
        """The oracle's message, each of its words random with probability `noise`.

        A random push is of one of the boxes. An executor that doesn't see the targets is shown carrying
        out the plan it was given. Where there is no solution (any more), the message is one random word;
        the tool's program prints the moves.
        """
        found = solve(state.board, state.boxes, state.player)
        if role == "planner":
            pushes = list(found.pushes)[: self.config.max_pushes_planned] if found else []
            pushes = [self._random_push(state, rng) if rng.random() < noise else push for push in pushes]
            words = messages.push_words(
                pushes or [self._random_push(state, rng)], state.here, self.config.push_words
            )
            return write(words, self.config.rendering)
        moves = found.moves if found else ()
        if role == "executor" and self.config.views == "split":
            fork = state.plan.fork if state.plan else None
            moves = fork.moves if fork is not None and fork.moves else moves
        moves = moves[: self.config.max_moves] or (_random_move(rng),)
        words = [_random_move(rng) if rng.random() < noise else move for move in moves]
        return program(words) if role == "tool" else write(words, self.config.rendering)

    # ---- inside --------------------------------------------------------------------------------------------

    def _team(self, state: State, made: Walk | None) -> dict[str, float]:
        after = state.boxes if made is None else made.boxes
        return team_terms(self.config.team, state.board, state.boxes, after)

    def _local(self, state: State, message: Walk | None, *, empty: bool) -> dict[str, float]:
        stuck = message is not None and deadlocked(state.board, message.boxes)
        return local_terms(message, empty=empty, deadlocked=stuck)

    def _about(self, state: State, message: Walk) -> dict[str, Any]:
        board = state.board
        return {
            "readable": True,
            "moves": list(message.moves),
            "played": message.played,
            "pushes": message.pushes,
            "illegal": [list(one) for one in message.illegal],
            "reached": list(board.cell(message.end)),
            "boxes": [list(cell) for cell in board.cells(message.boxes)],
            "deadlocked": deadlocked(board, message.boxes),
        }

    def _changes(self, made: Walk) -> dict[str, Any]:
        return {"boxes": made.boxes, "player": made.end, "last_walk": made}

    def _play(self, state: State, moves: tuple[str, ...]) -> Walk:
        limit = self.config.max_moves
        return play(state.board, state.boxes, state.player, moves, limit=limit, skip=self._skip)

    def _read(self, state: State, parsed: Any) -> Walk | None:
        moves = messages.as_moves(parsed)
        return None if moves is None else self._play(state, moves)

    async def _propose(self, state: State, role: str, parsed: Any) -> Plan:
        """A planner's pushes aren't cut at `max_moves`: they may be right though their executor needs several
        turns for them."""
        if role == "tool":
            run, moves = await propose(
                self.config.sandbox, parsed, lambda text: messages.read_moves(text, "prose")
            )
            fork = None if moves is None else self._play(state, moves)
            return Plan(author="tool", run=run, moves=moves or (), fork=fork)
        pushes = messages.as_pushes(parsed, self.config.push_words)
        if pushes is None:
            return Plan()
        limit = self.config.max_pushes_planned
        fork = follow(state.board, state.boxes, state.player, pushes, limit=limit, skip=self._skip)
        return Plan(pushes=pushes[:limit], fork=fork)

    def _random_push(self, state: State, rng: np.random.Generator) -> tuple[tuple[int, int], str]:
        boxes = list(bits(state.boxes))
        return state.board.cell(boxes[int(rng.integers(len(boxes)))]), _random_move(rng)


def _random_move(rng: np.random.Generator) -> str:
    return list(MOVES)[int(rng.integers(4))]
