"""A sandbox: where programs that a model wrote run, never in the process of the run.

Patient: it runs programs in another sandbox, and tries again where that one failed.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Annotated, TypeVar

from pydantic import Field

from coterie import (
    Composed,
    Judged,
    Plugin,
    PluginConfig,
    Program,
    Ran,
    Register,
    Sandbox,
    SystemFault,
    Verdict,
    hookimpl,
)

T = TypeVar("T")


class ExampleNameSandbox(Plugin):
    """Tries a program up to `tries` times where the sandbox inside fails, not where the program does."""

    class Config(PluginConfig):
        # A field that holds another component: in YAML a table with a `type`, here the object.
        inside: Annotated[Sandbox, Composed("sandbox")] = Field(description="What runs the programs.")
        tries: int = Field(3, ge=1, description="Most tries of a program.")
        pause: float = Field(0.1, ge=0, description="Seconds before the second try; twice that, and so on.")

    config: Config

    async def open(self) -> None:
        await self.config.inside.open()

    # A crash, a time-out and a killed program are results. SystemFault: the sandbox failed, and the program
    # did not cause it. PolicyFault: the program ended its sandbox, twice.
    async def run(self, program: Program) -> Ran:
        return await self.tried(lambda: self.config.inside.run(program))

    async def judge(self, judged: Judged) -> Verdict:
        return await self.tried(lambda: self.config.inside.judge(judged))

    async def tried(self, work: Callable[[], Awaitable[T]]) -> T:
        """The result of the first try that isn't lost.

        Raises:
            SystemFault: the last one was lost too.
        """
        for number in range(self.config.tries - 1):
            try:
                return await work()
            except SystemFault:
                await asyncio.sleep(self.config.pause * 2**number)
        return await work()

    async def close(self) -> None:
        await self.config.inside.close()


@hookimpl
def register_sandboxes(register: Register) -> None:
    register("example_name", ExampleNameSandbox)
