"""`check_sandbox`: programs run isolated and within limits, and their results are reported exactly."""

from __future__ import annotations

import asyncio
import builtins
import inspect
import os
import secrets
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

from coterie.core.errors import PolicyFault, SystemFault
from coterie.core.protocols import Judged, Limits, Program, Ran, Verdict
from coterie.testing.support.failure import ConformanceError, guarded, require, require_kind
from coterie.testing.support.promises import promise
from coterie.testing.support.sandbox_results import (
    check_imported,
    check_kept,
    check_left,
    check_ran,
    check_report,
    check_verdict,
    children,
    longest_pause,
)
from coterie.testing.support.time_limit import waits_at

LIMITS = Limits(cpu_seconds=1, wall_seconds=3, memory_mb=256, output_kb=8)
_SECRET = "COTERIE_CHECK_SECRET"
SLACK_SECONDS = 25.0
"""Seconds beyond the wall limit within which a busy machine or a remote server must answer."""
OPEN_SECONDS = 60.0
"""Seconds within which a sandbox must open, and close."""


def check_sandbox(
    sandbox: Any,
    *,
    limits: Limits = LIMITS,
    modules: Sequence[str] = (),
    lose: Callable[[], None] | None = None,
) -> None:
    """Check a sandbox by running programs.

    - No program runs in the caller's process, sees its environment, or finds files of an earlier run. After a
      program that attacks its sandbox the next one runs normally. Concurrent programs don't mix.
    - Threads start. Exit codes, stdout, stderr, stdin, arguments and text beyond ASCII arrive unchanged; of
      long output the end is kept and the dropped bytes are counted. Files go in, and those that globs name
      come back; no link is followed.
    - CPU time and wall time are bounded with the status `timeout`; memory is bounded, and a program beyond it
      does not finish. A signal gives `killed`. A run ends with its first process.
    - `judge` passes a correct candidate, and fails one that is wrong, exits early, or has an `==` that is
      always true.
    - A program's behaviour gives a result, or a PolicyFault where it ends its sandbox; never a SystemFault.
      With `lose`, the loss of the sandbox itself gives a SystemFault. A sandbox can be closed twice, and
      opened again; closed, it leaves no child process.
    - Programs and candidates import `modules`, can't write to their files, and see no change that another
      program made to them.
    - Where it has `run_on`, programs find the files of one another that they are given, and no others.
    - Every method ends in time, and blocks no other task meanwhile; the fields of results have their types.

    Args:
        limits: limits of every program; small, so that the check takes seconds. They must hold `modules`.
        modules: of the packages that the sandbox was given, e.g. `pandas`.
        lose: breaks the sandbox's server or workers for good.

    Raises:
        ConformanceError: what is wrong, where, and how to fix it.
    """
    name = require_kind(sandbox, "sandbox")
    asyncio.run(_check(_Sandbox(sandbox, name, limits), modules, lose))


