"""Runs on a Ray cluster of this machine: the same results as in one process, and what faults do to them."""

from __future__ import annotations

import asyncio
import itertools
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Event
from typing import Any

import pytest

import coterie
from coterie.backends.cluster import connection
from coterie.backends.executors.ray import executor as module
from coterie.backends.executors.ray.account import RunAccount
from coterie.backends.executors.ray.executor import RayExecutor
from coterie.backends.executors.ray.hosted_engine import HostedEngine
from coterie.backends.executors.ray.weight_files import WeightFiles
from coterie.core.errors import ConfigError, UserError
from coterie.recipes import load
from tests.backends.executors.ray.nodes import Faults
from tests.ray_cluster import local_cluster
from tests.test_resume import MATRIX, rollouts, rows, same, weights

pytestmark = [pytest.mark.ray, pytest.mark.xdist_group("ray")]

PLAN = ["schedule.tasks_per_step=4", "schedule.steps=3", "schedule.checkpoint_every=1",
        "schedule.evaluate_every=2", "schedule.evaluate_tasks=2", "loss.entropy=0.3"]  # fmt: skip
LADDER = ["schedule.steps=6", "env.curriculum={field: tasks, values: [3, 5, 7], promote_at: 0.1, window: 2}"]
SETS = ["evaluate.sets.pays={env: {table: [[1.0, 1.0], [1.0, 1.0]], tasks: 3}, samples: 2}",
        "evaluate.sets.plain={sampling: {temperature: 0.5}}", "evaluate.best=plain"]  # fmt: skip
AHEAD = "schedule.max_staleness={}"
ROOT = Path(__file__).parents[4]


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """A cluster that the runs of this module find."""
    with local_cluster(12) as ray:
        yield ray


GAMES: dict[str, tuple[str, dict[str, Any], list[str]]] = {
    "tabular": (MATRIX, {}, ["schedule.checkpoint_every=1", "schedule.steps=4"]),
    "shared": ("plan_path", {"scale": "smoke"}, PLAN),
    "lora": ("plan_path", {"scale": "smoke", "overlays": ["l1", "per_role"]}, PLAN),
    "full": ("plan_path", {"scale": "smoke", "overlays": ["l2", "per_role"]}, PLAN),
    "curriculum": (MATRIX, {}, LADDER),
    "sets": (MATRIX, {}, [*LADDER, *SETS]),
    "coach": ("mathchat_coach", {"scale": "smoke"}, [*PLAN, "trainer.minibatch_size=16"]),
}
PAIRWISE = [
    ("tabular", 1, 0), ("tabular", 2, 1), ("tabular", 5, 1),
    ("shared", 1, 1), ("shared", 2, 0), ("shared", 5, 0),
    ("lora", 1, 0), ("lora", 2, 1), ("lora", 5, 0),
    ("full", 1, 0), ("full", 2, 0), ("full", 5, 1),
    ("curriculum", 1, 0), ("curriculum", 2, 0), ("curriculum", 5, 1),
    ("coach", 1, 1), ("coach", 2, 0), ("coach", 5, 0),
    ("sets", 1, 0), ("sets", 2, 1), ("sets", 5, 0),
]  # fmt: skip
"""(game, workers, steps ahead): each game with each number of workers, with and without steps ahead."""
SHORT = [("tabular", 5, 1), ("shared", 2, 0), ("lora", 2, 1), ("sets", 2, 1)]
"""Without a single worker, with which a run resumes below."""


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, int], Path]:
    """The folder of a game's run in this process."""
    folder, made = tmp_path_factory.mktemp("local"), set[Path]()

    def run(game: str, ahead: int) -> Path:
        source, named, settings = GAMES[game]
        out = folder / f"{game}-{ahead}"
        if out not in made:
            coterie.train(source, **named, overrides=[*settings, AHEAD.format(ahead)], out=out)
            made.add(out)
        return out

    return run


