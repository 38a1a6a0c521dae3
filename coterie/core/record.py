"""What a run writes down: its folder, one row of metrics a step, and every rollout as rows.

    <run>/config.yaml                  written last when the folder is made: with it, the folder is a run
         /metrics.jsonl                one row a step
         /rollouts/step-000040.jsonl   rows of kind node, branch and joint
         /checkpoints/                 see `coterie.core.checkpoint`
         /eval/                        evaluations

All of it is plain JSON: numbers that are not finite are null, floats are written exactly (`repr`).
"""

from __future__ import annotations

import json
import logging
import math
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from coterie.core.checkpoint import Checkpoint, CheckpointStore, locked, sync_folder, write_atomic
from coterie.core.errors import RunFolderError
from coterie.core.rollouts import rollout_rows as rollout_rows
from coterie.core.summary import step_metrics as step_metrics

log = logging.getLogger("coterie")


@dataclass(frozen=True, slots=True)
class RunFolder:
    """Where one run keeps everything."""

    path: Path

    @classmethod
    def create(cls, path: Path, config_text: str) -> RunFolder:
        """Make the folder of a new run.

        Raises:
            RunFolderError: it holds a run already, or can't be written.
        """
        folder = cls(path)
        try:
            if folder.config.exists() or folder.metrics.exists():
                raise RunFolderError(
                    f"{path} holds a run already",
                    why="a new run would mix its rows with the old one's",
                    mend=f"go on with it (`coterie run --resume {path}`), or choose another folder",
                )
            for sub in (folder.rollouts, folder.checkpoints, folder.eval):
                sub.mkdir(parents=True, exist_ok=True)
            write_atomic(folder.config, config_text)
        except OSError as error:
            raise RunFolderError(
                f"the run folder {path} can't be written",
                why=str(error),
                mend="choose another folder, or mend its permissions or the disk's space",
            ) from error
        return folder

    @classmethod
    def open(cls, path: Path) -> RunFolder:
        """The folder of a run that exists.

        Raises:
            RunFolderError: there is no run.
        """
        folder = cls(path)
        if not folder.config.is_file():
            why = f"it has no {folder.config.name}" if path.is_dir() else "there is no such folder"
            raise RunFolderError(f"{path} is not a run folder", why=why, mend=_runs_nearby(path))
        return folder

    @property
    def config(self) -> Path:
        return self.path / "config.yaml"

    @property
    def metrics(self) -> Path:
        return self.path / "metrics.jsonl"

    @property
    def rollouts(self) -> Path:
        return self.path / "rollouts"

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    @property
    def eval(self) -> Path:
        return self.path / "eval"

    def rollout_file(self, step: int) -> Path:
        return self.rollouts / f"step-{step:06d}.jsonl"

    def truncate_rollouts(self, step: int) -> None:
        """Remove the rollouts of steps after `step`: the resumed run writes them again."""
        for path in self.rollouts.glob("step-*.jsonl"):
            match = re.fullmatch(r"step-(\d+)\.jsonl", path.name)
            if match is not None and int(match[1]) > step:
                path.unlink()

    @contextmanager
    def claimed(self) -> Iterator[None]:
        """Hold the folder while training in it; freed with the process, however that ends.

        Raises:
            RunFolderError: another live process holds it.
        """
        with locked(self.path, wait=False) as mine:
            if not mine:
                raise RunFolderError(
                    f"another process is training in {self.path}",
                    why="two would overwrite each other's checkpoints and mix their rows",
                    mend="wait for it or stop it, or choose another folder",
                )
            yield


def find_checkpoint(folder: Path, which: Literal["best", "latest"] | int) -> Checkpoint:
    """A run's checkpoint.

    Raises:
        RunFolderError: no run, or no sound checkpoint of that name.
    """
    run = RunFolder.open(folder)
    store = CheckpointStore(run.checkpoints, keep=1)
    if isinstance(which, int):
        return store.load(which)
    if which == "best" and "best" in store.marks():
        return store.marked("best")
    latest = store.latest()
    if latest is None:
        raise RunFolderError(f"{folder} has no sound checkpoint", mend="train it with `coterie run --resume`")
    return latest


