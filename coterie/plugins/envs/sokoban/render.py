"""Prompts of Sokoban: egocentric words, or English with a picture.

The compact form is for models of under a million parameters with one token per word: the player's cell once,
everything else as offsets from it, each kind nearest first.
"""

from __future__ import annotations

from collections.abc import Iterable

from coterie.plugins.envs.common.code import program_lines
from coterie.plugins.envs.common.grid import Cell
from coterie.plugins.envs.common.parsing import cell_word, listed, offset_word
from coterie.plugins.envs.sokoban.messages import push_words
from coterie.plugins.envs.sokoban.state import Observation


def compact(seen: Observation) -> str:
    """`planner r1c2 T+0+2 B+1+0 #-1+0 :`; the executor's prompt has `plan +1+0R` before the colon."""
    words = [seen.role, cell_word(seen.player)]
    words += _around(seen, "T", seen.targets or ())
    words += _around(seen, "B", seen.boxes)
    words += _around(seen, "#", seen.walls)
    if seen.plan is not None:
        words += ["plan", *push_words(seen.plan, seen.player, seen.push_words)]
    return " ".join([*words, ":"])


def _around(seen: Observation, mark: str, cells: Iterable[Cell]) -> list[str]:
    row, column = seen.player
    return [
        word
        for _, word in sorted(
            (abs(r - row) + abs(c - column), mark + offset_word((r, c), seen.player)) for r, c in cells
        )
    ]


# ---------------------------------------------------------------------------------------------------- prose


def prose(seen: Observation, feedback: tuple[str, ...] = ()) -> str:
    """English with a picture; targets only if the role sees them."""
    lines = [
        f"Turn {seen.turn + 1}. The grid has {seen.height} rows (r0 at the top) and {seen.width} columns "
        "(c0 at the left).",
        _legend(seen),
        "",
        *_picture(seen),
        "",
        f"The player is at {cell_word(seen.player)}, {_placed('box', 'boxes', seen.boxes)}"
        + ("." if seen.targets is None else f", {_placed('target', 'targets', seen.targets)}."),
    ]
    if seen.plan is not None:
        words = push_words(seen.plan, seen.player, seen.push_words)
        lines.append(f"The planner's pushes: {', '.join(words)}." if words else "The planner named nothing.")
    proposal = None if seen.proposal is None else listed(seen.proposal, "no move")
    lines += program_lines(seen.program, proposal, "moves")
    lines += feedback
    lines.append(_task(seen))
    return "\n".join(lines)


def _legend(seen: Observation) -> str:
    if seen.targets is None:
        return "'#' is a wall, '$' a box, '@' the player, '-' a free cell."
    return (
        "'#' is a wall, '.' a target, '$' a box, '@' the player, '*' a box on a target, '+' the player on a "
        "target, '-' a free cell."
    )


def _picture(seen: Observation) -> list[str]:
    walls, boxes, targets = set(seen.walls), set(seen.boxes), set(seen.targets or ())

    def mark(cell: Cell) -> str:
        on = cell in targets
        if cell == seen.player:
            return "+" if on else "@"
        if cell in boxes:
            return "*" if on else "$"
        return "#" if cell in walls else "." if on else "-"

    return [" ".join(mark((row, column)) for column in range(seen.width)) for row in range(seen.height)]


def _placed(singular: str, plural: str, cells: tuple[Cell, ...]) -> str:
    words = ", ".join(map(cell_word, cells))
    return f"the {singular} at {words}" if len(cells) == 1 else f"the {plural} at {words}"


def _task(seen: Observation) -> str:
    limit = f", at most {seen.max_moves}" if seen.max_moves is not None else ""
    if seen.writes == "code":
        return (
            "Your program, in one ```python block; the last list that it prints, such as [U, R, R], is your "
            f"proposal of moves (U, D, L, R{limit}) from the board above:"
        )
    if seen.writes == "pushes":
        most = f" (at most {seen.max_pushes_planned})" if seen.max_pushes_planned is not None else ""
        if seen.push_words == "directions":
            return f"Name the pushes of the box in order{most}, as a list such as [pR, pU]:"
        return (
            f"Name the pushes in order{most}, each the cell of a box and a direction (U, D, L, R), as a "
            "list such as [r1c2R, r1c3U]:"
        )
    return f"Your moves (U, D, L, R{limit}) as a list such as [U, R, R]:"
