"""The environment `plan_path`: a planner proposes a path, an executor walks it."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

import numpy as np
from pydantic import Field, model_validator

from coterie.core.types import Task
from coterie.core.types.splits import Split
from coterie.plugins.envs.common.code import printing_program, propose
from coterie.plugins.envs.common.grid import MOVES
from coterie.plugins.envs.common.parsing import write
from coterie.plugins.envs.common.turn_game import Game, GameConfig
from coterie.plugins.envs.plan_path import feedback, messages, tasks as maps
from coterie.plugins.envs.plan_path.grid import (
    Maze,
    Mazes,
    Walk,
    along,
    content,
    corners,
    shortest_path,
    walk,
)
from coterie.plugins.envs.plan_path.rewards import COMPONENTS, WEIGHTS, Form, local_rewards, team_rewards
from coterie.plugins.envs.plan_path.state import Observation, Plan, State, ToolPlan

log = logging.getLogger("coterie")


class PlanPath(Game):
    """Find the way through a grid with walls, over several turns.

    Source: Plan-Path of PettingLLMs, arXiv 2510.11062: 10x10, wall probability .22, random start and goal,
    solvable; success is reaching the goal. What differs here and why: prompts show the current position; no
    episode earns the team's reward repeatedly (see `rewards.py`); the splits are disjoint by content; planner
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
        team: Form = Field(
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
    components = COMPONENTS
    weights = WEIGHTS

    def __init__(self, config: Config, build: Any) -> None:
        super().__init__(config, build)
        self.width, self.height = config.width or config.size, config.height or config.size
        self._skip = config.walk == "skip"
        if config.team == "paper":
            log.warning(
                "env.team: paper pays more than the goal for walking back from far away, and a return that "
                "sums over turns can earn it repeatedly: use it with immediate credit only"
            )

    # ---- the game ------------------------------------------------------------------------------------------

    def _generated(self, split: Split, seed: int) -> Mazes:
        return Mazes(
            split=split,
            seed=seed,
            count=self.config.task_count(split),
            width=self.width,
            height=self.height,
            wall_density=self.config.wall_density,
            min_distance=self.config.min_distance,
            path=self.build.path,
        )

    def reset(self, task: Task, seed: int) -> State:
        """The state at the start, without a random draw."""
        maze: Maze = task.payload
        return State(maze=maze, position=maze.start, first=maze.left(maze.start))

    def observe(self, state: State, role: str) -> Observation:
        blind = self.config.views == "split" and role == "executor"
        shown = state.plan if role == "plan" else None
        return Observation(
            role=role,
            turn=state.turn,
            height=self.height,
            width=self.width,
            position=state.cell,
            goal=None if blind else state.maze.cell(state.maze.goal),
            walls=self._walls_near(state) if blind else state.maze.wall_cells(),
            sees="neighbours" if blind else "map",
            plan=self._plan_seen(state) if role == "executor" else None,
            plan_language=self.config.plan_language,
            waypoint_words=self.config.waypoint_words,
            rendering=self.config.rendering,
            max_moves=self.config.max_moves,
            program=shown.run if shown is not None else None,
            proposal=shown.moves if shown is not None and shown.fork is not None else None,
        )

    def outcome(self, state: State) -> dict[str, float]:
        """`success`; the number of walks; the steps left to the goal."""
        return {
            "success": float(state.solved),
            "turns": float(state.turn),
            "distance_left": float(state.left),
        }

    # ---- tasks as data -------------------------------------------------------------------------------------

    def record(self, task: Task) -> dict[str, Any]:
        """The task as JSON (see `tasks.py`)."""
        return maps.record(task)

    def task_of(self, record: Mapping[str, Any], id: str) -> Task:
        """The task of a record.

        Raises:
            ValueError: the record is no maze of this size with a way from start to goal.
        """
        return maps.task_of(record, id, width=self.width, height=self.height)

    def fingerprints(self, task: Task) -> dict[str, str]:
        """What no two splits may share: `content`."""
        return {"content": content(task.payload)}

    def picture(self, task: Task) -> str:
        """The map, for people."""
        return "\n".join(maps.rows(task.payload))

    # ---- the optional part ---------------------------------------------------------------------------------

    def diagnose(self, state: State, role: str) -> str:
        """Feedback on the role's last message; empty in its first turn."""
        return feedback.last_turn(state, role, skip=self._skip)

    def vocabulary(self) -> Iterable[str]:
        """Every word of the compact rendering at this size."""
        return messages.vocabulary(self.width, self.height, self.config.plan_language)

    def demonstrate(self, state: State, role: str, noise: float, rng: np.random.Generator) -> str:
        """The oracle's message: the shortest path, each move (or way-point) random with probability `noise`.

        For an executor that doesn't see the goal it is the path of the current plan.
        """
        path = self._planned(state) if role == "executor" and self.config.views == "split" else ()
        path = (path or shortest_path(state.maze, state.position))[: self.config.max_moves]
        if role == "planner" and self.config.plan_language == "waypoints":
            cells = [
                self._random_cell(rng) if rng.random() < noise else cell
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
        return printing_program(words) if role == "tool" else write(words, self.config.rendering)

    # ---- inside --------------------------------------------------------------------------------------------

    def _team_rewards(self, state: State, effect: Walk | None) -> dict[str, float]:
        left = state.left if effect is None else state.maze.left(effect.end)
        return team_rewards(self.config.team, state.left, left, state.first)

    def _local_rewards(self, state: State, effect: Walk | None, *, empty: bool) -> dict[str, float]:
        return local_rewards(effect, empty=empty)

    def _info(self, state: State, effect: Walk) -> dict[str, Any]:
        return {
            "readable": True,
            "moves": list(effect.moves),
            "played": effect.played,
            "illegal": [list(refused) for refused in effect.illegal],
            "reached": list(state.maze.cell(effect.end)),
            "shortest": effect.shortest,
        }

    def _changes(self, effect: Walk) -> dict[str, Any]:
        return {"position": effect.end, "last_walk": effect}

    def _walk(self, state: State, moves: Sequence[str]) -> Walk:
        return walk(state.maze, state.position, moves, limit=self.config.max_moves, skip=self._skip)

    def _read(self, state: State, parsed: Any) -> Walk | None:
        moves = messages.as_moves(parsed)
        return None if moves is None else self._walk(state, moves)

    async def _propose(self, state: State, role: str, parsed: Any) -> Plan:
        if role == "tool":
            run, moves = await propose(
                self.config.sandbox, parsed, lambda text: messages.read_moves(text, "prose")
            )
            return ToolPlan(
                run=run, moves=moves or (), fork=None if moves is None else self._walk(state, moves)
            )
        if self.config.plan_language == "legs":
            legs = messages.as_legs(parsed)
            return Plan() if legs is None else Plan(legs=legs, fork=self._walk(state, messages.walked(legs)))
        if self.config.plan_language == "moves":
            moves = messages.as_moves(parsed)
            return Plan() if moves is None else Plan(moves=moves, fork=self._walk(state, moves))
        cells = messages.as_waypoints(parsed)
        if cells is None:
            return Plan()
        path, illegal, tried = along(state.maze, state.position, cells, skip=self._skip)
        fork = self._walk(state, path)
        return Plan(
            waypoints=cells,
            fork=replace(
                fork, illegal=illegal, tried=tried, written=len(cells), shortest=fork.shortest and not illegal
            ),
        )

    def _plan_seen(self, state: State) -> tuple[Any, ...]:
        if state.plan is None:
            return ()
        plan = state.plan
        return {"waypoints": plan.waypoints, "legs": plan.legs, "moves": plan.moves}[
            self.config.plan_language
        ]

    def _planned(self, state: State) -> tuple[str, ...]:
        """The legal moves of the plan, as played on a fork."""
        fork = state.plan.fork if state.plan else None
        if fork is None or self.config.plan_language == "waypoints":
            return fork.moves[: fork.played] if fork is not None else ()
        refused = {number for number, _ in fork.illegal}
        return tuple(move for number, move in enumerate(fork.moves[: fork.tried], 1) if number not in refused)

    def _walls_near(self, state: State) -> tuple[tuple[int, int], ...]:
        row, column = state.cell
        neighbours = ((row + rows, column + columns) for rows, columns in MOVES.values())
        return tuple(
            cell
            for cell in neighbours
            if (index := state.maze.index(cell)) is not None and state.maze.wall(index)
        )

    def _random_cell(self, rng: np.random.Generator) -> tuple[int, int]:
        return int(rng.integers(self.height)), int(rng.integers(self.width))
