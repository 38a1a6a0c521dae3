"""Programs of the role `tool`: how they are read from an answer, run, and shown in prompts.

Source: PettingLLMs, arXiv 2510.11062: the program's output is the tool role's action; the plan role sees the
code, its output and the proposal. Like a planner's plan, a proposal doesn't change the state: its score is
what it would earn on a fork.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any, TypeVar

from coterie.answers import keep_answer, known_answer
from coterie.core.errors import PolicyFault
from coterie.core.plugins.origin import plugin_call
from coterie.core.protocols import Program
from coterie.core.types.digest import digest

T = TypeVar("T")
_OUTPUT, _PROBLEM = 2000, 300
"""Characters kept from the end of the output and of the problem."""
_FENCE = re.compile(r"(`{3,})[ \t]*([\w+-]*)$")
PYTHON = ("python", "py", "python3")
"""Languages of a block of Python."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolRun:
    """A run of a role's program."""

    code: str
    """Empty where the message held no program."""
    output: str = ""
    """The printed text."""
    problem: str = ""
    """Why the program did not finish, in words; empty: it did."""


def blocks(text: str, fences: re.Pattern[str] = _FENCE) -> Iterator[tuple[str, str, bool]]:
    """(language, code, whether it is closed) of every fenced block; only the last may be open.

    Args:
        fences: a line that opens or closes a block: its marks, then the language.
    """
    fence, language, lines = "", "", list[str]()
    for line in text.split("\n"):
        match = fences.match(line.strip())
        if not fence:
            if match is not None:
                fence, language, lines = match[1], match[2].lower(), []
        elif match is not None and not match[2] and match[1][0] == fence[0] and len(match[1]) >= len(fence):
            yield language, "".join(code_line + "\n" for code_line in lines), True
            fence = ""
        else:
            lines.append(line)
    if fence:
        yield language, "".join(code_line + "\n" for code_line in lines), False


def read_program(text: str) -> str:
    """The program of an answer: its last closed block of ```python, else its last one without a language.

    An unclosed block at the end of the text doesn't count: half a program is never run. An empty message
    gives "".

    Raises:
        PolicyFault: the text has no such block, or it is blank.
    """
    closed = [(language, code) for language, code, is_closed in blocks(text) if is_closed]
    named = [code for language, code in closed if language in PYTHON]
    plain = [code for language, code in closed if not language]
    code = (named or [""])[-1] or (plain or [""])[-1]
    if text.strip() and not code.strip():
        raise PolicyFault("no closed block of Python in the answer")
    return code


# ------------------------------------------------------------------------------------------------- running


async def run_tool(sandbox: Any, code: str) -> ToolRun:
    """Run the program of a tool role.

    Raises:
        SystemFault: the sandbox failed; the action's scores are missing.
    """
    question = digest(("run", code))
    if (known := known_answer(question)) is not None:
        return ToolRun(**known)
    ran = await _ran(sandbox, code)
    keep_answer(question, asdict(ran))
    return ran


async def _ran(sandbox: Any, code: str) -> ToolRun:
    try:
        with plugin_call(sandbox, "run"):
            result = await sandbox.run(Program(code=code))
    except PolicyFault as fault:  # the program killed its sandbox twice
        return ToolRun(code=code, problem=str(fault))
    if result.status in ("timeout", "killed"):  # its output depends on the machine's speed
        return ToolRun(code=code, problem=result.reason or result.status)
    reasons = [] if result.ok else [result.reason, *result.stderr.strip().splitlines()[-1:]]
    problem = ": ".join(filter(None, reasons)) or ("" if result.ok else result.status)
    return ToolRun(code=code, output=result.stdout, problem=problem)


async def propose(sandbox: Any, parsed: Any, read: Callable[[str], T]) -> tuple[ToolRun, T | None]:
    """Run the tool role's action and read the proposal from its output.

    Args:
        parsed: the program, or a text with a fenced one; any other value is no program.
        read: output -> proposal; raises PolicyFault.

    Returns:
        The run, shortened to what prompts show; the proposal, None where the output can't be read as one.

    Raises:
        SystemFault: the sandbox failed.
    """
    code = _code(parsed)
    if not code:
        return ToolRun(code="", problem="there was no program"), None
    run = await run_tool(sandbox, code)
    short = shortened(run)
    if not run.output.strip():  # no output is no proposal, unlike an empty message, which is an empty one
        return short, None
    try:
        return short, read(run.output)
    except PolicyFault:
        return short, None


def shortened(run: ToolRun) -> ToolRun:
    """The run with as much of its output and problem as prompts show: their ends."""
    return replace(run, output=ending(run.output, _OUTPUT), problem=run.problem[-_PROBLEM:])


def _code(parsed: Any) -> str:
    if not isinstance(parsed, str) or not parsed.strip():
        return ""
    try:
        return read_program(parsed)
    except PolicyFault:
        return parsed


def ending(text: str, most: int) -> str:
    """The last `most` characters of an output that is too long for a prompt, with how many were left out."""
    omitted = len(text) - most
    return text if omitted <= 0 else f"[{omitted} characters left out]\n{text[omitted:]}"


def printing_program(value: Any) -> str:
    """The oracle's message: a program that prints the value."""
    return f"```python\nprint({value!r})\n```"


# ------------------------------------------------------------------------------------------ prompts, info


def run_info(run: ToolRun | None) -> dict[str, Any]:
    """A run as plain data, for coaches and records, without its code, which is in the action's text."""
    return {} if run is None else {"ran": bool(run.code), "output": run.output, "problem": run.problem}


def program_lines(run: ToolRun | None, proposal: str | None, items: str) -> list[str]:
    """Lines of the plan role's prompt on this turn's program; none where there is no program.

    Args:
        proposal: in words; None where it can't be read.
        items: the plural of what is proposed, such as "moves".
    """
    if run is None:
        return []
    if not run.code:
        return ["The tool wrote no program."]
    lines = ["The tool's program:", *_fenced(run.code, "python"), *output_lines(run)]
    if proposal is None:
        lines.append(f"It proposes nothing that can be read as {items}.")
    else:
        lines.append(f"It proposes: {proposal}.")
    return lines


def output_lines(run: ToolRun) -> list[str]:
    """Lines of a prompt on what a program printed, and why it did not finish."""
    lines = ["It printed:", *_fenced(run.output)] if run.output.strip() else ["It printed nothing."]
    return [*lines, f"It did not finish: {run.problem}."] if run.problem else lines


def program_feedback(run: ToolRun, proposal: str | None, items: str) -> str:
    """Feedback for the tool role on the run of its last program. Arguments as in `program_lines`."""
    if not run.code:
        return "Your last message held no program."
    sentences = [f"Your last program did not finish: {run.problem}."] if run.problem else []
    if proposal is None:
        printed = f"no list of {items}" if run.output.strip() else "nothing"
        sentences.append(f"Your last program printed {printed}.")
    else:
        sentences.append(f"Your last program proposed: {proposal}.")
    return " ".join(sentences)


def _fenced(text: str, language: str = "") -> list[str]:
    """A fenced block whose fence is longer than any fence in the text."""
    longest = max(map(len, re.findall(r"`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return [fence + language, text.rstrip("\n"), fence]
