"""`check_sandbox`: programs run isolated and within limits, and their results are reported exactly."""

from __future__ import annotations

import asyncio
import builtins
import os
import secrets
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from coterie.core.errors import PolicyFault, SystemFault
from coterie.core.protocols import Judged, Limits, Program, Ran, Verdict
from coterie.testing.support.failure import ConformanceError, guarded, require, require_kind

LIMITS = Limits(cpu_seconds=1, wall_seconds=3, memory_mb=256, output_kb=8)
_SECRET = "COTERIE_CHECK_SECRET"
_SLACK = 25.0
"""Seconds beyond the wall limit within which a busy machine or a remote server must answer."""


def check_sandbox(sandbox: Any, *, limits: Limits = LIMITS, lose: Callable[[], None] | None = None) -> None:
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
      opened again.

    Args:
        limits: limits of every program; small, so that the check takes seconds.
        lose: breaks the sandbox's server or workers for good.

    Raises:
        ConformanceError: what is wrong, where, and how to fix it.
    """
    name = require_kind(sandbox, "sandbox")
    asyncio.run(_check(_Sandbox(sandbox, name, limits), lose))


@dataclass
class _Sandbox:
    """The sandbox under test."""

    sandbox: Any
    name: str
    limits: Limits

    async def ran(self, code: str, **more: Any) -> Ran:
        """The result of a harmless program; any exception fails the check."""
        where = f"{self.name}.run"
        with guarded(where, "return what a program does as a result"):
            result = await self.sandbox.run(Program(code=code, limits=self.limits, **more))
        require(
            isinstance(result, Ran),
            f"returned {result!r}",
            where=where,
            fix="a coterie.Ran",
        )
        return result

    async def attacked(self, code: str) -> Ran | None:
        """The result of a hostile program, None for a PolicyFault; checks that the next run is unharmed."""
        began = time.monotonic()
        result = None
        try:
            with guarded(f"{self.name}.run", "end a hostile program as a result or a PolicyFault"):
                result = await self.sandbox.run(Program(code=code, limits=self.limits))
        except ConformanceError as error:
            if not isinstance(error.__cause__, PolicyFault):
                raise
        took = time.monotonic() - began
        late = f"took {took:.0f} s over a program with {self.limits.wall_seconds:g} s of wall time"
        bound = 2 * (self.limits.wall_seconds + _SLACK)
        require(took < bound, late, where=f"{self.name}.run", fix="kill it at its wall time")
        after = await self.ran("print('unharmed')")
        self.same(after.stdout, "unharmed\n", "the run after a hostile program printed")
        return result

    async def judged(self, candidate: str) -> Verdict | None:
        """The verdict on a candidate, None for a PolicyFault."""
        tests = "assert double(2) == 4\nfor n in (3, 5):\n    assert double(n) == 2 * n, n\n"
        request = Judged(candidate=candidate, tests=tests, calls=("double",), limits=self.limits)
        where = f"{self.name}.judge"
        try:
            with guarded(where, "return what a candidate does as a verdict, or raise PolicyFault"):
                verdict = await self.sandbox.judge(request)
        except ConformanceError as error:
            if isinstance(error.__cause__, PolicyFault):
                return None
            raise
        require(isinstance(verdict, Verdict), f"returned {verdict!r}", where=where, fix="a Verdict")
        return verdict

    def same(self, actual: Any, expected: Any, what: str, fix: str = "") -> None:
        """Raise unless they are equal."""
        require(actual == expected, f"{what} {actual!r}, not {expected!r}", where=f"{self.name}.run", fix=fix)

    def ended(self, result: Ran, status: str, code: int | None, what: str) -> None:
        """Raise unless the run ended like this."""
        outcome = (result.status, result.exit_code)
        fix = f"Ran(status={status!r}, exit_code={code!r}), and a `reason` where it did not end by itself"
        shown = f"{what} ended as {outcome!r}, not {(status, code)!r}: {result.reason} {result.stderr[-200:]}"
        require(outcome == (status, code), shown, where=f"{self.name}.run", fix=fix)
        explained = result.reason or status in ("finished", "failed")
        require(explained, f"gives no reason why {what} was ended", where=f"{self.name}.run", fix=fix)


async def _check(box: _Sandbox, lose: Callable[[], None] | None) -> None:
    sandbox, name = box.sandbox, box.name
    secret = os.environ[_SECRET] = secrets.token_hex(8)
    try:
        with guarded(f"{name}.open"):
            await sandbox.open()
        try:
            await _isolated(box, secret)
            for part in _PARTS:
                await part(box)
            if lose is not None:
                await _lost(box, lose)
        finally:
            with guarded(f"{name}.close", "a second `close` does nothing"):
                await sandbox.close()
                await sandbox.close()
        if lose is None:
            with guarded(f"{name}.open", "make a closed sandbox open again"):
                await sandbox.open()
            box.same((await box.ran("print('again')")).stdout, "again\n", "opened again it printed")
            await sandbox.close()
    finally:
        del os.environ[_SECRET]


async def _isolated(box: _Sandbox, secret: str) -> None:
    """This check comes first: later programs would end the caller's process."""
    mark = f"_coterie_{secret}"
    await box.ran(f"import builtins\nbuiltins.{mark} = 1")
    require(
        not hasattr(builtins, mark),
        "runs programs in the caller's process",
        where=f"{box.name}.run",
        fix="run them in a process of their own",
    )
    inspection = (
        "import os\nprint(dict(os.environ))\n"
        "if os.path.exists('/proc/self/environ'): print(open('/proc/self/environ').read())"
    )
    printed = (await box.ran(inspection)).stdout
    require(
        secret not in printed,
        "shows the caller's environment, API keys included, to programs",
        where=f"{box.name}.run",
        fix="start them with an environment of their own",
    )


