"""What environment `math` tells roles of their messages, and a judge of their work."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from coterie.discovery.members import Brief, Work
from coterie.plugins.envs.math.state import MathState

DUTIES = {
    "problem_solver": "work out a solution in words",
    "code_executor": "check or complete it by a Python program, and say what its output means",
    "verifier": "check all that was written, and give the team's answer",
    "reasoner": "solve the problem in words, and give the team's answer",
    "tool": "write a Python program that prints the answer",
    "solver": "solve the problem, and give the answer",
}


def brief_of(problem: str, team: Sequence[str], executor_turns: int, programs: bool) -> Brief:
    """The problem, what each role is there for, and how often the executor acts."""
    often = executor_turns > 1 and "code_executor" in team
    limits = {"code_executor": f"at most {executor_turns} actions"} if often else {}
    duties = {role: DUTIES[role] for role in team}
    if not programs and "code_executor" in duties:
        duties["code_executor"] = "go on from the solution, step by step"
    return Brief(problem=problem, duties=duties, limits=limits)


def work_of(role: str, info: Mapping[str, Any]) -> Work:
    """The output of the action's program, and whether the team's answer is right."""
    mine, ended = info.get(role, {}), info.get("outcome")
    output = "\n".join(text for text in (mine.get("output", ""), mine.get("problem", "")) if text)
    return Work(output=output, outcome="" if ended is None else _outcome_text(ended))


def _outcome_text(ended: Mapping[str, Any]) -> str:
    if ended["answer"] is None:
        return "the team gave no answer"
    return f"the team's answer {ended['answer']} is {'right' if ended['right'] else 'wrong'}"


def last_message(state: MathState, role: str, *, agree: bool) -> str:
    """Sentences for a role; empty before its first action.

    Args:
        agree: reasoner and tool are to agree.
    """
    mine = state.latest(role)
    if mine is None:
        return ""
    sentences = []
    if mine.run is not None and mine.run.problem:
        sentences.append(f"Your last program did not finish: {mine.run.problem}.")
    if mine.answer is None and mine.run is None:
        sentences.append("Your last message held no answer.")
    other = state.latest("tool" if role == "reasoner" else "reasoner") if agree else None
    if other is not None and not state.over:
        answers = [entry.answer or "none" for entry in (mine, other)]
        sentences.append(
            f"Your answer was {answers[0]}, that of the {other.role} {answers[1]}: you don't agree."
        )
    return " ".join(sentences)
