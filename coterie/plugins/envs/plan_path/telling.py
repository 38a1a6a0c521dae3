"""What happened to a role's last message in Plan-Path, in sentences.

Honest: nothing is said here that the role couldn't know from its own message and the world's answer
to it. The distance to the goal is not told, and the walls of way-points only to who wrote them.
"""

from __future__ import annotations

from coterie.plugins.envs.plan_path import tool
from coterie.plugins.envs.plan_path.grid import Maze, Walk
from coterie.plugins.envs.plan_path.language import cell_word
from coterie.plugins.envs.plan_path.state import Plan, State

_IN_THE_WAY = {"wall": "hit a wall", "edge": "would have left the grid"}
_BAD_WAYPOINT = {
    "wall": "is a wall",
    "edge": "is outside the grid",
    "cut off": "can't be reached",
    "here": "is where you stood already",
}


def told(state: State, role: str, *, skip: bool) -> str:
    """Sentences for a role on the last turn; empty in the first."""
    walk = state.last_walk
    if walk is None:
        return ""
    # Where the tool moves by itself, or at once with others, its newest program is not yet the last turn's.
    program = state.plan or state.last_plan
    before = [tool.told(program)] if role == "tool" and isinstance(program, tool.ToolPlan) else []
    if role == state.last_mover:
        return " ".join([*before, _walk(state.maze, walk, "You", "Your", skip=skip)])
    mover = "The plan role" if state.last_mover == "plan" else f"The {state.last_mover}"
    sentences = [_walk(state.maze, walk, mover, f"{mover}'s", skip=skip)]
    if before and program is not None and program.fork is not None:
        sentences = [*before, _plan(program), *sentences]
    elif role == "planner" and state.last_plan is not None:
        sentences.insert(0, _plan(state.last_plan))
    else:
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


def _plan(plan: Plan) -> str:
    if plan.fork is None:
        return "Your last plan couldn't be read."
    if not plan.fork.written:
        return "Your last plan was empty."
    bad = []
    for number, reason in plan.fork.illegal:
        if plan.waypoints:
            bad.append(
                f"Your way-point {number} ({cell_word(plan.waypoints[number - 1])}) {_BAD_WAYPOINT[reason]}."
            )
        else:
            bad.append(f"Move {number} of your plan ({plan.fork.moves[number - 1]}) {_IN_THE_WAY[reason]}.")
    return " ".join(bad)
