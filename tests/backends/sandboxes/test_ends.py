"""The end of a run with namespaces on a host without a filter: the parent waits for nothing that never comes.

The parent's part (alone.py) runs here on processes that no filter refuses anything. The first process is an
interpreter, as on machines without code of their own (first.py).
"""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from coterie.backends.sandboxes import fusion_wrapper
from tests.backends.sandboxes.support import ran

SCRIPT = """\
import ctypes, json, os, select, signal, socket, sys, time
from coterie.backends.sandboxes.inside import alone, first, kernel
libc = ctypes.CDLL(None, use_errno=True)
number = {'x86_64': 56, 'aarch64': 220}[os.uname().machine]

def sibling(more=0):  # clone(CLONE_PARENT)
    return libc.syscall(ctypes.c_long(number), ctypes.c_ulong(0x8000 | more), None, None, None, None)

def burn(seconds):
    while time.process_time() < seconds: pass

def run(code, seconds):
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGCHLD])
    here = os.pidfd_open(os.getpid())
    ours, theirs = socket.socketpair()
    control, _host = socket.socketpair()
    kernel.unshare(kernel.NEWPID)
    reaper = first.start()
    pid = kernel.fork()
    if pid == 0:
        try:
            exec(code, globals())
        finally:
            os._exit(3)
    kernel.setns(here, kernel.NEWPID)
    theirs.close()
    watched = alone._Run(pid, reaper, {'cpu': 5.0}, ours, -1, here, (-1, -1))
    result = watched.watch(control, time.monotonic() + seconds)
    try:
        os.waitpid(-1, os.WNOHANG)
        result['left'] = True
    except ChildProcessError:
        result['left'] = False
    print(json.dumps([code, result]), flush=True)

def tried(code, seconds):
    kernel.unshare(kernel.NEWUSER | kernel.NEWPID)
    parent = kernel.fork()
    if parent == 0:
        run(code, seconds)
        os._exit(0)
    if not select.select([os.pidfd_open(parent)], [], [], 60)[0]:
        os.kill(parent, signal.SIGKILL)

for code, seconds in json.loads(sys.argv[1]).items():
    pid = os.fork()
    if pid == 0:
        try:
            tried(code, seconds)
        except OSError:
            print(json.dumps([code, {'namespaces': False}]), flush=True)
        finally:
            os._exit(0)
    os.waitpid(pid, 0)
"""

ENDS = {
    "a sibling that has ended": "sibling() or os._exit(0)",
    "a sibling that lives on": "sibling() or time.sleep(1e6)",
    "a sibling that is stopped": "sibling() or os.kill(os.getpid(), signal.SIGSTOP)",
    "many siblings": "[sibling() or os._exit(0) for _ in range(30)]",
    "a sibling of a sibling": "sibling() or (os.setsid(), sibling() or os._exit(0), os._exit(0))",
    "a sibling of a child": "os.fork() or (sibling() or os._exit(0), time.sleep(1e6))",
    "a sibling that the parent traces": (
        "sibling() or (libc.ptrace(0, 0, 0, 0), os.kill(os.getpid(), signal.SIGSTOP))"
    ),
    "namespaces of its own": "libc.unshare(0x30000000) == 0 and (os.fork() or time.sleep(1e6))",
    "a sibling, and SIGCHLD is ignored": (
        "signal.signal(signal.SIGCHLD, signal.SIG_IGN); sibling() or os._exit(0)"
    ),
}
WAITS = {
    "it waits for a sibling": "sibling(0x4000) or time.sleep(1e6)",  # CLONE_VFORK
    "it waits, and a sibling has ended": "sibling() or os._exit(0); time.sleep(1e6)",
    "it stops, and the parent traces it": "libc.ptrace(0, 0, 0, 0); os.kill(os.getpid(), signal.SIGSTOP)",
}
WORKS = "r, w = os.pipe(); sibling() or (burn(.3), os._exit(0)); os.close(w); os.read(r, 1)"


@functools.cache
def _results() -> dict[str, Any]:
    walls = dict.fromkeys([*ENDS.values(), WORKS], 40) | dict.fromkeys(WAITS.values(), 1)
    done = subprocess.run([sys.executable, "-c", SCRIPT, json.dumps(walls)], capture_output=True, text=True)
    return dict(json.loads(line) for line in done.stdout.splitlines())


def result_of(program: str) -> dict[str, Any]:
    result: dict[str, Any] = _results().get(program, {})
    if not result.get("namespaces", True):
        pytest.skip("this host forbids namespaces")
    return result


@pytest.mark.parametrize("name", ENDS)
def test_a_run_ends_with_its_program_and_leaves_its_parent_no_child(name: str) -> None:
    result = result_of(ENDS[name])
    assert (result.get("exit"), result.get("why"), result.get("left")) == (3, "", False), result


@pytest.mark.parametrize("name", WAITS)
def test_a_program_that_waits_ends_at_its_wall_limit(name: str) -> None:
    result = result_of(WAITS[name])
    assert (result.get("signal"), result.get("why"), result.get("left")) == (9, "wall", False), result


def test_the_time_of_siblings_is_the_program_s() -> None:
    result = result_of(WORKS)
    assert result.get("left") is False and result["cpu"] >= 0.25, result


# -------------------------------------------------------------------------------------- files, after the end


@pytest.mark.parametrize("namespaces", ["auto", "off"])
def test_files_are_those_of_the_working_folder_wherever_a_program_moves_it(namespaces: str) -> None:
    code = (
        "import os\ntop = os.path.dirname(os.getcwd())\nopen('kept', 'w').write('x')\n"
        "os.rename(f'{top}/work', f'{top}/moved')\nos.symlink('/etc', f'{top}/work')"
    )
    done = ran(code, {"namespaces": namespaces}, collect=("*",))
    assert (done.status, done.files) == ("finished", {"kept": b"x"}), done


@pytest.mark.parametrize("namespaces", ["auto", "off"])
def test_a_working_folder_that_is_closed_is_named(namespaces: str) -> None:
    code = "import os\nopen('kept', 'w').write('x')\nos.chmod('.', 0)"
    done = ran(code, {"namespaces": namespaces}, collect=("*",))
    assert (done.status, done.files) == ("finished", {}) and "not readable" in done.reason, done


def test_a_server_s_wrapper_follows_no_link_in_place_of_the_folder(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "a.txt").write_text("x")
    os.chmod(tmp_path / "elsewhere" / "a.txt", 0o400)
    box = tmp_path / "box"
    box.mkdir()
    (box / "work").symlink_to(tmp_path / "elsewhere")
    assert fusion_wrapper.collect(str(box / "work"), ["*"], 1 << 20) == ({}, 0)
    fusion_wrapper.clear(str(box))
    assert [*box.iterdir()] == []
    assert os.stat(tmp_path / "elsewhere" / "a.txt").st_mode & 0o777 == 0o400
