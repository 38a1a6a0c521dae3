"""The environment `plan_path`: a planner proposes a path, an executor walks it.

Rewards. Source: PettingLLMs, arXiv 2510.11062 (Plan-Path). Its team reward, max(0, (d_prev - d_now) / d_0) or
1 at the goal, pays more than the goal for walking back from far away and, summed over turns, for going to and
fro. It is available as `paper`; the default is a form that does neither. Recipes that weigh the goal
separately: 1.0 goal + 0.5 progress - 0.2 illegal (a team with a planner gives `plan_goal` and `plan_progress`
the same weights).

Guarantees for every message (bumps, to and fro, away and back, thousands of moves):

- Immediate credit, with `progress` and with `potential`: from any cell, with or without `max_moves`, no
  message has a component above that of the oracle's message (`illegal`, `empty`: below); so none earns more,
  whatever the weights. The same holds for plans in every language. A message that ends no closer earns the
  team nothing.
- Summed returns, with `potential`: with potentials as differences and counterfactuals left out, an episode's
  team components add up to (first - last) / first, at most 1, and no episode returns more than the oracle's,
  under any discount. With `progress` there is no such bound: hence `not_summable`.
- `paper`: no guarantee. A message may earn more than the oracle's.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, Literal

import numpy as np
from pydantic import Field, model_validator

from coterie.core.types import Task
from coterie.core.types.splits import Split
from coterie.plugins.envs.board.effects import components, weights
from coterie.plugins.envs.board.game import BoardGame, GameConfig
from coterie.plugins.envs.board.grid import MOVES
from coterie.plugins.envs.board.parsing import cell_word
from coterie.plugins.envs.board.values import BoardPlan
from coterie.plugins.envs.plan_path import messages
from coterie.plugins.envs.plan_path.grid import (
    Maze,
    MazeWalk,
    along,
    corners,
    drawn_maze,
    shortest_path,
    walk,
)
from coterie.plugins.envs.plan_path.state import (
    MOVE_WORDING,
    WAYPOINT_WORDING,
    PathPlan,
    PlanPathObservation,
    PlanPathState,
)

log = logging.getLogger("coterie")

_BAD_WAYPOINT = {
    "wall": "is a wall",
    "edge": "is outside the grid",
    "cut off": "can't be reached",
    "here": "is where you stood already",
}


class PlanPath(BoardGame):
    """Find the way through a grid with walls, over several turns.

    Source: Plan-Path of PettingLLMs, arXiv 2510.11062: 10x10, wall probability .22, random start and goal,
    solvable; success is reaching the goal. What differs here and why: prompts show the current position; no
    episode earns the team's reward repeatedly (see above); the splits are disjoint by content; planner
    and executor may write in different languages (`plan_language`) and see different parts (`views`), since
    roles that see and write the same only cost tokens.

    Roles: `planner` (its message doesn't change the state), `executor`, `solver` (alone: writes moves); and
    the paper's `tool`, whose programs run in the `sandbox` (see `common/code.py`), and `plan`.
    """

    class Config(GameConfig):
        size: int = Field(10, ge=2, le=100, description="Rows and columns.")
        width: int | None = Field(None, ge=2, le=100, description="Columns, where they differ from `size`.")
        height: int | None = Field(None, ge=2, le=100, description="Rows, where they differ from `size`.")
        wall_density: float = Field(0.22, ge=0, lt=1, description="Probability that a cell is a wall.")
        min_distance: int = Field(1, ge=1, description="Fewest steps from start to goal.")
        max_moves: int | None = Field(
            None, ge=1, description="The most moves of a message that are played; null: all."
        )
        team: Literal["progress", "potential", "paper"] = Field(
            "progress",
            description="The team's reward: `progress` for immediate credit, "
            "`potential` for returns that sum over turns, `paper` as published.",
        )
        walk: Literal["stop", "skip"] = Field("stop", description="Stop at an illegal move, or skip it.")
        plan_language: messages.Language = Field("waypoints", description="Form of the planner's messages.")
        waypoint_words: messages.WaypointWords = Field(
            "cells", description="Way-points as cells (`r1c2`) or as offsets from the position (`+2-1`)."
        )
        views: Literal["full", "split"] = Field(
            "full",
            description="`split`: the planner sees the map; the executor its position, the plan, and the "
            "walls next to it.",
        )

        @model_validator(mode="after")
        def _offsets_are_compact(self) -> PlanPath.Config:
            if self.waypoint_words == "offsets" and self.rendering == "prose":
                raise ValueError("waypoint_words: offsets is for the compact rendering; prose names cells")
            return self

    config: Config
    quality = "shortest"
    components = components(quality)
    weights = weights(components, quality)
    left_name = "distance_left"
    wording = MOVE_WORDING
    marks = "SG#."
    drawn_as = "plan_path"
    tool_plan = PathPlan

    def __init__(self, config: Config, build: Any) -> None:
        super().__init__(config, build)
        self.limit, self.skip = config.max_moves, config.walk == "skip"
        if config.team == "paper":
            log.warning(
                "env.team: paper pays more than the goal for walking back from far away, and a return that "
                "sums over turns can earn it repeatedly: use it with immediate credit only"
            )

    # ---- tasks ---------------------------------------------------------------------------------------------

    def drawn(self, purpose: str, split: Split) -> Maze | None:
        config = self.config
        return drawn_maze(
            purpose,
            split,
            width=self.width,
            height=self.height,
            wall_density=config.wall_density,
            min_distance=config.min_distance,
        )

    def scarce(self) -> tuple[str, str, str, str]:
        return (
            "maze",
            self.build.path,
            f"{self.height}x{self.width} grids with wall density {self.config.wall_density} hardly ever "
            f"have a start and a goal {self.config.min_distance} steps apart, or too few of them for three "
            "splits",
            "use a larger grid, fewer walls, or a smaller min_distance",
        )

    def problem_of(self, text: str) -> Maze:
        """The maze of rows of text with `S`tart, `G`oal, `#` wall and `.` free."""
        if text.count("S") != 1 or text.count("G") != 1:
            raise ValueError(f"a grid has one S and one G, not {text.count('S')} and {text.count('G')}")
        walls = sum(1 << cell for cell, mark in enumerate(text) if mark == "#")
        maze = Maze(self.width, self.height, walls, text.index("S"), text.index("G"))
        if maze.left(maze.start) < 0:
            raise ValueError("there is no way from start to goal")
        return maze

    # ---- the game ------------------------------------------------------------------------------------------

    def reset(self, task: Task, seed: int) -> PlanPathState:
        """The state at the start, without a random draw."""
        maze: Maze = task.payload
        return PlanPathState(maze=maze, position=maze.start, first=maze.left(maze.start))

    def observe(self, state: PlanPathState, role: str) -> PlanPathObservation:
        blind = self.config.views == "split" and role == "executor"
        plan, language = state.plan, self.config.plan_language
        items = plan.items if plan is not None and plan.language == language else ()
        return PlanPathObservation(
            **self.seen(state, role),
            height=self.height,
            width=self.width,
            position=state.cell,
            goal=None if blind else state.maze.cell(state.maze.goal),
            walls=self._walls_near(state) if blind else state.maze.wall_cells(),
            sees="neighbours" if blind else "map",
            plan=items if role == "executor" else None,
            plan_language=language,
            waypoint_words=self.config.waypoint_words,
            max_moves=self.config.max_moves,
        )

    def items_of(self, state: PlanPathState, parsed: Any) -> tuple[str, ...] | None:
        return messages.as_moves(parsed)

    def effect(self, state: PlanPathState, items: Sequence[str]) -> MazeWalk:
        return walk(state.maze, state.position, items, limit=self.limit, skip=self.skip)

    def changes(self, effect: MazeWalk) -> dict[str, Any]:
        return {"position": effect.end}

    def quality_of(self, state: PlanPathState, effect: MazeWalk) -> float:
        """`shortest` is 1 where all moves were on a shortest path."""
        return float(effect.shortest)

    def info(self, state: PlanPathState, effect: MazeWalk) -> dict[str, Any]:
        return {
            "readable": True,
            "moves": list(effect.items),
            "played": effect.played,
            "illegal": [list(refused) for refused in effect.illegal],
            "reached": list(state.maze.cell(effect.end)),
            "shortest": effect.shortest,
        }

    def plan(self, state: PlanPathState, parsed: Any) -> BoardPlan:
        language = self.config.plan_language
        if language == "moves":
            moves = messages.as_moves(parsed)
            fork = None if moves is None else self.effect(state, moves)
            return PathPlan(items=moves or (), language=language, fork=fork)
        if language == "legs":
            legs = messages.as_legs(parsed)
            fork = None if legs is None else self.effect(state, messages.walked(legs))
            return PathPlan(items=legs or (), language=language, fork=fork)
        cells = messages.as_waypoints(parsed)
        if cells is None:
            return PathPlan()
        path, illegal, tried = along(state.maze, state.position, cells, skip=self.skip)
        fork = self.effect(state, path)
        shortest = fork.shortest and not illegal
        fork = replace(fork, illegal=illegal, tried=tried, written=len(cells), shortest=shortest)
        return PathPlan(items=cells, language=language, fork=fork)

    def _walls_near(self, state: PlanPathState) -> tuple[tuple[int, int], ...]:
        row, column = state.cell
        neighbours = ((row + rows, column + columns) for rows, columns in MOVES.values())
        return tuple(
            cell
            for cell in neighbours
            if (index := state.maze.index(cell)) is not None and state.maze.wall(index)
        )

    # ---- feedback ------------------------------------------------------------------------------------------

    # It contains only what follows from the role's own message and its effect. The distance to the goal is
    # left out, and only the author of way-points learns which of them are walls.

    def effect_feedback(self, state: PlanPathState, role: str) -> str:
        plan = state.last_plan if state.last_mover == "planner" else None
        if plan is None or not plan.waypoints:
            return super().effect_feedback(state, role)
        walked = WAYPOINT_WORDING.sentences(state.last_effect, self._names(state, role), skip=self.skip)
        refused = self.plan_refusals(plan) if role == state.last_mover else ""
        return f"{walked} {refused}" if refused else walked

    def places(self, state: PlanPathState, effect: MazeWalk) -> dict[str, str]:
        maze = state.maze
        return {"start": cell_word(maze.cell(effect.start)), "end": cell_word(maze.cell(effect.end))}

    def plan_refusals(self, plan: BoardPlan) -> str:
        assert isinstance(plan, PathPlan)
        if not plan.waypoints:
            return super().plan_refusals(plan)
        return " ".join(
            f"Your way-point {number} ({cell_word(plan.waypoints[number - 1])}) {_BAD_WAYPOINT[reason]}."
            for number, reason in plan.fork.illegal
        )

    # ---- words, oracle -------------------------------------------------------------------------------------

    def vocabulary(self) -> Iterable[str]:
        """Every word of the compact rendering at this size."""
        return messages.vocabulary(self.width, self.height, self.config.plan_language)

    def demonstrate(self, state: PlanPathState, role: str, noise: float, rng: np.random.Generator) -> str:
        """The oracle's message: the shortest path, each move (or way-point) random with probability `noise`.

        For an executor that doesn't see the goal it is the path of the current plan.
        """
        path = self._planned(state) if role == "executor" and self.config.views == "split" else ()
        path = (path or shortest_path(state.maze, state.position))[: self.config.max_moves]
        if role == "planner" and self.config.plan_language == "waypoints":
            cells = [
                (int(rng.integers(self.height)), int(rng.integers(self.width)))
                if rng.random() < noise
                else cell
                for cell in corners(state.maze, state.position, path)
            ]
            words = messages.waypoint_words(cells, state.cell, self.config.waypoint_words)
        else:
            legs = role == "planner" and self.config.plan_language == "legs"
            oracle = messages.leg_words(path) if legs else path
            vocabulary = messages.leg_vocabulary(self.width, self.height) if legs else list(MOVES)
            words = [
                vocabulary[int(rng.integers(len(vocabulary)))] if rng.random() < noise else word
                for word in oracle
            ]
        return self.written(role, words)

    def _planned(self, state: PlanPathState) -> tuple[str, ...]:
        """The legal moves of the plan, as played on a fork."""
        if self.config.plan_language != "waypoints":
            return self.legal_items(state.plan)
        fork = state.plan.fork if state.plan else None
        return fork.items[: fork.played] if fork is not None else ()
