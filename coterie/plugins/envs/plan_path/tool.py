"""The paper's form of Plan-Path: `tool` writes a program that plans, `plan` adopts or overrules it and moves.

Source: PettingLLMs, arXiv 2510.11062 (Plan-Path): the list of moves that the program prints is the tool
role's action; the plan role is shown the code, what it printed and the proposal. Like a planner's words, a
proposal moves nothing by itself: it is worth what it would earn on a fork.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from coterie.core.errors import ConfigError, PolicyFault
from coterie.plugins.envs.games import ToolRun, read_program, run_tool
from coterie.plugins.envs.plan_path.language import Rendering, read_moves
from coterie.plugins.envs.plan_path.state import Observation, Plan

SEATS = ("tool", "plan")
_OUTPUT, _PROBLEM, _MOVES = 2000, 300, 100
"""Characters of the output's end and of the problem that are kept; moves of a proposal that are told."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolPlan(Plan):
    """What a program printed as `moves`, with their walk on a fork."""

    run: ToolRun
    """Without code where the message held no program."""


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
            why="no other seat is shown what a program printed, and 'plan' no words of a planner",
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
    kept = replace(ran, output=_ending(ran.output, _OUTPUT), problem=ran.problem[-_PROBLEM:])
    if not ran.output.strip():  # a program that prints nothing isn't a role that says nothing
        return kept, None
    try:
        return kept, read_moves(ran.output, "prose")
    except PolicyFault:
        return kept, None


def _code(parsed: Any) -> str:
    if not isinstance(parsed, str) or not parsed.strip():
        return ""
    try:
        return read_program(parsed)
    except PolicyFault:
        return parsed


def _ending(text: str, length: int) -> str:
    left = len(text) - length
    return text if left <= 0 else f"[{left} characters left out]\n{text[-length:]}"


def about(plan: Plan | None) -> dict[str, Any]:
    """What a program did as plain data, for coaches and records; its code is in the action's text."""
    if not isinstance(plan, ToolPlan):
        return {}
    return {"ran": bool(plan.run.code), "output": plan.run.output, "problem": plan.run.problem}


def seen(plan: Plan | None) -> dict[str, Any]:
    """What an observation shows of the turn's program."""
    if not isinstance(plan, ToolPlan):
        return {}
    return {"program": plan.run, "proposal": None if plan.fork is None else plan.moves}


def message(moves: Sequence[str]) -> str:
    """The oracle's message: a program that prints these moves."""
    return f"```python\nprint({list(moves)})\n```"


# ------------------------------------------------------------------------------------- what roles are told


def shown(seen: Observation) -> list[str]:
    """The plan role's lines on this turn's program; none where it was given none."""
    run = seen.program
    if run is None:
        return []
    if not run.code:
        return ["The tool wrote no program."]
    lines = ["The tool's program:", *_fenced(run.code, "python")]
    lines += ["It printed:", *_fenced(run.output)] if run.output.strip() else ["It printed nothing."]
    if run.problem:
        lines.append(f"It did not finish: {run.problem}.")
    if seen.proposal is None:
        lines.append("It proposes nothing that can be read as moves.")
    else:
        lines.append(f"It proposes: {_listed(seen.proposal)}.")
    return lines


def task(seen: Observation) -> str:
    """What the tool role is asked for, as the prompt's last line."""
    limit = f", at most {seen.max_moves}" if seen.max_moves is not None else ""
    return (
        "Your program, in one ```python block; the last list that it prints, such as [U, R, R], is your "
        f"proposal of moves (U, D, L, R{limit}) from where you are now:"
    )


def told(plan: ToolPlan) -> str:
    """What became of the tool role's last program, without its walk."""
    run = plan.run
    if not run.code:
        return "Your last message held no program."
    sentences = [f"Your last program did not finish: {run.problem}."] if run.problem else []
    if plan.fork is None:
        what = "no list of moves" if run.output.strip() else "nothing"
        sentences.append(f"Your last program printed {what}.")
    else:
        sentences.append(f"Your last program proposed: {_listed(plan.moves)}.")
    return " ".join(sentences)


def _listed(moves: Sequence[str]) -> str:
    more = f" and {len(moves) - _MOVES} more" if len(moves) > _MOVES else ""
    return (", ".join(moves[:_MOVES]) or "no move") + more


def _fenced(text: str, language: str = "") -> list[str]:
    """A block that its own content can't close."""
    longest = max(map(len, re.findall(r"`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return [fence + language, text.rstrip("\n"), fence]
