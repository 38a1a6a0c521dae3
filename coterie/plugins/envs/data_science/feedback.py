"""What roles and judges read of an action: what follows from its program and its files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from coterie.discovery.members import Work
from coterie.plugins.envs.data_science.state import PipelineState
from coterie.plugins.envs.data_science.workspace import listed


def last_action(state: PipelineState, role: str, missing: Sequence[str]) -> str:
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


def work_of(role: str, info: Mapping[str, Any]) -> Work:
    """What came of an action, from what `step` says of it."""
    mine = info.get(role, {})
    return Work(
        output=_run_text(mine["run"]) if mine.get("run") else "",
        files="\n".join(mine.get("files", ())),
        outcome=_outcome_text(info["outcome"]) if info.get("outcome") else "",
    )


def _run_text(run: Mapping[str, Any]) -> str:
    problem = f" ({run['problem']})" if run["problem"] else ""
    parts = [f"status: {run['status']}{problem}"]
    parts += [f"{name}:\n{run[name].rstrip()}" for name in ("stdout", "stderr") if run[name].strip()]
    return "\n".join(parts)


def _outcome_text(ended: Mapping[str, Any]) -> str:
    metric = f"{ended['metric']}, {ended['direction']} is better"
    if ended["why"]:
        return f"no valid submission: {ended['why']} (metric: {metric})"
    quality = "" if ended["quality"] is None else f", quality {ended['quality']:.4g}"
    return f"a valid submission: {ended['value']:.6g} ({metric}{quality})"
