"""Workers: the cost of a lost worker, their end with the host process, and leaks of runs."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import resource
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import pytest

from coterie.backends.sandboxes import pool as pool_module
from coterie.backends.sandboxes.inside import users, worker as worker_module
from coterie.backends.sandboxes.local import LocalSandbox
from coterie.core.errors import PolicyFault, SystemFault
from coterie.core.protocols import Judged, Limits, Program, Ran
from tests.backends.sandboxes.support import descendants, inside, ran


@pytest.fixture(params=["auto", "off"])
def both(request: pytest.FixtureRequest) -> dict[str, str]:
    """With namespaces and without."""
    return {"namespaces": request.param}


# -------------------------------------------------------------------------------------- workers that are lost


BUSY = f"busy{os.getpid() % 10**7}"
"""The name that a program gives its process: a worker has other processes before it runs one, too."""
RUNS = f"import ctypes, time\nctypes.CDLL(None).prctl(15, b'{BUSY}', 0, 0, 0)\n"


def _is_busy(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/comm").read_text().strip() == BUSY
    return False


async def _kill_worker_of(sandbox: LocalSandbox, times: int) -> None:
    """Kill the worker from outside, while it runs a program that begins with `RUNS`."""
    for _ in range(times):
        assert sandbox.pool is not None
        for _ in range(500):
            busy = [w for w in sandbox.pool.workers if any(map(_is_busy, descendants(w.process.pid)))]
            if busy:
                break
            await asyncio.sleep(0.01)
        killed = busy[0].process.pid
        os.kill(killed, signal.SIGKILL)
        while killed in [w.process.pid for w in sandbox.pool.workers]:
            await asyncio.sleep(0.01)


def test_a_lost_worker_costs_one_retry_and_no_result(both: dict[str, str]) -> None:
    async def go(sandbox: LocalSandbox) -> tuple[Ran, int]:
        work = asyncio.ensure_future(sandbox.run(Program(code=RUNS + "time.sleep(.5); print('done')")))
        await _kill_worker_of(sandbox, 1)
        assert sandbox.pool is not None
        return await work, sandbox.pool.lost

    done, lost = inside(go, **both)
    assert (done.status, done.stdout, lost) == ("finished", "done\n", 1)


def test_a_worker_that_is_stopped_is_replaced_with_a_line_and_costs_one_retry(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(pool_module, "GRACE_SECONDS", 0.5)

    async def go(sandbox: LocalSandbox) -> tuple[Ran, int, int]:
        assert sandbox.pool is not None
        (worker,) = sandbox.pool.idle
        for pid in (worker.process.pid, *descendants(worker.process.pid)):
            os.kill(pid, signal.SIGSTOP)
        done = await sandbox.run(Program(code="print('done')", limits=Limits(wall_seconds=1)))
        return done, sandbox.pool.lost, worker.process.pid

    done, lost, pid = inside(go, workers=1)
    assert (done.stdout, lost) == ("done\n", 1)
    assert f"a worker of the sandbox (process {pid}) has not answered for 1.5 s, since " in caplog.text


def test_a_program_that_loses_two_workers_is_to_blame() -> None:
    async def go(sandbox: LocalSandbox) -> Ran:
        work = asyncio.ensure_future(sandbox.run(Program(code=RUNS + "time.sleep(3)")))
        await _kill_worker_of(sandbox, 2)
        with pytest.raises(PolicyFault, match="ended its worker twice"):
            await work
        return await sandbox.run(Program(code="print('the next')"))

    assert inside(go).stdout == "the next\n"


def test_a_worker_that_is_lost_between_runs_is_replaced() -> None:
    async def go(sandbox: LocalSandbox) -> Ran:
        await sandbox.run(Program(code=""))
        assert sandbox.pool is not None
        (worker,) = sandbox.pool.workers
        worker.process.kill()
        worker.process.wait()
        return await sandbox.run(Program(code="print('here')"))

    assert inside(go).stdout == "here\n"


def test_a_run_that_nobody_waits_for_ends_at_once(both: dict[str, str]) -> None:
    async def go(sandbox: LocalSandbox) -> Ran:
        assert sandbox.pool is not None
        (worker,) = sandbox.pool.workers
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(sandbox.run(Program(code="import time; time.sleep(4)")), 0.3)
        assert descendants(worker.process.pid) == [] and worker.process.poll() is not None
        return await sandbox.run(Program(code="print('next')"))

    assert inside(go, **both).stdout == "next\n"


def test_a_worker_that_is_asked_to_end_is_replaced() -> None:
    """By a hostile program, where nothing holds its signals."""

    async def go(sandbox: LocalSandbox) -> str:
        assert sandbox.pool is not None
        (worker,) = sandbox.pool.workers
        os.kill(worker.process.pid, signal.SIGTERM)
        worker.process.wait(10)
        return (await sandbox.run(Program(code="print('next')"))).stdout

    assert inside(go, namespaces="off") == "next\n"


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_workers_and_what_they_run_end_with_us(both: dict[str, str], how: signal.Signals) -> None:
    code = (
        "import asyncio\nfrom coterie.backends.sandboxes.local import LocalSandbox\n"
        "from coterie.core.protocols import Program\n"
        "async def go():\n"
        f"    s = LocalSandbox(LocalSandbox.Config(workers=1, namespaces={both['namespaces']!r}))\n"
        "    await s.open()\n    await s.run(Program(code='import time; time.sleep(20)'))\n"
        "asyncio.run(go())"
    )
    folder = tempfile.mkdtemp()
    os.chmod(folder, 0o755)  # pytest's folders are closed to the users of programs
    environment = {**os.environ, "TMPDIR": folder}
    ours = subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.DEVNULL, env=environment)
    pids: list[int] = []
    until = time.monotonic() + 20
    while len(pids) < 3 and time.monotonic() < until:
        time.sleep(0.02)
        pids = descendants(ours.pid)
    assert len(pids) >= 3
    ours.send_signal(how)
    ours.wait()
    while any(Path(f"/proc/{pid}").exists() for pid in pids) and time.monotonic() < until:
        time.sleep(0.02)
    assert [pid for pid in pids if Path(f"/proc/{pid}").exists()] == []
    os.rmdir(folder)  # they have left nothing in it


def test_the_last_worker_removes_what_a_killed_one_left() -> None:
    """The host process is killed at last, and can't remove the folder of the runs."""
    code = (
        'PROGRAM = \'import time; open("here", "w").close(); time.sleep(20)\'\n'
        "import asyncio, os, pathlib, signal\nfrom coterie.backends.sandboxes.local import LocalSandbox\n"
        "from coterie.core.protocols import Program\n"
        "async def go():\n    s = LocalSandbox(LocalSandbox.Config(workers=2, namespaces='off'))\n"
        "    await s.open()\n"
        "    run = asyncio.ensure_future(s.run(Program(code=PROGRAM)))\n"
        "    base = pathlib.Path(s.pool.base)\n"
        "    while not list(base.rglob('here')): await asyncio.sleep(.02)  # the program runs\n"
        "    for worker in {*s.pool.workers} - {*s.pool.idle}: worker.process.kill()\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\nasyncio.run(go())"
    )
    folder = tempfile.mkdtemp()
    os.chmod(folder, 0o755)
    subprocess.run(
        [sys.executable, "-c", code], stderr=subprocess.DEVNULL, env={**os.environ, "TMPDIR": folder}
    )
    until = time.monotonic() + 40
    while os.listdir(folder) and time.monotonic() < until:
        time.sleep(0.02)
    os.rmdir(folder)


