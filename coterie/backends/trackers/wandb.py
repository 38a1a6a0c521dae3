"""Tracker `wandb`: a run of Weights & Biases, online or in files of the run folder (`wandb sync`)."""

from __future__ import annotations

import logging
import os
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from coterie.backends.trackers.common import LibraryTracker, TrackerConfig, cell, configuration, flat

log = logging.getLogger("coterie")


class WandbTracker(LibraryTracker):
    """One W&B run for a run of Coterie and all its resumes: its id is kept in the run folder.

    W&B's steps only go up. Rows that a resumed run plays again are left as they were first stored.
    """

    class Config(TrackerConfig):
        project: str = Field("coterie", description="Project; W&B makes one that is new.")
        entity: str | None = Field(None, description="User or team; by default that of the key.")
        name: str | None = Field(None, description="Name of the run; by default that of the run folder.")
        group: str | None = Field(None, description="Group of runs, such as the seeds of one configuration.")
        job_type: str | None = Field(None, description="Kind of run within a group.")
        tags: tuple[str, ...] = Field((), description="Tags.")
        notes: str | None = Field(None, description="A description.")
        mode: Literal["online", "offline"] = Field(
            "online", description="`offline` writes files that `wandb sync` sends later."
        )
        base_url: str | None = Field(
            None, description="A W&B server of your own; by default WANDB_BASE_URL, else W&B's."
        )
        timeout: float = Field(
            10.0, gt=0, description="Seconds to wait for W&B at the start, and for the rest at the end."
        )

    _run: Any = None

    packages = ("wandb",)

    def open(self, folder: Path) -> None:
        """Begin the run, or go on with the run whose id the folder keeps.

        Raises:
            Exception: W&B's own: no key, no such entity, no answer within `timeout`.
        """
        os.environ.setdefault("WANDB_ERROR_REPORTING", "false")  # errors of W&B's library are not for W&B
        os.environ.setdefault("WANDB_SILENT", "true")  # read before a run's settings are
        os.environ.setdefault("WANDB_DISABLE_WEAVE", "true")  # else it traces every call of a chat model, too
        import wandb

        ids, config = self.kept(folder), self.config
        run_id = ids.read().get("id") or uuid.uuid4().hex[:16]
        ids.write({"id": run_id})
        settings = wandb.Settings(
            init_timeout=config.timeout,
            login_timeout=config.timeout,
            finish_timeout=config.timeout,
            finish_timeout_raises=True,
            console="off",
            silent=True,
            disable_git=True,
            save_code=False,
            **({"base_url": config.base_url} if config.base_url else {}),
        )
        self._run = wandb.init(
            id=run_id,
            resume="allow",
            project=config.project,
            entity=config.entity,
            name=config.name or folder.resolve().name,
            group=config.group,
            job_type=config.job_type,
            tags=list(config.tags) or None,
            notes=config.notes,
            mode=config.mode,
            dir=str(folder),
            config=configuration(folder)[0],
            allow_val_change=True,
            reinit="create_new",
            settings=settings,
        )
        self._table = wandb.Table

    def truncate(self, step: int) -> None:
        """W&B drops no rows: those of later steps stay, and are not stored a second time."""
        last = self._run.step - 1
        if last > step:
            log.info(
                "%s: W&B keeps the rows of steps %d to %d as they were first stored",
                self.place,
                step + 1,
                last,
            )

    def track(self, step: int, metrics: Mapping[str, Any]) -> None:
        if step >= self._run.step:
            self._run.log(dict(flat(metrics)), step=step)

    def track_episodes(self, step: int, actions: Sequence[Mapping[str, Any]]) -> None:
        """A table `logged_episodes`; scores and tool results are JSON."""
        if step < self._run.step or not actions:
            return
        columns = list(actions[0])
        rows = [[cell(action[name]) for name in columns] for action in actions]
        self._run.log(
            {"logged_episodes": self._table(columns=columns, data=rows, allow_mixed_types=True)}, step=step
        )

    def close(self) -> None:
        """Send what is left.

        Raises:
            TimeoutError: it took longer than `timeout`; the files in the folder's `wandb` have the rest.
        """
        run, self._run = self._run, None
        if run is None:
            return
        try:
            run.finish()
        except TimeoutError as error:
            fix = f"`wandb sync {Path(run.dir).parent}` sends the rest"
            raise TimeoutError(f"W&B has not taken all rows in {self.config.timeout:g} s; {fix}") from error
