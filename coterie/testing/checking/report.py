"""The report of `coterie check`, as text."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from coterie.testing.checking.results import Checked
from coterie.viewing.text import message, one_line

SHORT = 8
"""Largest number of components whose promises are named one by one."""


def of_component(result: Checked, *, every: bool = True) -> str:
    """A component's lines: what is kept, broken, not checked.

    Args:
        every: whether the promises that are kept are named, and not only counted.
    """
    state = "BROKEN" if result.broken else result.state
    head = f"{result.kind} {one_line(result.name)}"
    if result.distribution != result.name:
        head += f" of {one_line(result.distribution)}"
    lines = [f"{head}: {state} ({result.seconds:.1f} s)"]
    for broken in result.broken:
        lines.append(f"  broken: {one_line(broken.promise)}")
        where = f"{broken.where}: " if broken.where else ""
        lines += _indented("    ", f"{where}{broken.what}")
        if broken.fix:
            lines += _indented("    fix: ", broken.fix)
        if broken.example:
            lines += _indented("    example: ", broken.example)
    if result.kept:
        names = "; ".join(one_line(text) for text in result.kept)
        lines.append(f"  kept: {names}" if every or result.broken else f"  kept: {len(result.kept)} promises")
    lines += [f"  not checked: {one_line(text, 600)}" for text in result.unchecked]
    lines += [f"  note: {one_line(text, 300)}" for text in result.notes]
    return "\n".join(lines)


def _indented(label: str, text: str) -> list[str]:
    """The text after a label; its further lines stand under it."""
    first, *rest = message(text, 4000).splitlines() or [""]
    return [f"{label}{first}", *(f"{' ' * len(label)}{line.strip()}" for line in rest)]


def summary(results: Sequence[Checked]) -> str:
    """The last line: how many components keep their promises."""
    counts = Counter(result.state for result in results)
    parts = [
        f"{counts[state]} {state}" for state in ("ok", "broken", "in part", "not checked") if counts[state]
    ]
    count = f"{len(results)} component{'s' * (len(results) != 1)}"
    return f"{count}: {', '.join(parts)}"


def whole(results: Sequence[Checked]) -> str:
    """Every component and the summary."""
    every = len(results) <= SHORT
    return "\n".join([*(of_component(result, every=every) for result in results), summary(results)])
