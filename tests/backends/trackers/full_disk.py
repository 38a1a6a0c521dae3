"""A run in which no file may grow beyond a limit, as on a full disk; in a process, since a limit stays."""

from __future__ import annotations

import resource
import sys
import time
from pathlib import Path

import coterie

LIMIT = 30_000
"""Bytes; enough for the other files of the run."""


def main(folder: Path) -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (LIMIT, LIMIT))
    tracker = {"board": {"type": "tensorboard", "log_episodes": 1000}}
    settings = ["schedule.steps=6", "schedule.tasks_per_step=16", "schedule.record_every=0"]
    coterie.train("tests/recipes/matrix.yaml", overrides=[*settings, f"trackers={tracker!r}"], out=folder)
    print(f"ended at {time.time()}", flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