def on_ray(folder: Path, game: str, workers: int = 2, *more: str, **others: Any) -> coterie.TrainResult:
    source, named, settings = GAMES[game]
    named = {**named, "overlays": [*named.get("overlays", ()), "ray"]}
    workers_ = f"cluster.workers={workers}"
    return coterie.train(source, **named, overrides=[*settings, workers_, *more], out=folder, **others)


def test_every_pair_of_settings_is_compared():
    for first, second in ((0, 1), (0, 2), (1, 2)):
        values = [{case[place] for case in PAIRWISE} for place in (first, second)]
        assert {(case[first], case[second]) for case in PAIRWISE} == {*itertools.product(*values)}
    assert {*SHORT} < {*PAIRWISE}


@pytest.mark.parametrize(
    ("game", "workers", "ahead"),
    [pytest.param(*case, marks=() if case in SHORT else pytest.mark.long) for case in PAIRWISE],
)
def test_a_run_on_a_cluster_is_the_run_in_one_process(
    cluster, local, tmp_path, monkeypatch, game, workers, ahead
):
    sizes = sizes_of_trees(monkeypatch)
    on_ray(tmp_path / "ray", game, workers, AHEAD.format(ahead))
    same(local(game, ahead), tmp_path / "ray")
    sent, useful = map(sum, zip(*sizes, strict=True))
    if game == "shared":  # a tree travels in at most 1.5 times its token arrays and its texts
        assert useful > 0 and sent <= 1.5 * useful, f"{sent / useful:.2f} times"
    if game == "tabular":
        assert coterie.replay(tmp_path / "ray", every=True).same, "it is played again in this process"
    if game == "coach":
        assert any("score/problem_solver/process" in row for row in rows(tmp_path / "ray"))
    if game == "sets":
        assert {"eval/pays/success", "eval/plain/success"} < {*rows(tmp_path / "ray")[-1]}
    if game == "curriculum":
        assert rows(tmp_path / "ray")[-1]["curriculum/level"] > 0


@pytest.mark.long
@pytest.mark.parametrize("kills", [False, True])
def test_weights_in_files_of_a_disk_change_nothing(cluster, local, tmp_path, monkeypatch, kills):
    """Versions that steps in play are pinned to included; an engine that is lost is given them again."""
    killed = kill_engine(monkeypatch, "serving", signal.SIGKILL) if kills else []
    folder, plain, seen = tmp_path / "ray" / "sent_weights", WeightFiles.drop, []

    def drop(files, stored):
        seen.append(len([*folder.iterdir()]))
        plain(files, stored)

    monkeypatch.setattr(WeightFiles, "drop", drop)
    on_ray(tmp_path / "ray", "lora", 2, AHEAD.format(1), "cluster.weights=disk")
    assert len(killed) == kills and 2 <= max(seen) < 12 and not folder.exists()
    (same_but_for_the_cluster if kills else same)(local("lora", 1), tmp_path / "ray")


@pytest.mark.parametrize(
    ("game", "workers"),
    [
        ("tabular", 2),
        pytest.param("shared", 5, marks=pytest.mark.long),
        pytest.param("lora", 2, marks=pytest.mark.long),
        pytest.param("coach", 1, marks=pytest.mark.long),
    ],
)
def test_an_evaluation_on_a_cluster_is_that_in_one_process(cluster, local, game, workers):
    """Of a run's checkpoint, also of its team with a silent role."""
    run = local(game, 0)
    role = next(iter(load(run).config.team.roles))
    for named in ({"samples": 2}, {"greedy": True, "null": [role]}):
        results = [
            coterie.evaluate(run, overrides=settings, tasks=6, split="val", show=6, **named)
            for settings in ([], ["executor=ray", f"cluster={{workers: {workers}}}"])
        ]
        one, other = ({**result.as_dict(), "config_digest": ""} for result in results)  # it has the executor
        assert one == other
        assert results[0].per_task == results[1].per_task and results[0].episodes == results[1].episodes


