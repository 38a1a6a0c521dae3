"""What a run leaves in the process that runs are forked from: nothing. A parent holds no program's data, and
no program changes it for the next."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from coterie.backends.sandboxes.local import LocalSandbox
from coterie.core.errors import ConfigError
from coterie.core.protocols import Judged, Limits, Program, Ran
from tests.backends.sandboxes.hostile import BEFORE, REFUSED
from tests.backends.sandboxes.leaving import LEAVING
from tests.backends.sandboxes.support import descendants

pytestmark = pytest.mark.xdist_group("left_in_parent")  # each locks the file of this Python for a moment
LIMITS = Limits(cpu_seconds=2, wall_seconds=4, memory_mb=256, disk_mb=4, processes=8, open_files=32)
MARK = f"leaving{os.getpid() % 10**7}"
PAGE = Path(__file__).parents[3] / "docs" / "sandbox.md"
LOOK = f"""\
import builtins, fcntl, gc, json, os, random, resource, signal, socket, struct, sys
try:
    named = socket.socket(socket.AF_UNIX)
    named.connect(chr(0) + {MARK!r} + "-left")
    print("ESCAPED")
except OSError: pass
lock = open(sys.executable, "rb")
ours = {{lock.fileno(), named.fileno() if "named" in globals() else -1}}
fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
print(sorted(os.listdir(".")), os.listdir(os.environ["TMPDIR"]), os.getcwd() == os.environ["HOME"])
print(oct(os.umask(0o22)), json.loads(json.dumps([len("ab")])), struct.pack("<H", 7))
print(hasattr(builtins, "left"), "left" in sys.modules)
print(sorted(os.environ), sys.getrecursionlimit(), gc.isenabled(), sys.stdin.read(), os.lseek(0, 0, 1) >= 0)
print([resource.getrlimit(name) for name in range(16)], os.nice(0), os.getpriority(os.PRIO_PROCESS, 0))
print(os.sched_getaffinity(0), os.sched_getscheduler(0), [signal.getitimer(kind) for kind in range(3)])
print([signal.getsignal(number) for number in (signal.SIGALRM, signal.SIGCHLD, signal.SIGPROF)])
print(signal.pthread_sigmask(0, []))
print([os.get_blocking(number) for number in range(3)], [os.fstat(number).st_nlink for number in range(3)])
print(random.random() == 0.8444218515250481, file=sys.stderr)
for number in range(3, 4000):
    if number not in ours:
        try: os.fstat(number)
        except OSError: continue
        print("ESCAPED", number)
