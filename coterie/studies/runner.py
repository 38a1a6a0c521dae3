"""Runs the jobs of a plan: each in its own process, a few at a time, the longest chains first.

OUT/jobs/<column>-s<seed>-<kind>-<what>-<id>/
    job.json        what to do
    log.txt         what it printed
    run/            of a training: the run's folder      base/   of a common start: the exported weights
    result.json     it is done, and is never run again
"""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event
from typing import Any, Literal, Protocol

from coterie.core.config import read_yaml, to_yaml
from coterie.core.errors import RunFolderError
from coterie.core.storage.atomic import locked, write_atomic
from coterie.studies.graph import Job, Plan, priorities

State = Literal["done", "failed", "skipped", "interrupted"]
ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "TOKENIZERS_PARALLELISM": "false",
}
"""Of a job's process, where the caller's says nothing else: jobs share the cores, and one thread repeats."""
POLL, TELL = 0.05, 2.0
"""Seconds between looks at the processes, and at what they have written."""
TAIL = 65_536
"""Bytes of a metrics file that are read for its last row."""


class Watcher(Protocol):
    """Is told what happens; for progress."""

    def started(self, job: Job, done: int, total: int) -> None: ...

    def told(self, job: Job, share: float, row: Mapping[str, Any]) -> None:
        """A training has come this far of its budget."""

    def ended(self, job: Job, state: State, done: int, total: int) -> None: ...


@dataclass(slots=True)
class Outcome:
    """What became of the jobs."""

    states: dict[str, State] = field(default_factory=dict)
    results: dict[str, dict[str, Any]] = field(default_factory=dict)
    errors: dict[str, str] = field(default_factory=dict)
    """Of failed jobs, and why others were skipped."""
    commands: dict[str, str] = field(default_factory=dict)
    """Of all jobs: the same by hand, from the folder in which the command was given."""
    logs: dict[str, Path] = field(default_factory=dict)
    reused: set[str] = field(default_factory=set)
    """Done before this call."""
    interrupted: bool = False


@dataclass(slots=True)
class _Child:
    job: Job
    process: subprocess.Popen[bytes]
    folder: Path
    told: float = 0.0


