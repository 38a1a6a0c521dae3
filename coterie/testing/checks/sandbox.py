"""`check_sandbox`: programs run elsewhere, within limits, one by one, and what they did is what is said."""

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
"""Seconds beyond the wall limit in which a busy machine or a far server must have answered."""


def check_sandbox(sandbox: Any, *, limits: Limits = LIMITS, lose: Callable[[], None] | None = None) -> None:
    """Check a sandbox by the programs that it is given.

    - Nothing runs in our process, sees our environment, or finds what the run before left; after a program
      that attacks its sandbox the next one runs as ever. Many at a time don't mix.
    - Exit codes, stdout, stderr, stdin, arguments and text beyond ASCII cross unchanged; of long output the
      end is kept and the rest counted. Files go in, those that the globs name come back; no link is followed.
    - CPU time, wall time and memory are bounded: `timeout`, `timeout`, and not `finished`. A signal is
      `killed`. A program that leaves processes behind ends when it ends itself.
    - `judge` passes a right candidate, and fails one that is wrong, exits early, or has an `==` that lies.
    - What a program does is a result, or a PolicyFault where it ends its sandbox; it is never a SystemFault.
      With `lose`, the sandbox's own loss is one. It can be closed, twice, and opened again.

    Args:
        limits: given to every program; small, so that the check takes seconds.
        lose: breaks what the sandbox runs on, for good (stops its server, kills its workers).

    Raises:
        ConformanceError: what is wrong, where, and how to fix it.
    """
    name = require_kind(sandbox, "sandbox")
    asyncio.run(_check(_Tried(sandbox, name, limits), lose))


@dataclass
class _Tried:
    """The sandbox under test."""

    sandbox: Any
    name: str
    limits: Limits

    async def ran(self, code: str, **more: Any) -> Ran:
        """What a harmless program did: it may not raise."""
        where = f"{self.name}.run"
        with guarded(where, "what a program does is a result"):
            found = await self.sandbox.run(Program(code=code, limits=self.limits, **more))
        require(
            isinstance(found, Ran),
            f"returned {found!r}",
            where=where,
            fix="a coterie.core.protocols.sandbox.Ran",
        )
        return found

    async def attacked(self, code: str) -> Ran | None:
        """What a hostile program did, None for a PolicyFault; and the next run is unharmed."""
        began = time.monotonic()
        found = None
        try:
            with guarded(f"{self.name}.run", "a hostile program ends as a result or a PolicyFault"):
                found = await self.sandbox.run(Program(code=code, limits=self.limits))
        except ConformanceError as error:
            if not isinstance(error.__cause__, PolicyFault):
                raise
        took = time.monotonic() - began
        late = f"took {took:.0f} s over a program with {self.limits.wall_seconds:g} s of wall time"
        require(took < 2 * (self.limits.wall_seconds + _SLACK), late, where=f"{self.name}.run")
        after = await self.ran("print('unharmed')")
        self.same(after.stdout, "unharmed\n", "the run after a hostile program printed")
        return found

    async def judged(self, candidate: str) -> Verdict | None:
        tests = "assert double(2) == 4\nfor n in (3, 5):\n    assert double(n) == 2 * n, n\n"
        asked = Judged(candidate=candidate, tests=tests, calls=("double",), limits=self.limits)
        where = f"{self.name}.judge"
        try:
            with guarded(where, "what a candidate does is a verdict, or a PolicyFault"):
                verdict = await self.sandbox.judge(asked)
        except ConformanceError as error:
            if isinstance(error.__cause__, PolicyFault):
                return None
            raise
        require(isinstance(verdict, Verdict), f"returned {verdict!r}", where=where, fix="a Verdict")
        return verdict

    def same(self, found: Any, wanted: Any, what: str, fix: str = "") -> None:
        """Raise unless they are equal."""
        require(found == wanted, f"{what} {found!r}, not {wanted!r}", where=f"{self.name}.run", fix=fix)

    def ended(self, found: Ran, status: str, code: int | None, what: str) -> None:
        """Raise unless the run ended like this."""
        said = (found.status, found.exit_code)
        fix = f"Ran(status={status!r}, exit_code={code!r}), and a `reason` where it did not end by itself"
        shown = f"{what} ended as {said!r}, not {(status, code)!r}: {found.reason} {found.stderr[-200:]}"
        require(said == (status, code), shown, where=f"{self.name}.run", fix=fix)
        told = found.reason or status in ("finished", "failed")
        require(told, f"gives no reason why {what} was ended", where=f"{self.name}.run", fix=fix)


