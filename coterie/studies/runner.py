"""The runner of a plan: each job in its own process, a few at a time, the longest chains first.

OUT/jobs/<column>-s<seed>-<kind>-<subject>-<id>/
    job.json        the job's specification
    log.txt         its output
    run/            of a training: the run directory
    base/           of common initial weights: the exported weights
    result.json     its result; a job that has one is never run again
"""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event
from typing import Any, Literal, Protocol

from coterie import RunFolderError, WriteError, locked, read_yaml, to_yaml, write_atomic
from coterie.studies.graph import Job, StudyPlan, priorities

State = Literal["done", "failed", "skipped", "interrupted"]
ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "TOKENIZERS_PARALLELISM": "false",
}
"""Default environment of a job's process: jobs share the cores, and one thread makes results repeatable."""
POLL_SECONDS, PROGRESS_SECONDS = 0.05, 2.0
"""Seconds between checks of the processes, and between reports of a training's progress."""
TAIL = 65_536
"""Bytes that are read from the end of a metrics file to find its last row."""


class Watcher(Protocol):
    """Progress callbacks; `done` and `total` count jobs."""

    def started(self, job: Job, done: int, total: int) -> None:
        """A job's process has started."""

    def progressed(self, job: Job, share: float, row: Mapping[str, Any]) -> None:
        """A training has spent this share of its budget; `row` is its last row of metrics."""

    def ended(self, job: Job, state: State, done: int, total: int) -> None:
        """A job was done, failed, was skipped or was interrupted."""


@dataclass(slots=True)
class StudyOutcome:
    """The states and results of all jobs."""

    states: dict[str, State] = field(default_factory=dict)
    results: dict[str, dict[str, Any]] = field(default_factory=dict)
    errors: dict[str, str] = field(default_factory=dict)
    """The error of each failed job, and the reason of each skipped one."""
    commands: dict[str, str] = field(default_factory=dict)
    """For every job: the shell command that does the same, from the present working directory."""
    logs: dict[str, Path] = field(default_factory=dict)
    reused: set[str] = field(default_factory=set)
    """Jobs that were done before this call."""
    interrupted: bool = False


@dataclass(slots=True)
class _JobProcess:
    job: Job
    process: subprocess.Popen[bytes]
    folder: Path
    reported_at: float = 0.0
    """Monotonic seconds of the last progress report."""