@dataclass
class _Sandbox:
    """The sandbox under test."""

    sandbox: Any
    name: str
    limits: Limits

    async def call(self, method: str, *arguments: Any, seconds: float, fix: str = "") -> Any:
        """The result of a method, within this time. Any exception is a ConformanceError."""
        where = f"{self.name}.{method}"

        async def go() -> Any:
            try:
                work = getattr(self.sandbox, method)(*arguments)
                require(inspect.isawaitable(work), "is not asynchronous", where, fix=f"async def {method}")
                return await work
            except SystemExit as error:  # in a task it would end the event loop
                raise ConformanceError(f"raised SystemExit: {error}", where=where, fix=fix) from error

        task = asyncio.ensure_future(go())
        done, _ = await asyncio.wait({task}, timeout=seconds)
        if not done:
            late = f"has not ended after {seconds:g} s{waits_at(task)}"
            task.cancel()
            raise ConformanceError(late, where=where, fix=f"bound the time of {method}")
        require(not task.cancelled(), "cancelled itself", where, fix=fix)
        with guarded(where, fix):
            return task.result()

    @property
    def seconds(self) -> float:
        """Time of a run that a program may end once with its sandbox."""
        return 2 * (self.limits.wall_seconds + SLACK_SECONDS)

    async def ran(self, code: str, **more: Any) -> Ran:
        """The result of a harmless program; any exception fails the check."""
        program = Program(code=code, limits=self.limits, **more)
        fix = "return what a program does as a result"
        result: Ran = await self.call("run", program, seconds=self.seconds, fix=fix)
        check_ran(result, f"{self.name}.run")
        return result

    async def attacked(self, code: str) -> Ran | None:
        """The result of a hostile program, None for a PolicyFault; checks that the next run is unharmed."""
        result = None
        program, fix = Program(code=code, limits=self.limits), "end it as a result or a PolicyFault"
        try:
            result = await self.call("run", program, seconds=self.seconds, fix=fix)
            check_ran(result, f"{self.name}.run")
        except ConformanceError as error:
            if not isinstance(error.__cause__, PolicyFault):
                raise
        after = await self.ran("print('unharmed')")
        self.same(after.stdout, "unharmed\n", "the run after a hostile program printed")
        return result

    async def judged(self, candidate: str, **more: Any) -> Verdict | None:
        """The verdict on a candidate, None for a PolicyFault."""
        tests = "assert double(2) == 4\nfor n in (3, 5):\n    assert double(n) == 2 * n, n\n"
        request = Judged(candidate=candidate, tests=tests, calls=("double",), limits=self.limits, **more)
        fix = "return what a candidate does as a verdict, or raise PolicyFault"
        try:
            verdict: Verdict = await self.call("judge", request, seconds=self.seconds, fix=fix)
        except ConformanceError as error:
            if isinstance(error.__cause__, PolicyFault):
                return None
            raise
        check_verdict(verdict, 2, f"{self.name}.judge")
        return verdict

    def same(self, actual: Any, expected: Any, what: str, fix: str = "") -> None:
        """Raise unless they are equal."""
        require(actual == expected, f"{what} {actual!r}, not {expected!r}", f"{self.name}.run", fix=fix)

    def ended(self, result: Ran, status: str, code: int | None, what: str) -> None:
        """Raise unless the run ended like this."""
        outcome = (result.status, result.exit_code)
        fix = f"Ran(status={status!r}, exit_code={code!r}), and a `reason` where it did not end by itself"
        shown = f"{what} ended as {outcome!r}, not {(status, code)!r}: {result.reason} {result.stderr[-200:]}"
        require(outcome == (status, code), shown, f"{self.name}.run", fix=fix)
        explained = result.reason or status in ("finished", "failed")
        require(explained, f"gives no reason why {what} was ended", f"{self.name}.run", fix=fix)


async def _check(box: _Sandbox, modules: Sequence[str], lose: Callable[[], None] | None) -> None:
    before = children()
    secret = os.environ[_SECRET] = secrets.token_hex(8)
    try:
        promise("it opens, and reports its protections")
        await box.call("open", seconds=OPEN_SECONDS)
        try:
            check_report(box.sandbox, box.name)
            promise("no program runs in the caller's process or sees its environment")
            await check_isolated(box, secret)
            for text, part in PARTS.items():
                promise(text)
                await part(box)
            for module in modules:
                promise("programs import its packages")
                await check_imported(box, module)
            if lose is not None:
                promise("the loss of the sandbox is a SystemFault")
                await _lost(box, lose)
        finally:
            promise("it can be closed twice, opened again, and leaves no process")
            for _ in range(2):
                await box.call("close", seconds=OPEN_SECONDS, fix="a second `close` does nothing")
        if lose is None:
            await box.call("open", seconds=OPEN_SECONDS, fix="make a closed sandbox open again")
            box.same((await box.ran("print('again')")).stdout, "again\n", "opened again it printed")
            await box.call("close", seconds=OPEN_SECONDS)
            await check_left(box, before)
    finally:
        del os.environ[_SECRET]


