"""Hostile programs in workers that have imported pandas and scikit-learn ahead: no program reaches the worker
that it is a fork of, the packages on disk, or the program after it."""

from __future__ import annotations

import asyncio
import importlib.metadata
import importlib.util
import os
import pickle
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from coterie.backends.sandboxes.local import LocalSandbox
from coterie.core.protocols import Judged, Limits, Program, Ran
from tests.backends.sandboxes.hostile import BEFORE, HOSTILE, REFUSED
from tests.backends.sandboxes.judging.hostile import HONEST, PROGRAMS, TESTS, TOTAL
from tests.backends.sandboxes.support import descendants
from tests.backends.sandboxes.test_hostile import (
    BEYOND,
    INSTEAD,
    LIMITS,
    MARK,
    PAGE,
    attack,
    left_running,
    targets,
)

WORK = Limits(cpu_seconds=10, wall_seconds=60, memory_mb=2048, disk_mb=64)
TIGHT = LIMITS.model_copy(update={"memory_mb": 1000})
"""The limits of the hostile programs: the packages need more memory."""
SHORT = (
    "memory_bomb",
    "traces_the_first_process",
    "kills_everything",
    "our_descriptors",
    "frames_of_the_worker",
)
"""Programs that `make test-sandbox` runs again with packages; `make test-long` runs all."""

__all__ = ["targets"]  # a fixture


def _installed(name: str) -> bool:
    try:
        importlib.metadata.distribution(name)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


PACKAGES = [name for name in ("pandas", "scikit-learn") if _installed(name)]
pytestmark = pytest.mark.skipif(
    "pandas" not in PACKAGES, reason="pandas is not installed: extra data-science"
)
with_sklearn = pytest.mark.skipif(len(PACKAGES) < 2, reason="no scikit-learn: extra data-science")


@pytest.fixture(scope="module")
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    loop = asyncio.new_event_loop()
    yield loop
    loop.close()


def opened(loop: asyncio.AbstractEventLoop, namespaces: str) -> Iterator[LocalSandbox]:
    config = LocalSandbox.Config(workers=1, limits=WORK, namespaces=namespaces, packages=PACKAGES)
    sandbox = LocalSandbox(config)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COTERIE_API_KEY", "hostile")
        loop.run_until_complete(sandbox.open())
    yield sandbox
    loop.run_until_complete(sandbox.close())


@pytest.fixture(scope="module")
def apart(loop: asyncio.AbstractEventLoop) -> Iterator[LocalSandbox]:
    yield from opened(loop, "auto")


@pytest.fixture(scope="module")
def plain(loop: asyncio.AbstractEventLoop) -> Iterator[LocalSandbox]:
    yield from opened(loop, "off")


@pytest.fixture(params=["auto", "off"])
def sandbox(request: pytest.FixtureRequest) -> LocalSandbox:
    opened_one: LocalSandbox = request.getfixturevalue("apart" if request.param == "auto" else "plain")
    return opened_one


def tight(sandbox: LocalSandbox, limits: Limits = TIGHT) -> Any:
    """The sandbox with these limits for hostile programs, which end in REFUSED."""

    class Tight:
        async def run(self, program: Program) -> Ran:
            given = limits if program.code.endswith(REFUSED) else WORK
            return await sandbox.run(Program(code=program.code, collect=program.collect, limits=given))

    return Tight()


# ------------------------------------------------------------------------------------- the attacks of before


def lasting(names: list[str]) -> list[Any]:
    return [name if name in SHORT else pytest.param(name, marks=pytest.mark.long) for name in names]


@pytest.mark.parametrize("name", lasting([*HOSTILE]))
def test_each_hostile_program_is_contained_as_before(
    name: str, loop: asyncio.AbstractEventLoop, apart: LocalSandbox, targets: dict[str, str]
) -> None:
    active = {protection.name for protection in apart.report() if protection.active}
    if not active.issuperset(HOSTILE[name].stopped_by):
        pytest.skip("this host lacks what stops it")
    ran = attack(loop, tight(apart), (BEFORE + HOSTILE[name].code + REFUSED).format(**targets))
    assert "ESCAPED" not in ran.stdout and ran.status in HOSTILE[name].ends, ran
    assert left_running() == [] and apart.pool is not None and apart.pool.lost == 0


