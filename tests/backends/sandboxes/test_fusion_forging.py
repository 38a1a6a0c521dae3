"""Candidates that forge verdicts on a loopback server whose runs see each other, as on the stock one.

A hostile candidate runs only as a user of its own, or in a Landlock domain: it would kill every process that
it can.
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import shutil
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from coterie.backends.sandboxes.fusion import SandboxFusion
from coterie.backends.sandboxes.inside import landlock
from coterie.core.errors import ConfigError
from coterie.core.protocols import Judged, Limits, Program, Verdict
from tests.backends.sandboxes import forging
from tests.backends.sandboxes.fusion_server import FusionServer
from tests.backends.sandboxes.support import used

LIMITS = Limits(cpu_seconds=3, wall_seconds=6, memory_mb=256)
SYSTEM = "/usr/bin/python3"
ROOT = os.geteuid() == 0
USERS = ROOT and Path(SYSTEM).exists()
SCOPES = landlock.version() >= landlock.SCOPES
FRESH = 1_900_000_000 + os.getpid() if ROOT else None
"""The user of a server that is not root; no other process has it."""

SERVERS = {
    "users": {"python": SYSTEM},
    "users without Landlock": {"python": SYSTEM, "landlock": False},
    "Landlock": {"python": SYSTEM, "user": FRESH},
    "nothing": {"python": SYSTEM, "user": FRESH, "landlock": False},
}


def server_of(kind: str) -> FusionServer:
    if kind.startswith("users") and not USERS:
        pytest.skip("gives users away: root's alone")
    if kind == "Landlock" and not SCOPES:
        pytest.skip("this kernel's Landlock holds back no signals: such a server is refused, see `nothing`")
    return FusionServer(**SERVERS[kind], fenced=False)


def using(server: FusionServer, use: Callable[[SandboxFusion], Awaitable[Any]], **settings: Any) -> Any:
    table = {"concurrency": 8, "backoff": 0.01, "retry_seconds": 0.0, "limits": LIMITS, **settings}
    return used(SandboxFusion(SandboxFusion.Config(url=server.url, **table)), use)


def judged(code: str, tests: str = "assert f(1) == 2") -> Judged:
    return Judged(candidate=code, tests=tests, calls=("f",))


HONEST = judged("def f(n):\n    return n + 1\n")


@pytest.mark.parametrize("kind", ["users", "users without Landlock", "Landlock"])
def test_no_candidate_forges_a_verdict_or_spoils_another(kind):
    with server_of(kind) as server:
        tests = forging.TESTS.format(secret=secrets.token_hex(8))
        hostile = forging.programs(server.url)
        cases = [case for cheat in hostile for case in (judged(cheat.code, tests), HONEST)]
        beside = [judged(forging.WRONG, tests) for _ in hostile]

        async def together(box: SandboxFusion) -> list[Verdict]:
            return await asyncio.gather(*map(box.judge, [*cases, *beside]))

        verdicts = using(server, together)
    cheats, honest, wrong = verdicts[: len(cases) : 2], verdicts[1 : len(cases) : 2], verdicts[len(cases) :]
    passed = {cheat.name: verdict.passed for cheat, verdict in zip(hostile, cheats, strict=True)}
    assert passed == {cheat.name: 0 for cheat in hostile}
    assert [verdict.passed for verdict in wrong] == [0] * len(wrong)
    assert all(verdict.ok and not verdict.warning for verdict in honest)


def test_a_judge_without_protection_is_refused_before_a_candidate_runs():
    with server_of("nothing") as server:
        with pytest.raises(ConfigError, match="could forge its verdict") as error:
            using(server, lambda box: box.judge(HONEST))
        assert server.requests == []  # the probe's programs are ours
    assert error.value.path == "sandbox.shared_user" and "shared_user: warn" in error.value.fix
    assert "not root" in error.value.why or "may not read" in error.value.why


@pytest.mark.skipif(not SCOPES, reason="this kernel's Landlock holds back no signals")
def test_a_run_that_is_less_protected_than_the_probe_is_refused():
    with server_of("Landlock") as server:

        async def moved(box: SandboxFusion) -> None:
            assert (await box.judge(HONEST)).ok
            server.landlock = False  # a load balancer's other server
            await box.judge(HONEST)

        with pytest.raises(ConfigError, match="could forge its verdict"):
            using(server, moved)
        assert len(server.requests) == 2


def test_by_hand_verdicts_come_with_a_warning_and_one_line_of_log(caplog):
    async def twice(box: SandboxFusion) -> list[Any]:
        await box.run(Program(code="x = 1"))
        return [await box.judge(HONEST), await box.judge(HONEST), box.report()]

    with server_of("nothing") as server, caplog.at_level(logging.WARNING, logger="coterie"):
        *verdicts, report = using(server, twice, shared_user="warn")
    assert all(verdict.ok and "could reach its tests" in verdict.warning for verdict in verdicts)
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == 2 and "verdicts may be forged" in lines[1] and "apart from other runs" in lines[0]
    active = {protection.name: protection.active for protection in report}
    assert not (active["own users"] or active["Landlock"] or active["runs kept apart"])
    assert active["system call filter"]


@pytest.mark.skipif(not ROOT, reason="needs a user whose processes nobody misses")
def test_without_protection_the_cheats_do_forge():
    """Else the tests above would show nothing."""
    with server_of("nothing") as server:
        tests = forging.TESTS.format(secret=secrets.token_hex(8))
        cheat = forging.programs(server.url)[0]

        async def together(box: SandboxFusion) -> list[Verdict]:
            return await asyncio.gather(*[box.judge(judged(cheat.code, tests)) for _ in range(4)])

        rounds = (using(server, together, shared_user="warn", concurrency=4) for _ in range(5))
        assert any(verdict.passed for verdicts in rounds for verdict in verdicts)


@pytest.mark.parametrize("kind", ["users", "users without Landlock", "Landlock"])
def test_the_report_says_what_protects(kind):
    async def report(box: SandboxFusion) -> dict[str, bool]:
        return {protection.name: protection.active for protection in box.report()}

    with server_of(kind) as server:
        active = using(server, report)
    missing = {name for name, is_active in active.items() if not is_active}
    assert missing == {
        "users": {"Landlock", "Landlock's scopes"} if not landlock.version() else set(),
        "users without Landlock": {"Landlock", "Landlock's scopes"},
        "Landlock": {"own users", "process count"},
    }[kind] | ({"Landlock's scopes"} if not SCOPES else set())


@pytest.mark.skipif(shutil.which("gcc") is None, reason="compiles C")
def test_verdicts_are_doubtful_after_a_program_without_the_wrapper(caplog):
    async def both(box: SandboxFusion) -> tuple[Verdict, Verdict]:
        with pytest.raises(ConfigError, match="does not run 'ruby'"):
            await box.run(Program(code="puts 1", language="ruby"))  # it never ran, so nothing is in doubt
        before = await box.judge(HONEST)
        await box.run(Program(code="int main(){return 0;}", language="c"))
        return before, await box.judge(HONEST)

    with server_of("users" if USERS else "Landlock") as server:
        before, after = using(server, both)
    assert not before.warning and "c programs" in after.warning and "without the wrapper" in after.warning


@pytest.mark.parametrize("kind", ["users", "Landlock"])
def test_threads_start_and_sockets_do_not(kind):
    code = (
        "import shutil, socket, threading\n"
        "shutil.copy2(__file__, 'copy')\n"
        "threads = [threading.Thread(target=print, args=(n,)) for n in range(3)]\n"
        "for thread in threads: thread.start(); thread.join()\n"
        "ours, theirs = socket.socketpair()\n"
        "for kind in (socket.AF_INET, socket.AF_UNIX):\n"
        "    try: socket.socket(kind)\n"
        "    except PermissionError: print('refused')\n"
        "name = chr(0) + 'x'\n"
        "for what, *given in ((ours.bind, name), (ours.connect, name), (ours.listen,), (ours.accept,)):\n"
        "    try: what(*given)\n"
        "    except PermissionError: print('refused')\n"
    )
    with server_of(kind) as server:
        result = using(server, lambda box: box.run(Program(code=code)))
    assert (result.status, result.stdout) == ("finished", "0\n1\n2\n" + 6 * "refused\n"), result


BURNS = """
import os, signal, time
def f(n):
    {before}
    while True:
        if os.fork() == 0:
            end = time.process_time() + .02
            while time.process_time() < end: pass
            os._exit(0)
        {after}