class Watched:
    """What a test sees of the processes of a run."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.hosts: list[Any] = []
        self.executors: list[RayExecutor] = []
        plain = RayExecutor.new_host

        async def new_host(executor: RayExecutor) -> Any:
            host = await plain(executor)
            self.hosts.append(host)
            if executor not in self.executors:
                self.executors.append(executor)
            return host

        monkeypatch.setattr(RayExecutor, "new_host", new_host)

    def at(self, step: int, what: Any) -> Any:
        """A `progress` that does something once, after a step."""

        def progress(done: int, expected: int, row: Any) -> None:
            if done == step:
                what()

        return progress


def kill_in_play(monkeypatch: pytest.MonkeyPatch, share: int, how: int) -> list[int]:
    """Kill the host that gets the n-th share of jobs; returns the list that will have its pid."""
    plain, killed, shares = RayExecutor.hand, list[int](), [0]

    async def hand(executor: RayExecutor, host: Any, jobs: list[Any]) -> None:
        shares[0] += 1
        if shares[0] == share:
            killed.append(host.pid)
            os.kill(host.pid, how)
        await plain(executor, host, jobs)

    monkeypatch.setattr(RayExecutor, "hand", hand)
    return killed


@pytest.mark.parametrize(("game", "ahead"), [("tabular", 0), pytest.param("lora", 1, marks=pytest.mark.long)])
def test_the_jobs_of_a_killed_host_are_played_again(
    cluster, local, tmp_path, monkeypatch, caplog, game, ahead
):
    watched, killed = Watched(monkeypatch), kill_in_play(monkeypatch, 4, signal.SIGKILL)
    on_ray(tmp_path / "ray", game, 2, AHEAD.format(ahead))
    alone = local(game, ahead)
    assert killed and len(watched.hosts) == 3 and "another one plays its" in caplog.text
    same_but_for_the_cluster(alone, tmp_path / "ray")
    lost = [row.get("cluster/hosts_lost") for row in rows(tmp_path / "ray")]
    assert [n for n in lost if n is not None] == [1.0]


def test_a_host_that_takes_the_place_of_another_is_begun_once(cluster, local, tmp_path, monkeypatch):
    """Jobs are asked for while its account forgets the other one."""
    killed, begun, executors = kill_in_play(monkeypatch, 4, signal.SIGKILL), list[str](), list[RayExecutor]()
    begin, drop = RayExecutor.begin, RunAccount.drop

    async def slowly(account: RunAccount, host: str) -> None:
        executors[0].send_soon()
        await asyncio.sleep(0.5)
        await drop(account, host)

    async def noted(executor: RayExecutor, host: Any) -> None:
        executors.append(executor)
        begun.append(host.name)
        await begin(executor, host)

    monkeypatch.setattr(RunAccount, "drop", slowly)
    monkeypatch.setattr(RayExecutor, "begin", noted)
    on_ray(tmp_path / "ray", "tabular", 2)
    assert killed and len(begun) == len({*begun}) == 3
    same_but_for_the_cluster(local("tabular", 0), tmp_path / "ray")


def test_a_server_that_is_no_cluster_is_no_endless_wait(monkeypatch):
    monkeypatch.setattr(connection, "ANSWERS", 4.0)
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        with pytest.raises(RuntimeError, match="has not answered as Ray does, in 4 s"):
            connection.check_ray(address)


@pytest.mark.long
@pytest.mark.parametrize("ahead", [0, 2])
def test_many_kills_and_freezes_change_no_result(cluster, tmp_path, monkeypatch, ahead):
    """20 processes are killed and 10 frozen in 50 steps."""
    rng, settings = random.Random(7), ["schedule.steps=50", f"schedule.max_staleness={ahead}"]
    coterie.train(MATRIX, overrides=settings, out=tmp_path / "local")
    each = {signal.SIGKILL: 10, signal.SIGSTOP: 5}
    planned = [(who, how) for how in each for who in ("host", "engine") for _ in range(each[how])]
    rng.shuffle(planned)
    # Apart from each other: three lost hosts with the same job would blame the job.
    faults = Faults(monkeypatch, dict(zip(range(8, 8 + 7 * 30, 7), planned, strict=True)))
    more = ["cluster.timeout=4", "cluster.restarts=99"]
    coterie.train(MATRIX, overlays=["ray"], overrides=[*settings, *more], out=tmp_path / "ray",
                  progress=faults.progress)  # fmt: skip
    print("\n".join(f"{victim}, {state}: signal {how}" for victim, state, how in faults.done))
    assert len(faults.done) >= 24
    assert {state for _, state, _ in faults.done} == {"idle", "serving", "syncing"}
    assert weights(tmp_path / "ray") == weights(tmp_path / "local")
    assert rollouts(tmp_path / "ray") == rollouts(tmp_path / "local")


@pytest.mark.long
def test_a_host_that_hangs_counts_as_dead(cluster, tmp_path, monkeypatch, caplog):
    frozen = kill_in_play(monkeypatch, 3, signal.SIGSTOP)
    coterie.train(MATRIX, overrides=GAMES["tabular"][2], out=tmp_path / "local")
    on_ray(tmp_path / "ray", "tabular", 2, "cluster.timeout=4")
    assert frozen
    assert "no answer for 4 s" in caplog.text
    assert weights(tmp_path / "ray") == weights(tmp_path / "local")


def kill_engine(monkeypatch: pytest.MonkeyPatch, when: str, how: int) -> list[int]:
    """Kill the engine host once, while it serves or takes weights; the list will have its pid."""
    killed: list[int] = []

    def kill(engine: HostedEngine) -> None:
        if not killed:
            killed.append(engine.pid)
            os.kill(engine.pid, how)

    if when == "serving":
        plain, shares = RayExecutor.hand, [0]

        async def hand(executor: RayExecutor, host: Any, jobs: list[Any]) -> None:
            shares[0] += 1
            await plain(executor, host, jobs)
            if shares[0] == 4:
                kill(executor.engine)

        monkeypatch.setattr(RayExecutor, "hand", hand)
    else:
        load, loads = HostedEngine.load_weights, [0]

        async def load_weights(engine: HostedEngine, weights: Any) -> None:
            loads[0] += 1
            loading = asyncio.ensure_future(load(engine, weights))
            await asyncio.sleep(0)
            if loads[0] == 5:
                kill(engine)
            await loading

        monkeypatch.setattr(HostedEngine, "load_weights", load_weights)
    return killed


@pytest.mark.parametrize(
    ("game", "when", "how"),
    [
        ("tabular", "serving", signal.SIGKILL),
        pytest.param("lora", "serving", signal.SIGKILL, marks=pytest.mark.long),
        pytest.param("lora", "syncing", signal.SIGKILL, marks=pytest.mark.long),
        ("tabular", "syncing", signal.SIGKILL),
        ("tabular", "serving", signal.SIGSTOP),
    ],
)
def test_an_engine_that_is_lost_is_started_again_with_its_versions(
    cluster, local, tmp_path, monkeypatch, caplog, game, when, how
):
    alone, killed = local(game, 1), kill_engine(monkeypatch, when, how)
    soon = ["cluster.timeout=4"] if how == signal.SIGSTOP else []
    on_ray(tmp_path / "ray", game, 2, AHEAD.format(1), *soon)
    assert killed and "another one has its weights after" in caplog.text
    same_but_for_the_cluster(alone, tmp_path / "ray")
    lost = [row.get("cluster/engines_lost") for row in rows(tmp_path / "ray")]
    assert [n for n in lost if n is not None] == [1.0]


def same_but_for_the_cluster(local: Path, ray: Path) -> None:
    """Compare two runs, but for the metrics of lost processes."""
    kept = [{k: v for k, v in row.items() if not k.startswith("cluster/")} for row in rows(ray)]
    assert kept == rows(local) and weights(ray) == weights(local)
    assert rollouts(ray) == rollouts(local)


def test_an_engine_that_may_not_be_replaced_ends_the_run_and_a_resume_goes_on(cluster, tmp_path, monkeypatch):
    watched = Watched(monkeypatch)
    coterie.train(MATRIX, overrides=GAMES["tabular"][2], out=tmp_path / "local")
    kill = watched.at(2, lambda: os.kill(watched.executors[0].engine.pid, signal.SIGKILL))
    with pytest.raises(UserError, match="the engine's process is gone, and 0 processes") as error:
        on_ray(tmp_path / "ray", "tabular", 2, "cluster.restarts=0", progress=kill)
    assert error.value.path == "cluster.restarts"
    coterie.train(resume=tmp_path / "ray", overrides=["cluster.workers=1"])
    same(tmp_path / "local", tmp_path / "ray")


PLUGIN = """
import os, logging
import coterie
from coterie import hookimpl
from tests.games import Matrix