@pytest.mark.long
@pytest.mark.parametrize("name", [name for name in HOSTILE if name not in BEYOND])
def test_each_hostile_program_is_contained_without_namespaces(
    name: str, loop: asyncio.AbstractEventLoop, plain: LocalSandbox, targets: dict[str, str]
) -> None:
    active = {protection.name for protection in plain.report() if protection.active}
    if not active.issuperset({INSTEAD[stop] for stop in HOSTILE[name].stopped_by if stop in INSTEAD}):
        pytest.skip("this host lacks what stops it")
    ran = attack(loop, tight(plain), (BEFORE + HOSTILE[name].code + REFUSED).format(**targets))
    assert "ESCAPED" not in ran.stdout and ran.status in HOSTILE[name].ends, ran
    assert left_running() == []


@pytest.mark.long
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.name)
def test_no_candidate_forges_a_verdict_with_packages(
    program: Any, loop: asyncio.AbstractEventLoop, apart: LocalSandbox
) -> None:
    verdict = loop.run_until_complete(apart.judge(candidate(f"import pandas\n{program.code}")))
    assert (verdict.ok, verdict.passed, verdict.total) == (False, 0, TOTAL), verdict


def test_an_honest_candidate_with_packages_passes(
    loop: asyncio.AbstractEventLoop, sandbox: LocalSandbox
) -> None:
    verdict = loop.run_until_complete(sandbox.judge(candidate(f"import pandas\n{HONEST}")))
    assert verdict.ok and verdict.passed == TOTAL, verdict


def candidate(code: str) -> Judged:
    limits = Limits(cpu_seconds=1, wall_seconds=3, memory_mb=1024)
    return Judged(candidate=code, tests=TESTS, calls=("f",), limits=limits)


# --------------------------------------------------------------------- the worker that a program is a fork of

REACH = BEFORE + (
    "import re, struct\n"
    "place = os.path.basename(os.path.dirname(os.getcwd()))\n"
    # of worker and cell; 0 is no process but a parent outside of the pid namespace
    "pids = sorted({{os.getppid(), 1, *map(int, re.findall(r'\\d+', place))}} - {{0}})\n"
)
ATTACKS = {
    "memory of the worker by /proc": (
        "for pid in pids:\n    for name in ('mem', 'maps', 'environ', 'fd', 'root', 'task'):\n"
        "        attempt(lambda: open(f'/proc/{{pid}}/{{name}}', 'rb').read(1))\n"
        "        attempt(lambda: os.listdir(f'/proc/{{pid}}/{{name}}'))"
    ),
    "memory of the worker by ptrace and process_vm": (
        "for pid in pids:\n"
        "    for number in (16, 0x4206):\n"  # PTRACE_ATTACH, PTRACE_SEIZE
        "        if libc.ptrace(number, pid, 0, 0) == 0: escaped('ptrace')\n"
        "    data = ctypes.create_string_buffer(8)\n"
        "    part = (ctypes.c_void_p * 2)(ctypes.addressof(data), 8)\n"
        "    for call in (libc.process_vm_readv, libc.process_vm_writev):\n"
        "        if call(pid, part, 1, part, 1, 0) > 0: escaped('process_vm')"
    ),
    "signals to the worker": (
        "for pid in pids:\n    for number in (signal.SIGSTOP, signal.SIGTERM, signal.SIGKILL):\n"
        "        try: os.kill(pid, number)\n        except OSError: pass"
    ),
    "descriptors of the worker": (
        "for number in range(3, 1024):\n    attempt(lambda: os.fstat(number))\n"
        "for pid in pids:\n"
        "    try: held = os.pidfd_open(pid)\n    except OSError: continue\n"
        "    for number in range(16):\n"
        "        if libc.syscall(438, held, number, 0) >= 0: escaped('pidfd_getfd')"
    ),
    "limits and priorities of the worker": (
        "import resource\n"
        "for pid in pids:\n"
        "    attempt(lambda: resource.prlimit(pid, resource.RLIMIT_AS, (1 << 20, 1 << 20)))"
    ),
    "shared memory with the worker": (
        "attempt(lambda: os.memfd_create('x'))\nif libc.shmget(1, 4096, 0o1666) >= 0: escaped('shmget')\n"
        "import multiprocessing.shared_memory as memory\n"
        "attempt(lambda: memory.SharedMemory('left'))\n"  # by this program's first run
        "try: memory.SharedMemory('left', create=True, size=9)\nexcept OSError: pass"
    ),
    "the packages on disk": (
        "import mmap, pandas, numpy\n"
        "from numpy._core import _multiarray_umath as compiled\n"
        "for path in (pandas.__file__, numpy.__file__, compiled.__file__):\n"
        "    for mode in ('r+b', 'ab'): attempt(lambda: open(path, mode))\n"
        "    attempt(lambda: os.unlink(path))\n    attempt(lambda: os.rename(path, path + 'x'))\n"
        "    attempt(lambda: mmap.mmap(os.open(path, os.O_RDONLY), 4096, mmap.MAP_SHARED, mmap.PROT_WRITE))\n"
        "inner = os.path.dirname(pandas.__file__)\nfor folder in (inner, os.path.dirname(inner)):\n"
        "    attempt(lambda: open(folder + '/sitecustomize.py', 'w'))\n"
        "    attempt(lambda: os.mkdir(folder + '/__pycache__x'))\n"
    ),
}


