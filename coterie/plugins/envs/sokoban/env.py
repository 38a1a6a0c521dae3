"""The environment `sokoban`: a planner proposes pushes, an executor walks and pushes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Literal

import numpy as np
from pydantic import Field, model_validator

from coterie.core.types import Task
from coterie.core.types.splits import Split
from coterie.plugins.envs.common.code import printing_program, propose
from coterie.plugins.envs.common.grid import MOVES, bits
from coterie.plugins.envs.common.parsing import write
from coterie.plugins.envs.common.turn_game import Game, GameConfig
from coterie.plugins.envs.sokoban import feedback, messages, tasks as boards
from coterie.plugins.envs.sokoban.board import Board, Walk, deadlocked, follow, play
from coterie.plugins.envs.sokoban.rewards import COMPONENTS, WEIGHTS, Form, local_rewards, team_rewards
from coterie.plugins.envs.sokoban.solver import solve
from coterie.plugins.envs.sokoban.state import Observation, Plan, State


class Sokoban(Game):
    """Push every box onto a target, over several turns.

    Source: Sokoban of PettingLLMs, arXiv 2510.11062: 6x6, drawn by reverse play. What differs here and why:
    `size` is the inside, without the walls around it; no episode earns the team's reward repeatedly (see
    `rewards.py`); the splits are disjoint by content; planner and executor write in different languages
    (pushes, moves) and may see different parts (`views`).

    Roles: `planner` (proposes pushes; doesn't change the state), `executor`, `solver` (alone: writes moves);
    and in prose `tool` (writes a program that prints moves) and `plan` (sees its run, and moves).
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
            None, ge=1, description="The most moves of a message that are played; null: all."
        )
        max_pushes_planned: int | None = Field(
            None, ge=1, description="The most pushes of a plan that are read; null: all."
        )
        team: Form = Field(
            "progress",
            description="The team's reward: `progress` for immediate credit, "
            "`potential` for returns that sum over turns.",
        )
        walk: Literal["stop", "skip"] = Field("stop", description="Stop at an illegal move, or skip it.")
        stop_at_deadlock: bool = Field(False, description="End the episode at a detected deadlock.")
        push_words: messages.PushWords = Field(
            "cells",
            description="Pushes with the box's cell (`r1c2R`), with its offset from the player (`+1-2R`), or "
            "(a single box) without either (`pR`).",
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
            count=config.task_count(split),
            width=self.width,
            height=self.height,
            boxes=config.boxes,
            wall_density=config.wall_density,
            min_pushes=config.min_pushes,
            max_pushes=config.max_pushes,
            path=self.build.path,
        )

    def reset(self, task: Task, seed: int) -> State:
        """The state at the start, without a random draw."""
        board: Board = task.payload
        return State(board=board, boxes=board.boxes, player=board.player)

    def acting_roles(self, state: State) -> tuple[str, ...] | None:
        """No roles where the board is solved, or deadlocked with `stop_at_deadlock`; else the team's
        order."""
        stuck = self.config.stop_at_deadlock and deadlocked(state.board, state.boxes)
        return () if stuck else super().acting_roles(state)

    def observe(self, state: State, role: str) -> Observation:
        board, plan = state.board, state.plan
        blind = self.config.views == "split" and role == "executor"
        pushes = plan.pushes if plan is not None else ()
        shown = plan if role == "plan" else None
        return Observation(
            role=role,
            turn=state.turn,
            height=self.height,
            width=self.width,
            player=state.player_cell,
            boxes=board.cells(state.boxes),
            targets=None if blind else board.cells(board.targets),
            walls=board.cells(board.walls),
            plan=pushes if role == "executor" else None,
            program=shown.run if shown is not None else None,
            proposal=shown.moves if shown is not None and shown.fork is not None else None,
            push_words=self.config.push_words,
            rendering=self.config.rendering,
            max_moves=self.config.max_moves,
            max_pushes_planned=self.config.max_pushes_planned,
        )

    def outcome(self, state: State) -> dict[str, float]:
        """`success`; the number of turns; boxes that are on no target; whether a deadlock is detected."""
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
            ValueError: the record is no board of this size and number of boxes that the oracle solves.
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
        """Feedback on the role's last message; empty in its first turn."""
        return feedback.last_turn(state, role, skip=self._skip)

    def vocabulary(self) -> Iterable[str]:
        """Every word of the compact rendering at this size."""
        return messages.vocabulary(self.width, self.height, self.config.push_words)

    def demonstrate(self, state: State, role: str, noise: float, rng: np.random.Generator) -> str:
        """The oracle's message, each of its words random with probability `noise`.

        A random push is of one of the boxes. For an executor that doesn't see the targets the message is the
        walk of the current plan. Without a solution it is one random word. For the tool it is a program that
        prints the moves.
        """
        solution = solve(state.board, state.boxes, state.player)
        if role == "planner":
            pushes = list(solution.pushes)[: self.config.max_pushes_planned] if solution else []
            pushes = [self._random_push(state, rng) if rng.random() < noise else push for push in pushes]
            words = messages.push_words(
                pushes or [self._random_push(state, rng)], state.player_cell, self.config.push_words
            )
            return write(words, self.config.rendering)
        moves = solution.moves if solution else ()
        if role == "executor" and self.config.views == "split":
            fork = state.plan.fork if state.plan else None
            moves = fork.moves if fork is not None and fork.moves else moves
        moves = moves[: self.config.max_moves] or (_random_move(rng),)
        words = [_random_move(rng) if rng.random() < noise else move for move in moves]
        return printing_program(words) if role == "tool" else write(words, self.config.rendering)

    # ---- inside --------------------------------------------------------------------------------------------

    def _team_rewards(self, state: State, effect: Walk | None) -> dict[str, float]:
        after = state.boxes if effect is None else effect.boxes
        return team_rewards(self.config.team, state.board, state.boxes, after)

    def _local_rewards(self, state: State, effect: Walk | None, *, empty: bool) -> dict[str, float]:
        stuck = effect is not None and deadlocked(state.board, effect.boxes)
        return local_rewards(effect, empty=empty, deadlocked=stuck)

    def _info(self, state: State, effect: Walk) -> dict[str, Any]:
        board = state.board
        return {
            "readable": True,
            "moves": list(effect.moves),
            "played": effect.played,
            "pushes": effect.pushes,
            "illegal": [list(refused) for refused in effect.illegal],
            "reached": list(board.cell(effect.end)),
            "boxes": [list(cell) for cell in board.cells(effect.boxes)],
            "deadlocked": deadlocked(board, effect.boxes),
        }

    def _changes(self, effect: Walk) -> dict[str, Any]:
        return {"boxes": effect.boxes, "player": effect.end, "last_walk": effect}

    def _play(self, state: State, moves: tuple[str, ...]) -> Walk:
        limit = self.config.max_moves
        return play(state.board, state.boxes, state.player, moves, limit=limit, skip=self._skip)

    def _read(self, state: State, parsed: Any) -> Walk | None:
        moves = messages.as_moves(parsed)
        return None if moves is None else self._play(state, moves)

    async def _propose(self, state: State, role: str, parsed: Any) -> Plan:
        """The plan of a role's message. `max_moves` doesn't limit a planner's pushes, which may be right
        although the executor needs several turns for them."""
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
