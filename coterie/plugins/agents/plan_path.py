"""Roles of Plan-Path: planner and executor, tool and plan, and the solver that plays alone."""

from coterie.plugins.agents.games import GameRole, system_prompts

PROMPTS = system_prompts(
    "find",
    "the way through a grid with walls",
    "Moves go up (U), down (D), left (L) or right (R) by one cell; "
    "a move can't enter a wall or leave the grid. ",
    "which way to go",
    "moves",
    "the way",
    planner_end="Think briefly, and end with a list in square brackets.",
    tool=(
        "You are the programmer {team} You write a Python program that finds the way; your partner sees it "
        "and what it prints, and moves. "
    ),
    plan=(
        "You are the planner {team} Your partner's program proposes moves, and may be wrong; you adopt or "
        "overrule them, and your moves are played. "
    ),
)
"""By role."""


class PlanPathPlanner(GameRole):
    """Proposes a path; doesn't move."""

    game, role, task = "plan_path", "planner", PROMPTS["planner"]


class PlanPathExecutor(GameRole):
    """Writes the moves that the environment plays."""

    game, role, task = "plan_path", "executor", PROMPTS["executor"]


class PlanPathSolver(GameRole):
    """Plays alone, with the same turns and feedback as the team."""

    game, role, task = "plan_path", "solver", PROMPTS["solver"]


class PlanPathTool(GameRole):
    """Writes a program whose printed moves are its proposal; doesn't move."""

    game, role, task = "plan_path", "tool", PROMPTS["tool"]


class PlanPathPlan(GameRole):
    """Sees the program, its output and its proposal, and writes the moves that the environment plays."""

    game, role, task = "plan_path", "plan", PROMPTS["plan"]
