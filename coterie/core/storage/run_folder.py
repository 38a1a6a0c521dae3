"""What a run writes down: its folder, one row of metrics a step, and every rollout as rows.

    <run>/config.yaml                  written last when the folder is made: with it, the folder is a run
         /metrics.jsonl                one row a step
         /rollouts/step-000040.jsonl   rows of kind node, branch and joint
         /checkpoints/                 see `coterie.core.storage.checkpoint`
         /eval/                        evaluations

All of it is plain JSON: numbers that are not finite are null, floats are written exactly (`repr`).
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from coterie.core.errors import RunFolderError
from coterie.core.storage.atomic import locked, write_atomic

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
                    fix=f"go on with it (`coterie run --resume {path}`), or choose another folder",
                )
            for sub in (folder.rollouts, folder.checkpoints, folder.eval):
                sub.mkdir(parents=True, exist_ok=True)
            write_atomic(folder.config, config_text)
        except OSError as error:
            raise RunFolderError(
                f"the run folder {path} can't be written",
                why=str(error),
                fix="choose another folder, or fix its permissions or the disk's space",
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
                    fix="wait for it or stop it, or choose another folder",
                )
            yield


def _runs_nearby(path: Path) -> str:
    runs = sorted(p.parent.name for p in path.parent.glob("*/config.yaml")) if path.parent.is_dir() else []
    return (
        f"runs in {path.parent}: " + ", ".join(runs[-8:])
        if runs
        else "name the folder that `coterie run` made"
    )
