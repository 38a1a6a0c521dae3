"""What happened to a role's last message in Sokoban, in sentences.

Honest: nothing is said here that the role couldn't know from its own message and the world's answer to
it. Neither the targets nor a deadlock is told; the faults of a plan only to who wrote it.
"""

from __future__ import annotations

from coterie.plugins.envs.sokoban.board import Board, Walk
from coterie.plugins.envs.sokoban.language import cell_word, listed_moves
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


def told(state: State, role: str, *, skip: bool) -> str:
    """Sentences for a role on the last turn; empty in the first."""
    walk = state.last_walk
    if walk is None:
        return ""
    own = role == state.last_mover
    whose = "You" if own else f"The {state.last_mover}"
    sentences = [_walk(state, walk, whose, "Your" if own else f"{whose}'s", skip=skip)]
    plan = state.last_plan
    if plan is not None and plan.author == role:
        sentences.insert(0, _plan(plan))
    return " ".join(filter(None, sentences))


def _walk(state: State, walk: Walk, who: str, whose: str, *, skip: bool) -> str:
    board, planned = state.board, state.last_mover == "planner"
    start, end = cell_word(board.cell(walk.start)), cell_word(board.cell(walk.end))
    what = "push" if planned else "move"
    if not walk.readable:
        return f"{whose} message last turn couldn't be read as {what}{'es' if planned else 's'}."
    if not walk.written:
        return f"{who} played nothing last turn, and the player stayed at {end}."
    done = walk.pushes if planned else walk.played
    plural = ("es" if planned else "s") * (walk.written != 1)
    sentences = [
        f"Last turn {who[0].lower() + who[1:]} played {done} of {walk.written} {what}{plural} from {start}."
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
    if plan.author == "tool":
        return _program(plan)
    if plan.fork is None:
        return "Your last plan couldn't be read."
    if not plan.fork.written:
        return "Your last plan was empty."
    sentences = []
    for number, reason in plan.fork.illegal:
        cell, move = plan.pushes[number - 1]
        word = f"p{move}" if cell is None else f"{cell_word(cell)}{move}"
        sentences.append(f"Push {number} of your plan ({word}) {_BAD_PUSH[reason]}.")
    if plan.fork.written > len(plan.pushes):
        sentences.append(f"Only the first {len(plan.pushes)} pushes of a plan are read.")
    return " ".join(sentences)


def _program(plan: Plan) -> str:
    run = plan.run
    if run is None or not run.code:
        return "Your last message held no program."
    sentences = [f"Your last program did not finish: {run.problem}."] if run.problem else []
    if plan.fork is None:
        what = "no list of moves" if run.output.strip() else "nothing"
        return " ".join([*sentences, f"Your last program printed {what}."])
    sentences.append(f"Your last program proposed: {listed_moves(plan.moves)}.")
    sentences += [
        f"Its move {number} ({plan.fork.moves[number - 1]}) {_IN_THE_WAY[reason]}."
        for number, reason in plan.fork.illegal
    ]
    return " ".join(sentences)