@pytest.mark.parametrize("name", ATTACKS)
def test_a_program_does_not_reach_the_worker_it_is_a_fork_of(
    name: str, loop: asyncio.AbstractEventLoop, sandbox: LocalSandbox
) -> None:
    for _ in range(2):
        ran = attack(loop, tight(sandbox, WORK), (REACH + ATTACKS[name] + REFUSED).format(mark=MARK))
        assert "ESCAPED" not in ran.stdout and ran.exit_code in (3, None), ran
    assert sandbox.pool is not None and sandbox.pool.lost == 0


def test_the_page_names_every_attack_on_the_worker() -> None:
    page = PAGE.read_text(encoding="utf-8")
    table = page.partition("| attack on the worker |")[2].partition("\n\n")[0]
    assert re.findall(r"^\| ([^|]+) \| \w", table, re.MULTILINE) == [*ATTACKS]


CHANGES = """\
import builtins, ctypes, gc, sys, warnings, pandas, numpy
numpy.random.seed(0)
pandas.DataFrame.sum = pandas.DataFrame.mean = lambda *_, **__: -1
pandas.read_csv = numpy.sum = numpy.mean = None
pandas.set_option("display.max_rows", 1)
numpy.seterr(all="raise")
warnings.simplefilter("error")
sys.modules["pandas"] = sys.modules["json"] = None
builtins.len = lambda _: 0
for value in gc.get_objects():
    if type(value) is dict and "ndarray" in value: value["ndarray"] = None
address = id(numpy.float64)  # and the memory itself
libc = ctypes.CDLL(None)
libc.mprotect(ctypes.c_void_p(address & ~4095), 8192, 7)
ctypes.memset(address + 24, 0, 64)
print("changed", flush=True)
"""
SOUND = """\
import io, sys, warnings, pandas, numpy
frame = pandas.read_csv(io.StringIO("a,b\\n1,2\\n3,5\\n"))
print(frame.sum().tolist(), numpy.mean([1, 2]), len(frame), numpy.float64(2) / 4)
print(pandas.get_option("display.max_rows"), numpy.geterr()["divide"], warnings.filters[0][0] == "error")
print(numpy.random.random() != 0.5488135039273248, "hidden" in str([*sys.modules]))
"""


def test_what_a_program_does_to_the_packages_ends_with_it(
    loop: asyncio.AbstractEventLoop, sandbox: LocalSandbox
) -> None:
    async def go() -> list[Ran]:
        return [await sandbox.run(Program(code=code)) for code in (SOUND, CHANGES, SOUND)]

    before, changed, after = loop.run_until_complete(go())
    assert changed.stdout == "changed\n", changed
    expected = "[4, 7] 1.5 2 0.5\n60 warn False\nTrue False\n"
    assert (before.stdout, after.stdout) == (expected, expected), (before, after)


