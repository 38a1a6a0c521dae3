"""One local sandbox for all tests of this process: to start a worker takes 0.2 s of CPU, a verdict 0.02 s."""

from __future__ import annotations

import asyncio
import atexit
import functools
import threading
from collections.abc import Coroutine
from typing import Any

from coterie import Plugin
from coterie.backends.sandboxes.local import LocalSandbox
from coterie.core.protocols import Judged, Program, Ran, Verdict

WARM = "tests.plugins.envs.code.warm:Warm"


class Warm(Plugin):
    """Asks the sandbox of this process, from any event loop; it is open from the first `open` to the end."""

    async def open(self) -> None:
        await asyncio.to_thread(_sandbox)

    async def close(self) -> None:
        pass

    async def run(self, program: Program) -> Ran:
        return await _answer(_sandbox().run(program))

    async def judge(self, judged: Judged) -> Verdict:
        return await _answer(_sandbox().judge(judged))

    def __reduce__(self) -> str:
        raise TypeError("a sandbox is open in one process")


async def _answer(asked: Coroutine[Any, Any, Any]) -> Any:
    return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(asked, _loop()))


@functools.cache
def _loop() -> asyncio.AbstractEventLoop:
    """An event loop in a thread: workers end with the thread that started them."""
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name="warm sandbox", daemon=True).start()
    return loop


@functools.cache
def _sandbox() -> LocalSandbox:
    sandbox = LocalSandbox(LocalSandbox.Config(workers=2), None)
    asyncio.run_coroutine_threadsafe(sandbox.open(), _loop()).result(60)
    atexit.register(lambda: asyncio.run_coroutine_threadsafe(sandbox.close(), _loop()).result(10))
    return sandbox