class MetricsLog:
    """`metrics.jsonl`: one row a step, on the disk when `append` returns.

    A row is one write to the end of the file, so a kill leaves at most one torn line, the last. A torn line
    found on opening is cut.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._handle = self._open()

    def append(self, step: int, metrics: Mapping[str, Any]) -> None:
        """Write `{"step": step, **metrics}`.

        Raises:
            OSError: e.g. the disk is full; nothing of the row stays.
            ValueError: the log is closed, or `metrics` has a key `step`.
        """
        if self._handle < 0:
            raise ValueError(f"{self.path} is closed")
        if "step" in metrics:
            raise ValueError("'step' is the row's own key")
        line = (to_json({"step": step, **metrics}) + "\n").encode()
        before = os.fstat(self._handle).st_size
        try:
            done = 0
            while done < len(line):
                done += os.write(self._handle, line[done:])
            os.fsync(self._handle)
        except BaseException:
            os.ftruncate(self._handle, before)
            raise

    def truncate_after(self, step: int) -> int:
        """Cut the rows of later steps, as a resume from a checkpoint of `step` needs; returns how many."""
        lines = list(_lines(self.path))
        kept = [line for line, row in lines if row is not None and row["step"] <= step]
        if len(kept) < len(lines):
            self.close()
            write_atomic(self.path, b"".join(kept))
            self._handle = self._open()
        return len(lines) - len(kept)

    def close(self) -> None:
        if self._handle >= 0:
            os.close(self._handle)
            self._handle = -1

    def _open(self) -> int:
        handle = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o666)
        raw = self.path.read_bytes()
        end = raw.rfind(b"\n") + 1
        if end < len(raw):
            log.warning("%s: cut a torn last line of %d bytes", self.path, len(raw) - end)
            os.ftruncate(handle, end)
        sync_folder(self.path.parent)  # or the file itself could be gone after a power cut
        return handle


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """The rows of a metrics file; a torn last line (of a killed run, or of one that writes now) is left out.

    Raises:
        RunFolderError: there is no such file, or a line before the last is damaged.
    """
    if not path.is_file():
        raise RunFolderError(
            f"{path} doesn't exist", why="the run has not finished a step yet, or it is no run"
        )
    return [row for _, row in _lines(path) if row is not None]


def _lines(path: Path) -> Iterator[tuple[bytes, dict[str, Any] | None]]:
    """(raw line, row); the row of a torn last line is None."""
    lines = path.read_bytes().splitlines(keepends=True)
    for number, line in enumerate(lines, 1):
        try:
            row = json.loads(line)
            intact = isinstance(row, dict) and isinstance(row.get("step"), int) and line.endswith(b"\n")
        except ValueError:
            intact = False
        if intact:
            yield line, row
        elif number == len(lines):
            log.warning("%s: line %d is torn and left out", path, number)
            yield line, None
        else:
            raise RunFolderError(
                f"{path}, line {number} is damaged",
                why="only the last line can be torn by a kill; this one was changed on the disk or by hand",
                mend="restore the file from a copy, or delete that line",
            )


# -------------------------------------------------------------------------------------------------- rollouts


def write_rollouts(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """Write rows as JSON lines, the whole file or nothing.

    Raises:
        OSError: e.g. the disk is full; no half file stays.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(path, "".join(to_json(row) + "\n" for row in rows))


def read_rollouts(path: Path) -> list[dict[str, Any]]:
    """The rows of a rollout file."""
    with open(path, encoding="utf-8") as file:
        return [json.loads(line) for line in file]


# ------------------------------------------------------------------------------------------------------ JSON


def to_json(value: Mapping[str, Any]) -> str:
    """One line of strict JSON: floats exact, NaN and infinities as null with their keys kept."""
    try:
        text = json.dumps(value, allow_nan=False, ensure_ascii=False, default=_plain)
        text.encode()
    except ValueError:
        # A number that is not finite, or half a surrogate pair in what a model wrote. Both are rare, and
        # cleaning walks through every token of the row.
        return json.dumps(_cleaned(value), allow_nan=False)
    return text


def _plain(value: Any) -> Any:
    if isinstance(value, (np.generic, np.ndarray)):
        return value.tolist()
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"{type(value).__name__} can't be written as JSON")


def _cleaned(value: Any) -> Any:
    if isinstance(value, (np.generic, np.ndarray)):
        value = value.tolist()
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: _cleaned(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_cleaned(one) for one in value]
    return value


def _runs_nearby(path: Path) -> str:
    runs = sorted(p.parent.name for p in path.parent.glob("*/config.yaml")) if path.parent.is_dir() else []
    return (
        f"runs in {path.parent}: " + ", ".join(runs[-8:])
        if runs
        else "name the folder that `coterie run` made"
    )
