"""The part of `check_environment` about `final_answer`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from coterie.core.types import Action, Task
from coterie.discovery.members import GivesFinalAnswers
from coterie.testing.support.failure import guarded, require
from coterie.testing.support.promises import promise


def check_final_answer(
    env: Any, name: str, task: Task, played: Sequence[tuple[Mapping[str, Action], Mapping[str, Any]]]
) -> None:
    """Check what the environment takes for the answer of an ended episode, where it says it.

    Args:
        played: the actions by role and the `Step.info` of each step.

    Raises:
        ConformanceError: it is neither a text nor None, or another one when asked again.
    """
    if not isinstance(env, GivesFinalAnswers):
        return
    promise("a final answer is a text or None")
    where = f"{name}.final_answer"
    with guarded(where):
        answer, again = env.final_answer(task, played), env.final_answer(task, played)
    fix = "a text that equal answers share, or None where there is no answer"
    require(answer is None or isinstance(answer, str), f"returned {answer!r:.60}", where, fix=fix)
    require(answer == again, "differs when called twice", where, fix="no draws")