"""


@pytest.fixture(scope="module")
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    loop = asyncio.new_event_loop()
    yield loop
    loop.close()


def _opened(loop: asyncio.AbstractEventLoop, namespaces: str) -> Iterator[LocalSandbox]:
    sandbox = LocalSandbox(LocalSandbox.Config(workers=1, limits=LIMITS, namespaces=namespaces))
    loop.run_until_complete(sandbox.open())
    with contextlib.suppress(ConfigError):  # both parents have had a run, where the two sides are kept apart
        loop.run_until_complete(sandbox.judge(Judged(candidate="", tests="assert True", calls=())))
    yield sandbox
    loop.run_until_complete(sandbox.close())


@pytest.fixture(scope="module")
def apart(loop: asyncio.AbstractEventLoop) -> Iterator[LocalSandbox]:
    yield from _opened(loop, "auto")


@pytest.fixture(scope="module")
def plain(loop: asyncio.AbstractEventLoop) -> Iterator[LocalSandbox]:
    yield from _opened(loop, "off")


@pytest.fixture(params=["auto", "off"])
def sandbox(request: pytest.FixtureRequest) -> LocalSandbox:
    opened: LocalSandbox = request.getfixturevalue("apart" if request.param == "auto" else "plain")
    return opened


def parents(sandbox: LocalSandbox) -> list[int]:
    """The processes of the worker, with those that runs are forked from."""
    assert sandbox.pool is not None
    (worker,) = sandbox.pool.workers
    return [worker.process.pid, *descendants(worker.process.pid)]


FIELDS = "Umask Threads SigPnd ShdPnd SigBlk SigIgn SigCgt CapEff CapBnd NoNewPrivs Seccomp Cpus_allowed_list"


def state(pid: int) -> dict[str, Any]:
    """What can be seen of a process from outside, without its times and memory."""
    place = Path(f"/proc/{pid}")
    status = dict(
        line.split(":\t", 1) for line in (place / "status").read_text().splitlines() if ":\t" in line
    )
    stat = (place / "stat").read_text().rpartition(")")[2].split()
    seen: dict[str, Any] = {name: status.get(name) for name in FIELDS.split()}
    seen |= {"priority": stat[15:17], "policy": stat[38], "session": stat[2:4], "children": descendants(pid)}
    for name in (
        "limits",
        "oom_score_adj",
        "mountinfo",
        "cgroup",
        "environ",
        "timerslack_ns",
        "coredump_filter",
    ):
        with contextlib.suppress(OSError):  # of another user
            seen[name] = (place / name).read_text()
    for name in ("cwd", "root"):
        with contextlib.suppress(OSError):
            seen[name] = os.readlink(place / name)
    for name in ("fd", "ns"):
        with contextlib.suppress(OSError):
            seen[name] = {link.name: os.readlink(link) for link in (place / name).iterdir()}
    with contextlib.suppress(OSError):
        maps = (place / "maps").read_text().splitlines()
        seen["shared"] = [line for line in maps if line.split(maxsplit=2)[1][1::2] == "ws"]
    return seen


@pytest.mark.parametrize("name", LEAVING)
def test_a_program_leaves_nothing_in_its_parent(
    name: str, loop: asyncio.AbstractEventLoop, sandbox: LocalSandbox
) -> None:
    async def go() -> tuple[Ran, Ran, Ran]:
        before = await sandbox.run(Program(code=LOOK))
        earlier = {pid: state(pid) for pid in parents(sandbox)}
        code = (BEFORE + LEAVING[name] + REFUSED).format(mark=MARK, first=3)
        attack = await sandbox.run(Program(code=code))
        assert {pid: state(pid) for pid in parents(sandbox)} == earlier
        return before, attack, await sandbox.run(Program(code=LOOK))

    before, attack, after = loop.run_until_complete(go())
    assert before.ok and "ESCAPED" not in before.stdout, before
    assert "ESCAPED" not in attack.stdout, attack
    assert attack.exit_code in (3, None), attack
    assert re.sub(r"\d+-\d+", "", after.stdout) == re.sub(r"\d+-\d+", "", before.stdout)
    assert (after.status, after.stderr) == ("finished", "False\n"), after
    assert sandbox.pool is not None and sandbox.pool.lost == 0


@pytest.mark.parametrize("name", LEAVING)
def test_a_candidate_leaves_nothing_to_the_next_judged_run(
    name: str, loop: asyncio.AbstractEventLoop, sandbox: LocalSandbox
) -> None:
    if sandbox.config.namespaces == "off" and any(
        row.name == "forged verdicts" for row in sandbox.left_open()
    ):
        pytest.skip("this host can't keep a candidate and its tests apart")
    honest = Judged(
        candidate="def f(n): return n + 1", tests="assert f(1) == 2\nassert f(2) == 4", calls=("f",)
    )

    async def go() -> None:
        code = (BEFORE + LEAVING[name]).format(mark=MARK, first=4)
        left = Judged(candidate=f"{code}\ndef f(n): return True\n", tests="assert f(1) == 2", calls=("f",))
        earlier = {pid: state(pid) for pid in parents(sandbox)}
        verdict = await sandbox.judge(left)
        assert (verdict.ok, verdict.passed) == (False, 0) and "ESCAPED" not in verdict.stdout, verdict
        assert {pid: state(pid) for pid in parents(sandbox)} == earlier
        verdict = await sandbox.judge(honest)
        assert (verdict.passed, verdict.total) == (1, 2), verdict

    loop.run_until_complete(go())


def holds(pid: int, mark: bytes) -> bool:
    """Whether a process has these bytes in its writable memory. Raises OSError where it can't be read."""
    with open(f"/proc/{pid}/maps") as maps, open(f"/proc/{pid}/mem", "rb", buffering=0) as memory:
        for line in maps:
            addresses, mode = line.split(maxsplit=2)[:2]
            if "w" not in mode:
                continue
            first, last = (int(number, 16) for number in addresses.split("-"))
            memory.seek(first)
            if mark in memory.read(last - first):
                return True
    return False


