"""The roles of the grid games, and their base: one prompt, compact or in prose, with feedback."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pydantic import Field

from coterie.core.errors import ConfigError
from coterie.core.plugins import PluginConfig
from coterie.core.types import Message, RoleInput
from coterie.plugins.agents.roles import CompactRole
from coterie.plugins.envs.board.roles import PROSE_ROLES
from coterie.plugins.envs.common.code import read_program
from coterie.plugins.envs.common.teams import Rendering


class GameRole(CompactRole):
    """A role of a game. Its observation writes the prompts and reads its messages."""

    class Config(PluginConfig):
        rendering: Rendering | None = Field(
            None, description="How prompts are written; null: the environment's rendering."
        )
        system: str | None = Field(
            None, description="System prompt of the prose rendering; null: the built-in one."
        )

    def __init__(self, config: Config, build: Any) -> None:
        super().__init__(config, build)
        if config.rendering == "compact" and self.role in PROSE_ROLES:
            raise ConfigError(
                f"the role '{self.role}' needs the prose rendering",
                path=f"{build.path}.rendering",
                why="the compact one can't show a program",
                fix="remove it",
            )

    def render(self, role_input: RoleInput) -> Sequence[Message]:
        """One user message in the compact rendering; a system and a user message in prose.

        Raises:
            ConfigError: the compact rendering gets feedback, which it can't show.
        """
        seen = role_input.observation
        if self._rendering(seen) == "prose":
            return self.messages(seen.prose(role_input.feedback))
        return self.compact_messages(seen.compact(), role_input.feedback)

    def without_feedback(self) -> str:
        """The setting of the compact rendering, which can't show feedback; empty in prose."""
        if self.config.rendering is not None:
            return f"{self.build.path}.rendering=compact" * (self.config.rendering == "compact")
        return super().without_feedback()

    def parse(self, text: str, observation: Any) -> Any:
        """The message as a value of the game; a program for the role `tool`; empty for an empty message.

        Raises:
            PolicyFault: the text can't be read.
        """
        if self.role == "tool":
            return read_program(text)
        return observation.read(text, self._rendering(observation))

    def _rendering(self, seen: Any) -> Rendering:
        return self.config.rendering or seen.rendering


def system_prompts(
    solve: str,
    game: str,
    rules: str,
    says: str,
    does: str,
    finds: str,
    *,
    items: str = "moves",
    grid: str = "grid",
    planner_end: str = "",
    **beginnings: str,
) -> dict[str, str]:
    """The built-in system prompts of a game's roles.

    Args:
        solve: the verb, such as "solve", and `game` its object, such as "a Sudoku".
        rules: sentences, with a space after the last.
        says: what the planner says, such as "which digits belong where".
        does: what the executor does with it.
        finds: what the tool's program finds.
        items: the plural of what a message has.
        grid: the name of the grid.
        planner_end: the planner's last sentence; empty: as the others'.
        beginnings: by role, another beginning than the built-in one.
    """
    team = f"of a team of two that {solve}s {game}."
    end = f"Think briefly, and end with a list of {items} in square brackets."
    begin = {
        "planner": f"You are the planner {team} You say {says}; the executor {does}. ",
        "executor": (
            f"You are the executor {team} The planner says {says}; you adopt or overrule it, and your "
            f"{items} are played. "
        ),
        "solver": f"You {solve} {game}. Your {items} are played. ",
        "tool": (
            f"You are the programmer {team} You write a Python program that finds {finds}; your partner "
            "sees it and what it prints, and decides. "
        ),
        "plan": (
            f"You are the decider {team} Your partner wrote a program; you see it and what it printed, "
            f"adopt or overrule it, and your {items} are played. "
        ),
    } | {role: text.format(team=team) for role, text in beginnings.items()}
    ends = dict.fromkeys(begin, end) | {
        "planner": planner_end or end,
        "tool": (
            f"The program gets no input, so write the {grid} into it. Think briefly, and end with the whole "
            f"program in one ```python block; it must print the {items} as a list."
        ),
    }
    return {role: f"{begin[role]}{rules}{ends[role]}" for role in begin}


