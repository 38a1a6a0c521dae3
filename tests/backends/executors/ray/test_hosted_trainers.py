"""Sets of weights that have trainers of their own on a Ray cluster: at once, and with the results of one."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import coterie
from coterie.backends.cluster.connection import QUIET
from coterie.backends.executors.ray import trainer_files
from coterie.backends.executors.ray.hosted_trainers import HostedTrainers
from coterie.core.errors import ConfigError, PluginError, UserError
from tests.backends.executors.ray.test_cluster import GAMES, PLAN
from tests.backends.executors.ray.trainers import ROLES
from tests.test_resume import MATRIX, same, weights

pytestmark = [pytest.mark.ray, pytest.mark.xdist_group("ray")]

HERE = "tests.backends.executors.ray.trainers"
AT_ONCE = "cluster.updates=at_once"
MODEL = {"init": "qwen3", "hidden_size": 32, "layers": 1, "heads": 2, "head_dim": 16, "mlp_size": 64}
POLICY = {"model": MODEL, "train": "full", "optimizer": {"learning_rate": 0.01}}
WARM = {"warm_start": {"demonstrations": "oracle", "noise": 0.3, "steps": 3, "batch": 12}}
ADAPTER = {"train": "lora", "lora": {"rank": 2, "alpha": 4}}


def trio(**policies: dict[str, Any]) -> dict[str, Any]:
    """The table of a run of three policies, one for each role."""
    role = {"type": "coterie.testing.support.toys:EchoRole"}
    return {
        "env": {"type": f"{HERE}:Trio"},
        "team": {"order": [[*ROLES]], "roles": {name: {**role, "policy": name} for name in ROLES}},
        "policies": {name: POLICY | policies.get(name, {}) for name in ROLES},
        "sampler": {"branches": 4, "pairing": "cross", "sampling": {"max_new_tokens": 1}},
        "algorithm": {"type": "at_grpo"},
        "engine": "hf",
        "trainer": {"type": "torch"},
        "schedule": {"steps": 3, "tasks_per_step": 2, "checkpoint_every": 1, "keep_checkpoints": 9},
    }


TEAMS: dict[str, tuple[Any, dict[str, Any], list[str]]] = {
    "tabular": (MATRIX, {}, ["schedule.checkpoint_every=1", "schedule.steps=4"]),
    "adapters": (trio(first=WARM, second=WARM | ADAPTER, third=WARM | ADAPTER), {}, []),
    "reference": (trio(), {}, ["loss.kl=0.1", "policies.third.train=none"]),
    "full": (*GAMES["full"][:2], PLAN),
}


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """A cluster that the runs of this module find."""
    ray = pytest.importorskip("ray")
    with pytest.MonkeyPatch.context() as patch:
        for name, value in QUIET.items():
            patch.setenv(name, value)
        ray.init(address="local", num_cpus=12, include_dashboard=False, log_to_driver=False)
        yield ray
        ray.shutdown()


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """The folder of a team's run in this process."""
    folder, made = tmp_path_factory.mktemp("local"), set[Path]()

    def run(team: str, *more: str) -> Path:
        source, named, settings = TEAMS[team]
        out = folder / "-".join([team, *more])
        if out not in made:
            coterie.train(source, **named, overrides=[*settings, *more], out=out)
            made.add(out)
        return out

    return run


def on_ray(folder: Path, team: str, *more: str, **others: Any) -> coterie.TrainResult:
    source, named, settings = TEAMS[team]
    named = {**named, "overlays": [*named.get("overlays", ()), "ray"]}
    overrides = [*settings, "cluster.workers=1", *more]
    return coterie.train(source, **named, overrides=overrides, out=folder, **others)