def test_a_worker_that_dies_more_slowly_than_the_last_one_leaves_nothing(tmp_path: Path) -> None:
    """It was killed and is not gone yet when the last worker removes the folder of the runs."""
    base = tmp_path / "runs"
    for name in ("trial/folder", "7"):
        (base / f"{os.getpid()}-{name}").mkdir(parents=True)
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(.5)"]) as dying:
        (base / f"{dying.pid}-8").mkdir()
        worker_module.remove_runs(str(base))
    assert not base.exists()


def test_a_worker_whose_host_process_is_gone_before_it_serves_removes_the_folder() -> None:
    """It starts instead of a killed one, say, and nobody is there to hear that it is ready."""
    base = Path(tempfile.mkdtemp())
    base.chmod(0o711)
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    orders = {"alone": False, "shown": [], "base": str(base), "preload": [], "without": []}
    start = [pool_module.WORKER_CODE, str(Path(pool_module.__file__).parent), str(theirs.fileno())]
    command = [sys.executable, "-P", "-s", "-S", "-c", *start]
    with theirs, subprocess.Popen(command, pass_fds=[theirs.fileno()]) as worker:
        ours.send(json.dumps(orders).encode())
        while not os.listdir(base) and worker.poll() is None:  # it tries what protects its programs
            time.sleep(0.001)
        theirs.close()
        ours.close()
        assert worker.wait(30) == 1
    assert not base.exists()


def test_a_trial_is_named_like_the_folder_of_a_cell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """So that the last worker removes what a kill during the trial leaves."""
    seen: list[str] = []
    monkeypatch.setattr(users.landlock, "version", lambda: users.landlock.SCOPES)
    monkeypatch.setattr(users.spaces, "succeeds", lambda attempt: bool(seen.extend(os.listdir(tmp_path))))
    users.find({"shown": [], "without": []}, str(tmp_path))
    assert {name.partition("-")[0] for name in seen} == {str(os.getpid())} and not os.listdir(tmp_path)


def test_a_worker_that_lives_on_keeps_its_folders(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]) as living:
        (kept := tmp_path / f"{living.pid}-8").mkdir()
        worker_module.remove_runs(str(tmp_path), seconds=0.3)
        living.kill()
    assert kept.exists()