async def _check(tried: _Tried, lose: Callable[[], None] | None) -> None:
    sandbox, name = tried.sandbox, tried.name
    secret = os.environ[_SECRET] = secrets.token_hex(8)
    try:
        with guarded(f"{name}.open"):
            await sandbox.open()
        try:
            await _elsewhere(tried, secret)
            for part in _PARTS:
                await part(tried)
            if lose is not None:
                await _lost(tried, lose)
        finally:
            with guarded(f"{name}.close", "closing twice is harmless"):
                await sandbox.close()
                await sandbox.close()
        if lose is None:
            with guarded(f"{name}.open", "a sandbox that was closed can be opened again"):
                await sandbox.open()
            tried.same((await tried.ran("print('again')")).stdout, "again\n", "opened again it printed")
            await sandbox.close()
    finally:
        del os.environ[_SECRET]


async def _elsewhere(tried: _Tried, secret: str) -> None:
    """First of all: the later programs would end our process."""
    mark = f"_coterie_{secret}"
    await tried.ran(f"import builtins\nbuiltins.{mark} = 1")
    require(
        not hasattr(builtins, mark),
        "runs programs in our process",
        where=f"{tried.name}.run",
        fix="a process",
    )
    look = (
        "import os\nprint(dict(os.environ))\n"
        "if os.path.exists('/proc/self/environ'): print(open('/proc/self/environ').read())"
    )
    seen = (await tried.ran(look)).stdout
    require(
        secret not in seen,
        "shows our environment to programs, API keys and all",
        where=f"{tried.name}.run",
        fix="start them with an environment of their own",
    )


async def _ends(tried: _Tried) -> None:
    tried.ended(await tried.ran("x = 1"), "finished", 0, "a program")
    found = await tried.ran("import sys\nprint('out')\nprint('err', file=sys.stderr)\nsys.exit(3)")
    tried.ended(found, "failed", 3, "sys.exit(3)")
    tried.same((found.stdout, found.stderr), ("out\n", "err\n"), "stdout and stderr are")
    found = await tried.ran("\n\nraise ValueError('here')")
    tried.ended(found, "failed", 1, "an exception")
    trace = "line 3" in found.stderr and "ValueError: here" in found.stderr
    require(trace, f"stderr has no traceback: {found.stderr!r}", where=f"{tried.name}.run")
    tried.ended(await tried.ran("def f(:"), "failed", 1, "a syntax error")
    crash = "import os, signal\nos.kill(os.getpid(), signal.SIGSEGV)\nimport time; time.sleep(9)"
    tried.ended(await tried.ran(crash), "killed", None, "a crash")


async def _texts(tried: _Tried) -> None:
    echo = "import sys\nprint(sys.argv[1:], repr(sys.stdin.read()))"
    found = await tried.ran(echo, stdin="one\ntwo ☃", argv=("a b", "-é", ""))
    tried.same(found.stdout, "['a b', '-é', ''] 'one\\ntwo ☃'\n", "stdin and the arguments arrived as")
    tried.same((await tried.ran("print('é☃𝄞')")).stdout, "é☃𝄞\n", "text beyond ASCII came as")
    found = await tried.ran(r"import os; os.write(1, b'a\xffb')")
    tried.ended(found, "finished", 0, "a program that prints no text")
    kept = tried.limits.output_kb << 10
    found = await tried.ran(f"import sys\nsys.stdout.write('x' * {6 * kept})\nprint('the end')")
    tried.ended(found, "finished", 0, "a program that prints much")
    short = len(found.stdout.encode()) <= kept and found.stdout.endswith("xthe end\n")
    fix = "keep the end: tracebacks and results are there"
    require(short, f"keeps {found.stdout[-20:]!r} of long output", where=f"{tried.name}.run", fix=fix)
    total = found.dropped + len(found.stdout.encode())
    tried.same(total, 6 * kept + 8, "the bytes kept and `dropped` add up to")


async def _files(tried: _Tried) -> None:
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
    found = await tried.ran(code, files={"in/data.bin": data}, collect=globs)
    tried.ended(found, "finished", 0, "a program that reads and writes files")
    wanted = {"copy.bin": data, "out/a.txt": b"out/a.txt", "out/deep/b.txt": b"out/deep/b.txt"}
    fix = "globs are relative to the working folder; links are neither followed nor taken"
    tried.same(dict(found.files), wanted, f"collected by {globs}:", fix)


async def _limits(tried: _Tried) -> None:
    tried.ended(await tried.ran("while True: pass"), "timeout", None, "an endless loop")
    began = time.monotonic()
    tried.ended(await tried.ran("import time\ntime.sleep(600)"), "timeout", None, "a program that sleeps")
    late = time.monotonic() - began > tried.limits.wall_seconds + _SLACK
    require(not late, "let a program sleep past its wall time", where=f"{tried.name}.run")
    found = await tried.ran(f"x = bytearray({4 * tried.limits.memory_mb} << 20)\nprint(len(x))")
    bounded = found.status in ("failed", "killed")
    fix = f"limits.memory_mb: {tried.limits.memory_mb}"
    require(bounded, "gives a program more memory than it may use", where=f"{tried.name}.run", fix=fix)