"""
WAITS = BURNS.format(before="pass", after="os.wait()")
IGNORES = BURNS.format(before="signal.signal(signal.SIGCHLD, signal.SIG_IGN)", after="time.sleep(.05)")


@pytest.mark.parametrize("code", [WAITS, IGNORES])
def test_the_cpu_time_of_short_children_counts_and_is_reported(code):
    limits = LIMITS.model_copy(update={"cpu_seconds": 0.5, "wall_seconds": 15.0, "processes": 64})
    with FusionServer() as server:

        async def both(box: SandboxFusion) -> Any:
            asked = Judged(candidate=code, tests="assert f(1)", calls=("f",), limits=limits)
            run = box.run(Program(code=code + "f(1)", limits=limits))
            return await asyncio.gather(run, box.judge(asked))

        result, verdict = using(server, both, shared_user="warn")
    assert result.status == "timeout" and result.reason == "CPU time: 0.5 s", result
    assert 0.5 < result.cpu_seconds < 1.5 and result.wall_seconds < 12
    assert (verdict.passed, verdict.candidate) == (0, "timeout")


def test_shells_and_their_tools_get_sigchld():
    code = "timeout .2 sleep 60; echo $?; sleep 60 & kill $!; wait $!; echo $?"
    with FusionServer() as server:
        result = using(server, lambda box: box.run(Program(code=code, language="bash")))
    assert result.stdout == "124\n143\n" and result.wall_seconds < 30
