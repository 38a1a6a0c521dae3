"""Feedback of Sudoku: sentences on a role's last message.

They contain only what follows from the role's own message and the grid that it sees, and never which digits
are right.
"""

from __future__ import annotations

from coterie.plugins.envs.common.code import program_feedback
from coterie.plugins.envs.common.parsing import cell_word
from coterie.plugins.envs.common.roles import names_of
from coterie.plugins.envs.common.turn_game import reported_plan
from coterie.plugins.envs.sudoku.fills import Fill
from coterie.plugins.envs.sudoku.messages import assignment_list, assignment_word
from coterie.plugins.envs.sudoku.state import Plan, State

_REFUSED = {
    "outside": "names a cell outside the grid",
    "digit": "is no digit of this grid",
    "given": "would change a given digit",
}

_MOST_REFUSED = 10
"""Refused assignments with a sentence of their own."""


def last_turn(state: State, role: str, *, skip: bool, sees_grid: bool) -> str:
    """Sentences for a role on the last turn; empty in its first turn."""
    fill = state.last_fill
    if fill is None:
        return ""
    moved = role == state.last_mover
    sentences = [
        _fill(fill, *names_of(state.last_mover, to=role), skip=skip),
        _clashes(state, fill) if sees_grid else "",
    ]
    plan = reported_plan(state, role)
    if plan is not None:
        before = [_program(plan)] if role == "tool" else []
        if not moved and (plan.fork is not None or role == "planner"):
            before.append(_plan(plan))
        sentences = [*before, *sentences]
    return " ".join(filter(None, sentences))


def _fill(fill: Fill, who: str, whose: str, *, skip: bool) -> str:
    if not fill.readable:
        return f"{whose} message last turn couldn't be read as assignments; the grid is as it was."
    if not fill.written:
        return f"{who} filled no cell last turn."
    played = fill.tried - len(fill.illegal)
    sentences = [
        f"Last turn {who[0].lower() + who[1:]} played {played} of {fill.written} "
        f"assignment{'s' * (fill.written != 1)}."
    ]
    sentences += _refused(fill, "Assignment {number} ({word}) {reason}.")
    if fill.illegal and not skip:
        sentences.append("The rest was not played.")
    if fill.written > len(fill.assignments):
        sentences.append(f"Only the first {len(fill.assignments)} assignments of a message are played.")
    return " ".join(sentences)


def _refused(fill: Fill, sentence: str) -> list[str]:
    """A sentence for each of the first refused assignments, and one for the rest."""
    sentences = [
        sentence.format(
            number=number, word=assignment_word(fill.assignments[number - 1]), reason=_REFUSED[reason]
        )
        for number, reason in fill.illegal[:_MOST_REFUSED]
    ]
    more = len(fill.illegal) - _MOST_REFUSED
    return [*sentences, f"So it is with {more} more."] if more > 0 else sentences


def _clashes(state: State, fill: Fill) -> str:
    """A sentence on the filled cells that clash now; empty for none."""
    size, clashing = state.puzzle.size, state.clashing
    touched = {
        row * size + column
        for row, column, _ in fill.assignments[: fill.tried]
        if state.puzzle.index((row, column)) in clashing
    }
    words = [f"{cell_word(divmod(cell, size))} ({state.grid[cell]})" for cell in sorted(touched)]
    return f"Of these cells clash with an equal digit now: {', '.join(words)}." if words else ""


def _plan(plan: Plan) -> str:
    if plan.fork is None:
        return "Your last plan couldn't be read."
    if not plan.fork.written:
        return "Your last plan was empty."
    return " ".join(_refused(plan.fork, "Assignment {number} of your plan ({word}) {reason}."))


def _program(plan: Plan) -> str:
    assert plan.run is not None
    proposal = None if plan.assignments is None else assignment_list(plan.assignments)
    return program_feedback(plan.run, proposal, "assignments")
