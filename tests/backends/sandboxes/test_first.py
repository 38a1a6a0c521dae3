"""The first process of a run's pid namespace: a program of one page, which is an ELF file made here."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import pytest

from coterie.backends.sandboxes.inside import first
from coterie.backends.sandboxes.local import LocalSandbox
from coterie.core.protocols import Program
from tests.backends.sandboxes.support import descendants, inside

HERE = os.uname().machine
ARCHITECTURES = ["x86_64", "aarch64"]
PR_SET_CHILD_SUBREAPER = 36


def command(path: Path, architecture: str) -> list[str]:
    """How the program runs here: itself, or by qemu's emulation of a user's process."""
    path.write_bytes(first.program(architecture))
    path.chmod(0o555)
    if architecture == HERE:
        return [str(path)]
    emulator = shutil.which(f"qemu-{architecture}-static") or shutil.which(f"qemu-{architecture}")
    if emulator is None:
        pytest.skip(f"no emulator of {architecture}: qemu-user-static")
    return [emulator, str(path)]


def started(arguments: list[str], child: Callable[[], NoReturn] | None = None) -> int:
    """The program as a process that adopts orphans, as the first process of a pid namespace does."""
    pid = os.fork()
    if pid == 0:
        try:
            ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
            signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGCHLD, signal.SIGTERM])
            if child is not None and os.fork() == 0:
                child()
            os.execv(arguments[0], arguments)
        finally:
            os._exit(1)
    return pid


def until(condition: Callable[[], bool], seconds: float = 10.0) -> bool:
    end = time.monotonic() + seconds
    while not condition() and time.monotonic() < end:
        time.sleep(0.01)
    return condition()


def ended(pid: int) -> bool:
    with contextlib.suppress(ChildProcessError):
        return os.waitpid(pid, os.WNOHANG)[0] == pid
    return True


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_it_reaps_children_and_orphans_and_stays(architecture: str, tmp_path: Path) -> None:
    child_ends, orphan_ends = os.pipe(), os.pipe()

    def leaves_an_orphan() -> NoReturn:
        if os.fork() == 0:
            os.read(orphan_ends[0], 1)
            os._exit(5)
        os.read(child_ends[0], 1)
        os._exit(3)

    pid = started(command(tmp_path / "first", architecture), leaves_an_orphan)
    try:
        assert until(lambda: len(descendants(pid)) == 2), "the child and its child live"
        _, orphan = descendants(pid)
        os.write(child_ends[1], b".")
        assert until(lambda: descendants(pid) == [orphan]), "the child is reaped, and the orphan adopted"
        os.write(orphan_ends[1], b".")
        assert until(lambda: descendants(pid) == []), "the orphan is reaped"
        time.sleep(0.1)
        assert not ended(pid)
    finally:
        os.kill(pid, signal.SIGKILL)
        for descriptor in (*child_ends, *orphan_ends):
            os.close(descriptor)
    _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == -signal.SIGKILL


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_it_waits_without_cpu_time(architecture: str, tmp_path: Path) -> None:
    """A loop that doesn't wait would take the time of the runs."""
    pid = started(command(tmp_path / "first", architecture))
    time.sleep(0.5)
    assert not ended(pid)
    os.kill(pid, signal.SIGKILL)
    _, _, usage = os.wait4(pid, 0)
    assert usage.ru_utime + usage.ru_stime < 0.2


def test_a_machine_without_code_has_no_program() -> None:
    assert first.program("s390x") == b""


def test_the_interpreter_does_the_same_where_there_is_no_program(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(first, "PATH", "/nonexistent")
    monkeypatch.setattr(first.kernel, "drop_capabilities", lambda: None)
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGCHLD])
    try:
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)
        pid = first.start()
        assert not until(lambda: ended(pid), 0.3)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def test_in_a_run_it_has_no_open_file_capability_or_memory_of_the_worker() -> None:
    async def go(sandbox: LocalSandbox) -> dict[str, object]:
        assert sandbox.pool is not None
        (worker,) = sandbox.pool.workers
        before = {*descendants(worker.process.pid)}
        run = asyncio.ensure_future(sandbox.run(Program(code="import time\ntime.sleep(1.5)")))
        seen: dict[str, object] = {}
        for _ in range(300):
            await asyncio.sleep(0.02)
            for pid in {*descendants(worker.process.pid)} - before:
                place = Path(f"/proc/{pid}")
                with contextlib.suppress(OSError):
                    if place.joinpath("comm").read_text() == "first\n":
                        status = place.joinpath("status").read_text()
                        seen = {
                            "files": {os.readlink(link) for link in place.joinpath("fd").iterdir()},
                            "capabilities": [
                                line.split()[1] for line in status.splitlines() if line.startswith("CapEff")
                            ],
                            "mapped": [
                                line.split()[5]
                                for line in place.joinpath("maps").read_text().splitlines()
                                if len(line.split()) > 5
                            ],
                        }
            if seen:
                break
        await run
        return seen

    if not first.program():
        pytest.skip(f"an interpreter is the first process on {HERE}")
    seen = inside(go, namespaces="required")
    if not seen:
        pytest.skip("the processes of another user can't be read")
    assert seen["files"] == {"/dev/null"}, seen
    assert seen["capabilities"] == ["0000000000000000"], seen
    mapped = seen["mapped"]
    assert isinstance(mapped, list) and not any("python" in path or path == "[heap]" for path in mapped), seen
