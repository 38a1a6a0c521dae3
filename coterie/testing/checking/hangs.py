"""Where a component hangs: the innermost frame of its own code, of all threads and tasks."""

from __future__ import annotations

import re
import sysconfig
from collections.abc import Sequence
from pathlib import Path

Frame = Sequence[str | int]
"""File, line and function."""

_OURS = str(Path(__file__).resolve().parents[2])
_SITE = tuple(sysconfig.get_path(name) for name in ("purelib", "platlib"))
_STANDARD = tuple(sysconfig.get_path(name) for name in ("stdlib", "platstdlib"))


def innermost(stacks: Sequence[Sequence[Frame]]) -> str:
    """The place in which a component waits, of stacks whose innermost frame comes first; empty: unknown.

    Below Coterie's innermost frame are the plugin and what it calls. The plugin's own folder, or package, is
    that of the outermost of them.
    """
    for stack in stacks:
        inner = []
        for frame in stack:
            if str(frame[0]).startswith(_OURS):
                break
            inner.append(frame)
        foreign = [frame for frame in inner if not _standard(str(frame[0]))]
        if not foreign or len(inner) == len(stack):  # a thread that Coterie did not start
            continue
        root = _root(str(foreign[-1][0]))
        file, line, function = next(frame for frame in foreign if _root(str(frame[0])) == root)
        return f"{file}:{line}, in {function}"
    return ""


def _standard(file: str) -> bool:
    return file.startswith("<") or (file.startswith(_STANDARD) and not file.startswith(_SITE))


def _root(file: str) -> str:
    """The installed package that a file belongs to; else its folder."""
    for site in _SITE:
        if file.startswith(site):
            return file[len(site) :].strip("/").partition("/")[0]
    return str(Path(file).parent)


def stacks_of(text: str) -> list[list[Frame]]:
    """The stacks of a text that `faulthandler` wrote."""
    stacks: list[list[Frame]] = []
    for line in text.splitlines():
        if line.endswith("(most recent call first):"):
            stacks.append([])
        elif stacks and (match := re.match(r'\s*File "(.+)", line (\d+) in (.+)', line)):
            stacks[-1].append((match[1], int(match[2]), match[3]))
    return stacks
