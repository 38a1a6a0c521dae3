"""The tool `python`: runs a reply's program in the run's sandbox."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from coterie.backends.tools.calls import TextTool, ending
from coterie.core.plugins import Composed, PluginConfig
from coterie.core.plugins.origin import plugin_call
from coterie.core.protocols import Limits, Program, Ran

_WORDS = {"failed": "failed", "timeout": "timed out", "killed": "was killed"}


class PythonTool(TextTool):
    """Runs the reply's last fenced block of Python, or its native calls; returns stdout, stderr, exit code.

    Every run is a new process in an empty folder, without variables, imports or files of earlier calls. Only
    printed text is returned, not the value of a last expression.
    """

    class Config(PluginConfig):
        sandbox: Annotated[Any, Composed("sandbox")] = Field(
            description="Default: the run's table `sandbox`."
        )
        calls: Literal["fenced", "native"] = Field(
            "fenced",
            description="Form of a call: the reply's last closed ```python block, or `<tool_call>` with the "
            "argument `code`.",
        )
        announce: bool = Field(
            True,
            description="Native calls: give the schema to the chat template. False: the role's prompt "
            "describes the tool.",
        )
        limits: Limits | None = Field(None, description="Default: the sandbox's own.")
        result_chars: int = Field(4000, ge=100, description="Last characters kept of stdout and of stderr.")

    config: Config

    plain_name = "python"
    languages = ("python", "py", "python3")
    description = "Runs a Python program in a fresh process and returns what it prints."
    argument = "code"
    argument_is = "The whole program. It must print what you want to see."
    undone = "not run"

    async def _answer(self, code: str) -> str:
        """A text about the program's run.

        Raises:
            SystemFault: the sandbox failed.
            PolicyFault: the program killed its sandbox twice.
        """
        with plugin_call(self.config.sandbox, "run"):
            ran = await self.config.sandbox.run(Program(code=code, limits=self.config.limits))
        return described(ran, self.config.result_chars)


def described(ran: Ran, length: int) -> str:
    """The text of a run for the model: its outcome, then the ends of stdout and of stderr."""
    if ran.ok:
        head = "exit code 0"
    else:
        code = "" if ran.exit_code is None else f"exit code {ran.exit_code}"
        why = ", ".join(part for part in (code if code not in ran.reason else "", ran.reason) if part)
        head = f"the program {_WORDS[ran.status]}" + (f": {why}" if why else "")
    if ran.dropped:
        head += f" ({ran.dropped} bytes of earlier output were not kept)"
    parts = [head]
    for name, text in (("stdout", ran.stdout), ("stderr", ran.stderr)):
        if text:
            parts.append(f"{name}:\n{ending(text, length).rstrip()}")
    return "\n".join(parts)