class Attacker:
    """A pickle that runs a command where it is loaded."""

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return os.system, ("touch /box/work/ran; echo loaded; cat /proc/1/environ; kill -9 -1",)


def test_a_pickle_that_attacks_its_loader_reaches_no_more_than_a_program(
    loop: asyncio.AbstractEventLoop, sandbox: LocalSandbox
) -> None:
    data = pickle.dumps(Attacker())

    async def go() -> tuple[Ran, Ran]:
        code = "import pandas, sys\ntry: pandas.read_pickle('model.pkl')\nfinally: sys.exit(3)"
        loaded = await sandbox.run(Program(code=code, files={"model.pkl": data}))
        return loaded, await sandbox.run(Program(code="import os, pandas\nprint(os.listdir('.'))"))

    loaded, after = loop.run_until_complete(go())
    assert "hostile" not in loaded.stdout and not loaded.ok, loaded
    assert after.stdout == "[]\n", after


def test_a_worker_with_packages_has_no_descriptor_thread_or_shared_memory_more(
    loop: asyncio.AbstractEventLoop, sandbox: LocalSandbox
) -> None:
    async def bare() -> dict[str, Any]:
        other = LocalSandbox(LocalSandbox.Config(workers=1, namespaces=sandbox.config.namespaces))
        await other.open()
        try:
            return held(other)
        finally:
            await other.close()

    assert held(sandbox) == loop.run_until_complete(bare())


def held(sandbox: LocalSandbox) -> dict[str, Any]:
    assert sandbox.pool is not None
    (worker,) = sandbox.pool.workers
    serving = [worker.process.pid, *descendants(worker.process.pid)][-1]
    root = Path(f"/proc/{serving}")
    maps = [line.split(maxsplit=5) for line in (root / "maps").read_text().splitlines()]
    return {
        "descriptors": len(os.listdir(root / "fd")),
        "threads": len(os.listdir(root / "task")),
        "shared": [fields for fields in maps if fields[1][1] == "w" and fields[1][3] == "s"],
        "children": descendants(serving),
    }


# --------------------------------------------------------------------------------------------- honest work

WORKS = """\
import io, joblib, numpy, pandas, pickle
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LinearRegression
from sklearn.model_selection import cross_val_score
x = numpy.arange(40.0).reshape(20, 2)
y = (x[:, 0] > 18).astype(int)
forest = RandomForestClassifier(n_estimators=5, n_jobs=-1, random_state=0).fit(x, y)
line = LinearRegression(n_jobs=2).fit(x[:, :1], 3 * x[:, 0] + 1)
pickle.dump(forest, open("model.pkl", "wb"))
again = pickle.load(open("model.pkl", "rb"))
pandas.DataFrame({"id": range(20), "y": again.predict(x)}).to_csv("submission.csv")
scores = cross_val_score(forest, x, y, cv=2, n_jobs=-1)
print(round(line.intercept_, 6), scores.shape, joblib.effective_n_jobs(-1))
"""


@with_sklearn
def test_a_program_trains_saves_and_loads_a_model(
    loop: asyncio.AbstractEventLoop, sandbox: LocalSandbox
) -> None:
    program = Program(code=WORKS, collect=("*",))
    ran = loop.run_until_complete(sandbox.run(program))
    assert (ran.stdout, ran.stderr) == ("1.0 (2,) 1\n", ""), ran
    assert {*ran.files} == {"model.pkl", "submission.csv"}


def test_a_file_of_40_mb_passes_with_the_limits_of_the_work(
    loop: asyncio.AbstractEventLoop, apart: LocalSandbox
) -> None:
    code = (
        "import numpy, pandas\nframe = pandas.DataFrame(numpy.zeros((5 << 20, 1)))\n"
        "frame.to_pickle('x.pkl')\nprint(len(pandas.read_pickle('x.pkl')))"
    )
    ran = loop.run_until_complete(apart.run(Program(code=code, collect=("x.pkl",))))
    assert ran.stdout == "5242880\n" and len(ran.files["x.pkl"]) > 40 << 20, ran
    default = Limits(memory_mb=2048)
    ran = loop.run_until_complete(apart.run(Program(code=code, limits=default)))
    assert ran.status != "finished" and "OSError" in ran.stderr, ran
