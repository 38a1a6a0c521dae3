"""Roles of Sokoban: planner and executor, tool and plan, and the solver that plays alone."""

from __future__ import annotations

from typing import Any

from coterie.plugins.agents.games import GameRole
from coterie.plugins.envs.common.parsing import Rendering
from coterie.plugins.envs.sokoban import messages, render
from coterie.plugins.envs.sokoban.state import Observation


class SokobanRole(GameRole):
    """A role of Sokoban."""

    game = "sokoban"

    def compact(self, seen: Observation) -> str:
        return render.compact(seen)

    def prose(self, seen: Observation, feedback: tuple[str, ...]) -> str:
        return render.prose(seen, feedback)

    def read(self, text: str, seen: Observation, rendering: Rendering) -> Any:
        """Moves, e.g. ("U", "R"), or pushes as ((row, column) or None, direction)."""
        if seen.writes == "moves":
            return messages.read_moves(text, rendering)
        return messages.read_pushes(text, rendering, seen.player, seen.push_words)


_RULES = (
    "The player moves up (U), down (D), left (L) or right (R) by one cell; moving into a box pushes it one "
    "cell on, if what is beyond is free. Boxes can't be pulled, nor two pushed at once; nothing enters a "
    "wall or leaves the grid. The board is solved when every box is on a target. "
)


class SokobanPlanner(SokobanRole):
    """Proposes pushes; doesn't move."""

    role = "planner"
    task = (
        "You are the planner of a team of two that solves Sokoban. You say which pushes to make; the "
        f"executor walks and makes them. {_RULES}Think briefly, and end with a list in square brackets."
    )


class SokobanExecutor(SokobanRole):
    """Writes the moves that the environment plays."""

    role = "executor"
    task = (
        "You are the executor of a team of two that solves Sokoban. The planner says which pushes to make; "
        f"you adopt or overrule it, and your moves are played. {_RULES}"
        "Think briefly, and end with a list of moves in square brackets."
    )


class SokobanSolver(SokobanRole):
    """Plays alone, with the same turns and feedback as the team."""

    role = "solver"
    task = (
        f"You solve Sokoban. Your moves are played. {_RULES}"
        "Think briefly, and end with a list of moves in square brackets."
    )


class SokobanTool(SokobanRole):
    """Writes a program whose printed moves are a proposal; doesn't move."""

    role = "tool"
    task = (
        "You are the tool user of a team of two that solves Sokoban. You write a Python program that finds "
        "the moves and prints them; your partner sees the program and what it printed, and moves. "
        f"{_RULES}The program gets no input, so write the board into it. Think briefly, and end with the "
        "whole program in one ```python block; it must print the moves as a list."
    )


class SokobanPlan(SokobanRole):
    """Sees the tool's program and its output, and writes the moves that the environment plays."""

    role = "plan"
    task = (
        "You decide the moves of a team of two that solves Sokoban. Your partner wrote a program that "
        f"proposes moves; you adopt or overrule it, and your moves are played. {_RULES}"
        "Think briefly, and end with a list of moves in square brackets."
    )