async def _ends(box: _Sandbox) -> None:
    box.ended(await box.ran("x = 1"), "finished", 0, "a program")
    result = await box.ran("import sys\nprint('out')\nprint('err', file=sys.stderr)\nsys.exit(3)")
    box.ended(result, "failed", 3, "sys.exit(3)")
    box.same((result.stdout, result.stderr), ("out\n", "err\n"), "stdout and stderr are")
    result = await box.ran("\n\nraise ValueError('here')")
    box.ended(result, "failed", 1, "an exception")
    trace = "line 3" in result.stderr and "ValueError: here" in result.stderr
    require(trace, f"stderr has no traceback: {result.stderr!r}", where=f"{box.name}.run", fix="keep stderr")
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
    require(short, f"keeps {result.stdout[-20:]!r} of long output", where=f"{box.name}.run", fix=fix)
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
    box.ended(await box.ran("import time\ntime.sleep(600)"), "timeout", None, "a program that sleeps")
    late = time.monotonic() - began > box.limits.wall_seconds + _SLACK
    require(not late, "let a program sleep past its wall time", where=f"{box.name}.run", fix="kill it")
    result = await box.ran(f"x = bytearray({4 * box.limits.memory_mb} << 20)\nprint(len(x))")
    bounded = result.status in ("failed", "killed")
    fix = f"limits.memory_mb: {box.limits.memory_mb}"
    require(bounded, "gives a program more memory than it may use", where=f"{box.name}.run", fix=fix)


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
        where=f"{box.name}.run",
        fix="end it when its first process ends, and kill the rest",
    )
    # A program must not kill this process, which may be its parent.
    parent = f"import os\nif os.getppid() not in (0, 1, {os.getpid()}): os.kill(os.getppid(), 9)\n"
    await box.attacked(parent + "import time; time.sleep(600)")
    await box.attacked("import os\nos.closerange(0, 64)\nos._exit(7)")
    result = await box.attacked("import os\nwhile True: os.write(1, b'x' * 65536)")
    stopped = result is None or result.status in ("timeout", "killed")
    require(
        stopped, f"a program that writes for ever ended as {result!r}", where=f"{box.name}.run", fix="kill it"
    )


async def _verdicts(box: _Sandbox) -> None:
    where = f"{box.name}.judge"
    correct = await box.judged("def double(n):\n    return 2 * n\n")
    passed = correct is not None and correct.ok and correct.total == 2
    require(
        passed, f"a correct candidate gets {correct!r}", where=where, fix="every assert statement is a test"
    )
    wrong = await box.judged("def double(n):\n    return 4\n")
    exact = wrong is not None and (wrong.passed, wrong.total) == (1, 2) and wrong.failures[0].line == 3
    require(
        exact,
        f"a candidate that passes one test of two gets {wrong!r}",
        where=where,
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
        require(failed, f"passes a candidate that {behaviour}", where=where, fix=fix)


async def _lost(box: _Sandbox, lose: Callable[[], None]) -> None:
    lose()
    where = f"{box.name}.run"
    try:
        result = await box.sandbox.run(Program(code="print(1)", limits=box.limits))
    except SystemFault:
        return
    except Exception as error:
        raise ConformanceError(
            f"raised {type(error).__name__} for the loss of the sandbox", where=where, fix="SystemFault"
        ) from error
    require(
        False, f"returned {result!r} after it had lost its server or workers", where=where, fix="SystemFault"
    )


_PARTS: tuple[Callable[[_Sandbox], Awaitable[None]], ...] = (
    _ends, _texts, _files, _limits, _separate, _attacks, _verdicts,
)  # fmt: skip