class Runner:
    """Runs one plan in one folder, of which it is the only runner at a time."""

    def __init__(
        self,
        plan: StudyPlan,
        out: Path,
        *,
        jobs: int,
        watcher: Watcher,
        interrupt: Event,
        plugin_files: Sequence[str] = (),
    ) -> None:
        self.plan, self.out, self.limit = plan, out.resolve(), jobs
        self.watcher, self.interrupt, self.plugin_files = watcher, interrupt, list(plugin_files)
        self.outcome = StudyOutcome()
        self._children: list[_JobProcess] = []
        self._order = priorities(plan.jobs)

    def run(self) -> StudyOutcome:
        """Run all jobs; return when none can run any more, or when the interrupted ones have saved.

        Raises:
            RunFolderError: another process works in the folder, or it can't be written.
        """
        try:
            (self.out / "jobs").mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise RunFolderError(
                f"{self.out} can't be written", why=str(error), fix="choose another with --out"
            ) from error
        with locked(self.out, wait=False) as acquired:
            if not acquired:
                raise RunFolderError(
                    f"another process is working in {self.out}",
                    fix="wait for it or stop it, or choose another folder with --out",
                )
            self._find_done()
            self._update_base_paths()
            out = str(display_path(self.out))
            self.outcome.commands = {
                id_: command(self.spec(job), self.folder(id_)).replace(str(self.out), out)
                for id_, job in self.plan.jobs.items()
            }
            try:
                while self._step():
                    time.sleep(POLL_SECONDS)
            finally:
                for child in self._children:  # after an error, or a second Ctrl-C
                    os.killpg(child.process.pid, signal.SIGKILL)  # with its ranks and tools
                    child.process.wait()
        self.outcome.interrupted = self.interrupt.is_set() and len(self.outcome.states) < len(self.plan.jobs)
        return self.outcome

    def folder(self, id_: str) -> Path:
        """A job's folder; its name ends in the id, by which another study in the same folder finds it."""
        known = next((self.out / "jobs").glob(f"*-{id_}"), None)
        if known is not None:
            return known
        job = self.plan.jobs[id_]
        name = f"{job.column}-s{job.seed}-{job.kind}-{job.subject}".strip("-")
        return self.out / "jobs" / (re.sub(r"[^\w.-]+", "-", name) + f"-{id_}")

    # ---- inside --------------------------------------------------------------------------------------------

    def _find_done(self) -> None:
        for id_ in self.plan.jobs:
            if self._collect(id_):
                self.outcome.reused.add(id_)

    def _update_base_paths(self) -> None:
        """Rewrite the path of the initial weights in the runs' configurations, in case `out` was moved."""
        for id_, job in self.plan.jobs.items():
            file = self.folder(id_) / "run" / "config.yaml"
            if job.base is None or not file.is_file():
                continue
            weights, table = str(self.folder(job.base) / "base"), read_yaml(file)
            if any(policy["model"] != weights for policy in table["policies"].values()):
                for policy in table["policies"].values():
                    policy["model"] = weights
                write_atomic(file, to_yaml(table))

    def _collect(self, id_: str) -> bool:
        path = self.folder(id_) / "result.json"
        if not path.is_file():
            return False
        self.outcome.results[id_] = json.loads(path.read_text(encoding="utf-8"))
        self.outcome.states[id_] = "done"
        return True

    def _step(self) -> bool:
        """Collect ended processes and start ready jobs; return whether any process is running."""
        for child in list(self._children):
            code = child.process.poll()
            if code is not None:
                self._children.remove(child)
                self._ended(child, code)
            elif time.monotonic() - child.reported_at >= PROGRESS_SECONDS:
                child.reported_at = time.monotonic()
                self._report_progress(child)
        if self.interrupt.is_set():
            for child in self._children:
                _close_stdin(child.process)
            return bool(self._children)
        for job in self._ready():
            if len(self._children) >= self.limit:
                break
            self._start(job)
        return bool(self._children)

    def _ready(self) -> list[Job]:
        """Jobs that can start now, the longest chain first; jobs that need a failed one become skipped."""
        states, busy = self.outcome.states, {child.job.id for child in self._children}
        ready: list[Job] = []
        changed = True
        while changed:
            changed, ready = False, []
            for id_, job in self.plan.jobs.items():
                if id_ in states or id_ in busy:
                    continue
                failed = [need for need in job.needs if states.get(need) in ("failed", "skipped")]
                if failed:
                    self.outcome.errors[id_] = f"needs {self.plan.jobs[failed[0]].label}"
                    self._end(job, "skipped")
                    changed = True
                elif all(states.get(need) == "done" for need in job.needs):
                    ready.append(job)
        return sorted(ready, key=lambda job: -self._order[job.id])  # stable sort: lower seeds first

    def _start(self, job: Job) -> None:
        folder = self.folder(job.id)
        spec = {**self.spec(job), "command": self.outcome.commands[job.id]}
        make_folder(folder)
        write_atomic(folder / "job.json", json.dumps(spec, indent=1) + "\n")
        (folder / "error.json").unlink(missing_ok=True)  # of an earlier call
        self._children.append(_JobProcess(job, self.launch(folder), folder))
        self.watcher.started(job, len(self.outcome.states), len(self.plan.jobs))

    def launch(self, folder: Path) -> subprocess.Popen[bytes]:
        """Start the process of the job whose `job.json` is in a folder."""
        with open(folder / "log.txt", "ab") as file:
            log: Any = 2 if verbose() else file  # standard error: the table is for the output
            return subprocess.Popen(
                [sys.executable, "-m", "coterie.studies.worker", str(folder / "job.json"), "--with-parent"],
                stdin=subprocess.PIPE,  # the job ends when this pipe closes
                stdout=log,
                stderr=log,
                env={**ENVIRONMENT, **os.environ},
                start_new_session=True,  # Ctrl-C reaches the runner only, which then stops the jobs
            )

    def spec(self, job: Job) -> dict[str, Any]:
        """The contents of `job.json`, with the absolute folders of the jobs that it needs."""
        overrides = list(job.overrides)
        if job.base is not None:
            weights = str(self.folder(job.base) / "base")
            overrides = [
                f"{key}={weights}" if value == f"base-{job.base}" else f"{key}={value}"
                for key, _, value in (override.partition("=") for override in overrides)
            ]
        return {
            "id": job.id,
            "kind": job.kind,
            "label": job.label,
            "recipe": job.recipe,
            "overlays": job.overlays,
            "scale": job.scale,
            "overrides": overrides,
            "base": str(self.folder(job.base)) if job.base else None,
            "policy": job.policy,
            "merge": job.merge,
            "run": str(self.folder(job.run) / "run") if job.run else None,
            "swap": job.swap,
            "policies": {role: f"{self.folder(run) / 'run'}@latest" for role, run in job.policies.items()},
            "tasks": job.tasks,
            "tokens": job.tokens,
            "plugins": self.plugin_files,
        }

    def _report_progress(self, child: _JobProcess) -> None:
        row = last_row(child.folder / "run" / "metrics.jsonl") if child.job.kind == "train" else None
        if row is not None and child.job.tokens:
            self.watcher.progressed(child.job, min(1.0, row.get("tokens/total", 0.0) / child.job.tokens), row)

    def _ended(self, child: _JobProcess, code: int) -> None:
        if child.process.stdin is not None:
            child.process.stdin.close()
        job = child.job
        if self._collect(job.id):
            self._end(job, "done")
        elif self.interrupt.is_set() and not (child.folder / "error.json").is_file():
            self.watcher.ended(job, "interrupted", len(self.outcome.states), len(self.plan.jobs))
        else:
            file = child.folder / "error.json"
            written = json.loads(file.read_text(encoding="utf-8"))["error"] if file.is_file() else None
            self.outcome.errors[job.id] = written or _exit_reason(code)
            if not verbose():
                self.outcome.logs[job.id] = child.folder / "log.txt"
            self._end(job, "failed")

    def _end(self, job: Job, state: State) -> None:
        self.outcome.states[job.id] = state
        self.watcher.ended(job, state, len(self.outcome.states), len(self.plan.jobs))


