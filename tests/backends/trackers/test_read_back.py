"""What the libraries read of a run that was stopped and resumed is its `metrics.jsonl`, and its episodes."""

from __future__ import annotations

import html
import json
import math
import shutil
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

import coterie
from coterie.api.rows import read_metrics
from coterie.backends.trackers.common import flat
from coterie.backends.trackers.tensorboard import COLUMNS
from coterie.core.training import metrics_writer
from coterie.testing import build, check_tracker
from tests.backends.trackers.servers import Traces, serving
from tests.test_resume import MATRIX

for package in ("tensorboard", "wandb", "mlflow", "sqlalchemy", "weave"):
    pytest.importorskip(package)
STEPS, KEPT, EPISODES = 4, 2, 3


class Run:
    """A folder, what the trackers have stored, and what the record says."""

    def __init__(self, folder: Path, traces: Traces) -> None:
        self.folder, self.traces = folder, traces
        self.rows = {row.pop("step"): dict(flat(row)) for row in read_metrics(folder / "metrics.jsonl")}
        lines = (folder / "lines_episodes.jsonl").read_text().splitlines()
        self.actions = [json.loads(line) for line in lines]
        """Those of the plugin `Lines`, which stores two episodes a step."""


@pytest.fixture(scope="module")
def stored(tmp_path_factory) -> Run:
    """A run of 4 steps, resumed after its checkpoint of step 2: steps 3 and 4 are played twice."""
    folder, traces = tmp_path_factory.mktemp("tracked") / "run", Traces()
    with serving(traces) as url, pytest.MonkeyPatch.context() as patch:
        patch.setenv("WANDB_BASE_URL", url)
        patch.setenv("WANDB_API_KEY", "k" * 40)
        patch.setenv("HIDDEN_KEY", "s3cret")
        patch.setattr(metrics_writer, "CLOSE_SECONDS", 240.0)  # four libraries begin at once
        more = {"log_episodes": EPISODES}
        trackers = {
            "lines": {"type": "tests.backends.trackers.plugins:Lines"},
            "board": {"type": "tensorboard", **more},
            "bias": {"type": "wandb", "mode": "offline", "project": "small", "tags": ["a"], **more},
            "flow": {"type": "mlflow", "tracking_uri": f"sqlite:///{folder.parent}/flow.db", **more},
            "trace": {"type": "weave", "project": "team/small", "server": url, **more},
        }
        settings = [f"schedule.steps={STEPS}", "schedule.checkpoint_every=1", "schedule.keep_checkpoints=9"]
        evaluations = ["schedule.evaluate_every=2", "schedule.evaluate_tasks=4"]
        coterie.train(MATRIX, overrides=[*settings, *evaluations, f"trackers={trackers!r}"], out=folder)
        first = {path.name: path.read_text() for path in (folder / "trackers").glob("*.json")}
        for step in range(KEPT + 1, STEPS + 1):
            shutil.rmtree(folder / "checkpoints" / f"step-{step:06d}")
        result = coterie.train(resume=folder)
        assert result.finished
        assert first == {path.name: path.read_text() for path in (folder / "trackers").glob("*.json")}
    return Run(folder, traces)


def same(read: dict[str, object], row: dict[str, object]) -> None:
    """Names and values are those of the row; NaN stands for null."""
    found = {k: None if isinstance(v, float) and math.isnan(v) else v for k, v in read.items()}
    assert found == row


def test_the_record_has_what_is_compared(stored):
    assert sorted(stored.rows) == [*range(1, STEPS + 1)]
    assert any(name.startswith("eval/success_ci95/") for name in stored.rows[2])
    assert {action["step"] for action in stored.actions} == {*range(1, STEPS + 1)}


def test_tensorboard(stored):
    from tensorboard.backend.event_processing.plugin_event_accumulator import EventAccumulator
    from tensorboard.util import tensor_util

    events = EventAccumulator(str(stored.folder / "tensorboard"), size_guidance={"tensors": 0})
    events.Reload()
    read: dict[int, dict[str, object]] = {step: {} for step in stored.rows}
    texts = {}
    for tag in events.Tags()["tensors"]:
        plugin = events.SummaryMetadata(tag).plugin_data.plugin_name
        for event in events.Tensors(tag):
            if plugin not in ("scalars", "text"):
                continue
            value = tensor_util.make_ndarray(event.tensor_proto).item()
            if plugin == "scalars":
                assert tag not in read[event.step], "a step is there once"
                read[event.step][tag] = value
            else:
                texts[tag, event.step] = value.decode()
    for step, row in stored.rows.items():
        same(read[step], row)
    for step in stored.rows:
        lines = texts["logged_episodes", step].splitlines()[2:]
        cells = [[html.unescape(c.replace("<br>", "\n")) for c in line[2:-2].split(" | ")] for line in lines]
        table = [dict(zip(COLUMNS, line, strict=True)) for line in cells]
        named = {(row["task"], row["chain"], row["episode"]) for row in table}
        assert len(named) == EPISODES
        for action in (action for action in stored.actions if action["step"] == step):
            assert any(
                row["prompt"] == action["prompt"]
                and row["completion"] == action["completion"]
                and json.loads(row["scores"]) == action["scores"]
                and row["task"] == action["task"]
                for row in table
            )
    assert "seed" in texts["config", 0]


