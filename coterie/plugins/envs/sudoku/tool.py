"""The paper's form of Sudoku: `tool` writes a program that solves, `plan` adopts or overrules it and fills.

Source: PettingLLMs, arXiv 2510.11062: what the program prints is the tool role's action, and the plan role is
shown the code, the output and the proposal. Like a planner's words, a proposal fills nothing by itself: it is
worth what it would earn on a fork.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from coterie.core.errors import ConfigError, PolicyFault
from coterie.plugins.envs.games import ToolRun, read_program, run_tool
from coterie.plugins.envs.sudoku.fills import Assignment
from coterie.plugins.envs.sudoku.language import Rendering, assignment_list, read_assignments

SEATS = ("tool", "plan")
_OUTPUT, _PROBLEM = 2000, 300
"""Characters of the output's end and of the problem that are kept."""


def check_seats(order: Sequence[Sequence[str]], sandbox: Any, rendering: Rendering, path: str) -> None:
    """The two seats play with each other, in prose, and programs need a sandbox.

    Raises:
        ConfigError: they don't; names the setting.
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


async def proposal(
    sandbox: Any, parsed: Any, path: str, size: int, grid: Sequence[int]
) -> tuple[ToolRun, tuple[Assignment, ...] | None]:
    """Run what the tool role handed over; what it did, and the assignments that it printed.

    Args:
        parsed: the program, or a text with a fenced one; anything else is no program.
        grid: as it is shown to the role: of a grid that is printed, only what is new in it counts.

    Returns:
        The run, shortened to what roles are shown; the last list or grid in the output (read as prose is),
        None where there is none.

    Raises:
        SystemFault: the sandbox failed.
    """
    code = _code(parsed)
    if not code:
        return ToolRun(code="", problem="there was no program"), None
    ran = await run_tool(sandbox, code, path)
    kept = replace(ran, output=_ending(ran.output), problem=ran.problem[-_PROBLEM:])
    if not ran.output.strip():  # a program that prints nothing isn't a role that says nothing
        return kept, None
    try:
        return kept, read_assignments(ran.output, "prose", size, grid)
    except PolicyFault:
        return kept, None


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


def about(run: ToolRun | None) -> dict[str, Any]:
    """What a program did as plain data, for coaches and records; its code is in the action's text."""
    return {} if run is None else {"ran": bool(run.code), "output": run.output, "problem": run.problem}


def message(said: str) -> str:
    """The oracle's message: a program that prints this."""
    return f"```python\nprint({said!r})\n```"


# ------------------------------------------------------------------------------------- what roles are told


def shown(run: ToolRun, proposed: Sequence[Assignment] | None) -> list[str]:
    """The plan role's lines on this turn's program; `proposed` is None where nothing could be read."""
    if not run.code:
        return ["The tool wrote no program."]
    lines = ["The tool's program:", *_fenced(run.code, "python")]
    lines += ["It printed:", *_fenced(run.output)] if run.output.strip() else ["It printed nothing."]
    if run.problem:
        lines.append(f"It did not finish: {run.problem}.")
    if proposed is None:
        lines.append("It proposes nothing that can be read as assignments.")
    else:
        lines.append(f"It proposes: {assignment_list(proposed)}.")
    return lines


def task(limit: str) -> str:
    """What the tool role is asked for, as the prompt's last line."""
    return (
        "Your program, in one ```python block; the last list that it prints, such as [r0c1=3, r2c3=1], is "
        f"your proposal of assignments{limit}, and so is a whole grid:"
    )


def told(run: ToolRun, proposed: Sequence[Assignment] | None) -> str:
    """What became of the tool role's last program, without its effects."""
    if not run.code:
        return "Your last message held no program."
    sentences = [f"Your last program did not finish: {run.problem}."] if run.problem else []
    if proposed is None:
        what = "no list of assignments" if run.output.strip() else "nothing"
        sentences.append(f"Your last program printed {what}.")
    else:
        sentences.append(f"Your last program proposed: {assignment_list(proposed)}.")
    return " ".join(sentences)


def _fenced(text: str, language: str = "") -> list[str]:
    """A block that its own content can't close."""
    longest = max(map(len, re.findall(r"`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return [fence + language, text.rstrip("\n"), fence]
