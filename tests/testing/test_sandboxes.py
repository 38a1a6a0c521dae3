"""What `check_sandbox` catches: a sound sandbox, broken in one place at a time."""

from __future__ import annotations

import asyncio
import contextlib
import io
import os
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from coterie.backends.sandboxes.fusion import SandboxFusion
from coterie.core.errors import PolicyFault, SystemFault
from coterie.core.protocols import Limits, Program, Ran, TestFailure, Verdict
from coterie.testing import check_sandbox
from coterie.testing.checks import sandbox as check
from coterie.testing.support import sandbox_results
from tests.backends.sandboxes.fusion_server import FusionServer
from tests.testing.support import caught

pytestmark = pytest.mark.sandbox
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


async def ignores_the_branch(self, program, files, most_mb):
    """Run every program on the files that the last one left."""
    files = self.__dict__.get("last", files)
    ran, self.last = await Sound.run_on(self, program, files, most_mb)
    return ran, self.last


async def keeps_all(self, program, files, most_mb):
    """Keep the files that the program was given, too."""
    result = await Sound.run(self, replace(program, files={**program.files}))
    return await self._files.run_on(as_run(result), replace(program, files={}), files, most_mb)


def as_run(result):
    async def run(program):
        return result

    return run


async def loses_files_of_failures(self, program, files, most_mb):
    ran, left = await Sound.run_on(self, program, files, most_mb)
    return ran, left if ran.ok else files


async def gives_no_files(self, program, files, most_mb):
    ran, _ = await Sound.run_on(self, program, files, most_mb)
    return ran


async def has_no_bound(self, program, files, most_mb):
    return await Sound.run_on(self, program, files, 1024)


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
    await self._connection.close()
    self._connection = None


async def forever(self, *arguments):
    await asyncio.sleep(600)


async def exits(self, program):
    raise SystemExit(3)


async def cancels_itself(self, program):
    asyncio.current_task().cancel()
    return await Sound.run(self, program)


async def blocks(self, program):
    return await asyncio.to_thread(lambda: None) or _blocking(self, program)


def _blocking(self, program):
    """The result of a run in another thread, for which this one waits."""

    async def go():
        other = Sound(self.config)
        await other.open()
        try:
            return await other.run(program)
        finally:
            await other.close()

    with ThreadPoolExecutor() as threads:
        return threads.submit(asyncio.run, go()).result()


async def leaves_a_process(self, program):
    self.process = subprocess.Popen(["sleep", "9"])
    return await Sound.run(self, program)


def with_verdict(**changes: Any) -> Any:
    """The sound `judge` with changed fields of its verdict; each change maps the verdict to a value."""

    async def judge(self: Any, judged: Any) -> Verdict:
        verdict = await Sound.judge(self, judged)
        return replace(verdict, **{name: change(verdict) for name, change in changes.items()})

    return judge


