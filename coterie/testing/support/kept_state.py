"""What a plugin keeps on itself while it works, read by a run or not."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from coterie.core.errors import UserError, did_you_mean
from coterie.core.plugins import Plugin
from coterie.testing.support.failure import ConformanceError, warn
from coterie.testing.support.values import fingerprint

_SETTINGS = ("config", "build")


def kept(plugin: Any) -> dict[str, str]:
    """Fingerprints of a plugin's attributes, and of the mutable ones of its class, by name.

    Its settings, other plugins, and what pickle can't write (locks, connections) are left out.
    """
    return {name: mark for name, value in _attributes(plugin) if (mark := _mark(value))}


def warn_of_kept(
    name: str, before: Mapping[str, str], after: Mapping[str, str], keeps: Sequence[str], check: str
) -> None:
    """Warn of attributes that changed although the same was done again, which leaves a cache as it is.

    Args:
        before, after: what `kept` gave.
        keeps: attributes that may change, on purpose.
        check: the check's name, for the fix.

    Raises:
        UserError: `keeps` names no attribute.
    """
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
