"""Roles of the paper's form of Plan-Path: the tool, which writes programs, and the plan, which moves."""

from __future__ import annotations

from typing import Any

from coterie.core.errors import ConfigError
from coterie.plugins.agents.plan_path import RULES, PlanPathRole
from coterie.plugins.envs.games import read_program
from coterie.plugins.envs.plan_path.state import Observation


class ProseRole(PlanPathRole):
    """A seat that the compact rendering has no words for."""

    def __init__(self, config: PlanPathRole.Config, build: Any) -> None:
        super().__init__(config, build)
        if config.rendering == "compact":
            raise ConfigError(
                f"the seat '{self.seat}' is for the prose rendering",
                path=f"{build.path}.rendering",
                why="the compact one has no words for a program",
                mend="remove it",
            )


class PlanPathTool(ProseRole):
    """Writes a program whose printed moves are its proposal; doesn't move."""

    seat = "tool"
    task = (
        "You are the programmer of a team of two that finds the way through a grid with walls. You write a "
        "Python program that finds the way; your partner sees it and what it prints, and moves. "
        f"{RULES}The program gets no input, so write the grid into it. Think briefly, and end with the "
        "whole program in one ```python block; it must print the moves as a list."
    )

    def parse(self, text: str, observation: Observation) -> str:
        """The program; "" of an empty message.

        Raises:
            PolicyFault: the text holds no closed block of Python.
        """
        return read_program(text)


class PlanPathPlan(ProseRole):
    """Is shown the program, its output and its proposal; adopts or overrules it, and its moves are played."""

    seat = "plan"
    task = (
        "You are the planner of a team of two that finds the way through a grid with walls. Your partner's "
        "program proposes moves, and may be wrong; you adopt or overrule them, and your moves are played. "
        f"{RULES}Think briefly, and end with a list of moves in square brackets."
    )