def log_records(data: bytes) -> Iterator[bytes]:
    """The records of a .wandb file, which is a log of LevelDB: no library reads it since wandb 0.22."""
    at, parts = 7, b""  # `:W&B`, magic, version
    assert data[:4] == b":W&B"
    while at + 7 <= len(data):
        left = 32768 - at % 32768
        if left < 7:
            at += left
            continue
        size, kind = struct.unpack_from("<HB", data, at + 4)
        parts += data[at + 7 : at + 7 + size]
        at += 7 + size
        if kind in (1, 4):  # whole, or the last part
            yield parts
            parts = b""


def test_wandb_offline(stored):
    from wandb.proto import wandb_internal_pb2

    read: dict[int, list[dict[str, object]]] = {}
    ids = set()
    for path in sorted(stored.folder.glob("wandb/offline-run-*/*.wandb")):
        for data in log_records(path.read_bytes()):
            record = wandb_internal_pb2.Record()
            record.ParseFromString(data)
            if record.HasField("run"):
                ids.add(record.run.run_id)
                settings = {item.key: json.loads(item.value_json) for item in record.run.config.update}
                assert settings["schedule"]["steps"] == STEPS
            if record.HasField("history"):
                row = {
                    item.key or "/".join(item.nested_key): json.loads(item.value_json)
                    for item in record.history.item
                }
                row = {name: value for name, value in row.items() if name[0] != "_"}
                read.setdefault(record.history.step.num, []).append(row)
    assert ids == {json.loads((stored.folder / "trackers" / "bias.json").read_text())["id"]}
    assert [len(read[step]) for step in sorted(read)] == [1] * KEPT + [2] * (STEPS - KEPT)
    for step, row in stored.rows.items():
        last = read[step][-1]
        table = {name: last.pop(name) for name in list(last) if name.startswith("logged_episodes/")}
        assert table["logged_episodes/_type"] == "table-file"
        path, *_ = stored.folder.glob(f"wandb/offline-run-*/files/{table['logged_episodes/path']}")
        whole = json.loads(path.read_text())
        rows = [dict(zip(whole["columns"], line, strict=True)) for line in whole["data"]]
        for action in (action for action in stored.actions if action["step"] == step):
            texts = {k: json.dumps(v) if isinstance(v, (dict, list)) else v for k, v in action.items()}
            assert texts in rows
        same(last, row)


def test_mlflow(stored):
    from mlflow.tracking import MlflowClient

    client = MlflowClient(f"sqlite:///{stored.folder.parent}/flow.db")
    experiment = client.get_experiment_by_name("coterie")
    [run] = client.search_runs([experiment.experiment_id])
    assert run.info.status == "FINISHED" and run.info.run_name == "run"
    assert run.data.params["schedule/steps"] == str(STEPS)
    read: dict[int, dict[str, object]] = {step: {} for step in stored.rows}
    for name in run.data.metrics:
        for metric in sorted(client.get_metric_history(run.info.run_id, name), key=lambda one: one.timestamp):
            twice = name in read[metric.step]
            assert not twice or name.startswith(("time/", "machine/")), "only what differs is there twice"
            read[metric.step][name] = metric.value
    for step, row in stored.rows.items():
        same(read[step], row)
        path = client.download_artifacts(run.info.run_id, f"episodes/step-{step:06d}.json")
        table = json.loads(Path(path).read_text())
        rows = [dict(zip(table["columns"], line, strict=True)) for line in table["data"]]
        for action in (action for action in stored.actions if action["step"] == step):
            assert action in rows


def test_weave(stored, monkeypatch):
    from weave.trace_server_bindings.remote_http_trace_server import RemoteHTTPTraceServer

    with serving(stored.traces) as url:
        calls = list(RemoteHTTPTraceServer(url).calls_query_stream({"project_id": "team/small"}))
    steps = {call.inputs["step"]: call for call in calls if call.op_name == "coterie.step"}
    assert sorted(steps) == sorted(stored.rows) and len(calls) == len({call.id for call in calls})
    assert sum(call.op_name == "coterie.step" for call in calls) == STEPS, "deleted calls are gone"
    for step, row in stored.rows.items():
        same(steps[step].output, row)
        assert steps[step].attributes["config"]["schedule"]["steps"] == STEPS
        below = [call for call in calls if call.parent_id == steps[step].id]
        assert [call.op_name for call in below] == ["coterie.episode"] * EPISODES
        actions = [
            {**{k: v for k, v in (episode.inputs | call.inputs).items()}, **call.output}
            for episode in below
            for call in calls
            if call.parent_id == episode.id
        ]
        for action in (action for action in stored.actions if action["step"] == step):
            assert action in actions
    assert not any(b"s3cret" in body or b"k" * 40 in body for body in stored.traces.bodies)


def test_the_kit_checks_mlflow(stored, tmp_path):
    """Here, since a new database takes MLflow five seconds."""
    from mlflow.tracking import MlflowClient

    store = f"sqlite:///{stored.folder.parent}/flow.db"
    table = {"type": "mlflow", "tracking_uri": store, "experiment": "kit", "log_episodes": 2}

    def steps(folder: Path) -> list[int]:
        run_id = json.loads((folder / "trackers" / "flow.json").read_text())["run_id"]
        return sorted(metric.step for metric in MlflowClient(store).get_metric_history(run_id, "loss"))

    check_tracker(build("tracker", table, name="flow"), folder=tmp_path, read=steps)
    assert (stored.folder.parent / "mlruns").is_dir(), "files are beside the database"
