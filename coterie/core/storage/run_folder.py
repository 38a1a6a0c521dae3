"""The run folder.

<run>/config.yaml                  the resolved configuration; a folder without it is not a run
     /metrics.jsonl                one row per step (`core/storage/jsonl.py`)
     /rollouts/step-000040.jsonl   rows of kind node, branch and joint (`api/rollouts.py`)
     /checkpoints/                 (`core/storage/checkpoint.py`)
     /eval/                        evaluations
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from coterie.core.errors import RunFolderError
from coterie.core.storage.atomic import TEMPORARY, locked, write_atomic, written

log = logging.getLogger("coterie")


@dataclass(frozen=True, slots=True)
class RunFolder:
    """The folder of one run, and the paths in it."""

    path: Path

    @classmethod
    def create(cls, path: Path, config_text: str) -> RunFolder:
        """Make the folder of a new run; one that was killed before its first checkpoint may be there.

        Raises:
            RunFolderError: the folder holds a run already.
            WriteError: the folder can't be written.
        """
        folder = cls(path)
        with written(f"the run folder {path}"):
            if (folder.config.exists() or folder.metrics.exists()) and not folder.unused:
                why = "a new run would mix its rows with the old one's"
                fix = f"resume the run (`coterie run --resume {path}`), or choose another folder"
                raise RunFolderError(f"{path} holds a run already", why=why, fix=fix)
            for sub in folder.parts:
                sub.mkdir(parents=True, exist_ok=True)
            write_atomic(folder.config, config_text)  # last: it makes the folder a run
        return folder

    @classmethod
    def open(cls, path: Path) -> RunFolder:
        """The folder of an existing run.

        Raises:
            RunFolderError: the path is not a run folder.
        """
        folder = cls(path)
        if not folder.config.is_file():
            why = f"it has no {folder.config.name}" if path.is_dir() else "there is no such folder"
            raise RunFolderError(f"{path} is not a run folder", why=why, fix=_runs_nearby(path))
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

    @property
    def parts(self) -> tuple[Path, ...]:
        """The folders that every run has; `create` makes them before the configuration."""
        return self.rollouts, self.checkpoints, self.eval

    @property
    def unused(self) -> bool:
        """Whether `create` made the folder, and neither a checkpoint nor a row nor a file followed."""
        return (
            all(part.is_dir() for part in self.parts)
            and all(entry.name.startswith(TEMPORARY) for part in self.parts for entry in part.iterdir())
            and not (self.metrics.exists() and self.metrics.stat().st_size)
        )

    def rollout_file(self, step: int) -> Path:
        return self.rollouts / f"step-{step:06d}.jsonl"

    def truncate_rollouts(self, step: int) -> None:
        """Remove the rollouts of steps after `step`, which a resumed run writes again."""
        for path in self.rollouts.glob("step-*.jsonl"):
            match = re.fullmatch(r"step-(\d+)\.jsonl", path.name)
            if match is not None and int(match[1]) > step:
                path.unlink()

    @contextmanager
    def claimed(self) -> Iterator[RunFolder]:
        """Lock the folder during training; yields it. The lock ends with the process.

        Raises:
            RunFolderError: another live process has the lock.
        """
        with locked(self.path, wait=False) as acquired:
            if not acquired:
                why = "two would overwrite each other's checkpoints and mix their rows"
                fix = "wait for the process or stop it, or choose another folder"
                raise RunFolderError(f"another process is training in {self.path}", why=why, fix=fix)
            yield self


def _runs_nearby(path: Path) -> str:
    runs = sorted(p.parent.name for p in path.parent.glob("*/config.yaml")) if path.parent.is_dir() else []
    return (
        f"runs in {path.parent}: {', '.join(runs[-8:])}" if runs else "name a folder that `coterie run` made"
    )
