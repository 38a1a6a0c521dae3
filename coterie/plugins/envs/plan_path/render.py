"""Prompts of Plan-Path: egocentric words, or English with a map.

The compact form is for models of under a million parameters: the position once, everything else as offsets
from it, 4 to 12 words at 4x4. With it success reached .88; with absolute cells for everything it plateaued at
.64 to .70, and a character grid was not learned in the same time.
"""

from __future__ import annotations

from typing import cast

from coterie.plugins.envs.common.code import program_lines
from coterie.plugins.envs.common.grid import MOVES, Cell
from coterie.plugins.envs.common.parsing import cell_word, listed, offset_word
from coterie.plugins.envs.plan_path.messages import waypoint_words
from coterie.plugins.envs.plan_path.state import Observation


def plan_words(seen: Observation) -> list[str]:
    """The words of the plan; [] for an empty plan."""
    if seen.plan_language != "waypoints":
        return [str(word) for word in seen.plan or ()]
    cells = cast("tuple[Cell, ...]", seen.plan or ())
    return waypoint_words(cells, seen.position, seen.waypoint_words)


def compact(seen: Observation) -> str:
    """`planner r1c2 G+2-1 #+0+1 #-1+0 :`; the executor's prompt has `plan U R R` before the colon.

    The nearest walls come first, so that the walls next to the position are at a stable place of the prompt.
    """
    words = [seen.role, cell_word(seen.position)]
    if seen.goal is not None:
        words.append("G" + offset_word(seen.goal, seen.position))
    row, column = seen.position
    walls = [
        (abs(r - row) + abs(c - column), "#" + offset_word((r, c), seen.position)) for r, c in seen.walls
    ]
    words += [word for _, word in sorted(walls)]
    if seen.plan is not None:
        words += ["plan", *plan_words(seen)]
    return " ".join([*words, ":"])


def prose(seen: Observation, feedback: tuple[str, ...] = ()) -> str:
    """English, with a map if the role sees it."""
    lines = [
        f"Turn {seen.turn + 1}. The grid has {seen.height} rows (r0 at the top) and {seen.width} columns "
        "(c0 at the left)."
    ]
    position = cell_word(seen.position)
    if seen.sees == "map":
        lines += [
            "'#' is a wall, '.' is free, '@' is where you are now, 'G' is the goal.",
            "",
            *_map(seen),
            "",
        ]
        lines.append(
            f"You are at {position}." + (f" The goal is {cell_word(seen.goal)}." if seen.goal else "")
        )
    else:
        lines.append(f"You are at {position}. {_around(seen)}")
    if seen.plan is not None:
        items = "way-points" if seen.plan_language == "waypoints" else seen.plan_language
        words = plan_words(seen)
        lines.append(f"The planner's {items}: {', '.join(words)}." if words else "The planner named nothing.")
    proposal = None if seen.proposal is None else listed(seen.proposal, "no move")
    lines += program_lines(seen.program, proposal, "moves")
    lines += feedback
    lines.append(_task(seen))
    return "\n".join(lines)


def _map(seen: Observation) -> list[str]:
    walls = set(seen.walls)
    return [
        " ".join(
            "@"
            if (row, column) == seen.position
            else "G"
            if (row, column) == seen.goal
            else "#"
            if (row, column) in walls
            else "."
            for column in range(seen.width)
        )
        for row in range(seen.height)
    ]


def _around(seen: Observation) -> str:
    walls, (row, column) = set(seen.walls), seen.position
    blocked = [
        f"{move} (wall)" for move, (rows, columns) in MOVES.items() if (row + rows, column + columns) in walls
    ]
    return f"Next to you are walls: {', '.join(blocked)}." if blocked else "There is no wall next to you."


def _task(seen: Observation) -> str:
    if seen.writes == "waypoints":
        return (
            "Name the cells that the walk should pass, in order, the last one included, "
            "as a list such as [r1c2, r3c2]."
        )
    if seen.writes == "legs":
        return (
            "Say the way as straight legs, each a direction (U, D, L, R) and a number of steps, "
            "as a list such as [R2, D1]."
        )
    limit = f", at most {seen.max_moves}" if seen.max_moves is not None else ""
    if seen.role == "tool":
        return (
            "Your program, in one ```python block; the last list that it prints, such as [U, R, R], is your "
            f"proposal of moves (U, D, L, R{limit}) from where you are now:"
        )
    whose = "The moves that should be played" if seen.role == "planner" else "Your moves"
    return f"{whose} (U, D, L, R{limit}) as a list such as [U, R, R]:"
