"""Feedback on a role's last action: what follows from its program and its files."""

from __future__ import annotations

from collections.abc import Sequence

from coterie.plugins.envs.data_science.state import State
from coterie.plugins.envs.data_science.workspace import listed


def last_action(state: State, role: str, missing: Sequence[str]) -> str:
    """Sentences for a role; empty before its first action.

    Args:
        missing: files that the role has to leave and has not.
    """
    mine = next((entry for entry in reversed(state.transcript) if entry.role == role), None)
    if mine is None:
        return ""
    sentences = [f"In your last message {mine.note}."] if mine.note else []
    if mine.run is not None and not mine.run.ok:
        sentences.append(f"Your last program did not finish: {mine.run.problem or mine.run.status}.")
    if missing:
        sentences.append(f"Missing of the files that you have to leave: {listed(missing)}.")
    return " ".join(sentences)
