"""Tracker `mlflow`: a run in an MLflow store, which is a server or a database file."""

from __future__ import annotations

import math
import os
import re
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import Field

from coterie.backends.trackers.common import (
    LibraryTracker,
    TrackerConfig,
    configuration,
    flat,
    numbers_and_texts,
)

REFUSED = re.compile(r"[^\w\-. /]", re.ASCII)
"""Characters that MLflow refuses in the names of metrics and parameters."""
AT_ONCE = 1000
"""Metrics that MLflow takes in one request."""
PARAMETERS_AT_ONCE = 100
LONGEST = 6000
"""Characters of a parameter's value that MLflow keeps."""


class MlflowTracker(LibraryTracker):
    """One MLflow run for a run of Coterie and all its resumes: its id is kept in the run folder.

    A row is in the store when `track` returns. MLflow removes no metric: of a step that a resumed run plays
    again, only values that differ are stored a second time, with a later time stamp.
    """

    class Config(TrackerConfig):
        tracking_uri: str | None = Field(
            None,
            description="A server (`https://...`) or `sqlite:///FILE`; by default MLFLOW_TRACKING_URI, "
            "else MLflow's own.",
        )
        experiment: str = Field("coterie", description="Experiment; one that is new is made.")
        name: str | None = Field(None, description="Name of the run; by default that of the run folder.")
        tags: dict[str, str] = Field({}, description="Tags of the run.")
        timeout: float = Field(10.0, gt=0, description="Seconds to wait for an answer of the server.")
        retries: int = Field(2, ge=0, description="How often a request that failed is sent again.")

    _client: Any = None

    @property
    def packages(self) -> tuple[str, ...]:  # type: ignore[override]
        """MLflow needs two more for a store that is no server."""
        uri = self.config.tracking_uri or os.environ.get("MLFLOW_TRACKING_URI", "")
        return ("mlflow",) if uri.startswith("http") else ("mlflow", "sqlalchemy", "alembic")

    def open(self, folder: Path) -> None:
        """Begin the run, or go on with the run whose id the folder keeps.

        Raises:
            Exception: MLflow's own: no server, no permission, no answer within `timeout`.
        """
        for name, value in {
            "MLFLOW_HTTP_REQUEST_TIMEOUT": max(1, math.ceil(self.config.timeout)),
            "MLFLOW_HTTP_REQUEST_MAX_RETRIES": self.config.retries,
            "MLFLOW_HTTP_REQUEST_BACKOFF_FACTOR": 1,
            "MLFLOW_DISABLE_TELEMETRY": "true",
        }.items():
            os.environ.setdefault(name, str(value))  # it has no other way to set them
        if "alembic" in self.packages:
            import alembic  # noqa: F401
            import sqlalchemy  # noqa: F401
        from mlflow.entities import Metric, Param
        from mlflow.tracking import MlflowClient

        self._metric = Metric
        self._stored: dict[tuple[str, int], float] = {}
        client = MlflowClient(tracking_uri=self.config.tracking_uri)
        ids = self.kept(folder)
        run_id = ids.read().get("run_id")
        if run_id is not None:
            client.update_run(run_id, status="RUNNING")
        else:
            where = self._experiment(client)
            name = self.config.name or folder.resolve().name
            run_id = client.create_run(where, run_name=name, tags=self.config.tags).info.run_id
            ids.write({"run_id": run_id, "experiment_id": where})
            settings = [
                Param(_name(name), str(value)[:LONGEST]) for name, value in flat(configuration(folder)[0])
            ]
            for at in range(0, len(settings), PARAMETERS_AT_ONCE):
                client.log_batch(run_id, params=settings[at : at + PARAMETERS_AT_ONCE], synchronous=True)
        self._client, self._run_id = client, run_id

    def _experiment(self, client: Any) -> str:
        """The id of the experiment. The files of a new one in a database file are beside it, in `mlruns`."""
        name, uri = self.config.experiment, self.config.tracking_uri or ""
        experiment = client.get_experiment_by_name(name)
        if experiment is not None:
            return str(experiment.experiment_id)
        files = None
        if uri.startswith("sqlite:///"):
            files = (Path(uri.removeprefix("sqlite:///")).resolve().parent / "mlruns").as_uri()
        return str(client.create_experiment(name, artifact_location=files))

    def truncate(self, step: int) -> None:
        """Read what the store has of later steps."""
        latest = self._client.get_run(self._run_id).data.metrics
        for name in latest:
            for metric in self._client.get_metric_history(self._run_id, name):
                if metric.step > step:
                    self._stored[name, metric.step] = metric.value

    def track(self, step: int, metrics: Mapping[str, Any]) -> None:
        """Texts go to tags, which keep the latest."""
        numbers, texts = numbers_and_texts(metrics)
        now = time.time_ns() // 10**6
        rows = [
            self._metric(name, value, now, step)
            for name, value in ((_name(name), value) for name, value in numbers.items())
            if not self._has(name, step, value)
        ]
        for at in range(0, len(rows), AT_ONCE):
            self._client.log_batch(self._run_id, metrics=rows[at : at + AT_ONCE], synchronous=True)
        for name, text in texts.items():
            self._client.set_tag(self._run_id, _name(name), text)

    def track_episodes(self, step: int, actions: Sequence[Mapping[str, Any]]) -> None:
        """A table as JSON, in the form of MLflow's `log_table`: `episodes/step-000001.json`."""
        columns = list(actions[0]) if actions else []
        table = {"columns": columns, "data": [[action[name] for name in columns] for action in actions]}
        self._client.log_dict(self._run_id, table, f"episodes/step-{step:06d}.json")

    def close(self) -> None:
        """Mark the run as finished."""
        client, self._client = self._client, None
        if client is not None:
            client.set_terminated(self._run_id)

    def _has(self, name: str, step: int, value: float) -> bool:
        stored = self._stored.get((name, step))
        return stored is not None and (stored == value or (math.isnan(stored) and math.isnan(value)))


def _name(name: str) -> str:
    """The name as MLflow takes it, at most 250 characters: a character that it refuses is an underscore."""
    return REFUSED.sub("_", name)[:250]
