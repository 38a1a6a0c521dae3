"""What the end of a run cancels: the steps that were in play beside the last one that it trained.

    <run>/discarded/cancelled.jsonl  one row for each end that cancelled steps: `step`, the last one that was
                                     trained, `time`, and the fields of `Cancelled`

A resume plays these steps again, so their tokens are counted nowhere else.
"""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass
from pathlib import Path

from coterie.api.discarded import FOLDER
from coterie.core.storage.atomic import written
from coterie.core.storage.jsonl import MetricsLog
from coterie.core.training.run import Run

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
