"""What happened to a role's last message in Sudoku, in sentences.

Honest: nothing is said here that the role couldn't know from its own message and the grid it sees. Which
digits are right is the oracle's to know, and is not told.
"""

from __future__ import annotations

from coterie.plugins.envs.sudoku import tool
from coterie.plugins.envs.sudoku.fills import Fill
from coterie.plugins.envs.sudoku.language import assignment_word, cell_word
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
    clashes = _clashes(state, fill) if sees_grid else ""
    mine = role == state.last_mover
    name = "The plan role" if state.last_mover == "plan" else f"The {state.last_mover}"
    who, whose = ("You", "Your") if mine else (name, f"{name}'s")
    sentences = [_fill(fill, who, whose, skip=skip), clashes]
    plan = state.last_plan
    if plan is not None and role == plan.role:
        if plan.program is not None:
            first = [tool.told(plan.program, plan.assignments)]
            if plan.fork is not None and not mine:  # where it played itself, its fill says the same
                first.append(_refusals(plan.fork))
        else:
            first = [_plan(plan)] if not mine else []
        sentences = [*first, *sentences]
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
    return _refusals(plan.fork)


def _refusals(fork: Fill) -> str:
    return " ".join(_refused(fork, "Assignment {number} of your plan ({word}) {reason}."))