PLAN_PATH = system_prompts(
    "find",
    "the way through a grid with walls",
    "Moves go up (U), down (D), left (L) or right (R) by one cell; "
    "a move can't enter a wall or leave the grid. ",
    "which way to go",
    "moves",
    "the way",
    planner_end="Think briefly, and end with a list in square brackets.",
    tool=(
        "You are the programmer {team} You write a Python program that finds the way; your partner sees it "
        "and what it prints, and moves. "
    ),
    plan=(
        "You are the planner {team} Your partner's program proposes moves, and may be wrong; you adopt or "
        "overrule them, and your moves are played. "
    ),
)


class PlanPathPlanner(GameRole):
    """Proposes a path; doesn't move."""

    game, role, task = "plan_path", "planner", PLAN_PATH["planner"]


class PlanPathExecutor(GameRole):
    """Writes the moves that the environment plays."""

    game, role, task = "plan_path", "executor", PLAN_PATH["executor"]


class PlanPathSolver(GameRole):
    """Plays alone, with the same turns and feedback as the team."""

    game, role, task = "plan_path", "solver", PLAN_PATH["solver"]


class PlanPathTool(GameRole):
    """Writes a program whose printed moves are its proposal; doesn't move."""

    game, role, task = "plan_path", "tool", PLAN_PATH["tool"]


class PlanPathPlan(GameRole):
    """Sees the program, its output and its proposal, and writes the moves that the environment plays."""

    game, role, task = "plan_path", "plan", PLAN_PATH["plan"]


SOKOBAN = system_prompts(
    "solve",
    "Sokoban",
    "The player moves up (U), down (D), left (L) or right (R) by one cell; moving into a box pushes it one "
    "cell on, if what is beyond is free. Boxes can't be pulled, nor two pushed at once; nothing enters a "
    "wall or leaves the grid. The board is solved when every box is on a target. ",
    "which pushes to make",
    "walks and makes them",
    "the moves",
    grid="board",
    planner_end="Think briefly, and end with a list in square brackets.",
    tool=(
        "You are the tool user {team} You write a Python program that finds the moves and prints them; your "
        "partner sees the program and what it printed, and moves. "
    ),
    plan=(
        "You decide the moves {team} Your partner wrote a program that proposes moves; you adopt or "
        "overrule it, and your moves are played. "
    ),
)


class SokobanPlanner(GameRole):
    """Proposes pushes; doesn't move."""

    game, role, task = "sokoban", "planner", SOKOBAN["planner"]


class SokobanExecutor(GameRole):
    """Writes the moves that the environment plays."""

    game, role, task = "sokoban", "executor", SOKOBAN["executor"]


class SokobanSolver(GameRole):
    """Plays alone, with the same turns and feedback as the team."""

    game, role, task = "sokoban", "solver", SOKOBAN["solver"]


class SokobanTool(GameRole):
    """Writes a program whose printed moves are a proposal; doesn't move."""

    game, role, task = "sokoban", "tool", SOKOBAN["tool"]


class SokobanPlan(GameRole):
    """Sees the tool's program and its output, and writes the moves that the environment plays."""

    game, role, task = "sokoban", "plan", SOKOBAN["plan"]


SUDOKU = system_prompts(
    "solve",
    "a Sudoku",
    "Every row, every column and every box must hold every digit once. Given digits can't be changed; "
    "digits that were filled in can. An assignment such as r0c1=3 writes 3 into row 0, column 1. ",
    "which digits belong where",
    "fills them in",
    "the missing digits",
    items="assignments",
)


class SudokuPlanner(GameRole):
    """Proposes digits; doesn't fill cells."""

    game, role, task = "sudoku", "planner", SUDOKU["planner"]


class SudokuExecutor(GameRole):
    """Writes the assignments that the environment plays."""

    game, role, task = "sudoku", "executor", SUDOKU["executor"]


class SudokuSolver(GameRole):
    """Plays alone, with the same turns and feedback as the team."""

    game, role, task = "sudoku", "solver", SUDOKU["solver"]


class SudokuTool(GameRole):
    """Writes a program whose output is its proposal."""

    game, role, task = "sudoku", "tool", SUDOKU["tool"]


class SudokuPlan(GameRole):
    """Sees the tool's program and its output, and writes the assignments that the environment plays."""

    game, role, task = "sudoku", "plan", SUDOKU["plan"]
