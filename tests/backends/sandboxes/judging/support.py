"""The judge in the wrapper of sandbox_fusion, in a fork of a process that has its imports."""

from __future__ import annotations

import base64
import functools
import json
import secrets
import select
import subprocess
import sys
import tempfile
from pathlib import Path

from coterie.backends.sandboxes import fusion_wire as wire
from coterie.backends.sandboxes.judging.host import programs, verdict
from coterie.core.protocols import Judged, Limits, Verdict

_FORKS = """
import base64, contextlib, ctypes, errno, fnmatch, functools, json, math, os, random, resource, select
import selectors, signal, socket, stat, struct, subprocess, sys, time, traceback, typing
ready = functools.cache(compile)
for name, source in json.loads(sys.stdin.readline()):
    ready(source, name.replace(".", "/") + ".py", "exec", dont_inherit=True)
for folder in sys.stdin:
    folder = folder.strip()
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            os.setsid()
            os.chdir(folder)
            for number, name in enumerate(("/dev/null", "../stdout", "../stderr")):
                os.dup2(os.open(name, os.O_RDWR | os.O_CREAT), number)
            names = {"__name__": "__main__", "__file__": folder + "/wrapper.py", "compile": ready}
            try:
                exec(open("wrapper.py").read(), names)
                code = 0
            except SystemExit as error:
                code = error.code or 0
            except BaseException:
                traceback.print_exc()
            sys.stdout.flush()
            sys.stderr.flush()
        finally:
            os._exit(code)
    print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
"""
"""Serves folders, one a line, and prints the wrapper's exit codes: most of a short run would be imports."""
LIMITS = Limits(cpu_seconds=1, wall_seconds=3, memory_mb=1024)


def judged(candidate: str, tests: str, *calls: str, limits: Limits = LIMITS, **fields) -> Judged:
    return Judged(candidate=candidate, tests=tests, calls=calls or ("f",), limits=limits, **fields)


@functools.cache
def _forks() -> subprocess.Popen[str]:
    process = subprocess.Popen([sys.executable, "-c", _FORKS], stdin=-1, stdout=-1, text=True, bufsize=1)
    assert process.stdin
    process.stdin.write(json.dumps(wire.sources()) + "\n")
    return process  # it ends with this process, which holds its stdin


def _wrapper_in(folder: Path) -> int:
    """The exit code of the folder's wrapper."""
    process = _forks()
    assert process.stdin and process.stdout
    process.stdin.write(f"{folder}\n")
    assert select.select([process.stdout], [], [], 60)[0], "the wrapper does not end"
    return int(process.stdout.readline())


def by_pair(case: Judged) -> Verdict:
    """The verdict of two connected programs."""
    limits, nonce = case.limits or LIMITS, secrets.token_hex(16)
    body = wire.request(wire.pair(*programs(case, limits)), limits, 5.0, nonce)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name:
        folder = Path(name) / "run"  # the wrapper empties it
        folder.mkdir()
        for path, text in body["files"].items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_bytes(base64.b64decode(text))
        (folder / "wrapper.py").write_text(body["code"], encoding="utf-8")
        code = _wrapper_in(folder)
        stdout, stderr = ((folder.parent / stream).read_text() for stream in ("stdout", "stderr"))
        files = {
            path: base64.b64encode((folder / path).read_bytes()).decode()
            for path in body["fetch_files"]
            if (folder / path).exists()
        }
    command = wire.Command(status="Finished", return_code=code, stdout=stdout, stderr=stderr)
    reply = wire.Reply(status="Success", run_result=command, files=files)
    report = wire.reported(reply, nonce, body["fetch_files"][0])
    assert isinstance(report, wire.WrapperReport)
    return verdict(base64.b64decode(report.written), *report.ran)
