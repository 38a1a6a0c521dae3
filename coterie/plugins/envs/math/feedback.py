"""Feedback on a role's last message: what follows from the messages, and nothing on the right answer."""

from __future__ import annotations

from coterie.plugins.envs.math.state import MathState


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
