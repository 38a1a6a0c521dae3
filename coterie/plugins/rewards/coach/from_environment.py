"""What an environment tells a coach, checked: a mistake in it is the environment's, and not the coach's."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any, TypeVar

from coterie.core.errors import PluginError
from coterie.core.plugins.origin import failure, origin_of, plugin_call
from coterie.core.types import Task
from coterie.discovery.members import Brief, Work

Part = TypeVar("Part", Brief, Work)


def brief_from(environment: Any, task: Task, roles: Collection[str]) -> Brief:
    """The environment's `brief` of a task.

    Raises:
        PluginError: it raised something, or gave no Brief of texts by roles of the team.
    """
    return _returned(environment, "brief", Brief, lambda brief: brief_fault(brief, roles), task)


def work_from(environment: Any, role: str, info: Mapping[str, Any]) -> Work:
    """The environment's `work` of an action.

    Raises:
        PluginError: it raised something, or gave no Work of texts.
    """
    return _returned(environment, "work", Work, work_fault, role, info)


def brief_fault(brief: Any, roles: Collection[str]) -> str:
    """What is wrong with what a `brief` returned; empty: nothing."""
    if not isinstance(brief, Brief):
        return f"returned {brief!r:.200} and no coterie.Brief"
    if not isinstance(brief.problem, str):
        return f"problem is {brief.problem!r:.200} and no text"
    for name in ("duties", "limits", "required"):
        table = getattr(brief, name)
        if not isinstance(table, Mapping):
            return f"{name} is {table!r:.200} and no table by role"
        for role, value in table.items():
            if role not in roles:
                return f"{name} names '{role}', and the roles are {', '.join(roles)}"
            listed = name == "required"
            if not (_texts(value) if listed else isinstance(value, str)):
                return f"{name} of {role} is {value!r:.200} and no {'list of names' if listed else 'text'}"
    return "" if _texts(brief.available) else f"available is {brief.available!r:.200} and no list of lines"


def work_fault(work: Any) -> str:
    """What is wrong with what a `work` returned; empty: nothing."""
    if not isinstance(work, Work):
        return f"returned {work!r:.200} and no coterie.Work"
    for name in ("output", "files", "outcome"):
        if not isinstance(getattr(work, name), str):
            return f"{name} is {getattr(work, name)!r:.200} and no text"
    return ""


def _texts(value: Any) -> bool:
    return isinstance(value, (list, tuple)) and all(isinstance(each, str) for each in value)


def _returned(
    environment: Any, method: str, kind: type[Part], fault: Callable[[Any], str], *arguments: Any
) -> Part:
    origin = origin_of(environment)
    try:
        with plugin_call(environment, method):
            returned = getattr(environment, method)(*arguments)
    except PluginError:
        raise
    except Exception as error:  # a fault of it would be scored as one of the action
        raise PluginError(failure(environment, method, error), path=origin.path) from error
    if wrong := fault(returned):
        fix = f"return a coterie.{kind.__name__}, all of whose parts are texts"
        raise PluginError(f"{origin}: {method}: {wrong}", path=origin.path, fix=fix)
    return returned
