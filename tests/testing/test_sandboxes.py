"""What `check_sandbox` catches: a sound sandbox, broken in one place at a time."""

from __future__ import annotations

import asyncio
import contextlib
import io
import os
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from coterie.backends.sandboxes.fusion import SandboxFusion
from coterie.core.errors import PolicyFault, SystemFault
from coterie.core.protocols import Limits, Program, Ran, TestFailure, Verdict
from coterie.testing import check_sandbox
from tests.backends.sandboxes.fusion_server import FusionServer
from tests.testing.support import caught

LIMITS = Limits(cpu_seconds=0.5, wall_seconds=2, memory_mb=128, output_kb=4)
Sound = SandboxFusion


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with FusionServer() as server:
        yield server.url


def changed(**other: Any) -> Any:
    """A `run` that does otherwise what the sound one does, and changes these of its result."""

    async def run(self: Any, program: Program) -> Ran:
        found = await Sound.run(self, program)
        return replace(found, **{name: how(found) for name, how in other.items()})

    return run


def given(**other: Any) -> Any:
    """A `run` that changes the program."""

    async def run(self: Any, program: Program) -> Ran:
        return await Sound.run(self, replace(program, **{name: how(program) for name, how in other.items()}))

    return run


async def in_our_process(self, program):
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        exec(program.code, {"__name__": "__main__"})
    return Ran(status="finished", exit_code=0, stdout=said.getvalue())


async def leaves_files(self, program):
    """The folder of the run before is the next one's."""
    kept = self.__dict__.setdefault("kept", {})
    files = {**kept, **program.files}
    found = await Sound.run(self, replace(program, files=files, collect=("**",)))
    kept.update(found.files)
    return replace(found, files=(await Sound.run(self, program)).files if program.collect else {})


async def mixes(self, program):
    """Concurrent runs get the first one's answer."""
    running = self.__dict__.setdefault("running", [])
    running.append(asyncio.ensure_future(Sound.run(self, program)))
    found = await running[0]
    await running[-1]
    self.running = [] if len(running) == 1 else running
    return found


async def raises_time_outs(self, program):
    found = await Sound.run(self, program)
    if found.status == "timeout":
        raise SystemFault("the run took too long")
    return found


async def one_process(self, judged):
    """Tests and candidate in one program, judged by its exit code."""
    found = await Sound.run(self, Program(code=f"{judged.candidate}\n{judged.tests}", limits=judged.limits))
    if found.exit_code == 0:
        return Verdict(passed=2, total=2)
    failure = TestFailure(line=3, source="assert", error="AssertionError")
    return Verdict(passed=1, total=2, failures=(failure,))


async def strict(self, judged):
    """Fails everybody."""
    return replace(await Sound.judge(self, judged), passed=0)


async def stays_closed(self):
    if getattr(self, "opened", False):
        raise RuntimeError("can't be opened again")
    self.opened = True
    await Sound.open(self)


async def closes_once(self):
    await self._client.aclose()
    self._client = None


def environment(program: Program) -> str:
    return f"import os\nos.environ.update({dict(os.environ)!r})\n{program.code}"


@pytest.mark.parametrize(("members", "says"), [
    ({"run": in_our_process}, "runs programs in our process"),
    ({"run": given(code=environment)}, "shows our environment"),
    ({"run": changed(status=lambda ran: "finished")}, "sys.exit(3) ended as ('finished', 3)"),
    ({"run": changed(exit_code=lambda ran: ran.exit_code or 0)}, "a crash ended as ('killed', 0)"),
    ({"run": changed(reason=lambda ran: "")}, "gives no reason why a crash"),
    ({"run": changed(stdout=lambda ran: ran.stdout + ran.stderr, stderr=lambda ran: "")}, "and stderr are"),
    ({"run": changed(stderr=lambda ran: ran.stderr[:10])}, "no traceback"),
    ({"run": given(stdin=lambda program: "")}, "stdin and the arguments"),
    ({"run": given(argv=lambda program: " ".join(program.argv).split())}, "stdin and the arguments"),
    ({"run": changed(stdout=lambda ran: ran.stdout.replace("𝄞", "?"))}, "text beyond ASCII"),
    ({"run": changed(stdout=lambda ran: ran.stdout[:4000])}, "of long output"),
    ({"run": changed(dropped=lambda ran: 0)}, "`dropped` add up"),
    ({"run": given(collect=lambda program: ("**",) if program.collect else ())}, "collected by"),
    ({"run": changed(files=lambda ran: {path.split("/")[-1]: data for path, data in ran.files.items()})},
     "collected by"),
    ({"run": given(limits=lambda program: program.limits.model_copy(update={"memory_mb": 8192}))},
     "more memory"),
    ({"run": changed(status=lambda ran: "killed" if ran.status == "timeout" else ran.status)},
     "an endless loop ended as ('killed', None)"),
    ({"run": raises_time_outs}, "raised SystemFault"),
    ({"run": leaves_files}, "finds what was left behind"),
    ({"run": mixes}, "at a time, run 1 gave"),
    ({"judge": one_process}, "passes a candidate that exits before the tests"),
    ({"judge": strict}, "a right candidate gets"),
    ({"open": stays_closed}, "can't be opened again"),
    ({"close": closes_once}, "closing twice is harmless"),
])  # fmt: skip
def test_a_broken_sandbox_is_caught(members, says, url):
    broken = type("Broken", (Sound,), members)(Sound.Config(url=url))
    caught(says, check_sandbox, broken, limits=LIMITS)


def test_a_loss_that_is_told_as_a_result_is_caught():
    async def run(self, program):
        try:
            return await Sound.run(self, program)
        except SystemFault:
            return Ran(status="failed", exit_code=1)

    async def blames_the_program(self, program):
        try:
            return await Sound.run(self, program)
        except SystemFault as fault:
            raise PolicyFault(str(fault)) from fault

    for broken, says in ((run, "when it had lost"), (blames_the_program, "raised PolicyFault")):
        with FusionServer() as server:

            def lose(server: FusionServer = server) -> None:
                server.always = "500"

            sandbox = type("Broken", (Sound,), {"run": broken})(Sound.Config(url=server.url, retries=0))
            caught(says, check_sandbox, sandbox, limits=LIMITS, lose=lose)


def test_what_is_no_sandbox_is_caught():
    caught("lacks open, run, judge", check_sandbox, object())