# ------------------------------------------------------------------------------------------------------ leaks


def _held(sandbox: LocalSandbox) -> dict[str, Any]:
    assert sandbox.pool is not None
    (worker,) = sandbox.pool.workers
    family = [worker.process.pid, *descendants(worker.process.pid)]
    inner = family[-1]
    spaces = {os.readlink(path) for pid in family for path in Path(f"/proc/{pid}/ns").iterdir()}
    return {
        "ours": len(os.listdir("/proc/self/fd")),
        "processes": len(family),
        "descriptors": [len(os.listdir(f"/proc/{pid}/fd")) for pid in family],
        "mounts": len(Path(f"/proc/{inner}/mountinfo").read_text().splitlines()),
        "namespaces": len(spaces),
    }


def _runs_leak_nothing(count: int, settings: dict[str, str]) -> None:
    judged = Judged(candidate="def f(): return 1", tests="assert f() == 1", calls=("f",))

    async def go(sandbox: LocalSandbox) -> None:
        await sandbox.run(Program(code="print(1)"))
        before = _held(sandbox)
        for number in range(count):
            if number % 10 == 9:
                assert (await sandbox.judge(judged)).ok
            else:
                code = "import os; open('x', 'w').write('y' * 9999); os.fork() or os.setsid()"
                assert (await sandbox.run(Program(code=code, collect=("*",)))).status == "finished"
        assert _held(sandbox) == before

    inside(go, **settings)


def test_hundreds_of_runs_leak_no_process_descriptor_mount_or_namespace() -> None:
    _runs_leak_nothing(200, {"namespaces": "auto"})


def test_runs_without_namespaces_leak_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []  # by this test: others make such folders at the same time
    mkdtemp = tempfile.mkdtemp
    monkeypatch.setattr(tempfile, "mkdtemp", lambda **settings: made.append(mkdtemp(**settings)) or made[-1])
    _runs_leak_nothing(30, {"namespaces": "off"})
    assert made and not any(os.path.exists(folder) for folder in made)


@pytest.mark.long
def test_two_thousand_runs_leak_nothing() -> None:
    _runs_leak_nothing(2000, {"namespaces": "auto"})


def test_closing_leaves_nothing() -> None:
    before, files = descendants(os.getpid()), len(os.listdir("/proc/self/fd"))
    assert inside(lambda sandbox: sandbox.run(Program(code="print(1)"))).ok
    assert descendants(os.getpid()) == before
    assert len(os.listdir("/proc/self/fd")) == files


def test_a_process_without_free_descriptors_gets_a_fault_and_loses_none(both: dict[str, str]) -> None:
    judged = Judged(candidate="def f(): return 1", tests="assert f() == 1", calls=("f",))

    async def go(sandbox: LocalSandbox) -> int:
        faults = 0
        before = sorted(os.listdir("/proc/self/fd"))
        limits = resource.getrlimit(resource.RLIMIT_NOFILE)
        for spare in range(0, 14, 2):
            free = [os.dup(0) for _ in range(spare)]
            resource.setrlimit(resource.RLIMIT_NOFILE, (max(free, default=0) + 1, limits[1]))
            held = []
            with contextlib.suppress(OSError):
                while True:
                    held.append(os.dup(0))
            for descriptor in free:
                os.close(descriptor)
            try:
                for run in (sandbox.run(Program(code="")), sandbox.judge(judged)):
                    with contextlib.suppress(SystemFault):
                        faults += 1
                        await run
                        faults -= 1
            finally:
                resource.setrlimit(resource.RLIMIT_NOFILE, limits)
                for descriptor in held:
                    os.close(descriptor)
            assert sorted(os.listdir("/proc/self/fd")) == before
        assert (await sandbox.judge(judged)).ok
        return faults

    assert 0 < inside(go, **both) < 14


def test_the_judged_run_of_a_worker_leaves_nothing_to_programs() -> None:
    """A worker judges once before it serves, since this makes later runs faster."""
    code = (
        "import signal, sys, os\nprint('solution' in sys.modules, os._exit)\n"
        "print([signal.getsignal(n) == signal.SIG_DFL for n in (signal.SIGPROF, signal.SIGALRM)])\n"
        "print(signal.getitimer(signal.ITIMER_REAL), signal.getitimer(signal.ITIMER_PROF))"
    )
    done = ran(code)
    assert done.stdout == "False <built-in function _exit>\n[True, True]\n(0.0, 0.0) (0.0, 0.0)\n", done


def test_each_program_has_its_own_random_numbers_and_thread_id(both: dict[str, str]) -> None:
    code = "import random, threading\nprint(random.random(), threading.main_thread().native_id)\n"
    code += "assert threading.main_thread().native_id == threading.get_native_id()"
    first, second = inside(
        lambda sandbox: asyncio.gather(*(sandbox.run(Program(code=code)) for _ in range(2))), **both
    )
    assert first.ok and second.ok and first.stdout.split()[0] != second.stdout.split()[0]
