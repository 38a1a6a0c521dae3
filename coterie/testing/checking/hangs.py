"""Where a component hangs or raises: the innermost frame of its own code, of all threads and tasks."""

from __future__ import annotations

import re
import sysconfig
from collections.abc import Sequence
from pathlib import Path

Frame = Sequence[str | int]
"""File, line and function."""

_OURS = f"{Path(__file__).resolve().parents[2]}/"  # and no package whose name begins with ours
_SITE = tuple(sysconfig.get_path(name) for name in ("purelib", "platlib"))
_USED = ("pydantic", "numpy", "pluggy", "yaml", "click", "torch", "transformers")
"""Libraries that Coterie calls itself."""
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


def raised_in(stack: Sequence[Frame]) -> str:
    """The innermost place of an author's own files in a stack, innermost frame first; empty: there is none.

    Python's own files, Coterie's, and the libraries that an author's code calls are not the author's.
    """
    foreign = [
        frame for frame in stack if not _standard(str(frame[0])) and not str(frame[0]).startswith(_OURS)
    ]
    authors = [frame for frame in foreign if not str(frame[0]).startswith(_SITE)]
    if not authors and foreign and str(stack[-1][0]).startswith(_OURS):
        root = _root(
            str(foreign[-1][0])
        )  # of an installed plugin: the outermost, unless Coterie calls it too
        authors = [frame for frame in foreign if _root(str(frame[0])) == root and root not in _USED]
    return f"{authors[0][0]}:{authors[0][1]}, in {authors[0][2]}" if authors else ""


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
