"""Roles of Plan-Path: planner and executor, tool and plan, and the solver that plays alone."""

from __future__ import annotations

from typing import Any

from coterie.plugins.agents.games import GameRole
from coterie.plugins.envs.common.parsing import Rendering
from coterie.plugins.envs.plan_path import messages, render
from coterie.plugins.envs.plan_path.state import Observation


class PlanPathRole(GameRole):
    """A role of Plan-Path."""

    game = "plan_path"

    def compact(self, seen: Observation) -> str:
        return render.compact(seen)

    def prose(self, seen: Observation, feedback: tuple[str, ...]) -> str:
        return render.prose(seen, feedback)

    def read(self, text: str, seen: Observation, rendering: Rendering) -> Any:
        """Moves, e.g. ("U", "R"), legs, e.g. ("R2", "D1"), or way-points as (row, column)."""
        if seen.writes == "moves":
            return messages.read_moves(text, rendering)
        if seen.writes == "legs":
            return messages.read_legs(text, rendering)
        return messages.read_waypoints(text, rendering, seen.position, seen.waypoint_words)


_RULES = (
    "Moves go up (U), down (D), left (L) or right (R) by one cell; "
    "a move can't enter a wall or leave the grid. "
)


class PlanPathPlanner(PlanPathRole):
    """Proposes a path; doesn't move."""

    role = "planner"
    task = (
        "You are the planner of a team of two that finds the way through a grid with walls. You say "
        f"which way to go; the executor moves. {_RULES}Think briefly, and end with a list in square brackets."
    )


class PlanPathExecutor(PlanPathRole):
    """Writes the moves that the environment plays."""

    role = "executor"
    task = (
        "You are the executor of a team of two that finds the way through a grid with walls. The planner "
        f"says which way to go; you adopt or overrule it, and your moves are played. {_RULES}"
        "Think briefly, and end with a list of moves in square brackets."
    )


class PlanPathSolver(PlanPathRole):
    """Plays alone, with the same turns and feedback as the team."""

    role = "solver"
    task = (
        f"You find the way through a grid with walls. Your moves are played. {_RULES}"
        "Think briefly, and end with a list of moves in square brackets."
    )


class PlanPathTool(PlanPathRole):
    """Writes a program whose printed moves are its proposal; doesn't move."""

    role = "tool"
    task = (
        "You are the programmer of a team of two that finds the way through a grid with walls. You write a "
        "Python program that finds the way; your partner sees it and what it prints, and moves. "
        f"{_RULES}The program gets no input, so write the grid into it. Think briefly, and end with the "
        "whole program in one ```python block; it must print the moves as a list."
    )


class PlanPathPlan(PlanPathRole):
    """Sees the program, its output and its proposal, and writes the moves that the environment plays."""

    role = "plan"
    task = (
        "You are the planner of a team of two that finds the way through a grid with walls. Your partner's "
        "program proposes moves, and may be wrong; you adopt or overrule them, and your moves are played. "
        f"{_RULES}Think briefly, and end with a list of moves in square brackets."
    )
