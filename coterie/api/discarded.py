"""What of a run counts no more: what a resume takes out of its folder, and the steps that its end cancels.

    <run>/discarded/20260101-120000-after-step-000040/metrics.jsonl  the rows of later steps
                                                     /rollouts/      the files of later steps
                                                     /eval/          the evaluations of later steps
                                                     /checkpoints/   damaged ones of later steps, and marks
                   /cancelled.jsonl  one row for each end that cancelled steps: `step`, the last one that was
                                     trained, `time`, and the fields of `Cancelled`

A resume takes out all that was written after the checkpoint that it goes on from, to a folder for it alone.
The end of a run cancels the steps that were in play beside the last one that it trained; a resume plays them
again, so their tokens are counted nowhere else. Nothing reads these files.
"""

from __future__ import annotations

import logging
import re
import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from coterie.api.checkpoints import CheckpointStore
from coterie.core.errors import WriteError
from coterie.core.storage.atomic import sync_folder, write_atomic, written
from coterie.core.storage.checkpoint import Checkpoint
from coterie.core.storage.jsonl import MetricsLog, read_lines
from coterie.core.storage.run_folder import RunFolder
from coterie.core.training.run import Run

log = logging.getLogger("coterie")

FOLDER = "discarded"


@dataclass(frozen=True, slots=True)
class Discarded:
    """What a run's folder has of the steps after a checkpoint."""

    run: RunFolder
    step: int | None
    """Of the checkpoint; None: the run has none."""
    rows: Sequence[tuple[bytes, Mapping[str, Any]]]
    """(raw line, row) of later steps."""
    rollouts: Sequence[Path]
    evaluations: Sequence[Path]
    checkpoints: Sequence[Path]
    """Later checkpoints, all damaged."""
    marks: Sequence[Path]

    @classmethod
    def after(cls, run: RunFolder, store: CheckpointStore, checkpoint: Checkpoint | None) -> Discarded:
        """Find what was written after a checkpoint, which a resume writes again.

        Raises:
            RunFolderError: a row before the last is damaged.
        """
        step = None if checkpoint is None else checkpoint.step
        reached = -1 if step is None else step
        lines = read_lines(run.metrics) if run.metrics.is_file() else ()
        return cls(
            run,
            step,
            [(line, row) for line, row in lines if row is not None and row["step"] > reached],
            _later(run.rollouts, reached),
            _later(run.eval, reached),
            *store.later(reached),
        )

    def __bool__(self) -> bool:
        return any((self.rows, *self._files.values()))

    @property
    def _files(self) -> Mapping[str, Sequence[Path]]:
        """By the name of their folder in the run's."""
        checkpoints = [*self.marks, *self.checkpoints]  # a mark must not outlive its checkpoint
        return {"rollouts": self.rollouts, "eval": self.evaluations, "checkpoints": checkpoints}

    def say(self) -> None:
        """Warn of what is lost, and why. Nothing is moved yet: who reads it in time can still stop."""
        if not self:
            return
        begin, last = self.step or 0, max((row["step"] for _, row in self.rows), default=0)
        newest = (
            "it has no checkpoint" if self.step is None else f"its newest sound checkpoint is of step {begin}"
        )
        if last > begin:
            parts = (row.get(f"time/{part}") or 0.0 for _, row in self.rows for part in ("step", "evaluate"))
            seconds = sum(parts)
            steps = f"{last - begin} {'step is' if last == begin + 1 else 'steps are'} lost"
            what = f"was stopped after step {last}, and {newest}: {steps} ({seconds:.0f} s of training)"
        else:
            what = f"was stopped before step {begin + 1} was over: no finished step is lost"
        counts = {
            "row": self.rows,
            "rollout file": self.rollouts,
            "evaluation": self.evaluations,
            "damaged checkpoint": self.checkpoints,
        }
        kept = [f"{len(of)} {name}{'s' * (len(of) > 1)}" for name, of in counts.items() if of]
        place = self.run.path / FOLDER
        log.warning(
            "%s %s. %s kept in %s; delete it when you like", self.run.path, what, ", ".join(kept), place
        )

    def keep(self) -> None:
        """Move the files to a new folder in `<run>/discarded`, and copy the rows there, which their log cuts.

        Raises:
            WriteError: the folder can't be written. Nothing is lost: what was moved is there.
        """
        if not self:
            return
        with written(f"what the resume discards, in {self.run.path / FOLDER},"):
            place = self._place()
            if self.rows:
                try:
                    write_atomic(place / self.run.metrics.name, b"".join(line for line, _ in self.rows))
                except WriteError:
                    place.rmdir()
                    raise
            for name, paths in self._files.items():
                for path in paths:
                    (place / name).mkdir(exist_ok=True)
                    shutil.move(path, place / name / path.name)  # a folder may be a link to another disk
            sync_folder(place)

    def _place(self) -> Path:
        """A new folder; no earlier one is written again."""
        name = f"{time.strftime('%Y%m%d-%H%M%S')}-after-step-{self.step or 0:06d}"
        number, place = 1, self.run.path / FOLDER / name
        while place.exists():
            number += 1
            place = place.with_name(f"{name}-{number}")
        place.mkdir(parents=True)
        return place


def _later(folder: Path, step: int) -> list[Path]:
    """The files of later steps, in their order."""
    files = sorted(folder.glob("step-*"))
    matches = ((re.fullmatch(r"step-(\d+)\.json(l|l\.gz)?", path.name), path) for path in files)
    return [path for match, path in matches if match is not None and int(match[1]) > step]


FILE = "cancelled.jsonl"


@dataclass(frozen=True, slots=True)
class Cancelled:
    """Steps in play that nobody trained, and what had been drawn for them."""

    steps: int = 0
    tokens: int = 0
    """Of the calls that had come back from the engine, those of chat models that it plays included."""

    @classmethod
    def kept(cls, run: Run) -> Cancelled:
        """What the end of a run has cancelled; where it was anything, its folder has a row of it then.

        Raises:
            WriteError: e.g. the disk is full.
        """
        drawn = [count for step, count in run.engine_client.drawn.items() if step > run.state.step]
        cancelled = cls(len(drawn), sum(drawn))
        if cancelled and run.folder is not None:
            cancelled._keep(run.folder.path / FOLDER, run.state.step)
        return cancelled

    def __bool__(self) -> bool:
        return self.steps > 0

    def text(self) -> str:
        """One line for who watches the run."""
        steps = f"{self.steps} {'step in play was' if self.steps == 1 else 'steps in play were'} cancelled"
        return f"{steps}: {self.tokens:,} tokens that had been drawn for them are not trained"

    def _keep(self, folder: Path, step: int) -> None:
        with written(folder):
            folder.mkdir(exist_ok=True)
        rows = MetricsLog(folder / FILE)
        try:
            rows.append(step, {"time": time.strftime("%Y-%m-%dT%H:%M:%S%z"), **asdict(self)})
        finally:
            rows.close()
