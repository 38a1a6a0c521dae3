"""A tool: a function that a role may call within one action.

Adder: a reply with `<add>2 3.5</add>` gets the sum as the next message, and the model goes on.
"""

import math
import re

from pydantic import Field

from coterie import Plugin, PluginConfig, Register, hookimpl

CALL = re.compile(r"<add>([^<>]{0,1000})</add>")  # bounded, so that no reply takes long to read


class ExampleNameTool(Plugin):
    """Adds numbers, exactly."""

    class Config(PluginConfig):
        most: int = Field(100, ge=1, description="Most numbers of a call.")

    config: Config

    @property
    def name(self) -> str:
        """Its name in the configuration, by which roles list it: `tools: [example_name]`."""
        return str(self.build.name) if self.build is not None else "example_name"

    # Called with every reply. Whatever the text is, it returns the call or None, and never raises.
    def find(self, text: str) -> str | None:
        calls = CALL.findall(text)
        return calls[-1] if calls else None

    # Calls overlap. Bad arguments are results too: the model reads the text, and may try again.
    # SystemFault: the tool failed and the call didn't cause it. PolicyFault: the call ends the action.
    async def run(self, call: str) -> str:
        words = call.split()
        if len(words) > self.config.most:
            return f"error: more than {self.config.most} numbers"
        try:
            return f"{math.fsum(float(word) for word in words):g}"
        except (ValueError, OverflowError) as error:
            return f"error: {error}"


@hookimpl
def register_tools(register: Register) -> None:
    register("example_name", ExampleNameTool)
