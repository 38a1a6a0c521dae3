"""The check of what an environment tells judges of its roles' work."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import fields
from typing import Any

from coterie.core.protocols.work import Brief, ShowsWork, Work
from coterie.core.types import Task
from coterie.testing.support.failure import guarded, require
from coterie.testing.support.values import fingerprint

_TEXTS = tuple(field.name for field in fields(Work))


def check_work(env: Any, name: str, task: Task, roles: Iterable[str], info: Mapping[str, Any]) -> None:
    """`brief` gives a Brief, and `work` a Work of texts, also for the empty info of a failed step."""
    if not isinstance(env, ShowsWork):
        return
    with guarded(f"{name}.brief"):
        brief = env.brief(task)
    require(isinstance(brief, Brief), f"returned {brief!r}", where=f"{name}.brief", fix="a coterie.Brief")
    where = f"{name}.work"
    for role in roles:
        for given in (info, {}):
            mark = fingerprint(given)
            with guarded(where, "`info` is empty where the step of an action failed: use info.get"):
                work = env.work(role, given)
            require(isinstance(work, Work), f"returned {work!r}", where=where, fix="a coterie.Work")
            for part in _TEXTS:
                text = getattr(work, part)
                require(isinstance(text, str), f"{part} is {text!r}", where=where, fix="a text")
            require(fingerprint(given) == mark, "changed the info", where=where, fix="copy what it changes")
