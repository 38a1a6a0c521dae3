"""Programs that a role writes: how they are found in an answer, run, and told of.

Source: PettingLLMs, arXiv 2510.11062: what the program prints is the tool role's action; the plan role is
shown the code, what it printed and the proposal. Like a planner's words, a proposal moves nothing by itself:
it is worth what it would earn on a fork.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from coterie.core.errors import PolicyFault
from coterie.core.protocols import Program

T = TypeVar("T")
_OUTPUT, _PROBLEM = 2000, 300
"""Characters of the output's and of the problem's end that are kept."""
_FENCE = re.compile(r"(`{3,})[ \t]*([\w+-]*)$")


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolRun:
    """What a role's program did."""

    code: str
    """Empty where the message held no program."""
    output: str = ""
    """What it printed."""
    problem: str = ""
    """In words, where it did not finish; empty: it did."""


def read_program(text: str) -> str:
    """The program of an answer: its last closed block of ```python, else its last one without a language.

    A block that the end of the text cuts is none: half a program is never run. "" of an empty message.

    Raises:
        PolicyFault: there is no such block, or it is blank.
    """
    named, plain, fence, language, lines = "", "", "", "", list[str]()
    for line in text.split("\n"):
        match = _FENCE.match(line.strip())
        if not fence:
            if match is not None:
                fence, language, lines = match[1], match[2].lower(), []
        elif match is not None and not match[2] and len(match[1]) >= len(fence):
            block = "".join(one + "\n" for one in lines)
            if language in ("python", "py", "python3"):
                named = block
            elif not language:
                plain = block
            fence = ""
        else:
            lines.append(line)
    found = named or plain
    if text.strip() and not found.strip():
        raise PolicyFault("no closed block of Python in the answer")
    return found


# ------------------------------------------------------------------------------------------------- running


async def run_tool(sandbox: Any, code: str) -> ToolRun:
    """Run the program of a tool role.

    Raises:
        SystemFault: the sandbox failed; the action's scores are missing.
    """
    try:
        ran = await sandbox.run(Program(code=code))
    except PolicyFault as fault:  # it killed its sandbox twice
        return ToolRun(code=code, problem=str(fault))
    if ran.status in ("timeout", "killed"):  # what it had printed by then depends on the machine's speed
        return ToolRun(code=code, problem=ran.reason or ran.status)
    said = [] if ran.ok else [ran.reason, *ran.stderr.strip().splitlines()[-1:]]
    problem = ": ".join(filter(None, said)) or ("" if ran.ok else ran.status)
    return ToolRun(code=code, output=ran.stdout, problem=problem)


async def propose(sandbox: Any, parsed: Any, read: Callable[[str], T]) -> tuple[ToolRun, T | None]:
    """Run what the tool role handed over; what it did, and the proposal that it printed.

    Args:
        parsed: the program, or a text with a fenced one; anything else is no program.
        read: an output -> the proposal; raises PolicyFault.

    Returns:
        The run, shortened to what roles are shown; the proposal, None where nothing can be read as one.

    Raises:
        SystemFault: the sandbox failed.
    """
    code = _code(parsed)
    if not code:
        return ToolRun(code="", problem="there was no program"), None
    ran = await run_tool(sandbox, code)
    kept = replace(ran, output=_ending(ran.output), problem=ran.problem[-_PROBLEM:])
    if not ran.output.strip():  # a program that prints nothing isn't a role that says nothing
        return kept, None
    try:
        return kept, read(ran.output)
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


def program(value: Any) -> str:
    """The oracle's message: a program that prints this."""
    return f"```python\nprint({value!r})\n```"


# ------------------------------------------------------------------------------------- what roles are told


def about(run: ToolRun | None) -> dict[str, Any]:
    """What a program did as plain data, for coaches and records; its code is in the action's text."""
    return {} if run is None else {"ran": bool(run.code), "output": run.output, "problem": run.problem}


def shown(run: ToolRun | None, proposal: str | None, what: str) -> list[str]:
    """The plan role's lines on this turn's program; none where it was given none.

    Args:
        proposal: in words; None where it can't be read.
        what: the things that are proposed, "moves".
    """
    if run is None:
        return []
    if not run.code:
        return ["The tool wrote no program."]
    lines = ["The tool's program:", *_fenced(run.code, "python")]
    lines += ["It printed:", *_fenced(run.output)] if run.output.strip() else ["It printed nothing."]
    if run.problem:
        lines.append(f"It did not finish: {run.problem}.")
    if proposal is None:
        lines.append(f"It proposes nothing that can be read as {what}.")
    else:
        lines.append(f"It proposes: {proposal}.")
    return lines


def told(run: ToolRun, proposal: str | None, what: str) -> str:
    """What became of the tool role's last program, without its effects. Arguments as in `shown`."""
    if not run.code:
        return "Your last message held no program."
    sentences = [f"Your last program did not finish: {run.problem}."] if run.problem else []
    if proposal is None:
        printed = f"no list of {what}" if run.output.strip() else "nothing"
        sentences.append(f"Your last program printed {printed}.")
    else:
        sentences.append(f"Your last program proposed: {proposal}.")
    return " ".join(sentences)


def _fenced(text: str, language: str = "") -> list[str]:
    """A block that its own content can't close."""
    longest = max(map(len, re.findall(r"`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return [fence + language, text.rstrip("\n"), fence]
