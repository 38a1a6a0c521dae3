"""The environment `sokoban`: a planner proposes pushes, an executor walks and pushes.

Rewards. Source: PettingLLMs, arXiv 2510.11062 (Sokoban): team = boxes on targets / boxes, local .8 for a
board without deadlock. What differs and why: the boxes on targets are the value of a state, and paid at every
turn they pay most for leaving one box on a target and doing nothing else. So the team is paid gains: relative
ones for immediate credit, signed ones where returns sum over turns.

Guarantees for every message (bumps, to and fro, on and off a target, thousands of moves):

- Immediate credit, with either form: from any board that the oracle solves, no message has a component above
  that of the oracle's whole message (`illegal`, `empty`: below); so none earns more, whatever the weights.
  This doesn't hold where `max_moves` or `max_pushes_planned` shortens the oracle's message: a box may have to
  leave its target on the way, and then another message is paid more. A message that moves no box earns the
  team nothing.
- Summed returns, with `potential`: with potentials as differences and counterfactuals left out, an episode's
  team components add up to (first - last) / first, of boxes left (`team`) or pushes left (`pushed`), at most
  1, and no episode returns more than one that solves with its first message, under any discount. With
  `progress` there is no such bound: hence `not_summable`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Literal

import numpy as np
from pydantic import Field, model_validator

from coterie.core.types import Task
from coterie.core.types.splits import Split
from coterie.plugins.envs.board.effects import components, gain, weights
from coterie.plugins.envs.board.game import BoardGame, GameConfig
from coterie.plugins.envs.board.grid import MOVES, bits
from coterie.plugins.envs.board.parsing import cell_word, write
from coterie.plugins.envs.board.values import BoardPlan
from coterie.plugins.envs.sokoban import messages
from coterie.plugins.envs.sokoban.board import Board, PushingWalk, board_of, deadlocked, follow, play
from coterie.plugins.envs.sokoban.drawing import BoardDraw
from coterie.plugins.envs.sokoban.solver import solve
from coterie.plugins.envs.sokoban.state import (
    MOVE_WORDING,
    PLAN_WORDING,
    WALKED_PUSHES,
    PushPlan,
    SokobanObservation,
    SokobanState,
    boxes_words,
)


class Sokoban(BoardGame):
    """Push every box onto a target, over several turns.

    Source: Sokoban of PettingLLMs, arXiv 2510.11062: 6x6, drawn by reverse play. What differs here and why:
    `size` is the inside, without the walls around it; no episode earns the team's reward repeatedly (see
    above); the splits are disjoint by content; planner and executor write in different languages
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
        team: Literal["progress", "potential"] = Field(
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
    quality = "safe"
    components = components(quality, "pushed")
    weights = weights(components, quality)
    repeatable_gains = ("team", "progress", "pushed")
    left_name = "boxes_left"
    wording = MOVE_WORDING
    marks = "#.$@*+-"
    attempts = 5_000
    drawn_as = "sokoban"
    tool_plan = PushPlan

    def __init__(self, config: Config, build: Any) -> None:
        super().__init__(config, build)
        self.limit, self.skip = config.max_moves, config.walk == "skip"
        self._draw = BoardDraw(
            width=self.width,
            height=self.height,
            boxes=config.boxes,
            wall_density=config.wall_density,
            min_pushes=config.min_pushes,
            max_pushes=config.max_pushes,
        )

    # ---- tasks ---------------------------------------------------------------------------------------------

    def drawn(self, purpose: str, split: Split) -> Board | None:
        return self._draw.board(purpose, split)

    def scarce(self) -> tuple[str, str, str, str]:
        config = self.config
        most = "" if config.max_pushes is None else f" and at most {config.max_pushes}"
        return (
            "board",
            self.build.path,
            f"{self.height}x{self.width} grids with wall density {config.wall_density} and {config.boxes} "
            f"box{'es' * (config.boxes > 1)} hardly ever take at least {config.min_pushes}{most} pushes, or "
            "there are too few of them for three splits",
            "use a larger grid, fewer walls or boxes, or other bounds of pushes",
        )

    def problem_of(self, text: str) -> Board:
        board, boxes = board_of(text, self.width, self.height), self.config.boxes
        if board.boxes.bit_count() != boxes:
            raise ValueError(f"the grid has {board.boxes.bit_count()} boxes, the environment {boxes}")
        if board.boxes == board.targets:
            raise ValueError("all boxes are on targets already")
        if solve(board, board.boxes, board.player) is None:
            raise ValueError("the oracle finds no solution")
        return board

    # ---- the game ------------------------------------------------------------------------------------------

    def reset(self, task: Task, seed: int) -> SokobanState:
        """The state at the start, without a random draw."""
        board: Board = task.payload
        return SokobanState(board=board, boxes=board.boxes, player=board.player)

    def acting_roles(self, state: SokobanState) -> tuple[str, ...] | None:
        """No roles where the board is solved, or deadlocked with `stop_at_deadlock`; else the team's
        order."""
        stuck = self.config.stop_at_deadlock and deadlocked(state.board, state.boxes)
        return () if stuck else super().acting_roles(state)

    def observe(self, state: SokobanState, role: str) -> SokobanObservation:
        board = state.board
        blind = self.config.views == "split" and role == "executor"
        pushes = state.plan.pushes if state.plan is not None else ()
        return SokobanObservation(
            **self.seen(state, role),
            height=self.height,
            width=self.width,
            player=state.player_cell,
            boxes=board.cells(state.boxes),
            targets=None if blind else board.cells(board.targets),
            walls=board.cells(board.walls),
            plan=pushes if role == "executor" else None,
            push_words=self.config.push_words,
            max_moves=self.config.max_moves,
            max_pushes_planned=self.config.max_pushes_planned,
        )

    def outcome(self, state: SokobanState) -> dict[str, float]:
        """`success`; the number of turns; boxes that are on no target; whether a deadlock is detected."""
        return {**super().outcome(state), "deadlocked": float(deadlocked(state.board, state.boxes))}

    def items_of(self, state: SokobanState, parsed: Any) -> tuple[str, ...] | None:
        return messages.as_moves(parsed)

    def effect(self, state: SokobanState, items: Sequence[str]) -> PushingWalk:
        return play(state.board, state.boxes, state.player, items, limit=self.limit, skip=self.skip)

    def plan(self, state: SokobanState, parsed: Any) -> BoardPlan:
        """The plan of a planner's message. `max_moves` doesn't limit its pushes, which may be right although
        the executor needs several turns for them."""
        pushes = messages.as_pushes(parsed, self.config.push_words)
        if pushes is None:
            return PushPlan()
        limit = self.config.max_pushes_planned
        fork = follow(state.board, state.boxes, state.player, pushes, limit=limit, skip=self.skip)
        return PushPlan(items=pushes[:limit], fork=fork)

    def changes(self, effect: PushingWalk) -> dict[str, Any]:
        return {"boxes": effect.boxes, "player": effect.end}

    def first(self, state: SokobanState) -> int:
        return state.board.left(state.board.boxes)

    def quality_of(self, state: SokobanState, effect: PushingWalk) -> float:
        """`safe`: no move was illegal, and no deadlock is detected after it.

        A message with an illegal move is not safe, whatever its other moves do.
        """
        return float(bool(effect.tried) and not effect.illegal and not deadlocked(state.board, effect.boxes))

    def team_rewards(self, state: SokobanState, effect: PushingWalk | None) -> dict[str, float]:
        """The team's components. `pushed` is a finer signal for recipes: with one box, `team` is 0 until the
        board is solved. It is the gain in `Board.distance`: 1 exactly when solved."""
        board, after = state.board, state.boxes if effect is None else effect.boxes
        distances = [board.distance(boxes) for boxes in (state.boxes, after, board.boxes)]
        return {**super().team_rewards(state, effect), "pushed": gain(self.config.team, *distances)}

    def info(self, state: SokobanState, effect: PushingWalk) -> dict[str, Any]:
        board = state.board
        return {
            "readable": True,
            "moves": list(effect.items),
            "played": effect.played,
            "pushes": effect.pushes,
            "illegal": [list(refused) for refused in effect.illegal],
            "reached": list(board.cell(effect.end)),
            "boxes": [list(cell) for cell in board.cells(effect.boxes)],
            "deadlocked": deadlocked(board, effect.boxes),
        }

    # ---- feedback ------------------------------------------------------------------------------------------

    # It contains only what follows from the role's own message and its effect. Targets and deadlocks are left
    # out, and only a plan's author learns of its faults.

    def effect_feedback(self, state: SokobanState, role: str) -> str:
        wording = WALKED_PUSHES if state.last_mover == "planner" else MOVE_WORDING
        return wording.sentences(state.last_effect, self._names(state, role), skip=self.skip)

    def reports_plan(self, plan: BoardPlan, *, moved: bool) -> bool:
        return plan.author == "planner" or (plan.fork is not None and not moved)

    def plan_refusals(self, plan: BoardPlan) -> str:
        if plan.author == "tool":
            return super().plan_refusals(plan)
        sentence = "{Item} {number} of your plan ({word}) {reason}."
        refused = PLAN_WORDING.refusals(plan.items, plan.fork.illegal, sentence)
        if plan.fork.written <= len(plan.items):
            return refused
        return f"{refused} Only the first {len(plan.items)} pushes of a plan are read.".lstrip()

    def places(self, state: SokobanState, effect: PushingWalk) -> dict[str, str]:
        board = state.board
        return {
            "start": cell_word(board.cell(effect.start)),
            "end": cell_word(board.cell(effect.end)),
            "boxes": boxes_words(board.cells(effect.boxes)),
        }

    # ---- words, oracle -------------------------------------------------------------------------------------

    def vocabulary(self) -> Iterable[str]:
        """Every word of the compact rendering at this size."""
        return messages.vocabulary(self.width, self.height, self.config.push_words)

    def demonstrate(self, state: SokobanState, role: str, noise: float, rng: np.random.Generator) -> str:
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
            moves = fork.items if fork is not None and fork.items else moves
        moves = moves[: self.config.max_moves] or (_random_move(rng),)
        words = [_random_move(rng) if rng.random() < noise else move for move in moves]
        return self.written(role, words)

    def _random_push(self, state: SokobanState, rng: np.random.Generator) -> tuple[tuple[int, int], str]:
        boxes = list(bits(state.boxes))
        return state.board.cell(boxes[int(rng.integers(len(boxes)))]), _random_move(rng)


def _random_move(rng: np.random.Generator) -> str:
    return list(MOVES)[int(rng.integers(4))]
