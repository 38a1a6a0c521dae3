"""What a plugin keeps on itself while it works, read by a run or not, and the threads that it leaves."""

from __future__ import annotations

import functools
import inspect
import sys
import threading
import time
from collections.abc import Collection, Iterator, Sequence
from typing import Any

from coterie.core.errors import UserError, did_you_mean
from coterie.core.plugins import Plugin
from coterie.testing.support.failure import ConformanceError, warn
from coterie.testing.support.promises import promise
from coterie.testing.support.values import fingerprint

_SETTINGS = ("config", "build")


def kept(plugin: Any) -> dict[str, str]:
    """Fingerprints of a plugin's attributes, and of the mutable ones of its class, by name.

    Its settings, other plugins, and what pickle can't write (locks, connections) are left out.
    """
    return {name: mark for name, value in _attributes(plugin) if (mark := _mark(value))}


def twice(plugin: Any, keeps: Sequence[str], check: str) -> Iterator[None]:
    """Two rounds, of a loop that has the plugin do the same in each.

    Then warn of attributes that changed in the second round, which leaves a cache as it is.

    Args:
        keeps: attributes that may change, on purpose.
        check: the check's name, for the fix.

    Raises:
        UserError: `keeps` names no attribute.
    """
    promise("it keeps nothing on itself, read or not")
    yield
    before, name = kept(plugin), type(plugin).__name__
    yield
    after = kept(plugin)
    for attribute in keeps:
        if attribute not in before and attribute not in after:
            raise UserError(
                f"`keeps` names '{attribute}', which {name} does not keep",
                fix=did_you_mean(attribute, [*before, *after]),
            )
    changed = [at for at in after if after[at] != before.get(at) and at not in keeps]
    if changed:
        warn(
            f"keeps `{'`, `'.join(changed)}` on itself, which changes each time the same is done",
            name,
            fix="put it into the state, a score or `info`: every process of a run has its own copy, and a "
            f"resumed run starts without; where it is meant: {check}(..., keeps={changed!r})",
        )


def _attributes(plugin: Any) -> Iterator[tuple[str, Any]]:
    of_object = getattr(plugin, "__dict__", {})
    yield from ((name, value) for name, value in of_object.items() if name not in _SETTINGS)
    for cls in type(plugin).__mro__[:-1]:
        for name, value in vars(cls).items():
            if isinstance(value, (list, dict, set)) and not name.startswith("__") and name not in of_object:
                yield name, value


def _mark(value: Any) -> str:
    if isinstance(value, (Plugin, functools.partial)) or inspect.isroutine(value):
        return ""
    try:
        return fingerprint(value)
    except (ConformanceError, RecursionError):
        return ""


_GRACE = 0.5
"""Seconds in which threads that are about to end do so."""


def running() -> frozenset[threading.Thread]:
    """The threads of now."""
    return frozenset(threading.enumerate())


def left_behind(before: Collection[threading.Thread]) -> str:
    """What to tell of the threads that were started since, and that Python waits for at its end; often "".

    Args:
        before: what `running` gave.
    """
    left = [thread for thread in running().difference(before) if _holds(thread)]
    until = time.monotonic() + _GRACE
    for thread in left:
        thread.join(max(0.0, until - time.monotonic()))
    left = [thread for thread in left if _holds(thread)]
    if not left:
        return ""
    several = f"{len(left)} threads running, such as" if len(left) > 1 else "a thread running:"
    why = "a run never ends while it works; end it in `close`, or start it with daemon=True"
    return f"leaves {several} '{left[0].name}': {why}"


def _holds(thread: threading.Thread) -> bool:
    """Whether Python waits for a thread: not for daemons, nor for workers of a pool that have no work."""
    if thread.daemon or not thread.is_alive():
        return False
    frame = sys._current_frames().get(thread.ident or 0)
    return frame is None or frame.f_code.co_name != "_worker"
