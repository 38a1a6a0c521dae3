"""The check of what an environment tells judges of its roles' work."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from coterie.core.protocols.work import ShowsWork
from coterie.core.types import Task
from coterie.plugins.rewards.coach.from_environment import brief_fault, work_fault
from coterie.testing.support.failure import guarded, require
from coterie.testing.support.promises import promise
from coterie.testing.support.values import fingerprint


def check_work(
    env: Any,
    name: str,
    task: Task,
    roles: Iterable[str],
    info: Mapping[str, Any],
    order: Iterable[Sequence[str]],
) -> None:
    """`brief` gives a Brief, and `work` a Work of texts, also for the empty info of a failed step.

    Args:
        roles: that acted; `order`: all roles, by stage.
    """
    if not isinstance(env, ShowsWork):
        return
    promise("a brief and work are texts")
    with guarded(f"{name}.brief"):
        brief, other = env.brief(task), env.brief(task)
    wrong = brief_fault(brief, [role for stage in order for role in stage])
    require(not wrong, wrong, f"{name}.brief", fix="a coterie.Brief of texts")
    require(brief == other, "gives another one when called twice", f"{name}.brief", fix="no draws")
    where = f"{name}.work"
    for role in roles:
        for given in (info, {}):
            mark = fingerprint(given)
            with guarded(where, "`info` is empty where the step of an action failed: use info.get"):
                work, again = env.work(role, given), env.work(role, given)
            wrong = work_fault(work)
            require(not wrong, wrong, where, fix="a coterie.Work of texts")
            require(work == again, "gives another one when called twice", where, fix="no draws")
            require(fingerprint(given) == mark, "changed the info", where, fix="copy what it changes")