def with_judged(**fields: Any) -> Any:
    async def judge(self: Any, judged: Any) -> Verdict:
        return await Sound.judge(self, replace(judged, **fields))

    return judge


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
    ({"run": with_program(limits=lambda program: program.limits.model_copy(update={"memory_mb": 8192})),
      "part": "_limits"},
     "more memory"),
    ({"run": with_result(status=lambda ran: "killed" if ran.status == "timeout" else ran.status)},
     "an endless loop ended as ('killed', None)"),
    ({"run": raises_time_outs, "part": "_limits"}, "raised SystemFault"),
    ({"run": leaves_files, "part": "_separate"}, "finds what was left behind"),
    ({"run": mixes, "part": "_separate"}, "at a time, run 1 gave"),
    ({"run_on": ignores_the_branch, "part": "check_kept"}, "shows a program"),
    ({"run_on": keeps_all, "part": "check_kept"}, "keeps"),
    ({"run_on": loses_files_of_failures, "part": "check_kept"}, "keeps"),
    ({"run_on": has_no_bound, "part": "check_kept"}, "keeps"),
    ({"run_on": gives_no_files, "part": "check_kept"}, "run_on: returned Ran("),
    ({"kept": lambda self, files, path: "text", "part": "check_kept"}, "kept: returned 'text'"),
    ({"kept": lambda self, files, path: Path("/nowhere"), "part": "check_kept"}, "which is no file"),
    ({"kept": lambda self, files, path: files[path], "part": "check_kept"}, "kept: raised TypeError"),
    ({"judge": one_process}, "passes a candidate that exits before the tests"),
    ({"judge": strict}, "a correct candidate gets"),
    ({"open": stays_closed, "part": "_ends"}, "make a closed sandbox open again"),
    ({"close": closes_once, "part": "_ends"}, "a second `close` does nothing"),
    ({"run": exits}, "Broken.run: raised SystemExit"),
    ({"run": cancels_itself}, "Broken.run: cancelled itself"),
    ({"run": with_result(stdout=lambda ran: ran.stdout.encode())}, "Ran.stdout is b'' (bytes)"),
    ({"run": with_result(stderr=lambda ran: ran.stderr or None)}, "Ran.stderr is None (NoneType)"),
    ({"run": with_result(files=lambda ran: ran.files or None)}, "Ran.files is None"),
    ({"run": with_result(status=lambda ran: "ok" if ran.ok else ran.status)}, "Ran.status is 'ok'"),
    ({"run": with_result(wall_seconds=lambda ran: -1.0)}, "Ran.wall_seconds is -1.0"),
    ({"run": with_result(stdout=lambda ran: "".join(sorted(ran.stdout.splitlines(True))))}, "stdout and std"),
    ({"run": with_result(files=lambda ran: ran.files if ran.ok else {})}, "program that failed it collected"),
    ({"run": with_program(limits=lambda program: program.limits.model_copy(update={"open_files": 999})),
      "part": "_limits"},
     "open more files"),
    ({"run": blocks, "part": "_limits"}, "blocks the event loop"),
    ({"run": leaves_a_process, "part": "_ends"}, "child processes behind"),
    ({"report": lambda self: [{"name": "x"}]}, "Broken.report: gives {'name': 'x'}"),
    ({"report": lambda self: None}, "Broken.report: raised TypeError"),
    ({"judge": with_verdict(failures=lambda verdict: ())}, "passes one test of two gets"),
    ({"judge": with_verdict(failures=lambda verdict: tuple(f.error for f in verdict.failures))},
     "Verdict.failures is ('Asser"),
    ({"judge": with_verdict(passed=lambda verdict: verdict.passed or -1)}, "Verdict.passed is -1"),
    ({"judge": with_verdict(passed=lambda verdict: verdict.passed if verdict.ok else 5)}, "passed is 5"),
    ({"judge": with_verdict(total=lambda verdict: verdict.passed)}, "Verdict.total is 1"),
    ({"judge": with_judged(limits=None)}, "keeps more output"),
    ({"judge": with_judged(files={})}, "reads its files gets"),
])  # fmt: skip
def test_a_broken_sandbox_is_caught(members, message, url, monkeypatch):
    members = dict(members)
    if part := members.pop("part", None):  # the check of one part, since every run takes long
        monkeypatch.setattr(
            check, "PARTS", {name: of for name, of in check.PARTS.items() if of.__name__ == part}
        )
    elif "judge" in members:
        monkeypatch.setattr(check, "PARTS", {"verdicts": check.check_verdicts})
    monkeypatch.setattr(sandbox_results, "LEAVE_SECONDS", 1.0)
    broken = type("Broken", (Sound,), members)(Sound.Config(url=url, shared_user="warn"))
    caught(message, check_sandbox, broken, limits=LIMITS)


IMPORTS = [
    ({}, "no_such_module", "a program that imports no_such_module ended as ('failed', 1)"),
    (
        {"run": with_result(stdout=lambda ran: ran.stdout.replace("None", "1"))},
        "numpy",
        "of numpy a program sees what another one set: '1",
    ),
    (
        {"run": with_result(stdout=lambda ran: ran.stdout + "writes to x\n")},
        "numpy",
        "lets programs change numpy",
    ),
    ({"judge": strict}, "numpy", "a correct candidate that imports numpy gets"),
]


@pytest.mark.parametrize(("members", "module", "message"), IMPORTS)
def test_a_sandbox_whose_packages_do_not_work_is_caught(members, module, message, url, monkeypatch):
    monkeypatch.setattr(check, "PARTS", {})
    broken = type("Broken", (Sound,), members)(Sound.Config(url=url, shared_user="warn"))
    limits = Limits(cpu_seconds=5, wall_seconds=20, memory_mb=1024)
    caught(message, check_sandbox, broken, limits=limits, modules=[module])


@pytest.mark.parametrize("method", ["open", "run", "judge", "close"])
def test_a_method_that_hangs_is_caught(method, url, monkeypatch):
    monkeypatch.setattr(check, "OPEN_SECONDS", 0.2 if method in ("open", "close") else 60.0)
    monkeypatch.setattr(check, "SLACK_SECONDS", -1.9 if method in ("run", "judge") else 25.0)
    monkeypatch.setattr(check, "PARTS", {"verdicts": check.check_verdicts} if method == "judge" else {})
    if method != "run":
        monkeypatch.setattr(check, "check_isolated", lambda *_: asyncio.sleep(0))
    members = {method: forever}
    if method == "close":  # `open` of the sound class needs more
        members["open"] = lambda self: asyncio.sleep(0)
    broken = type("Broken", (Sound,), members)(Sound.Config(url=url, shared_user="warn"))
    caught(f"Broken.{method}: has not ended after", check_sandbox, broken, limits=LIMITS)


def test_the_loss_of_a_sandbox_as_a_result_is_caught(monkeypatch):
    monkeypatch.setattr(check, "PARTS", {})

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
