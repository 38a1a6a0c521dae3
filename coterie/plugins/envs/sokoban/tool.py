"""The paper's form of Sokoban: `tool` writes a program that plans, `plan` adopts or overrules it and moves.

Source: PettingLLMs, arXiv 2510.11062: the list of moves that the program prints is the tool role's action;
the plan role is shown the code, what it printed and the proposal. Like a planner's words, a proposal moves
nothing by itself: it is worth what it would earn on a fork.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from coterie.core.errors import ConfigError, PolicyFault
from coterie.plugins.envs.games import ToolRun, read_program, run_tool
from coterie.plugins.envs.sokoban.language import Rendering, as_moves
from coterie.plugins.envs.sokoban.state import Plan

SEATS = ("tool", "plan")
_OUTPUT, _PROBLEM = 2000, 300
"""Characters of the output's and of the problem's end that are kept."""


def check_seats(order: Sequence[Sequence[str]], sandbox: Any, rendering: Rendering, path: str) -> None:
    """The two seats play with each other, in prose, and programs need a sandbox.

    Raises:
        ConfigError: they don't; names the environment's setting.
    """
    seats = {role for stage in order for role in stage}
    ours = [role for role in SEATS if role in seats]
    if not ours:
        return
    if rendering != "prose":
        raise ConfigError(
            f"the seat '{ours[0]}' is for the prose rendering",
            path=f"{path}.rendering",
            why="the compact one has no words for a program",
            mend="set env.rendering: prose",
        )
    others = sorted(seats - set(SEATS))
    if others:
        raise ConfigError(
            f"{' and '.join(ours)} can't play with {' and '.join(others)}",
            path="team.order",
            why="no other seat is shown what a program printed, and 'plan' no pushes of a planner",
            mend="keep tool and plan, or planner and executor, or solver",
        )
    if "tool" in seats and sandbox is None:
        raise ConfigError(
            "the role 'tool' writes programs, and there is no sandbox to run them in",
            path=f"{path}.sandbox",
            mend="add the table `sandbox: local`, or set env.sandbox: local",
        )


async def proposal(sandbox: Any, parsed: Any, path: str) -> tuple[ToolRun, tuple[str, ...] | None]:
    """Run what the tool role handed over; what it did, and the moves that it printed.

    Args:
        parsed: the program, or a text with a fenced one; anything else is no program.

    Returns:
        The run, shortened to what roles are shown; the last list of moves in the output (read as prose is),
        None where there is none.

    Raises:
        SystemFault: the sandbox failed.
    """
    code = _code(parsed)
    if not code:
        return ToolRun(code="", problem="there was no program"), None
    ran = await run_tool(sandbox, code, path)
    kept = replace(ran, output=_ending(ran.output), problem=ran.problem[-_PROBLEM:])
    # A program that prints nothing isn't a role that says nothing.
    return kept, as_moves(ran.output) if ran.output.strip() else None


def _code(parsed: Any) -> str:
    if not isinstance(parsed, str) or not parsed.strip():
        return ""
    try:
        return read_program(parsed)
    except PolicyFault:
        return parsed


def _ending(text: str) -> str:
    left = len(text) - _OUTPUT
    return text if left <= 0 else f"[{left} characters left out]\n{text[-_OUTPUT:]}"


def about(plan: Plan | None) -> dict[str, Any]:
    """What a program did as plain data, for coaches and records; its code is in the action's text."""
    if plan is None or plan.run is None:
        return {}
    return {"ran": bool(plan.run.code), "output": plan.run.output, "problem": plan.run.problem}


def message(moves: Sequence[str]) -> str:
    """The oracle's message: a program that prints these moves."""
    return f"```python\nprint({list(moves)})\n```"
