"""Feedback of Sokoban: sentences on a role's last message.

They contain only what follows from the role's own message and its effect. Targets and deadlocks are left out,
and only a plan's author learns of its faults.
"""

from __future__ import annotations

from coterie.plugins.envs.common.code import program_feedback
from coterie.plugins.envs.common.parsing import cell_word, listed
from coterie.plugins.envs.common.roles import names_of
from coterie.plugins.envs.common.turn_game import reported_plan
from coterie.plugins.envs.sokoban.board import Board, Walk
from coterie.plugins.envs.sokoban.state import Plan, State

_IN_THE_WAY = {
    "wall": "hit a wall",
    "edge": "would have left the grid",
    "box": "would have pushed a box against something solid",
}
_BAD_PUSH = {
    "edge": "names a cell outside the grid",
    "no box": "names a cell without a box",
    "blocked": "would push the box against something solid",
    "cut off": "can't be made: the player can't get behind the box",
}


def last_turn(state: State, role: str, *, skip: bool) -> str:
    """Sentences for a role on the last turn; empty in its first turn."""
    walk = state.last_walk
    if walk is None:
        return ""
    moved = role == state.last_mover
    sentences = [_walk(state, walk, *names_of(state.last_mover, to=role), skip=skip)]
    plan = reported_plan(state, role)
    if plan is not None:
        before = [_program(plan)] if role == "tool" else []
        if (role == "tool" and plan.fork is not None and not moved) or role == "planner":
            before.append(_plan(plan))
        sentences = [*before, *sentences]
    return " ".join(filter(None, sentences))


def _walk(state: State, walk: Walk, who: str, whose: str, *, skip: bool) -> str:
    board, planned = state.board, state.last_mover == "planner"
    start, end = cell_word(board.cell(walk.start)), cell_word(board.cell(walk.end))
    item = "push" if planned else "move"
    if not walk.readable:
        return f"{whose} message last turn couldn't be read as {item}{'es' if planned else 's'}."
    if not walk.written:
        return f"{who} played nothing last turn, and the player stayed at {end}."
    done = walk.pushes if planned else walk.played
    plural = ("es" if planned else "s") * (walk.written != 1)
    sentences = [
        f"Last turn {who[0].lower() + who[1:]} played {done} of {walk.written} {item}{plural} from {start}."
    ]
    if not planned:
        sentences += [
            f"Move {number} ({walk.moves[number - 1]}) {_IN_THE_WAY[reason]}."
            for number, reason in walk.illegal
        ]
        if walk.written > len(walk.moves):
            sentences.append(f"Only the first {len(walk.moves)} moves of a message are played.")
    if walk.illegal and not skip:
        sentences.append("The walk stopped there.")
    sentences.append(f"The player is at {end}, {_boxes(board, walk.boxes)}.")
    return " ".join(sentences)


def _boxes(board: Board, boxes: int) -> str:
    cells = [cell_word(cell) for cell in board.cells(boxes)]
    return f"the box at {cells[0]}" if len(cells) == 1 else f"the boxes at {', '.join(cells)}"


def _plan(plan: Plan) -> str:
    if plan.fork is None:
        return "Your last plan couldn't be read."
    if not plan.fork.written:
        return "Your last plan was empty."
    if plan.author == "tool":
        return " ".join(
            f"Move {number} of your plan ({plan.fork.moves[number - 1]}) {_IN_THE_WAY[reason]}."
            for number, reason in plan.fork.illegal
        )
    sentences = []
    for number, reason in plan.fork.illegal:
        cell, move = plan.pushes[number - 1]
        word = f"p{move}" if cell is None else f"{cell_word(cell)}{move}"
        sentences.append(f"Push {number} of your plan ({word}) {_BAD_PUSH[reason]}.")
    if plan.fork.written > len(plan.pushes):
        sentences.append(f"Only the first {len(plan.pushes)} pushes of a plan are read.")
    return " ".join(sentences)


def _program(plan: Plan) -> str:
    assert plan.run is not None
    proposal = None if plan.fork is None else listed(plan.moves, "no move")
    return program_feedback(plan.run, proposal, "moves")
