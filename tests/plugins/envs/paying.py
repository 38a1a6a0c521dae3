"""The three games by name, messages out of numbers, and returns: for tests of what an episode can earn
repeatedly."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache
from typing import Any

import numpy as np

from tests.plugins.envs.players import GAMES

SMALL: dict[str, dict[str, Any]] = {
    "plan_path": {"size": 4, "wall_density": 0.25, "min_distance": 2},
    "sudoku": {},
    "sokoban": {"size": 4, "boxes": 2, "min_pushes": 2},
}
LIMIT = {"plan_path": "max_moves", "sudoku": "max_cells"}
"""The settings that cut a message; Sokoban's bound is for uncut ones."""
ILLEGAL = {"plan_path": "walk", "sudoku": "illegal", "sokoban": "walk"}
"""The settings that say what an illegal word does to the rest."""
COSTS = {"illegal": -0.1, "empty": -0.1}
"""As a recipe might weigh; they can only lower a return."""


def game(name: str, **settings: Any) -> Any:
    return GAMES[name].make("planner", "solver", **{**SMALL[name], **settings})


def send(env: Any, name: str, state: Any, text: str, role: str = "solver") -> Any:
    return GAMES[name].send_one(env, state, role, text)


def message_text(name: str, state: Any, numbers: Iterable[int]) -> str:
    """The solver's message of these numbers (0 to 255).

    Moves in four directions; or assignments: of an odd number the oracle's digit, of an even one another, in
    a cell that was empty at the start, or (the last two) in a given one and outside the grid.
    """
    if name != "sudoku":
        return " ".join("UDLR"[number % 4] for number in numbers)
    size, clues, solution = state.puzzle.size, state.puzzle.clues, state.puzzle.solution
    cells = [cell for cell, digit in enumerate(clues) if not digit]
    cells += [next(cell for cell, digit in enumerate(clues) if digit), size * size]
    words = []
    for number in numbers:
        cell = cells[number // 2 % len(cells)]
        right = solution[cell % len(solution)]
        words.append("r{}c{}={}".format(*divmod(cell, size), right if number % 2 else right % size + 1))
    return " ".join(words)


@cache
def planned(env: Any) -> list[str]:
    """The words that a planner of this environment has."""
    if env.config.__class__.__qualname__.startswith("Sudoku"):
        return [*"1234", "-"]
    language = getattr(env.config, "plan_language", "pushes")
    wanted = {"moves": "UDLR", "legs": "UDLR", "waypoints": "r", "pushes": "r"}[language]
    words = [word for word in env.vocabulary() if word[0] in wanted]
    if language == "pushes":
        return [word for word in words if word[-1] in "UDLR"]
    return [word for word in words if (len(word) == 1) == (language == "moves")]


def oracle(env: Any, state: Any, role: str = "solver") -> str:
    return env.demonstrate(state, role, 0.0, np.random.default_rng(0))


def returned(
    env: Any, name: str, state: Any, numbers: Sequence[Sequence[int]] | None, discount: float = 1.0
) -> tuple[float, Any]:
    """What an episode returns to an estimator that sums over turns, and where it ends.

    Increments, and potentials as differences from 0; counterfactuals are in no sum.

    Args:
        numbers: of each message; None: the oracle's, until it solves.
    """
    total, potentials, factor = 0.0, dict.fromkeys(env.components, 0.0), 1.0
    turns = iter(numbers) if numbers is not None else None
    while env.acting_roles(state) != ():
        if turns is None:
            text = oracle(env, state)
        elif (message := next(turns, None)) is not None:
            text = message_text(name, state, message)
        else:
            break
        step = send(env, name, state, text)
        for (_, term), value in step.scores.items():
            weight = COSTS.get(term, env.weights[term] or 0.5)  # every term is paid
            total += factor * weight * (value - potentials[term])
            if env.components[term] == "potential":
                potentials[term] = value
        factor *= discount
        state = step.state
    return total, state


def above(scores: Any, best: Any) -> dict[Any, tuple[float, float]]:
    """Terms of a step that are better than those of another: {term: (found, best)}."""
    sign = {"illegal": -1, "empty": -1}
    return {
        place: (value, best.scores[place])
        for place, value in scores.scores.items()
        if sign.get(place[1], 1) * (value - best.scores[place]) > 1e-9
    }
