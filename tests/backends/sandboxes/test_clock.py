"""The CPU time of all processes of a program: while it runs, at a time-out, and of hidden children."""

from __future__ import annotations

import os
import subprocess
import sys
from types import SimpleNamespace

import pytest

from coterie.backends.sandboxes.inside import clock
from coterie.backends.sandboxes.local import LocalSandbox
from coterie.core.protocols import Program
from tests.backends.sandboxes.support import LIMITS, inside, ran

WHO = "(resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)"
USED = f"sum(resource.getrusage(who)[n] for who in {WHO} for n in (0, 1))"
BURN = """\
import os, resource, signal, sys, time
def burn(seconds):
    if os.fork() == 0:
        while time.process_time() < seconds: pass
        os._exit(0)
def wait():
    try: os.wait()
    except ChildProcessError: pass
"""
HALF = LIMITS.model_copy(update={"cpu_seconds": 0.5, "wall_seconds": 20.0})
"""So much wall time that the CPU clock decides on a busy machine too."""


@pytest.fixture(params=["auto", "off"])
def both(request: pytest.FixtureRequest) -> dict[str, str]:
    """With namespaces and without."""
    return {"namespaces": request.param}


# ------------------------------------------------------------------------------------------- while it runs


def test_children_that_are_waited_for_count_while_it_runs(both: dict[str, str]) -> None:
    done = ran(BURN + "while True:\n    burn(.05)\n    wait()", both, limits=HALF)
    assert (done.status, done.reason) == ("timeout", "more than 0.5 s of CPU time")
    assert done.cpu_seconds is not None and 0.5 < done.cpu_seconds < 2  # a busy machine delays the scans


def test_children_of_children_count_while_it_runs(both: dict[str, str]) -> None:
    code = BURN + "if os.fork() == 0:\n    while True:\n        burn(.05)\n        wait()\nwait()"
    done = ran(code, both, limits=HALF)
    assert (done.status, done.reason) == ("timeout", "more than 0.5 s of CPU time")


@pytest.mark.parametrize(
    "work",
    [
        "for _ in range(8):\n    burn(.06)\n    wait()",
        "for _ in range(4): burn(.12)\nfor _ in range(4): wait()",
        "for _ in range(150):\n    burn(0)\n    wait()",
        "for _ in range(8): os.system('true')",  # a shell sets the action of SIGCHLD
    ],
)
def test_the_time_of_honest_children_is_that_of_wait4(work: str) -> None:
    done = ran(BURN + work + f"\nprint({USED})")
    assert done.ok, done
    assert done.cpu_seconds == pytest.approx(float(done.stdout), abs=0.02)


def test_a_clock_is_never_ahead_of_the_truth(both: dict[str, str]) -> None:
    """A scan reads many processes one after the other, while they end and are waited for."""
    limits = LIMITS.model_copy(update={"cpu_seconds": 1.0, "wall_seconds": 20.0})
    code = BURN + f"while {USED} < .9:\n    for _ in range(4): burn(.01)\n    for _ in range(4): wait()"
    done = ran(code, both, limits=limits)
    assert done.ok, done
    assert done.cpu_seconds is not None and 0.9 < done.cpu_seconds < 1


# ------------------------------------------------------------------------------------------- at a time-out


def test_a_wall_time_out_reports_all_time_and_brings_files_back(both: dict[str, str]) -> None:
    limits = LIMITS.model_copy(update={"wall_seconds": 1.5})
    code = BURN + "burn(.2)\nwait()\nopen('kept', 'w').write('x')\nprint(1, flush=True)\ntime.sleep(99)"
    done = ran(code, both, limits=limits, collect=("*",))
    assert (done.status, done.reason, done.stdout) == ("timeout", "more than 1.5 s of wall time", "1\n")
    assert done.cpu_seconds is not None and 0.2 <= done.cpu_seconds < 0.4
    assert done.files == {"kept": b"x"}
    assert 1.5 <= done.wall_seconds < 20


def test_a_flood_reports_all_time(both: dict[str, str]) -> None:
    done = ran(BURN + "burn(.2)\nwait()\nwhile True: os.write(1, bytes(1 << 16))", both)
    assert (done.status, done.reason) == ("killed", "it wrote more than 16 MiB")
    assert done.cpu_seconds is not None and done.cpu_seconds > 0.2


