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


def with_result(**changes: Any) -> Any:
    """The sound `run` with changed fields of its result; each change maps the result to a value."""

    async def run(self: Any, program: Program) -> Ran:
        result = await Sound.run(self, program)
        return replace(result, **{name: change(result) for name, change in changes.items()})

    return run


def with_program(**changes: Any) -> Any:
    """The sound `run` with changed fields of the program; each change maps the program to a value."""

    async def run(self: Any, program: Program) -> Ran:
        fields = {name: change(program) for name, change in changes.items()}
        return await Sound.run(self, replace(program, **fields))

    return run


async def in_the_callers_process(self, program):
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(program.code, {"__name__": "__main__"})
    return Ran(status="finished", exit_code=0, stdout=printed.getvalue())


async def leaves_files(self, program):
    """Run every program in one folder."""
    kept = self.__dict__.setdefault("kept", {})
    files = {**kept, **program.files}
    result = await Sound.run(self, replace(program, files=files, collect=("**",)))
    kept.update(result.files)
    return replace(result, files=(await Sound.run(self, program)).files if program.collect else {})


async def mixes(self, program):
    """Give concurrent runs the result of the first."""
    running = self.__dict__.setdefault("running", [])
    running.append(asyncio.ensure_future(Sound.run(self, program)))
    result = await running[0]
    await running[-1]
    self.running = [] if len(running) == 1 else running
    return result


async def raises_time_outs(self, program):
    result = await Sound.run(self, program)
    if result.status == "timeout":
        raise SystemFault("the run took too long")
    return result


async def one_process(self, judged):
    """Judge by the exit code of one program with tests and candidate."""
    result = await Sound.run(self, Program(code=f"{judged.candidate}\n{judged.tests}", limits=judged.limits))
    if result.exit_code == 0:
        return Verdict(passed=2, total=2)
    failure = TestFailure(line=3, source="assert", error="AssertionError")
    return Verdict(passed=1, total=2, failures=(failure,))


async def strict(self, judged):
    """Fail every candidate."""
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


@pytest.mark.parametrize(("members", "message"), [
    ({"run": in_the_callers_process}, "runs programs in the caller's process"),
    ({"run": with_program(code=environment)}, "shows the caller's environment"),
    ({"run": with_result(status=lambda ran: "finished")}, "sys.exit(3) ended as ('finished', 3)"),
    ({"run": with_result(exit_code=lambda ran: ran.exit_code or 0)}, "a crash ended as ('killed', 0)"),
    ({"run": with_result(reason=lambda ran: "")}, "gives no reason why a crash"),
    ({"run": with_result(stdout=lambda ran: ran.stdout + ran.stderr, stderr=lambda _: "")}, "and stderr are"),
    ({"run": with_result(stderr=lambda ran: ran.stderr[:10])}, "no traceback"),
    ({"run": with_program(stdin=lambda program: "")}, "stdin and the arguments"),
    ({"run": with_program(argv=lambda program: " ".join(program.argv).split())}, "stdin and the arguments"),
    ({"run": with_result(stdout=lambda ran: ran.stdout.replace("𝄞", "?"))}, "text beyond ASCII"),
    ({"run": with_result(stdout=lambda ran: ran.stdout[:4000])}, "of long output"),
    ({"run": with_result(dropped=lambda ran: 0)}, "`dropped` add up"),
    ({"run": with_program(collect=lambda program: ("**",) if program.collect else ())}, "collected by"),
    ({"run": with_result(files=lambda ran: {path.split("/")[-1]: data for path, data in ran.files.items()})},
     "collected by"),
    ({"run": with_program(limits=lambda program: program.limits.model_copy(update={"memory_mb": 8192}))},
     "more memory"),
    ({"run": with_result(status=lambda ran: "killed" if ran.status == "timeout" else ran.status)},
     "an endless loop ended as ('killed', None)"),
    ({"run": raises_time_outs}, "raised SystemFault"),
    ({"run": leaves_files}, "finds what was left behind"),
    ({"run": mixes}, "at a time, run 1 gave"),
    ({"judge": one_process}, "passes a candidate that exits before the tests"),
    ({"judge": strict}, "a correct candidate gets"),
    ({"open": stays_closed}, "make a closed sandbox open again"),
    ({"close": closes_once}, "a second `close` does nothing"),
])  # fmt: skip
def test_a_broken_sandbox_is_caught(members, message, url):
    broken = type("Broken", (Sound,), members)(Sound.Config(url=url, shared_user="warn"))
    caught(message, check_sandbox, broken, limits=LIMITS)


def test_the_loss_of_a_sandbox_as_a_result_is_caught():
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

    for broken, message in ((run, "after it had lost"), (blames_the_program, "raised PolicyFault")):
        with FusionServer() as server:

            def lose(server: FusionServer = server) -> None:
                server.always = "500"

            sandbox = type("Broken", (Sound,), {"run": broken})(
                Sound.Config(url=server.url, retry_seconds=0, shared_user="warn")
            )
            caught(message, check_sandbox, sandbox, limits=LIMITS, lose=lose)


def test_what_is_no_sandbox_is_caught():
    caught("lacks open, run, judge", check_sandbox, object())