async def _alone(tried: _Tried) -> None:
    mark = f"left-{secrets.token_hex(8)}"
    leave = (
        "import os, tempfile\n"
        f"for place in ('.', tempfile.gettempdir()): open(os.path.join(place, '{mark}'), 'w').close()\n"
        f"os.environ['{mark}'] = '1'\n"
    )
    tried.ended(await tried.ran(leave), "finished", 0, "a program that writes to its folder")
    look = (
        "import os, tempfile\n"
        f"print([p for p in ('.', tempfile.gettempdir()) if os.path.exists(os.path.join(p, '{mark}'))], "
        f"'{mark}' in os.environ)"
    )
    tried.same((await tried.ran(look)).stdout, "[] False\n", "the run after finds what was left behind:")
    count = 12
    own = "import time\nopen('own', 'w').write({0!r})\ntime.sleep(.1)\nprint(open('own').read(), input())"
    runs = [tried.ran(own.format(str(n)), stdin=f"in {n}\n", collect=("own",)) for n in range(count)]
    for n, found in enumerate(await asyncio.gather(*runs)):
        got = (found.stdout, dict(found.files))
        tried.same(got, (f"{n} in {n}\n", {"own": str(n).encode()}), f"of {count} at a time, run {n} gave")


async def _attacks(tried: _Tried) -> None:
    daemon = (
        "import os, time\n"
        "if os.fork() == 0:\n"
        "    os.setsid()\n"
        "    if os.fork() == 0: time.sleep(600)\n"
        "    os._exit(0)\n"
        "print('done', flush=True)\n"
    )
    found = await tried.attacked(daemon)
    require(
        found is not None and found.ok and found.stdout == "done\n",
        f"a program that leaves a process behind ended as {found!r}",
        where=f"{tried.name}.run",
        fix="end it when its first process ends, and kill the rest",
    )
    # Never our own process, where a sandbox has us for its programs' parent.
    parent = f"import os\nif os.getppid() not in (0, 1, {os.getpid()}): os.kill(os.getppid(), 9)\n"
    await tried.attacked(parent + "import time; time.sleep(600)")
    await tried.attacked("import os\nos.closerange(0, 64)\nos._exit(7)")
    found = await tried.attacked("import os\nwhile True: os.write(1, b'x' * 65536)")
    stopped = found is None or found.status in ("timeout", "killed")
    require(stopped, f"a program that writes for ever ended as {found!r}", where=f"{tried.name}.run")


async def _verdicts(tried: _Tried) -> None:
    where = f"{tried.name}.judge"
    right = await tried.judged("def double(n):\n    return 2 * n\n")
    passed = right is not None and right.ok and right.total == 2
    require(passed, f"a right candidate gets {right!r}", where=where, fix="every assert statement is a test")
    wrong = await tried.judged("def double(n):\n    return 4\n")
    told = wrong is not None and (wrong.passed, wrong.total) == (1, 2) and wrong.failures[0].line == 3
    require(told, f"a candidate that passes one test of two gets {wrong!r}", where=where)
    liar = "class Liar(int):\n    __eq__ = lambda *_: True\n    __hash__ = int.__hash__\n"
    for candidate, what in (
        ("import os\nos._exit(0)\n", "exits before the tests"),
        ("import sys\ndef double(n):\n    sys.exit(0)\n", "exits in a call"),
        (f"{liar}def double(n):\n    return Liar(7)\n", "answers with an `==` that is always true"),
        (
            "import builtins\nbuiltins.AssertionError = None\ndef double(n):\n    return 0\n",
            "patches builtins",
        ),
        ("def double(n):\n    while True: pass\n", "never answers"),
    ):
        verdict = await tried.judged(candidate)
        failed = verdict is None or not verdict.ok
        fix = "the tests are another process than the candidate, and only plain data crosses"
        require(failed, f"passes a candidate that {what}", where=where, fix=fix)


async def _lost(tried: _Tried, lose: Callable[[], None]) -> None:
    lose()
    where = f"{tried.name}.run"
    try:
        found = await tried.sandbox.run(Program(code="print(1)", limits=tried.limits))
    except SystemFault:
        return
    except Exception as error:
        raise ConformanceError(
            f"raised {type(error).__name__} for a loss of its own", where=where, fix="SystemFault"
        ) from error
    require(False, f"returned {found!r} when it had lost what it runs on", where=where, fix="SystemFault")


_PARTS: tuple[Callable[[_Tried], Awaitable[None]], ...] = (
    _ends, _texts, _files, _limits, _alone, _attacks, _verdicts,
)  # fmt: skip
