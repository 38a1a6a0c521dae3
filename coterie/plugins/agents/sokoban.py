"""Roles of Sokoban: planner and executor, tool and plan, and the solver that plays alone."""

from coterie.plugins.agents.games import GameRole, system_prompts

PROMPTS = system_prompts(
    "solve",
    "Sokoban",
    "The player moves up (U), down (D), left (L) or right (R) by one cell; moving into a box pushes it one "
    "cell on, if what is beyond is free. Boxes can't be pulled, nor two pushed at once; nothing enters a "
    "wall or leaves the grid. The board is solved when every box is on a target. ",
    "which pushes to make",
    "walks and makes them",
    "the moves",
    grid="board",
    planner_end="Think briefly, and end with a list in square brackets.",
    tool=(
        "You are the tool user {team} You write a Python program that finds the moves and prints them; your "
        "partner sees the program and what it printed, and moves. "
    ),
    plan=(
        "You decide the moves {team} Your partner wrote a program that proposes moves; you adopt or "
        "overrule it, and your moves are played. "
    ),
)
"""By role."""


class SokobanPlanner(GameRole):
    """Proposes pushes; doesn't move."""

    game, role, task = "sokoban", "planner", PROMPTS["planner"]


class SokobanExecutor(GameRole):
    """Writes the moves that the environment plays."""

    game, role, task = "sokoban", "executor", PROMPTS["executor"]


class SokobanSolver(GameRole):
    """Plays alone, with the same turns and feedback as the team."""

    game, role, task = "sokoban", "solver", PROMPTS["solver"]


class SokobanTool(GameRole):
    """Writes a program whose printed moves are a proposal; doesn't move."""

    game, role, task = "sokoban", "tool", PROMPTS["tool"]


class SokobanPlan(GameRole):
    """Sees the tool's program and its output, and writes the moves that the environment plays."""

    game, role, task = "sokoban", "plan", PROMPTS["plan"]