def files(run: Path) -> dict[str, str]:
    """sha256 of each file of a run's checkpoints but the manifests, which have times."""
    return {
        str(path.relative_to(run)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted((run / "checkpoints").rglob("*"))
        if path.is_file() and path.name != "manifest.json"
    }


def alike(first: Path, second: Path) -> None:
    """Assert that two runs have equal metrics, weights, rollouts, and files of checkpoints."""
    same(first, second)
    assert files(first) == files(second) and len(files(first)) > 3


def intervals(record: Path) -> dict[int, list[tuple[float, float]]]:
    """By step: when the update of each policy began and ended, in that order."""
    steps: dict[int, list[tuple[float, float]]] = {}
    for line in map(json.loads, record.read_text().splitlines()):
        steps.setdefault(line["step"], []).append((line["began"], line["ended"]))
    return {step: sorted(times) for step, times in steps.items()}


def sleeping(record: Path) -> str:
    return f"trainer={{type: '{HERE}:Sleeping', learning_rate: 2.0, record: '{record}'}}"


# ------------------------------------------------------------------------------------------------- at once


def test_two_sets_of_weights_are_updated_at_once_and_by_one_trainer_in_turn(cluster, tmp_path):
    at_once, in_turn = tmp_path / "at_once.jsonl", tmp_path / "in_turn.jsonl"
    on_ray(tmp_path / "at_once", "tabular", sleeping(at_once), AT_ONCE, "schedule.steps=2")
    settings = [sleeping(in_turn), "schedule.checkpoint_every=1", "schedule.steps=2"]
    coterie.train(MATRIX, overrides=settings, out=tmp_path / "in_turn")
    for step, ((_, ended), (began, _)) in intervals(at_once).items():
        assert began < ended, f"step {step}: the second update begins before the first one has ended"
    for step, ((_, ended), (began, _)) in intervals(in_turn).items():
        assert began >= ended, f"step {step}"
    assert len(intervals(at_once)) == len(intervals(in_turn)) == 2
    alike(tmp_path / "at_once", tmp_path / "in_turn")


@pytest.mark.parametrize(
    ("team", "more"),
    [
        ("adapters", ()),
        ("tabular", ("schedule.max_staleness=1",)),
        ("adapters", ("schedule.max_staleness=1",)),
        ("reference", ()),
        ("full", ()),
        ("adapters", ("trainer.ranks=2",)),
    ],
)
@pytest.mark.long  # test_trainers_apart.py has trainers of tensors with threads for processes
def test_trainers_of_their_own_give_the_run_of_one(cluster, local, tmp_path, team, more):
    on_ray(tmp_path / "ray", team, AT_ONCE, *more)
    alike(local(team, *more), tmp_path / "ray")


# ---------------------------------------------------------------------------------------------- checkpoints


@pytest.mark.parametrize(
    ("team", "more"),
    [("tabular", ()), ("adapters", ("schedule.max_staleness=1",)), ("reference", ())],
)
@pytest.mark.parametrize(("first", "second"), [("in_turn", "at_once"), ("at_once", "in_turn")])
@pytest.mark.long
def test_a_run_resumes_with_the_other_number_of_trainers(cluster, local, tmp_path, team, more, first, second):
    on_ray(tmp_path / "ray", team, f"cluster.updates={first}", *more, "schedule.steps=2")
    steps = next(s for s in [*TEAMS[team][2], "schedule.steps=3"] if s.startswith("schedule.steps"))
    coterie.train(resume=tmp_path / "ray", overrides=[f"cluster.updates={second}", steps])
    alike(local(team, *more), tmp_path / "ray")


@pytest.mark.long
@pytest.mark.parametrize("team", ["tabular", "reference"])
def test_checkpoints_travel_where_a_trainer_does_not_see_the_runs_folder(
    cluster, local, tmp_path, monkeypatch, team
):
    """As if the nodes had no disk in common: no mark and no file of the run's is known again there."""
    stated, sent = trainer_files.stated, list[int]()
    monkeypatch.setattr(trainer_files, "stated", lambda path: stated(path)._replace(changed=0))
    monkeypatch.setattr(trainer_files, "PIECE", 100)
    fetch = trainer_files.fetch

    def fetched(call: Any, listed: Any, folder: Path) -> None:
        sent.append(sum(listed.values()))
        fetch(call, listed, folder)

    monkeypatch.setattr("coterie.backends.executors.ray.hosted_trainers.fetch", fetched)
    on_ray(tmp_path / "ray", team, AT_ONCE, "schedule.steps=2")
    assert min(sent) > 200, "each file is several pieces"
    coterie.train(
        resume=tmp_path / "ray", overrides=["schedule.steps=4" if team == "tabular" else "schedule.steps=3"]
    )
    alike(local(team), tmp_path / "ray")


@pytest.mark.long
def test_what_reads_a_run_alone_starts_no_trainers(cluster, local, tmp_path, monkeypatch):
    on_ray(tmp_path / "ray", "tabular", AT_ONCE)
    monkeypatch.setattr("coterie.backends.executors.ray.trainer_hosts.TrainerHosts.start", None)
    for run, name in ((tmp_path / "ray", "ray"), (local("tabular"), "local")):
        coterie.export(run, "row", tmp_path / name / "row")
    exported = [(tmp_path / name / "row" / "table.npz").read_bytes() for name in ("ray", "local")]
    assert exported[0] == exported[1]


@pytest.mark.long
@pytest.mark.parametrize("team", ["tabular", "reference"])
def test_a_run_begins_with_the_weights_of_another(cluster, local, tmp_path, team):
    """Two policies begin with one."""
    names = ["row", "column"] if team == "tabular" else ["first", "second"]
    source = [f"policies.{name}.from={local(team)}@best:{names[0]}" for name in names]
    table, _, settings = TEAMS[team]
    coterie.train(table, overrides=[*settings, *source], out=tmp_path / "local")
    on_ray(tmp_path / "ray", team, AT_ONCE, *source)
    same(tmp_path / "local", tmp_path / "ray")
    coterie.train(resume=tmp_path / "ray", overrides=["cluster.updates=in_turn", "schedule.steps=5"])
    coterie.train(resume=tmp_path / "local", overrides=["schedule.steps=5"])
    same(tmp_path / "local", tmp_path / "ray")


# ---------------------------------------------------------------------------------------------------- faults


def faulty(how: str, record: Path | str = "") -> str:
    return f"trainer={{type: '{HERE}:Faulty', learning_rate: 2.0, how: {how}, record: '{record}'}}"


@pytest.mark.long
def test_the_errors_of_trainers_come_back(cluster, tmp_path):
    for how, kind, text in (
        ("refuse", ConfigError, "trainer.how: it is wrong"),
        ("bug", KeyError, "no such row"),
        ("exit", PluginError, "called sys.exit"),
    ):
        with pytest.raises(kind, match=text) as raised:
            on_ray(tmp_path / how, "tabular", AT_ONCE, faulty(how))
        notes = "\n".join(raised.value.__notes__)
        assert "in the trainer of column" in notes
        if how == "bug":
            assert "trainers.py" in notes, "a bug brings its traceback"


def strike(record: Path, how: int) -> threading.Thread:
    """Kill or freeze the process that writes its id into a file."""

    def wait() -> None:
        while not (record.exists() and record.read_text()):
            time.sleep(0.05)
        os.kill(int(record.read_text()), how)

    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    return thread


@pytest.mark.long
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
def test_a_lost_trainer_ends_the_run_by_name_and_a_resume_goes_on(cluster, local, tmp_path, how):
    record = tmp_path / "pid"
    striking = strike(record, how)
    began = time.monotonic()
    with pytest.raises(UserError, match="the trainer of column is gone") as lost:
        on_ray(tmp_path / "ray", "tabular", AT_ONCE, faulty("wait", record), "cluster.timeout=4")
    assert time.monotonic() - began < 60
    assert lost.value.path == "cluster.updates" and "--resume" in lost.value.fix
    striking.join(10)
    assert gone(int(record.read_text()))
    coterie.train(resume=tmp_path / "ray")
    assert weights(tmp_path / "ray") == weights(local("tabular"))


def gone(pid: int, seconds: float = 30.0) -> bool:
    """Whether a process ends in time."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return True
        time.sleep(0.2)
    return False


@pytest.mark.long
def test_a_trainer_that_is_lost_while_others_play_ends_the_run(cluster, tmp_path, monkeypatch):
    hosted: list[HostedTrainers] = []
    plain = HostedTrainers.open

    async def opened(trainer: HostedTrainers, ctx: Any) -> None:
        hosted.append(trainer)
        await plain(trainer, ctx)

    def freeze(step: int, *_: Any) -> None:
        if step == 1:
            os.kill(hosted[0].hosts.hosts[1].pid, signal.SIGSTOP)  # type: ignore[union-attr]

    monkeypatch.setattr(HostedTrainers, "open", opened)
    with pytest.raises(UserError, match=r"the trainer of column is gone[\s\S]*no answer for 4 s"):
        slow = ["env.pause=1", "schedule.checkpoint_every=0", "schedule.evaluate_every=0"]
        on_ray(tmp_path / "ray", "tabular", AT_ONCE, "cluster.timeout=4", *slow, progress=freeze)