class Faulty(Matrix):
    class Config(Matrix.Config):
        how: str = "none"

    def step(self, state, joint, ctx):
        how = self.config.how
        if how == "raise":
            raise KeyError("no such cell")
        if how == "die":
            os._exit(3)
        if how == "warn":
            logging.getLogger("coterie").warning("the board is worn")
        return super().step(state, joint, ctx)

@hookimpl
def register_environments(register):
    register("faulty", Faulty)
"""


@pytest.fixture
def faulty(tmp_path: Path) -> Iterator[Path]:
    file = tmp_path / "faulty_game.py"
    file.write_text(PLUGIN)
    yield file


def command(file: Path, out: Path, how: str, *more: str) -> subprocess.CompletedProcess[str]:
    arguments = [
        MATRIX,
        "-p",
        str(file),
        "--with",
        "ray",
        "env.type=faulty",
        f"env.how={how}",
        "--out",
        str(out),
    ]
    return subprocess.run(
        [sys.executable, "-m", "coterie", "run", *arguments, *more],
        capture_output=True, text=True, timeout=120, cwd=ROOT,
    )  # fmt: skip


def test_a_plugin_file_travels_and_its_errors_come_back(cluster, tmp_path, faulty):
    there = f"cluster.address={cluster.get_runtime_context().gcs_address}"
    done = command(faulty, tmp_path / "fine", "warn", "schedule.steps=2", there)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("the board is worn") == 1, "two hosts warn of it, and the run tells it once"
    done = command(faulty, tmp_path / "raises", "raise", there)
    text = done.stdout + done.stderr
    assert done.returncode != 0 and "KeyError" in text and "faulty_game.py" in text
    one = ["cluster.workers=1", "schedule.tasks_per_step=1"]
    done = command(faulty, tmp_path / "dies", "die", there, *one)
    assert done.returncode != 0 and "Traceback" not in done.stderr
    assert "3 rollout hosts were lost while they played task" in done.stderr


@pytest.mark.parametrize(
    ("how", "trainers"),
    [
        (signal.SIGINT, "in_turn"),
        pytest.param(signal.SIGTERM, "in_turn", marks=pytest.mark.long),
        (signal.SIGKILL, "in_turn"),
        pytest.param(signal.SIGINT, "at_once", marks=pytest.mark.long),
        pytest.param(signal.SIGKILL, "at_once", marks=pytest.mark.long),
    ],
)
def test_nothing_is_left_of_a_run_that_ends(tmp_path, how, trainers):
    arguments = [MATRIX, "--with", "ray", "schedule.steps=100000", "--out", str(tmp_path / "run")]
    arguments.append(f"cluster.updates={trainers}")
    mark = f"COTERIE_TEST_MARK={tmp_path}"
    run = subprocess.Popen(
        [sys.executable, "-m", "coterie", "run", *arguments],
        cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
        env={**os.environ, "COTERIE_TEST_MARK": str(tmp_path), "RAY_ADDRESS": "local"},
    )  # fmt: skip
    metrics = tmp_path / "run" / "metrics.jsonl"
    wait_for(lambda: metrics.exists() and metrics.stat().st_size > 0, 90)
    there = marked(mark)
    assert sum("RolloutHost" in name or "EngineHost" in name for name in there) == 3
    assert any("TrainerHost" in name for name in there) == (trainers == "at_once")
    os.kill(run.pid, how)
    _, errors = run.communicate(timeout=60)
    if how != signal.SIGKILL:
        assert "go on with: coterie run --resume" in errors
    wait_for(lambda: not marked(mark), 60)


def wait_for(true: Any, seconds: float) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "it took too long"
        time.sleep(0.2)


def marked(mark: str) -> list[str]:
    """The names of the processes that have a variable in their environment.

    Two agents of Ray itself are left out: they look for their parent now and then, and end by themselves.
    """
    names = []
    for folder in Path("/proc").iterdir():
        try:
            if folder.name.isdigit() and mark in (folder / "environ").read_text().split("\0"):
                names.append((folder / "cmdline").read_text().replace("\0", " "))
        except OSError:
            continue
    return [name for name in names if "Agent" not in name]


def test_two_runs_on_one_cluster_do_not_disturb_each_other(cluster, local, tmp_path):
    address = cluster.get_runtime_context().gcs_address
    arguments = [MATRIX, "--with", "ray", *GAMES["tabular"][2], f"cluster.address={address}"]
    both = [
        subprocess.Popen(
            [sys.executable, "-m", "coterie", "run", *arguments, "--out", str(tmp_path / name)],
            cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
        )
        for name in ("a", "b")
    ]  # fmt: skip
    for run in both:
        _, errors = run.communicate(timeout=120)
        assert run.returncode == 0, errors
    same(local("tabular", 0), tmp_path / "a")
    same(local("tabular", 0), tmp_path / "b")


@pytest.mark.parametrize("play", ["pinned", pytest.param("in_flight", marks=pytest.mark.long)])
def test_the_end_says_how_many_tokens_of_cancelled_steps_were_drawn(cluster, tmp_path, play):
    ahead, stop = ["schedule.max_staleness=3", f"schedule.play={play}", "schedule.steps=9"], Event()
    ended = coterie.train(
        MATRIX, overlays=["ray"], overrides=["cluster.workers=2", *ahead], out=tmp_path / "run",
        interrupt=stop, progress=lambda step, *_: step == 6 and stop.set(),
    )  # fmt: skip
    assert ended.cancelled.steps == 3
    # Two of the three were handed out at least one update ago; the third one may have drawn nothing yet.
    assert 0 < ended.cancelled.tokens <= 3 * ended.tokens / 6


def test_too_small_a_cluster_is_told_with_its_numbers(cluster, tmp_path):
    with pytest.raises(ConfigError, match="the run takes 42 CPUs, and the cluster has 12 CPUs") as error:
        on_ray(tmp_path / "run", "tabular", 40)
    assert error.value.path == "cluster.workers"


def test_an_address_where_nobody_answers_is_told(tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "coterie", "run", MATRIX, "--with", "ray", "cluster.address=127.0.0.1:1",
         "--out", str(tmp_path / "run")],
        capture_output=True, text=True, timeout=120, cwd=ROOT,
    )  # fmt: skip
    assert done.returncode != 0 and "no Ray cluster answers at 127.0.0.1:1" in done.stderr
    assert "Traceback" not in done.stderr


def sizes_of_trees(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """Bytes of each tree that comes from a host, and of its token arrays and texts."""
    sizes: list[tuple[int, int]] = []
    plain = module.unpacked

    def unpacked(data: bytes) -> Any:
        tree, scored = plain(data)
        useful = 0
        for decision in (decision for node in tree.nodes() for decision in node.decisions.values()):
            useful += 8 * len(decision.prompt_ids) + sum(len(m["content"]) for m in decision.messages)
            for action in decision.branches:
                useful += len(action.text)
                useful += sum(8 * len(call.prompt_ids) + 16 * len(call.token_ids) for call in action.calls)
        sizes.append((len(data), useful))
        return tree, scored

    monkeypatch.setattr(module, "unpacked", unpacked)
    return sizes