class Runner:
    """Runs one plan in one folder."""

    def __init__(
        self,
        plan: Plan,
        out: Path,
        *,
        jobs: int,
        watcher: Watcher,
        interrupt: Event,
        plugin_files: Sequence[str] = (),
    ) -> None:
        self.plan, self.out, self.limit = plan, out.resolve(), jobs
        self.watcher, self.interrupt, self.plugin_files = watcher, interrupt, list(plugin_files)
        self.outcome = Outcome()
        self._children: list[_Child] = []
        self._order = priorities(plan.jobs)

    def run(self) -> Outcome:
        """All jobs; returns when none is left that could be run, or when the interrupted ones have saved.

        Raises:
            RunFolderError: another process works in the folder, or it can't be written.
        """
        try:
            (self.out / "jobs").mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise RunFolderError(
                f"{self.out} can't be written", why=str(error), fix="choose another with --out"
            ) from error
        with locked(self.out, wait=False) as mine:
            if not mine:
                raise RunFolderError(
                    f"another process is working in {self.out}",
                    fix="wait for it or stop it, or choose another folder with --out",
                )
            self._find_done()
            self._follow_move()
            here = str(near(self.out))
            self.outcome.commands = {
                id_: command(self._spec(job), self.folder(id_)).replace(str(self.out), here)
                for id_, job in self.plan.jobs.items()
            }
            try:
                while self._step():
                    time.sleep(POLL)
            finally:
                for child in self._children:  # after an error, or a second Ctrl-C
                    child.process.kill()
                    child.process.wait()
        self.outcome.interrupted = self.interrupt.is_set() and len(self.outcome.states) < len(self.plan.jobs)
        return self.outcome

    def folder(self, id_: str) -> Path:
        """A job's folder; one that another study made for the same job is found by its id."""
        known = next((self.out / "jobs").glob(f"*-{id_}"), None)
        if known is not None:
            return known
        job = self.plan.jobs[id_]
        words = re.sub(r"[^\w.-]+", "-", f"{job.column}-s{job.seed}-{job.kind}-{job.what}".strip("-"))
        return self.out / "jobs" / f"{words}-{id_}"

    # ---- inside --------------------------------------------------------------------------------------------

    def _find_done(self) -> None:
        for id_ in self.plan.jobs:
            if self._collect(id_):
                self.outcome.reused.add(id_)

    def _follow_move(self) -> None:
        """Runs name the folder of their common start: where `out` was moved, tell them the new one."""
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
        """Look at the processes, start what can be; whether anything is left."""
        for child in list(self._children):
            code = child.process.poll()
            if code is not None:
                self._children.remove(child)
                self._ended(child, code)
            elif time.monotonic() - child.told >= TELL:
                child.told = time.monotonic()
                self._tell(child)
        if self.interrupt.is_set():
            for child in self._children:
                _let_go(child.process)
            return bool(self._children)
        for job in self._ready():
            if len(self._children) >= self.limit:
                break
            self._start(job)
        return bool(self._children)

    def _ready(self) -> list[Job]:
        """Jobs that could start now, the longest chain first; what needs a failed one is skipped."""
        states, busy = self.outcome.states, {child.job.id for child in self._children}
        ready: list[Job] = []
        changed = True
        while changed:
            changed, ready = False, []
            for id_, job in self.plan.jobs.items():
                if id_ in states or id_ in busy:
                    continue
                lost = [need for need in job.needs if states.get(need) in ("failed", "skipped")]
                if lost:
                    self.outcome.errors[id_] = f"needs {self.plan.jobs[lost[0]].label}"
                    self._end(job, "skipped")
                    changed = True
                elif all(states.get(need) == "done" for need in job.needs):
                    ready.append(job)
        return sorted(ready, key=lambda job: -self._order[job.id])  # stable: the lower seed first

    def _start(self, job: Job) -> None:
        folder = self.folder(job.id)
        folder.mkdir(exist_ok=True)
        spec = {**self._spec(job), "command": self.outcome.commands[job.id]}
        write_atomic(folder / "job.json", json.dumps(spec, indent=1) + "\n")
        (folder / "error.json").unlink(missing_ok=True)  # an earlier call's
        self._children.append(_Child(job, self._launch(folder), folder))
        self.watcher.started(job, len(self.outcome.states), len(self.plan.jobs))

    def _launch(self, folder: Path) -> subprocess.Popen[bytes]:
        with open(folder / "log.txt", "ab") as log:
            return subprocess.Popen(
                [sys.executable, "-m", "coterie.studies.worker", str(folder / "job.json"), "--with-parent"],
                stdin=subprocess.PIPE,  # its end tells the job that we are gone
                stdout=log,
                stderr=log,
                env={**ENVIRONMENT, **os.environ},
                start_new_session=True,  # Ctrl-C is for us; we tell the jobs
            )

    def _spec(self, job: Job) -> dict[str, Any]:
        """What the process is told, with the folders of the jobs before it."""
        overrides = list(job.overrides)
        if job.base is not None:
            weights = str(self.folder(job.base) / "base")
            overrides = [
                f"{key}={weights}" if value == f"base-{job.base}" else f"{key}={value}"
                for key, _, value in (word.partition("=") for word in overrides)
            ]
        return {
            "id": job.id,
            "kind": job.kind,
            "label": job.label,
            "recipe": job.recipe,
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

    def _tell(self, child: _Child) -> None:
        row = last_row(child.folder / "run" / "metrics.jsonl") if child.job.kind == "train" else None
        if row is not None and child.job.tokens:
            self.watcher.told(child.job, min(1.0, row.get("tokens/total", 0.0) / child.job.tokens), row)

    def _ended(self, child: _Child, code: int) -> None:
        if child.process.stdin is not None:
            child.process.stdin.close()
        job = child.job
        if self._collect(job.id):
            self._end(job, "done")
        elif self.interrupt.is_set() and not (child.folder / "error.json").is_file():
            self.watcher.ended(job, "interrupted", len(self.outcome.states), len(self.plan.jobs))
        else:
            error = child.folder / "error.json"
            said = json.loads(error.read_text(encoding="utf-8"))["error"] if error.is_file() else _died(code)
            self.outcome.errors[job.id] = said
            self.outcome.logs[job.id] = child.folder / "log.txt"
            self._end(job, "failed")

    def _end(self, job: Job, state: State) -> None:
        self.outcome.states[job.id] = state
        self.watcher.ended(job, state, len(self.outcome.states), len(self.plan.jobs))


def near(path: Path) -> Path:
    """A path as one would write it: from the working folder, where it lies in it."""
    here = Path.cwd()
    return path.relative_to(here) if path.is_relative_to(here) else path


def command(spec: Mapping[str, Any], folder: Path) -> str:
    """The same by hand, as shell commands: what they make lies in `runs`, not in the study's own `folder`."""
    scale = ["--scale", spec["scale"]] if spec["scale"] else []
    plugin = [word for file in spec["plugins"] for word in ("-p", file)]
    start = [spec["recipe"], *spec["overrides"], *scale]
    run = str(Path("runs") / folder.name)
    if spec["kind"] == "evaluate":
        words = ["eval", *([spec["run"]] if spec["run"] else start), "--checkpoint", "latest"]
        words += ["--tasks", str(spec["tasks"])]
        words += ["--swap", "=".join(spec["swap"])] if spec["swap"] else []
        words += [w for role, which in spec["policies"].items() for w in ("--policy", f"{role}={which}")]
        return shlex.join(["coterie", *words, *plugin])
    found = shlex.join(["coterie", "run", *start, "--out", run, *plugin])
    if spec["kind"] == "base":
        merge = ["--merge"] if spec["merge"] else []
        words = ["coterie", "export", run, "--policy", spec["policy"], "--out", f"{run}-weights"]
        found += " && " + shlex.join([*words, "--checkpoint", "latest", *merge, *plugin])
    return found


def last_row(path: Path) -> dict[str, Any] | None:
    """The last whole row of a metrics file that is being written."""
    try:
        with open(path, "rb") as file:
            file.seek(max(0, path.stat().st_size - TAIL))
            lines = file.read().split(b"\n")[:-1]
        return dict(json.loads(lines[-1])) if lines else None
    except (OSError, ValueError):
        return None


def _let_go(process: subprocess.Popen[bytes]) -> None:
    if process.stdin is not None and not process.stdin.closed:
        process.stdin.close()


def _died(code: int) -> str:
    return (
        f"its process was killed by signal {-code}"
        if code < 0
        else f"its process ended with exit code {code}"
    )