async def check_isolated(box: _Sandbox, secret: str) -> None:
    """Check that programs can't reach the caller. It comes first: later ones would end its process."""
    mark = f"_coterie_{secret}"
    await box.ran(f"import builtins\nbuiltins.{mark} = 1")
    fix = "run them in a process of their own"
    outside = not hasattr(builtins, mark)
    require(outside, "runs programs in the caller's process", f"{box.name}.run", fix=fix)
    inspection = (
        "import os\nprint(dict(os.environ))\n"
        "if os.path.exists('/proc/self/environ'): print(open('/proc/self/environ').read())"
    )
    printed = (await box.ran(inspection)).stdout
    what = "shows the caller's environment, API keys included, to programs"
    fix = "start them with an environment of their own"
    require(secret not in printed, what, f"{box.name}.run", fix=fix)


async def _ends(box: _Sandbox) -> None:
    box.ended(await box.ran("x = 1"), "finished", 0, "a program")
    code = "import sys\nprint('out')\nprint('and')\nprint('err', file=sys.stderr)\n"
    result = await box.ran(f"{code}open('left.txt', 'w').write('left')\nsys.exit(3)", collect=("left.txt",))
    box.ended(result, "failed", 3, "sys.exit(3)")
    box.same((result.stdout, result.stderr), ("out\nand\n", "err\n"), "stdout and stderr are")
    box.same(dict(result.files), {"left.txt": b"left"}, "of a program that failed it collected")
    result = await box.ran("\n\nraise ValueError('here')")
    box.ended(result, "failed", 1, "an exception")
    trace = "line 3" in result.stderr and "ValueError: here" in result.stderr
    require(trace, f"stderr has no traceback: {result.stderr!r}", f"{box.name}.run", fix="keep stderr")
    box.ended(await box.ran("def f(:"), "failed", 1, "a syntax error")
    thread = "import threading\nthread = threading.Thread(target=print, args=('in a thread',))\n"
    result = await box.ran(thread + "thread.start()\nthread.join()")
    box.ended(result, "finished", 0, "a program that starts a thread")
    box.same(result.stdout, "in a thread\n", "a thread printed", "RLIMIT_STACK is the size of its stack")
    crash = "import os, signal\nos.kill(os.getpid(), signal.SIGSEGV)\nimport time; time.sleep(9)"
    box.ended(await box.ran(crash), "killed", None, "a crash")


async def _texts(box: _Sandbox) -> None:
    echo = "import sys\nprint(sys.argv[1:], repr(sys.stdin.read()))"
    result = await box.ran(echo, stdin="one\ntwo ☃", argv=("a b", "-é", ""))
    box.same(result.stdout, "['a b', '-é', ''] 'one\\ntwo ☃'\n", "stdin and the arguments arrived as")
    box.same((await box.ran("print('é☃𝄞')")).stdout, "é☃𝄞\n", "text beyond ASCII came as")
    result = await box.ran(r"import os; os.write(1, b'a\xffb')")
    box.ended(result, "finished", 0, "a program that prints no text")
    kept = box.limits.output_kb << 10
    result = await box.ran(f"import sys\nsys.stdout.write('x' * {6 * kept})\nprint('the end')")
    box.ended(result, "finished", 0, "a program that prints much")
    short = len(result.stdout.encode()) <= kept and result.stdout.endswith("xthe end\n")
    fix = "keep the end: tracebacks and results are there"
    require(short, f"keeps {result.stdout[-20:]!r} of long output", f"{box.name}.run", fix=fix)
    total = result.dropped + len(result.stdout.encode())
    box.same(total, 6 * kept + 8, "the bytes kept and `dropped` add up to")


