"""What mistakes that Python reports far from their cause come from: a forgotten `await`, another view."""

from __future__ import annotations

import dataclasses
import re

from coterie.core.errors import nearest

_COROUTINE = re.compile(r"<coroutine object ([\w.<>]+) at 0x")


def unawaited(what: str, where: str) -> str:
    """How to fix a coroutine that stands in an error where a value was wanted; empty: there is none.

    Args:
        what, where: of the error.
    """
    match = _COROUTINE.search(what)
    if match is None:
        return ""
    name = match[1].rpartition(".")[2]
    if f".{name}" in where or f" {name} returned" in what:
        return f"write it as `def {name}`: nothing awaits it"
    return f"`await` is missing where `{name}` is called: it is `async def`"


def explained(error: BaseException) -> str:
    """How to fix an exception whose message names no cause; empty: nobody knows."""
    if isinstance(error, TypeError) and "'coroutine'" in str(error):
        return "`await` is missing where an `async def` is called"
    given = getattr(error, "obj", None) if isinstance(error, AttributeError) else None
    of_ours = type(given).__module__.startswith("coterie.") and dataclasses.is_dataclass(given)
    if not of_ours or isinstance(given, type):
        return ""
    name, known = type(given).__name__, [field.name for field in dataclasses.fields(given)]  # type: ignore[arg-type]
    near = nearest(str(getattr(error, "name", "")), known)
    scope = f" (scope '{name[:-4].lower()}')" if name.endswith("View") else ""
    meant = f"; did you mean '{near}'?" if near else ""
    return f"a {name}{scope} has {', '.join(known)}{meant}"
