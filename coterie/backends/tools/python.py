"""The tool `python`: runs a program that a reply holds, in the run's sandbox."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from coterie.backends.tools.calls import Use, ending, fenced, native, numbered, schema, text_argument
from coterie.core.plugins import Composed, Plugin, PluginConfig
from coterie.core.protocols import Limits, Program, Ran

LANGUAGES = ("python", "py", "python3")
_WORDS = {"failed": "failed", "timeout": "timed out", "killed": "was killed"}


class PythonTool(Plugin):
    """Runs the reply's last fenced block of Python, or its native calls, and tells stdout, stderr, exit code.

    Every run is a new process in an empty folder: no variable, import or file of an earlier call is there.
    What is printed is what comes back; the value of a last expression is not.
    """

    class Config(PluginConfig):
        sandbox: Annotated[Any, Composed("sandbox")] = Field(
            description="Default: the run's table `sandbox`."
        )
        calls: Literal["fenced", "native"] = Field(
            "fenced",
            description="How a reply asks: its last closed ```python block, or `<tool_call>` with the "
            "argument `code`.",
        )
        announce: bool = Field(
            True,
            description="Native calls: give the schema to the chat template. False: the role's prompt tells.",
        )
        limits: Limits | None = Field(None, description="Default: the sandbox's own.")
        result_chars: int = Field(4000, ge=100, description="Kept of stdout and of stderr: the end.")

    config: Config

    @property
    def name(self) -> str:
        return str(self.build.name) if self.build is not None else "python"

    @property
    def schemas(self) -> tuple[dict[str, Any], ...]:
        """For the chat template."""
        if self.config.calls == "fenced" or not self.config.announce:
            return ()
        told = "Runs a Python program in a fresh process and returns what it prints."
        code = {"type": "string", "description": "The whole program. It must print what you want to see."}
        return (schema(self.name, told, {"code": code}, ["code"]),)

    def find(self, text: str) -> str | tuple[Use, ...] | None:
        """The program, or the native calls."""
        if self.config.calls == "fenced":
            return fenced(text, LANGUAGES)
        return native(text, (self.name,)) or None

    async def run(self, call: str | tuple[Use, ...]) -> str:
        """What the program did, in words.

        Raises:
            SystemFault: the sandbox failed.
            PolicyFault: the program killed its sandbox twice.
        """
        if isinstance(call, str):
            return await self._ran(call)
        return numbered([await self._used(use) for use in call])

    async def _used(self, use: Use) -> str:
        try:
            code = text_argument(use, "code")
        except ValueError as error:
            return f"not run: {error}"
        return await self._ran(code)

    async def _ran(self, code: str) -> str:
        ran = await self.config.sandbox.run(Program(code=code, limits=self.config.limits))
        return told(ran, self.config.result_chars)


def told(ran: Ran, length: int) -> str:
    """A run as the model reads it: how it ended, then the ends of stdout and of stderr."""
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