async def _files(box: _Sandbox) -> None:
    code = (
        "import os\n"
        "open('copy.bin', 'wb').write(open('in/data.bin', 'rb').read())\n"
        "os.makedirs('out/deep')\n"
        "for path in ('out/a.txt', 'out/deep/b.txt', 'out/c.log', 'not.txt'):\n"
        "    open(path, 'w').write(path)\n"
        "os.symlink('/etc/hostname', 'out/link.txt')\n"
    )
    data = bytes(range(256))
    globs = ("*.bin", "out/**/*.txt", "absent.txt")
    result = await box.ran(code, files={"in/data.bin": data}, collect=globs)
    box.ended(result, "finished", 0, "a program that reads and writes files")
    expected = {"copy.bin": data, "out/a.txt": b"out/a.txt", "out/deep/b.txt": b"out/deep/b.txt"}
    fix = "globs are relative to the working folder; links are neither followed nor collected"
    box.same(dict(result.files), expected, f"collected by {globs}:", fix)


async def _limits(box: _Sandbox) -> None:
    box.ended(await box.ran("while True: pass"), "timeout", None, "an endless loop")
    began = time.monotonic()
    blocked = asyncio.ensure_future(longest_pause())
    box.ended(await box.ran("import time\ntime.sleep(600)"), "timeout", None, "a program that sleeps")
    blocked.cancel()
    pause = await blocked
    what = f"blocks the event loop for {pause:.1f} s while a program runs"
    free = pause < 0.8 * box.limits.wall_seconds
    require(free, what, f"{box.name}.run", fix="await, or use asyncio.to_thread")
    late = time.monotonic() - began > box.limits.wall_seconds + SLACK_SECONDS
    require(not late, "let a program sleep past its wall time", f"{box.name}.run", fix="kill it")
    result = await box.ran(f"x = bytearray({4 * box.limits.memory_mb} << 20)\nprint(len(x))")
    bounded = result.status in ("failed", "killed")
    fix = f"limits.memory_mb: {box.limits.memory_mb}"
    require(bounded, "gives a program more memory than it may use", f"{box.name}.run", fix=fix)
    count = box.limits.open_files
    result = await box.ran(f"files = [open('/dev/null') for _ in range({count})]")
    fix = f"limits.open_files: {count}"
    require(not result.ok, "lets a program open more files than it may", f"{box.name}.run", fix=fix)


async def _separate(box: _Sandbox) -> None:
    mark = f"left-{secrets.token_hex(8)}"
    leaves = (
        "import os, tempfile\n"
        f"for place in ('.', tempfile.gettempdir()): open(os.path.join(place, '{mark}'), 'w').close()\n"
        f"os.environ['{mark}'] = '1'\n"
    )
    box.ended(await box.ran(leaves), "finished", 0, "a program that writes to its folder")
    inspection = (
        "import os, tempfile\n"
        f"print([p for p in ('.', tempfile.gettempdir()) if os.path.exists(os.path.join(p, '{mark}'))], "
        f"'{mark}' in os.environ)"
    )
    box.same((await box.ran(inspection)).stdout, "[] False\n", "the run after finds what was left behind:")
    count = 12
    code = "import time\nopen('own', 'w').write({0!r})\ntime.sleep(.1)\nprint(open('own').read(), input())"
    runs = [box.ran(code.format(str(n)), stdin=f"in {n}\n", collect=("own",)) for n in range(count)]
    for n, result in enumerate(await asyncio.gather(*runs)):
        actual = (result.stdout, dict(result.files))
        box.same(actual, (f"{n} in {n}\n", {"own": str(n).encode()}), f"of {count} at a time, run {n} gave")


