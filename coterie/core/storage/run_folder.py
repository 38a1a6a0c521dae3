"""The run folder.

<run>/config.yaml                  the resolved configuration; a folder without it is not a run
     /resolved.yaml                every setting with its default, versions (`api/run_record.py`)
     /metrics.jsonl                one row per step (`core/storage/jsonl.py`)
     /rollouts/step-000040.jsonl.gz  rows of kind node, branch and joint (`api/rollouts.py`)
     /checkpoints/                 (`core/storage/checkpoint.py`)
     /eval/                        evaluations
     /logs/                        output of processes and libraries (`coterie/logs.py`)
     /discarded/                   what resumes took out and ends cancelled (`api/discarded.py`)
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from coterie.core.errors import RunFolderError


@dataclass(frozen=True, slots=True)
class RunFolder:
    """The folder of one run, and the paths in it."""

    path: Path

    @classmethod
    def open(cls, path: Path) -> RunFolder:
        """The folder of an existing run.

        Raises:
            RunFolderError: the path is not a run folder.
        """
        folder = cls(path)
        if not folder.config.is_file():
            why = f"it has no {folder.config.name}" if path.exists() else "there is no such folder"
            fix = "name a folder that `coterie run` made"
            for at in (path.parent, path):  # in it may be runs, as in the folder of several seeds
                if names := sorted(config.parent.name for config in at.glob("*/config.yaml")):
                    fix = f"runs in {at}: {', '.join(names[-8:])}"
            raise RunFolderError(f"{path} is not a run folder", why=why, fix=fix)
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
    def logs(self) -> Path:
        return self.path / "logs"

    def rollout_files(self) -> list[Path]:
        """Those of all steps, in order; before format 3 they were not compressed."""
        return sorted(self.rollouts.glob("step-*.jsonl*"))

    def rollout_file(self, step: int) -> Path:
        return self.rollouts / f"step-{step:06d}.jsonl.gz"
