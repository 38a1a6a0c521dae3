"""The shared workspace: a program's run on it, the file trail, missing files; what is told of an action."""

from __future__ import annotations

import mmap
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from coterie.core.errors import CoterieError, PolicyFault, SystemFault
from coterie.core.plugins.origin import failure, plugin_call
from coterie.core.protocols import Limits, Program, Ran
from coterie.discovery.members import KeptFiles, Work
from coterie.plugins.envs.common.code import ending
from coterie.plugins.envs.data_science.config import DATA, TEST_DATA, TRAIN_DATA
from coterie.plugins.envs.data_science.state import CompetitionTask, PipelineState, ProgramRun, TrailLine

_DONE = re.compile(r"DONE[.!]?")
_FENCE = re.compile(r"(`{3,})[ \t]*([\w+-]*)")
_PLAIN = re.compile(r"[\w./+@-]+")
"""Paths that are shown as they are; in others a `: ` could end the name."""
_NAMED = 20
"""Files that a sentence names."""
_LISTED = 50
"""Files of the trail in a prompt, beside those that a role has to leave. A policy must not be able to fill
the context of the roles after it."""
_SHOWN, _PROBLEM = 120, 1000
"""Characters of a path and of a problem in a prompt."""
_PATH, _PAGE = 1000, 4096
"""Most bytes of a path that is kept; of a page of the disk."""


@dataclass(frozen=True, slots=True)
class ProgramRunner:
    """Runs programs on workspaces.

    Args:
        sandbox: a KeepsFiles.
        most_mb: of all files that a program leaves, in 2^20 bytes.
        disk_mb: the smallest disk of a role's program, so that a later one has room for what is left.
        most_files: that a program leaves.
        chars: kept of stdout and of stderr.
    """

    sandbox: Any
    most_mb: int
    disk_mb: int
    most_files: int
    chars: int

    async def run(
        self, code: str, task: CompetitionTask, files: KeptFiles, limits: Limits
    ) -> tuple[ProgramRun, KeptFiles]:
        """Run a program; what came of it, and the workspace that it left.

        Raises:
            SystemFault: the sandbox failed, or a table of the task can't be read.
            WriteError: the disk is full.
        """
        inputs = tables(task)
        program = Program(code=code, files=inputs, collect=("**",), limits=limits)
        needed = sum(map(len, inputs.values())) + sum(size for _, _, size in files.files)
        pages = (2 * len(files.files) + 8) * _PAGE + len(code.encode(errors="replace"))
        if needed + pages > limits.disk_mb << 20:
            why = f"the files of the workspace and the task take {needed + pages:,} bytes on a disk of "
            why += f"{limits.disk_mb << 20:,}"
            return ProgramRun(status="unused", problem=why), files
        try:
            with plugin_call(self.sandbox, "run_on"):
                ran, left = await self.sandbox.run_on(program, files, self.room_mb(task))
        except PolicyFault as fault:  # the program killed its sandbox twice
            return ProgramRun(status="killed", problem=str(fault)), files
        except CoterieError:
            raise
        except Exception as error:  # a bug of a sandbox of another package is not the environment's
            raise SystemFault(failure(self.sandbox, "run_on", error)) from error
        refused = self._refused(ran, left)
        return self._described(ran, refused), files if refused else left

    def room_mb(self, task: CompetitionTask) -> int:
        """Most of all files that a program may leave, in 2^20 bytes: the tables and folders need room too."""
        tables = sum(place.stat().st_size for place in task.tables.values() if place.is_file())
        taken = tables + (2 * self.most_files + 8) * _PAGE + (1 << 20)
        return max(1, min(self.most_mb, self.disk_mb - -(-taken >> 20)))

    def _refused(self, ran: Ran, left: KeptFiles) -> str:
        """Why no change that a program made is kept; empty: they are."""
        if ran.status in ("timeout", "killed"):
            return "no change of its files was kept"  # how far it came depends on the machine
        reason = ""
        for path, _, _ in left.files:
            if path == DATA or path.startswith((f"{TRAIN_DATA}/", f"{TEST_DATA}/")):
                reason = f"it put {_name(path)} in the place of the task's tables"
            elif len(path.encode()) > _PATH:
                reason = f"the path {_name(path)} has more than {_PATH} bytes"
        if len(left.files) > self.most_files:
            reason = f"it left {len(left.files):,} files, and at most {self.most_files} are kept"
        return f"{reason}: so no change of its files was kept" if reason else ""

    def _described(self, ran: Ran, more: str) -> ProgramRun:
        steady = ran.status in ("finished", "failed")  # else its output depends on the machine's speed
        reason = ran.reason if ran.reason or ran.ok else ran.status
        dropped = f"{ran.dropped:,} bytes of output were not kept" if ran.dropped and steady else ""
        problem = "; ".join(filter(None, [reason, more, dropped]))
        return ProgramRun(
            status=ran.status,
            stdout=ending(ran.stdout, self.chars) if steady else "",
            stderr=ending(ran.stderr, self.chars) if steady else "",
            problem=problem if len(problem) <= _PROBLEM else f"{problem[:_PROBLEM]} [...]",
        )


def tables(task: CompetitionTask) -> Mapping[str, bytes | memoryview]:
    """The task's tables by path in the workspace, read from the disk where they are looked at.

    Raises:
        SystemFault: one is gone.
    """
    return {path: _mapped(place) for path, place in task.tables.items()}


def _mapped(place: Path) -> bytes | memoryview:
    try:
        with place.open("rb") as file:
            if place.stat().st_size == 0:
                return b""
            return memoryview(mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ))
    except OSError as error:
        raise SystemFault(f"the task's table {place} can't be read: {error.strerror}") from error