def verbose() -> bool:
    """Whether all output stays on the terminal (`coterie --verbose`)."""
    return os.environ.get("COTERIE_VERBOSE") == "1"


def make_folder(folder: Path) -> None:
    """Make a folder, and those around it, where there is none.

    Raises:
        WriteError: e.g. the disk is full.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise WriteError(f"{folder} can't be written", why=str(error)) from error


def display_path(path: Path) -> Path:
    """The path relative to the working directory if it is below it, otherwise unchanged."""
    working = Path.cwd()
    return path.relative_to(working) if path.is_relative_to(working) else path


def command(spec: Mapping[str, Any], folder: Path) -> str:
    """The shell commands that do the same as a job; they write to `runs`, not to the study's own `folder`."""
    scale = ["--scale", spec["scale"]] if spec["scale"] else []
    plugins = [word for file in spec["plugins"] for word in ("-p", file)]
    overlays = ["--with", ",".join(spec["overlays"])] if spec["overlays"] else []
    start = [spec["recipe"], *spec["overrides"], *overlays, *scale]
    run = str(Path("runs") / folder.name)
    if spec["kind"] == "evaluate":
        of = [spec["run"], *spec["overrides"]] if spec["run"] else start
        arguments = ["eval", *of, "--checkpoint", "latest"]
        arguments += ["--tasks", str(spec["tasks"])]
        arguments += ["--swap", "=".join(spec["swap"])] if spec["swap"] else []
        for role, policy in spec["policies"].items():
            arguments += ["--policy", f"{role}={policy}"]
        return shlex.join(["coterie", *arguments, *plugins])
    commands = shlex.join(["coterie", "run", *start, "--out", run, *plugins])
    if spec["kind"] == "base":
        merge = ["--merge"] if spec["merge"] else []
        arguments = ["export", run, "--policy", spec["policy"], "--out", f"{run}-weights"]
        commands += " && " + shlex.join(["coterie", *arguments, "--checkpoint", "latest", *merge, *plugins])
    return commands


def last_row(path: Path) -> dict[str, Any] | None:
    """The last complete row of a metrics file that another process is writing; None: there is none yet."""
    try:
        with open(path, "rb") as file:
            file.seek(max(0, path.stat().st_size - TAIL))
            lines = file.read().split(b"\n")[:-1]
        return dict(json.loads(lines[-1])) if lines else None
    except (OSError, ValueError):
        return None


def _close_stdin(process: subprocess.Popen[bytes]) -> None:
    if process.stdin is not None and not process.stdin.closed:
        process.stdin.close()


def _exit_reason(code: int) -> str:
    if code < 0:
        return f"its process was killed by signal {-code}"
    return f"its process ended with exit code {code}"