def test_a_program_that_ends_with_its_other_side_reports_all_time(both: dict[str, str]) -> None:
    first = Program(code="import os\nos.read(3, 1)")
    second = Program(code=BURN + "burn(.2)\nwait()\nos.write(3, b'x')\ntime.sleep(99)")
    _, done, _ = inside(lambda sandbox: sandbox.run_pair(first, second), **both)
    assert (done.status, done.reason) == ("killed", "its other side ended")
    assert done.cpu_seconds is not None and done.cpu_seconds > 0.2


def test_a_cell_that_does_not_report_is_killed_and_its_time_is_unknown() -> None:
    """The program takes the worker's signal away: one of its own is already pending."""
    code = (
        "import os, signal, time\nos.kill(1, signal.SIGTERM)\n"
        "if os.fork() == 0:\n    while True: os.kill(1, signal.SIGTERM)\ntime.sleep(99)"
    )
    limits = LIMITS.model_copy(update={"wall_seconds": 0.5, "cpu_seconds": 5.0})
    done = ran(code, {"namespaces": "required"}, limits=limits)
    assert (done.status, done.reason) == ("timeout", "more than 0.5 s of wall time")
    assert done.wall_seconds < 5
    assert done.cpu_seconds is None or done.cpu_seconds > 0.02  # a busy machine gives it little


# -------------------------------------------------------------------------------------- children that hide


SIGCHLD = """\
import os, signal, sys, time
seen = []
signal.signal(signal.SIGCHLD, {action})
print(signal.getsignal(signal.SIGCHLD) is not None)
for code in (0, 3):
    pid = os.fork()
    if pid == 0: os._exit(code)
    try: print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
    except ChildProcessError as error: print(error)
print(seen)
"""


@pytest.mark.parametrize(
    "action", ["signal.SIG_IGN", "signal.SIG_DFL", "lambda number, frame: seen.append(number)"]
)
def test_sigchld_is_handled_and_ignored_as_under_python_itself(action: str) -> None:
    code = SIGCHLD.format(action=action)
    plain = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    done = ran(code, {"namespaces": "required"})
    assert (done.stdout, done.exit_code) == (plain.stdout, plain.returncode), done


@pytest.mark.parametrize("action", ["signal.SIG_IGN", "signal.SIG_DFL", "lambda *_: seen.append(1)"])
def test_without_namespaces_setting_the_action_of_sigchld_does_nothing(action: str) -> None:
    """Children stay until they are waited for, and a handler is never called."""
    done = ran(SIGCHLD.format(action=action), {"namespaces": "off"})
    assert (done.status, done.stdout) == ("finished", "True\n0\n3\n[]\n"), done


def test_few_children_of_a_program_that_ignores_sigchld_are_charged_what_they_use() -> None:
    code = BURN + "signal.signal(signal.SIGCHLD, signal.SIG_IGN)\n"
    code += f"for _ in range(5):\n    burn(.03)\n    wait()\nprint({USED})"
    done = ran(code, {"namespaces": "required"}, limits=LIMITS.model_copy(update={"cpu_seconds": 0.3}))
    assert done.ok, done
    assert done.cpu_seconds is not None and 0.1 < done.cpu_seconds < 0.25


@pytest.mark.parametrize("made", ["threading.Thread(target=lambda: None)", "Sometimes()"])
def test_threads_of_a_program_that_sets_the_action_of_sigchld_are_charged_what_they_use(made: str) -> None:
    """A thread that ends between two samples looks like a child that does."""
    code = BURN + "import threading\nsignal.signal(signal.SIGCHLD, signal.SIG_DFL)\n"
    code += (
        "class Sometimes(threading.Thread):\n    def run(self):\n        global count\n        count += 1\n"
        "        if count % 50 == 0: os.system('true')\ncount = 0\n"
        f"for _ in range(300):\n    one = {made}\n    one.start()\n    one.join()\n    time.sleep(.004)\n"
        "print(threading.active_count())"
    )
    done = ran(code, {"namespaces": "required"}, limits=HALF)
    assert (done.status, done.stdout) == ("finished", "1\n"), done
    assert done.cpu_seconds is not None and done.cpu_seconds < 0.4