def hands_over(text: str) -> bool:
    """Whether a message says `DONE` on a line of its own, outside its blocks of code."""
    fence = ""
    for line in map(str.strip, text.split("\n")):
        match = _FENCE.fullmatch(line)
        if fence:
            closes = match is not None and not match[2] and len(match[1]) >= len(fence)
            fence = "" if closes else fence
        elif match is not None:
            fence = match[1]
        elif _DONE.fullmatch(line):
            return True
    return False


def changes(before: KeptFiles, after: KeptFiles, role: str, turn: int) -> tuple[TrailLine, ...]:
    """What an action changed of the workspace."""
    old = {path: name for path, name, _ in before.files}
    new = {path for path, _, _ in after.files}
    made = [
        TrailLine(path=path, role=role, turn=turn, what="changed" if path in old else "wrote", size=size)
        for path, name, size in after.files
        if old.get(path) != name
    ]
    gone = [
        TrailLine(path=path, role=role, turn=turn, what="removed") for path in sorted(old) if path not in new
    ]
    return (*made, *gone)


def missing(files: KeptFiles, required: Sequence[str]) -> tuple[str, ...]:
    """Required files that are not there, or empty."""
    there = {path for path, _, size in files.files if size}
    return tuple(path for path in required if path not in there)


def writer(trail: Sequence[TrailLine], path: str) -> TrailLine | None:
    """The last change of a file; None: nobody wrote it."""
    return next((change for change in reversed(trail) if change.path == path), None)


def file_lines(
    files: KeptFiles,
    trail: Sequence[TrailLine],
    required: Sequence[str],
    lacking: Mapping[str, Sequence[str]],
) -> tuple[str, ...]:
    """The file trail in words: a line for each file, then for each missing one.

    Args:
        required: files that roles have to leave, which are listed first.
        lacking: by role, the missing files that it was to write.
    """
    lines = []
    first = set(required)
    ordered = sorted(files.files, key=lambda entry: (entry[0] not in first, entry[0]))
    most = len(first) + _LISTED
    for path, _, size in ordered[:most]:
        made = [change for change in trail if change.path == path]
        wrote = next((change for change in reversed(made) if change.what == "wrote"), made[0])
        line = f"{_name(path)}: {size:,} bytes, written by {wrote.role} in its turn {wrote.turn}"
        if made[-1].what == "changed":
            line += f", last changed by {made[-1].role} in its turn {made[-1].turn}"
        lines.append(line)
    if len(ordered) > most:
        lines.append(f"and {len(ordered) - most} more files")
    lines += [missing_line(files, trail, role, path) for role, paths in lacking.items() for path in paths]
    return tuple(lines)


def missing_line(files: KeptFiles, trail: Sequence[TrailLine], role: str, path: str) -> str:
    """What is wrong with a missing file, and whose it is."""
    last = writer(trail, path)
    if any(known == path for known, _, _ in files.files):
        by = f", by {last.role} in its turn {last.turn}" if last else ""
        return f"{path}: empty{by}; {role} was to write it"
    if last is not None and last.what == "removed":
        return f"{path}: missing, removed by {last.role} in its turn {last.turn}; {role} was to write it"
    return f"{path}: missing; {role} was to write it and has not"


def listed(paths: Sequence[str]) -> str:
    """Paths in a sentence."""
    more = f" and {len(paths) - _NAMED} more" if len(paths) > _NAMED else ""
    return ", ".join(paths[:_NAMED]) + more


def _name(path: str) -> str:
    """A path in a prompt: a policy chose it, so it is on one line and short."""
    shown = path if _PLAIN.fullmatch(path) else ascii(path)
    return shown if len(shown) <= _SHOWN else f"{shown[:_SHOWN]}[...]"


def last_action(state: PipelineState, role: str, missing: Sequence[str]) -> str:
    """Sentences for a role; empty before its first action.

    Args:
        missing: files that the role has to leave and has not.
    """
    mine = next((entry for entry in reversed(state.transcript) if entry.role == role), None)
    if mine is None:
        return ""
    sentences = [f"In your last message {mine.note}."] if mine.note else []
    if mine.run is not None and not mine.run.ok:
        sentences.append(f"Your last program did not finish: {mine.run.problem or mine.run.status}.")
    if missing:
        sentences.append(f"Missing of the files that you have to leave: {listed(missing)}.")
    return " ".join(sentences)


def work_of(role: str, info: Mapping[str, Any]) -> Work:
    """What came of an action, from what `step` says of it."""
    mine = info.get(role, {})
    return Work(
        output=_run_text(mine["run"]) if mine.get("run") else "",
        files="\n".join(mine.get("files", ())),
        outcome=_outcome_text(info["outcome"]) if info.get("outcome") else "",
    )


def _run_text(run: Mapping[str, Any]) -> str:
    problem = f" ({run['problem']})" if run["problem"] else ""
    parts = [f"status: {run['status']}{problem}"]
    parts += [f"{name}:\n{run[name].rstrip()}" for name in ("stdout", "stderr") if run[name].strip()]
    return "\n".join(parts)


def _outcome_text(ended: Mapping[str, Any]) -> str:
    metric = f"{ended['metric']}, {ended['direction']} is better"
    if ended["why"]:
        return f"no valid submission: {ended['why']} (metric: {metric})"
    quality = "" if ended["quality"] is None else f", quality {ended['quality']:.4g}"
    return f"a valid submission: {ended['value']:.6g} ({metric}{quality})"