async def _attacks(box: _Sandbox) -> None:
    daemon = (
        "import os, time\n"
        "if os.fork() == 0:\n"
        "    os.setsid()\n"
        "    if os.fork() == 0: time.sleep(600)\n"
        "    os._exit(0)\n"
        "print('done', flush=True)\n"
    )
    result = await box.attacked(daemon)
    require(
        result is not None and result.ok and result.stdout == "done\n",
        f"a program that leaves a process behind ended as {result!r}",
        f"{box.name}.run",
        fix="end it when its first process ends, and kill the rest",
    )
    # A program must not kill this process, which may be its parent.
    parent = f"import os\nif os.getppid() not in (0, 1, {os.getpid()}): os.kill(os.getppid(), 9)\n"
    await box.attacked(parent + "import time; time.sleep(600)")
    await box.attacked("import os\nos.closerange(0, 64)\nos._exit(7)")
    result = await box.attacked("import os\nwhile True: os.write(1, b'x' * 65536)")
    stopped = result is None or result.status in ("timeout", "killed")
    require(stopped, f"a program that writes for ever ended as {result!r}", f"{box.name}.run", fix="kill it")


async def check_verdicts(box: _Sandbox) -> None:
    """Check that verdicts are right and can't be forged."""
    where = f"{box.name}.judge"
    correct = await box.judged("def double(n):\n    return 2 * n\n")
    passed = correct is not None and correct.ok and correct.total == 2
    require(passed, f"a correct candidate gets {correct!r}", where, fix="every assert statement is a test")
    wrong = await box.judged("def double(n):\n    return 4\n")
    exact = wrong is not None and (wrong.passed, [f.line for f in wrong.failures]) == (1, [3])
    require(
        exact,
        f"a candidate that passes one test of two gets {wrong!r}",
        where,
        fix="count the passed tests, and name the line of each failure",
    )
    liar = "class Liar(int):\n    __eq__ = lambda *_: True\n    __hash__ = int.__hash__\n"
    for candidate, behaviour in (
        ("import os\nos._exit(0)\n", "exits before the tests"),
        ("import sys\ndef double(n):\n    sys.exit(0)\n", "exits in a call"),
        (f"{liar}def double(n):\n    return Liar(7)\n", "answers with an `==` that is always true"),
        (
            "import builtins\nbuiltins.AssertionError = None\ndef double(n):\n    return 0\n",
            "patches builtins",
        ),
        ("def double(n):\n    while True: pass\n", "never answers"),
    ):
        verdict = await box.judged(candidate)
        failed = verdict is None or not verdict.ok
        fix = "run tests and candidate in two processes, and pass only plain data between them"
        require(failed, f"passes a candidate that {behaviour}", where, fix=fix)
    kept = box.limits.output_kb << 10
    reads = f"def double(n):\n    print('x' * {2 * kept})\n    return n * int(open('factor').read())\n"
    given = await box.judged(reads, files={"factor": b"2"})
    passed = given is not None and given.ok
    require(passed, f"a candidate that reads its files gets {given!r}"[:400], where, fix="Judged.files")
    bounded = given is not None and len(given.stdout.encode()) <= kept
    require(bounded, "keeps more output than the limits of the judged say", where, fix="Judged.limits")


async def _lost(box: _Sandbox, lose: Callable[[], None]) -> None:
    lose()
    where = f"{box.name}.run"
    program = Program(code="print(1)", limits=box.limits)
    try:
        result = await box.call("run", program, seconds=box.seconds + OPEN_SECONDS, fix="SystemFault")
    except ConformanceError as error:
        if isinstance(error.__cause__, SystemFault):
            return
        raise
    require(False, f"returned {result!r} after it had lost its server or workers", where, fix="SystemFault")


PARTS: dict[str, Callable[[_Sandbox], Awaitable[None]]] = {
    "exit codes and tracebacks are reported exactly": _ends, "texts arrive unchanged": _texts,
    "files go in and come back": _files, "time and memory are bounded": _limits,
    "runs don't mix": _separate, "an attack harms no later run": _attacks,
    "verdicts can't be forged": check_verdicts,
    "kept files reach the programs that they are given to": check_kept,
}  # fmt: skip
