"""A sandbox is open once, in one process and one event loop, and its runs end with it."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from coterie.backends.sandboxes.fusion import SandboxFusion
from coterie.backends.sandboxes.local import LocalSandbox
from coterie.core.protocols import Judged, Program
from tests.backends.sandboxes.fusion_server import FusionServer
from tests.backends.sandboxes.support import LIMITS, descendants
from tests.backends.sandboxes.test_fusion import sandbox as fusion

SLEEPS = Program(code="import time; time.sleep(2.5)")
HELLO = Program(code="print('hello')")
JUDGED = Judged(candidate="def f(): return 1", tests="assert f() == 1", calls=("f",))


@pytest.fixture(params=["auto", "off", "sandbox_fusion"])
def made(request: pytest.FixtureRequest) -> Iterator[Callable[[], Any]]:
    """Makes a sandbox: local with namespaces or without, or one on a server."""
    if request.param != "sandbox_fusion":
        yield lambda: LocalSandbox(LocalSandbox.Config(workers=2, limits=LIMITS, namespaces=request.param))
        return
    with FusionServer() as server:
        before = descendants(os.getpid())
        yield lambda: fusion(server.url, concurrency=2, limits=LIMITS)
        while descendants(os.getpid()) != before:  # the server ends what it began
            time.sleep(0.05)


async def _outcome(work: Any) -> str:
    try:
        return str((await work).status)
    except Exception as error:
        return f"{type(error).__name__}: {error}"


def test_close_ends_the_runs_in_flight_at_once(made: Callable[[], Any]) -> None:
    async def go() -> tuple[list[str], float]:
        box = made()
        await box.open()
        runs = [asyncio.ensure_future(_outcome(box.run(SLEEPS))) for _ in range(4)]
        await asyncio.sleep(0.4)
        began = time.monotonic()
        await box.close()
        ends = await asyncio.gather(*runs)
        return [*ends, await _outcome(box.run(HELLO))], time.monotonic() - began

    before = descendants(os.getpid())
    (*ends, after), took = asyncio.run(go())
    assert ends == ["SystemFault: the sandbox was closed during the run"] * 4
    assert "SystemFault: the sandbox is not open" in after
    assert took < 10
    assert isinstance(made(), SandboxFusion) or descendants(os.getpid()) == before


def test_another_event_loop_is_refused_at_once(made: Callable[[], Any]) -> None:
    box, texts = made(), []

    async def go() -> None:
        await box.open()
        for use in (box.run, box.judge):
            work = HELLO if use == box.run else JUDGED
            texts.append(await asyncio.to_thread(lambda: asyncio.run(_outcome(use(work)))))  # noqa: B023
        texts.append(await asyncio.to_thread(lambda: asyncio.run(_outcome(box.open()))))
        assert await _outcome(box.run(HELLO)) == "finished"

    asyncio.run(go())
    texts.append(asyncio.run(_outcome(box.run(HELLO))))
    asyncio.run(box.close())
    for text in texts:
        assert "ConfigError: another event loop opened the sandbox" in text and "one asyncio.run" in text
    assert "which has ended" in texts[-1]


def test_close_from_another_event_loop_ends_its_runs(made: Callable[[], Any]) -> None:
    box, ends = made(), []

    async def go() -> None:
        await box.open()
        run = asyncio.ensure_future(_outcome(box.run(SLEEPS)))
        await asyncio.sleep(0.2)
        thread = threading.Thread(target=lambda: asyncio.run(box.close()))
        thread.start()
        ends.append(await run)
        await asyncio.to_thread(thread.join)

    asyncio.run(asyncio.wait_for(go(), 10))
    assert "was closed" in ends[0]


def test_a_second_open_does_nothing(made: Callable[[], Any]) -> None:
    async def go() -> None:
        box = made()
        await asyncio.gather(box.open(), box.open())
        await box.open()
        assert await _outcome(box.run(HELLO)) == "finished"
        await box.close()
        await box.close()

    before, files = descendants(os.getpid()), len(os.listdir("/proc/self/fd"))
    asyncio.run(go())
    if not isinstance(made(), SandboxFusion):  # whose server is in this process
        assert (descendants(os.getpid()), len(os.listdir("/proc/self/fd"))) == (before, files)


def test_a_closed_event_loop_leaves_nothing_behind(made: Callable[[], Any]) -> None:
    box, before = made(), descendants(os.getpid())
    asyncio.run(box.open())
    asyncio.run(box.open())
    asyncio.run(box.close())
    assert descendants(os.getpid()) == before


FORKED = """
import asyncio, contextlib, os, sys
from coterie.backends.sandboxes.fusion import SandboxFusion
from coterie.backends.sandboxes.local import LocalSandbox
from coterie.core.protocols import Program
async def used(box):
    for use in (box.run(Program(code="")), box.open()):
        try:
            await use
            print("no error")
        except Exception as error:
            print(str(error).splitlines()[0])
    await box.close()
async def go():
    box = LocalSandbox(LocalSandbox.Config(workers=1, namespaces=sys.argv[1]))
    await box.open()
    run = asyncio.ensure_future(box.run(Program(code="import time; time.sleep(1); print('unharmed')")))
    await asyncio.sleep(.3)
    if os.fork() == 0:
        if sys.argv[2] == "exits": os._exit(0)
        asyncio.events._set_running_loop(None)
        asyncio.run(used(box))
        sys.stdout.flush()
        os._exit(0)
    os.wait()
    print((await run).stdout, end="")
    await box.close()
asyncio.run(go())
"""


@pytest.mark.parametrize("namespaces", ["auto", "off"])
@pytest.mark.parametrize("child", ["closes", "exits"])
def test_a_forked_process_ends_no_worker(namespaces: str, child: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", FORKED, namespaces, child], capture_output=True, text=True, timeout=60
    )
    refused = "this process did not open the sandbox\n" * 2
    assert done.stdout == ("" if child == "exits" else refused) + "unharmed\n", done.stderr
