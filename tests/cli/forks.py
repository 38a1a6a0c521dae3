"""Processes of their own that needn't import coterie: forks of one that has it, and did nothing else.

An interpreter that imports what a run imports takes most of a second, a fork a hundredth of that.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping
from functools import cache
from pathlib import Path

IMPORTED = (
    *("coterie.cli.main", "coterie.cli.guard", "coterie.cli.progress", "coterie.cli.terminal"),
    *("coterie.cli.commands.config", "coterie.cli.commands.run", "coterie.api.train", "coterie.api.evaluate"),
    *("coterie.builtin", "coterie.estimate.plan", "coterie.analysis.diagnosis.run", "numpy.random"),
    *("coterie.backends.engines.tabular", "coterie.backends.trainers.tabular", "coterie.backends.executors"),
    *("coterie.backends.trackers.jsonl", "coterie.backends.chat_formats.formats"),
    *("coterie.plugins.envs.plan_path", "coterie.plugins.samplers.tree", "coterie.plugins.losses.ppo_clip"),
    *("coterie.plugins.algos.at_grpo", "coterie.plugins.rewards.environment", "coterie.plugins.transitions"),
    *("coterie.testing", "pytest"),
)
"""What is there already in each process; none of them imports a model's libraries."""
PARENT = """
import importlib, json, os, socket, sys, types

for name in sys.argv[2:]:
    importlib.import_module(name)
link = socket.socket(fileno=int(sys.argv[1]))
while True:
    asked, files, *_ = socket.recv_fds(link, 65536, 2)
    while asked and not asked.endswith(b"\\n"):
        asked += link.recv(65536)
    if not asked:
        os._exit(0)
    if not (child := os.fork()):
        break
    for file in files:
        os.close(file)
    link.sendall(f"{child}\\n".encode())
    link.sendall(f"{os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])}\\n".encode())
link.close()
sys.dont_write_bytecode = True  # a test may rewrite its modules within a second
for number, file in enumerate(files, 1):
    os.dup2(file, number)
    os.close(file)
script, sys.argv[1:], folder, environment = json.loads(asked)
os.chdir(folder)
os.environ.clear()
os.environ.update(environment)
folders = environment.get("PYTHONPATH", "").split(os.pathsep)
sys.path[1:1] = [each for each in folders if each and each not in sys.path]
sys.modules["__main__"] = types.ModuleType("__main__")
exec(compile(script, "<string>", "exec"), vars(sys.modules["__main__"]))
"""
"""Forks once for each line that is sent to it; ends when this process does."""


class Parent:
    """The process that forks: one call at a time."""

    def __init__(self) -> None:
        self.link, theirs = socket.socketpair()
        self.process = subprocess.Popen(
            [sys.executable, "-c", PARENT, str(theirs.fileno()), *IMPORTED],
            stdin=subprocess.DEVNULL,
            pass_fds=[theirs.fileno()],
        )
        theirs.close()
        self.answers = self.link.makefile()

    def run(
        self, script: str, arguments: list[str], environment: dict[str, str], timeout: float
    ) -> subprocess.CompletedProcess[str]:
        """What `subprocess.run` returns of `python -c script arguments`, its output as text."""
        out, err = os.pipe(), os.pipe()
        asked = json.dumps([script, arguments, str(Path.cwd()), environment]) + "\n"
        socket.send_fds(self.link, [asked.encode()], [out[1], err[1]])
        os.close(out[1])
        os.close(err[1])
        child = int(self.answers.readline())
        late = threading.Timer(timeout, os.kill, (child, signal.SIGKILL))
        late.start()
        told: dict[int, str] = {}
        readers = [threading.Thread(target=_read, args=(each[0], told)) for each in (out, err)]
        for reader in readers:
            reader.start()
        code = int(self.answers.readline())
        late.cancel()
        for reader in readers:
            reader.join()
        return subprocess.CompletedProcess(arguments, code, told[out[0]], told[err[0]])


def _read(file: int, told: dict[int, str]) -> None:
    with open(file) as stream:
        told[file] = stream.read()


@cache
def parent() -> Parent:
    """The one of this process, which is started when it is first needed."""
    return Parent()


def python(
    script: str, *arguments: str, timeout: float = 120, environment: Mapping[str, str] = os.environ
) -> subprocess.CompletedProcess[str]:
    """Run `python -c script arguments` in a process of its own; on Linux coterie is imported there."""
    if sys.platform == "linux":
        return parent().run(script, [*arguments], dict(environment), timeout)
    return subprocess.run(
        [sys.executable, "-c", script, *arguments],
        capture_output=True, text=True, timeout=timeout, env=environment,
    )  # fmt: skip