NO_ZOMBIES = """\
import ctypes, os, signal, time
libc = ctypes.CDLL(None)
action = (ctypes.c_uint64 * 19)()
action[17] = 2  # SA_NOCLDWAIT, behind the handler and the mask of 128 bytes
assert libc.sigaction(signal.SIGCHLD, action, None) == 0
"""
HIDES = {
    "ignored": "signal.signal(signal.SIGCHLD, signal.SIG_IGN)\n",
    "without zombies": NO_ZOMBIES,
}


@pytest.mark.parametrize("seconds", [0.003, 0.03, 0.4])
@pytest.mark.parametrize("how", HIDES)
def test_children_that_hide_their_time_are_bounded(how: str, seconds: float) -> None:
    """Their time appears in no other process's; short ones end between two samples."""
    code = f"{BURN}{HIDES[how]}while True:\n    burn({seconds})\n    wait()"
    done = ran(code, {"namespaces": "required"}, limits=HALF)
    assert (done.status, done.reason) == ("timeout", "more than 0.5 s of CPU time")
    assert done.cpu_seconds is None or done.cpu_seconds >= 0.5


@pytest.mark.parametrize(("processes", "bound"), [(4, 0.02), (1, 0.005), (0, 0.0)])
def test_ids_that_no_sample_sees_are_bounded_as_far_as_they_are_processes(
    monkeypatch: pytest.MonkeyPatch, processes: int, bound: float
) -> None:
    """Four ids come and go between two samples, 5 ms apart; the others of them are threads."""
    now, last = [0.0], [10]

    def gone(clock: int) -> float:
        raise OSError

    monkeypatch.setattr(clock.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(clock.time, "clock_gettime", gone)
    monkeypatch.setattr(clock, "last_pid", lambda load: last[0])
    monkeypatch.setattr(clock.os, "sched_getaffinity", lambda pid: range(64))
    samples = clock.ProcessSamples(-1, 0.4)
    samples.expected, last[0] = processes, 14
    for _ in range(clock.TRIES + 1):
        now[0] += 0.005
        samples.take()
    assert samples.least == 0.4 and samples.most == pytest.approx(0.4 + bound)


@pytest.mark.parametrize(("most", "over"), [(0.99, False), (1.01, True)])
def test_a_program_that_may_have_used_twice_its_limit_is_over_it(
    monkeypatch: pytest.MonkeyPatch, most: float, over: bool
) -> None:
    measured = clock.CpuClock(os.getpid(), -1, -1)
    used = measured.used()
    samples = SimpleNamespace(least=used, most=2 * most * (used + 10), take=lambda: None)
    monkeypatch.setattr(clock, "ProcessSamples", lambda *_: samples)
    measured.may_hide()
    assert measured.exceeds(used + 10) is over
    assert measured.final(over, used + 10) == (None if over else pytest.approx(used, abs=5))


# ----------------------------------------------------------------------------------- where /proc is hidden


def test_a_hidden_proc_is_reported_and_children_count_at_the_end() -> None:
    code = (
        "import asyncio\nfrom coterie.backends.sandboxes.local import LocalSandbox\n"
        "from coterie.core.protocols import Limits, Program\n"
        "async def go():\n"
        "    limits = Limits(cpu_seconds=.2, wall_seconds=20)\n"
        "    s = LocalSandbox(LocalSandbox.Config(workers=1, namespaces='required', limits=limits))\n"
        f"    await s.open()\n    ran = await s.run(Program(code={BURN!r} + 'burn(.3)\\nwait()'))\n"
        "    print(ran.status, ran.cpu_seconds > .3, [p.name for p in s.report() if not p.active])\n"
        "    await s.close()\nasyncio.run(go())"
    )
    flags = "-mpf" if os.getuid() == 0 else "-Urmpf"
    hide = [
        "unshare",
        flags,
        "--mount-proc",
        "sh",
        "-c",
        'mount -o remount,hidepid=2 /proc && exec "$@"',
        "-",
    ]
    done = subprocess.run([*hide, sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout == "timeout True ['clock of children']\n", done


def test_a_proc_that_can_be_read_is_reported() -> None:
    async def go(sandbox: LocalSandbox) -> dict[str, bool]:
        return {protection.name: protection.active for protection in sandbox.report()}

    assert inside(go)["clock of children"]