SEARCH = """\
import ctypes, gc
libc = ctypes.CDLL(None)
libc.sbrk.restype = ctypes.c_void_p
end = libc.sbrk(0)
parts = {parts!r}
heap = ctypes.string_at(end - {size}, {size})
begin = min(id(thing) for thing in gc.get_objects())
for part in parts:
    mark = part[::-1].encode()
    if heap.count(mark): print("ESCAPED heap", part)
names = repr([thing for thing in gc.get_objects() if type(thing) in (dict, list, tuple, set)])
import os
print(any(part[::-1] in names or part[::-1] in repr(os.environ) for part in parts))
"""


def test_neither_a_parent_nor_the_next_program_has_anything_of_a_run(
    loop: asyncio.AbstractEventLoop, sandbox: LocalSandbox
) -> None:
    """Markers in all that a program and a judged run are given, and in all that they write."""
    kinds = ("code", "stdin", "argument", "name", "content", "output", "candidate", "tests", "printed")
    mark = {kind: f"{kind}{secrets.token_hex(12)}" for kind in kinds}

    async def go() -> Ran:
        code = f"import sys\nx = '{mark['code']}' * 3\nprint('{mark['output']}', sys.stdin.read(), sys.argv)"
        code += f"\nopen('{mark['name']}2', 'w').write('{mark['content']}')"
        program = Program(
            code=code,
            stdin=mark["stdin"],
            argv=(mark["argument"],),
            files={mark["name"]: mark["content"].encode()},
            collect=("*",),
        )
        for _ in range(3):
            ran = await sandbox.run(program)
            assert mark["output"] in ran.stdout and len(ran.files) == 2, ran
            candidate = f"print('{mark['printed']}')\ndef f(): return '{mark['candidate']}'"
            tests = f"assert f() != '{mark['tests']}'"
            with contextlib.suppress(Exception):  # where the two sides can't be kept apart
                await sandbox.judge(Judged(candidate=candidate, tests=tests, calls=("f",)))
        backwards = [text[::-1] for text in mark.values()]
        return await sandbox.run(Program(code=SEARCH.format(parts=backwards, size=1 << 20)))

    searched = loop.run_until_complete(go())
    assert (searched.stdout, searched.stderr) == ("False\n", ""), searched
    for pid in parents(sandbox):
        try:
            held = [kind for kind, text in mark.items() if holds(pid, text.encode())]
        except OSError:
            pytest.skip("only root can read the memory of a worker")
        assert held == [], f"process {pid} holds {held}"


def test_the_search_would_see_a_marker(loop: asyncio.AbstractEventLoop, apart: LocalSandbox) -> None:
    """A parent holds what its orders say, for example the module of the judge."""
    loop.run_until_complete(
        apart.judge(Judged(candidate="def f(): return 1", tests="assert f()", calls=("f",)))
    )
    try:
        assert any(holds(pid, b"candidate_side") for pid in parents(apart))
    except OSError:
        pytest.skip("only root can read the memory of a worker")


def test_two_programs_draw_different_random_numbers(
    loop: asyncio.AbstractEventLoop, sandbox: LocalSandbox
) -> None:
    code = (
        "import random, tempfile\n"
        "print(random.random(), random.getstate()[1][:3], next(tempfile._get_candidate_names()))"
    )

    async def go() -> set[str]:
        return {(await sandbox.run(Program(code=code))).stdout for _ in range(5)}

    assert len(loop.run_until_complete(go())) == 5


def test_the_page_names_every_program_that_leaves_something() -> None:
    table = PAGE.read_text(encoding="utf-8").partition("| left in the parent |")[2].partition("\n\n")[0]
    assert re.findall(r"^\| ([^|]+) \| \w", table, re.MULTILINE) == [*LEAVING]
