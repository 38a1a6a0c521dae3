"""Feedback of Plan-Path: sentences on a role's last message.

They contain only what follows from the role's own message and its effect. The distance to the goal is left
out, and only the author of way-points learns which of them are walls.
"""

from __future__ import annotations

from coterie.plugins.envs.common.code import program_feedback
from coterie.plugins.envs.common.parsing import cell_word, listed
from coterie.plugins.envs.common.roles import names_of
from coterie.plugins.envs.common.turn_game import reported_plan
from coterie.plugins.envs.plan_path.grid import Maze, Walk
from coterie.plugins.envs.plan_path.state import Plan, State

_IN_THE_WAY = {"wall": "hit a wall", "edge": "would have left the grid"}
_BAD_WAYPOINT = {
    "wall": "is a wall",
    "edge": "is outside the grid",
    "cut off": "can't be reached",
    "here": "is where you stood already",
}


def last_turn(state: State, role: str, *, skip: bool) -> str:
    """Sentences for a role on the last turn; empty in its first turn."""
    walk = state.last_walk
    if walk is None:
        return ""
    moved = role == state.last_mover
    walked_plan = state.last_plan if state.last_mover == "planner" else None
    who, whose = names_of(state.last_mover, to=role)
    if walked_plan is not None and walked_plan.waypoints:
        sentences = [_waypoint_walk(state.maze, walk, who, whose), _plan(walked_plan) if moved else ""]
    else:
        sentences = [_walk(state.maze, walk, who, whose, skip=skip)]
    plan = reported_plan(state, role)
    if plan is not None:
        before = [_program(plan)] if role == "tool" else []
        if not moved and (plan.fork is not None or role == "planner"):
            before.append(_plan(plan))
        sentences = [*before, *sentences]
    return " ".join(filter(None, sentences))


def _walk(maze: Maze, walk: Walk, who: str, whose: str, *, skip: bool) -> str:
    start, end = cell_word(maze.cell(walk.start)), cell_word(maze.cell(walk.end))
    if not walk.readable:
        return f"{whose} message last turn couldn't be read as moves; the position is still {end}."
    if not walk.written:
        return f"{who} played no move last turn and stayed at {end}."
    sentences = [
        f"Last turn {who[0].lower() + who[1:]} played {walk.played} of {walk.written} "
        f"move{'s' * (walk.written != 1)} from {start}."
    ]
    sentences += [
        f"Move {number} ({walk.moves[number - 1]}) {_IN_THE_WAY[reason]}." for number, reason in walk.illegal
    ]
    if walk.illegal and not skip:
        sentences.append("The walk stopped there.")
    if walk.written > len(walk.moves):
        sentences.append(f"Only the first {len(walk.moves)} moves of a message are played.")
    sentences.append(f"{whose} walk ended at {end}.")
    return " ".join(sentences)


def _waypoint_walk(maze: Maze, walk: Walk, who: str, whose: str) -> str:
    """For a planner that walked its own way-points: counts the way-points, not the moves between them."""
    start, end = cell_word(maze.cell(walk.start)), cell_word(maze.cell(walk.end))
    reached = walk.tried - len(walk.illegal)
    return (
        f"Last turn {who[0].lower() + who[1:]} went for {reached} of {walk.written} "
        f"way-point{'s' * (walk.written != 1)} from {start}. {whose} walk ended at {end}."
    )


def _plan(plan: Plan) -> str:
    if plan.fork is None:
        return "Your last plan couldn't be read."
    if not plan.fork.written:
        return "Your last plan was empty."
    if plan.waypoints:
        return " ".join(
            f"Your way-point {number} ({cell_word(plan.waypoints[number - 1])}) {_BAD_WAYPOINT[reason]}."
            for number, reason in plan.fork.illegal
        )
    return " ".join(
        f"Move {number} of your plan ({plan.fork.moves[number - 1]}) {_IN_THE_WAY[reason]}."
        for number, reason in plan.fork.illegal
    )


def _program(plan: Plan) -> str:
    assert plan.run is not None
    return program_feedback(plan.run, None if plan.fork is None else listed(plan.moves, "no move"), "moves")
