"""What happened to a role's last message in Sudoku, in sentences.

Honest: nothing is said here that the role couldn't know from its own message and the grid it sees. Which
digits are right is the oracle's to know, and is not told.
"""

from __future__ import annotations

from coterie.plugins.envs.common import code as programs
from coterie.plugins.envs.common.parsing import cell_word
from coterie.plugins.envs.common.roles import named
from coterie.plugins.envs.common.turn_game import told_of
from coterie.plugins.envs.sudoku.fills import Fill
from coterie.plugins.envs.sudoku.messages import assignment_list, assignment_word
from coterie.plugins.envs.sudoku.state import Plan, State

_REFUSED = {
    "outside": "names a cell outside the grid",
    "digit": "is no digit of this grid",
    "given": "would change a given digit",
}

_TOLD = 10
"""Refused assignments that are told one by one."""


def told(state: State, role: str, *, skip: bool, sees_grid: bool) -> str:
    """Sentences for a role on the last turn; empty in the first."""
    fill = state.last_fill
    if fill is None:
        return ""
    own = role == state.last_mover
    sentences = [
        _fill(fill, *named(state.last_mover, to=role), skip=skip),
        _clashes(state, fill) if sees_grid else "",
    ]
    plan = told_of(state, role)
    if plan is not None:
        before = [_program(plan)] if role == "tool" else []
        if not own and (plan.fork is not None or role == "planner"):
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
    """A sentence for each refused assignment; of very many only the first."""
    sentences = [
        sentence.format(
            number=number, word=assignment_word(fill.assignments[number - 1]), reason=_REFUSED[reason]
        )
        for number, reason in fill.illegal[:_TOLD]
    ]
    more = len(fill.illegal) - _TOLD
    return [*sentences, f"So it is with {more} more."] if more > 0 else sentences


def _clashes(state: State, fill: Fill) -> str:
    """Which of the cells that were filled clash now."""
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
    return programs.told(plan.run, proposal, "assignments")
