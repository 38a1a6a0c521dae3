"""Runs on a Ray cluster of three nodes: what the loss of one, and what differs on one, does to them."""

from __future__ import annotations

import asyncio
import os
import random
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

import coterie
from coterie.backends.executors.ray.executor import RayExecutor
from coterie.backends.trainers.tabular import TabularTrainer
from coterie.core.errors import TooManyMissing, UserError
from tests.backends.executors.ray.nodes import Display, Faults, Nodes, in_play, placed, wait_for
from tests.test_resume import MATRIX, rollouts, rows, same, weights

pytestmark = [pytest.mark.ray, pytest.mark.xdist_group("ray")]

ROOT = Path(__file__).parents[4]
COUNTDOWN = ROOT / "tests" / "packaging" / "coterie-countdown"
STEPS = ["schedule.steps=4", "schedule.checkpoint_every=1"]

PLUGIN = """
from coterie import hookimpl
from tests.games import Matrix

class Own(Matrix):
    pass

@hookimpl
def register_environments(register):
    register("own_game", Own)
"""


@pytest.fixture(scope="module")
def nodes() -> Iterator[Nodes]:
    ray = pytest.importorskip("ray")
    environment = dict(os.environ)
    cluster = Nodes()
    try:
        ray.init(address=cluster.address, log_to_driver=False)
        yield cluster
    finally:
        cluster.close()
        os.environ.clear()
        os.environ.update(environment)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the run in one process."""
    folder = tmp_path_factory.mktemp("undisturbed") / "run"
    coterie.train(MATRIX, overrides=STEPS, out=folder)
    return folder


def on_nodes(nodes: Nodes, folder: Path, *more: str, workers: int = 4, **others: Any) -> coterie.TrainResult:
    overrides = [*STEPS, *nodes.settings, f"cluster.workers={workers}", *more]
    return coterie.train(MATRIX, overlays=["ray"], overrides=overrides, out=folder, **others)


def equal(folder: Path, undisturbed: Path) -> None:
    """Assert that a run with faults has the results of one without: what counts faults is left out."""
    kept = [{k: v for k, v in row.items() if not k.startswith("cluster/")} for row in rows(folder)]
    assert kept == rows(undisturbed)
    assert weights(folder) == weights(undisturbed) and rollouts(folder) == rollouts(undisturbed)


def lost(folder: Path) -> float:
    return sum(float(row.get("cluster/hosts_lost", 0)) for row in rows(folder))  # type: ignore[arg-type]


def test_a_roles_samples_reach_the_policy_of_that_role_alone(nodes, undisturbed, tmp_path, monkeypatch):
    """Row and column play on several hosts at once, and both pass through one engine."""
    record, update, trained = tmp_path / "record", TabularTrainer.update, set[tuple[str, str]]()

    async def watched(trainer: TabularTrainer, samples: Any, step: int) -> Any:
        trained.update((sample.key.role, policy) for policy, several in samples.items() for sample in several)
        assert all(sample.policy == policy for policy, several in samples.items() for sample in several)
        return await update(trainer, samples, step)

    monkeypatch.setattr(TabularTrainer, "update", watched)
    engine = f"engine={{type: 'tests.backends.executors.ray.nodes:Recording', record: {record}}}"
    on_nodes(nodes, tmp_path / "run", engine)
    assert trained == {("row", "row"), ("column", "column")}
    assert set(record.read_text().splitlines()) == {"row row", "column column"}
    same(undisturbed, tmp_path / "run")


# ------------------------------------------------------------------------------------------ hosts and nodes


def test_a_host_that_is_killed_on_another_node_is_replaced(nodes, undisturbed, tmp_path, monkeypatch):
    places, display, seen = placed(monkeypatch, nodes), Display(), list[Any]()

    def kill(host: Any) -> bool:
        os.kill(host.pid, signal.SIGKILL)
        seen.append(display.processes())
        return True

    killed = in_play(monkeypatch, 5, kill)
    on_nodes(nodes, tmp_path / "run", progress=display)
    assert killed and len(places) == 5 and None not in places.values()
    equal(tmp_path / "run", undisturbed)
    assert lost(tmp_path / "run") == 1
    assert seen == [{"nodes": 3, "hosts": 4, "in play": 4, "queued": 0}]
    assert display.processes() == {}, "the run has ended"


def test_the_hosts_of_a_node_that_is_lost_are_replaced_on_another(nodes, undisturbed, tmp_path, monkeypatch):
    places = placed(monkeypatch, nodes)
    gone: list[Any] = []

    def remove(host: Any) -> bool:
        gone.append(places[host.name])
        nodes.remove(gone[0])
        return True

    removed = in_play(monkeypatch, 6, remove)
    try:
        on_nodes(nodes, tmp_path / "run")
    finally:
        nodes.add()
    assert removed
    had = [name for name, node in places.items() if node is gone[0]]
    assert had and len(places) == 4 + len(had), places
    equal(tmp_path / "run", undisturbed)
    assert lost(tmp_path / "run") == len(had)


@pytest.mark.long
def test_a_lost_node_without_room_for_its_hosts_ends_the_run_which_resumes(
    nodes, undisturbed, tmp_path, monkeypatch
):
    places = placed(monkeypatch, nodes)

    def remove(host: Any) -> bool:
        nodes.remove(places[host.name])
        return True

    removed = in_play(monkeypatch, 12, remove)
    try:
        monkeypatch.setattr("coterie.backends.cluster.connection.PLACED", 20.0)
        with pytest.raises(UserError, match="the cluster has had no room for rollout host") as error:
            on_nodes(nodes, tmp_path / "run", "cluster.timeout=20", workers=8)
        assert removed and "0 CPUs and" in str(error.value)
        coterie.train(resume=tmp_path / "run", overrides=["cluster.workers=2"])
    finally:
        nodes.add()
    equal(tmp_path / "run", undisturbed)


@pytest.mark.long
def test_a_host_that_dies_while_it_takes_the_place_of_another_is_replaced_too(
    nodes, undisturbed, tmp_path, monkeypatch
):
    places, begin = placed(monkeypatch, nodes), RayExecutor.begin

    async def begin_and_die(executor: RayExecutor, host: Any) -> None:
        await begin(executor, host)
        if host.name == "rollout host 4":
            os.kill(host.pid, signal.SIGKILL)
            await asyncio.sleep(1)  # as with an engine that takes its time to count the jobs

    monkeypatch.setattr(RayExecutor, "begin", begin_and_die)
    killed = in_play(monkeypatch, 5, lambda host: not os.kill(host.pid, signal.SIGKILL))
    on_nodes(nodes, tmp_path / "run")
    assert killed and len(places) == 6
    equal(tmp_path / "run", undisturbed)
    assert lost(tmp_path / "run") == 2


@pytest.mark.long
def test_a_node_whose_raylet_stands_still_is_lost_after_a_while(nodes, tmp_path, monkeypatch, caplog):
    """Its hosts go on until Ray counts the node as dead; then others play their jobs."""
    places, steps = placed(monkeypatch, nodes), "schedule.steps=25"
    stopped: list[Any] = []
    began: list[float] = []

    def stop(host: Any) -> bool:
        stopped.append(places[host.name])
        began.append(time.monotonic())
        os.kill(nodes.raylet(stopped[0]), signal.SIGSTOP)
        return True

    victim = in_play(monkeypatch, 6, stop)
    coterie.train(MATRIX, overrides=[*STEPS, steps], out=tmp_path / "local")
    try:
        on_nodes(nodes, tmp_path / "run", steps, "env.pause=0.2")
        assert victim and time.monotonic() - began[0] > 30, "the run must outlast the health check"
    finally:
        os.kill(nodes.raylet(stopped[0]), signal.SIGCONT)
        nodes.remove(stopped[0])
        nodes.add()
    had = [name for name, node in places.items() if node is stopped[0]]
    print(caplog.text, places, len(had), time.monotonic() - began[0])
    equal(tmp_path / "run", tmp_path / "local")
    assert lost(tmp_path / "run") == len(had)


class NodeFaults(Faults):
    """Faults of hosts, the engine and raylets. Another node comes for each whose raylet is frozen."""

    def __init__(self, nodes: Nodes, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.nodes, self.stopped = nodes, list[Any]()

    def pid_of(self, victim: str, host: Any) -> int:
        if victim != "raylet":
            return super().pid_of(victim, host)
        assert self.executor is not None
        places = [self.nodes.of(each.pid) for each in (host, *self.executor.hosts)]
        node = next((each for each in places if each is not None and each not in self.stopped), None)
        if node is None:
            raise ProcessLookupError
        self.stopped.append(node)
        self.nodes.add()
        return self.nodes.raylet(node)


@pytest.mark.long
@pytest.mark.parametrize("ahead", [0, 2])
def test_kills_and_freezes_of_hosts_the_engine_and_raylets_change_no_result(
    nodes, tmp_path, monkeypatch, ahead
):
    """20 kills and 10 freezes in 50 steps on three nodes, two of the freezes of a raylet."""
    rng, settings = random.Random(11), ["schedule.steps=50", f"schedule.max_staleness={ahead}"]
    coterie.train(MATRIX, overrides=settings, out=tmp_path / "local")
    kills = [(victim, signal.SIGKILL) for victim in ("host", "engine") for _ in range(10)]
    freezes = [(victim, signal.SIGSTOP) for victim in ("host", "engine") for _ in range(4)]
    planned = [*kills, *freezes]
    rng.shuffle(planned)
    for place in (4, 16):  # early enough that Ray counts the nodes as dead within the run
        planned.insert(place, ("raylet", signal.SIGSTOP))
    faults = NodeFaults(nodes, monkeypatch, dict(zip(range(8, 8 + 7 * 30, 7), planned, strict=True)))
    more = ["cluster.timeout=12", "cluster.restarts=99", "cluster.workers=4", "env.pause=0.1"]
    try:
        coterie.train(MATRIX, overlays=["ray"], overrides=[*settings, *nodes.settings, *more],
                      out=tmp_path / "ray", progress=faults.progress)  # fmt: skip
    finally:
        for node in faults.stopped:
            os.kill(nodes.raylet(node), signal.SIGCONT)
            nodes.remove(node)
    print("\n".join(f"{victim}, {state}: signal {how}" for victim, state, how in faults.done))
    assert len(faults.done) >= 24 and len(faults.stopped) == 2
    assert {state for _, state, _ in faults.done} == {"idle", "serving", "syncing"}
    assert weights(tmp_path / "ray") == weights(tmp_path / "local")
    assert rollouts(tmp_path / "ray") == rollouts(tmp_path / "local")


@pytest.mark.long
@pytest.mark.parametrize("hosts", ["one", "all"])
def test_a_step_that_never_returns_is_the_death_of_its_host(nodes, undisturbed, tmp_path, caplog, hosts):
    """The event loop of a host stands still; where it does on all of them, the task is lost."""
    flag = tmp_path / "flag" if hosts == "one" else tmp_path / "no such folder" / "flag"
    stuck = ["env.type=tests.backends.executors.ray.nodes:Stuck", f"env.flag={flag}", "cluster.timeout=5"]
    if hosts == "all":
        with pytest.raises(TooManyMissing, match="step has not returned for"):
            on_nodes(nodes, tmp_path / "run", *stuck, "schedule.tasks_per_step=1", workers=1)
        return
    on_nodes(nodes, tmp_path / "run", *stuck, workers=2)
    assert flag.exists() and "step has not returned for" in caplog.text
    equal(tmp_path / "run", undisturbed)


# ------------------------------------------------------------------------------------ what differs on a node


def unshared(*, disk: str = "", name: str = "") -> list[str]:
    """A command that runs another one with a view of the disk, and a host name, of its own; skips without.

    Args:
        disk: commands of a shell that mount something.
    """
    script = f'{disk or "true"} && hostname {name or "node-x"} && exec "$@"'
    inside = ["unshare", "-rmu", "sh", "-c", script, "sh"]
    if shutil.which("unshare") is None or subprocess.run([*inside, "true"], capture_output=True).returncode:
        pytest.skip("no mounts in a namespace of one's own here")
    return inside


def command(nodes: Nodes, out: Path, *arguments: str) -> list[str]:
    """A command line of a run on the cluster."""
    first, *more = arguments
    settings = ["--with", "ray", *STEPS, *nodes.settings, *more]
    return [sys.executable, "-m", "coterie", "run", first, *settings, "--out", str(out)]


def run(arguments: Sequence[str], path: Sequence[Path] = ()) -> subprocess.CompletedProcess[str]:
    places = os.pathsep.join([*map(str, path), os.environ.get("PYTHONPATH", "")])
    return subprocess.run(
        arguments, capture_output=True, text=True, timeout=240, cwd=ROOT,
        env={**os.environ, "PYTHONPATH": places},
    )  # fmt: skip


def installed(folder: Path, version: str) -> Path:
    """The kit's example of a plugin package, as pip installs it into a folder."""
    shutil.copytree(COUNTDOWN / "coterie_countdown", folder / "coterie_countdown")
    info = folder / f"coterie_countdown-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: coterie-countdown\nVersion: {version}\n")
    (info / "entry_points.txt").write_text("[coterie]\ncountdown = coterie_countdown\n")
    return folder


def test_a_plugin_package_runs_on_the_nodes_as_it_is(nodes, tmp_path):
    place = installed(tmp_path / "site", "0.3.0")
    local = [sys.executable, "-m", "coterie", "run", "countdown", *STEPS, "--out", str(tmp_path / "local")]
    for arguments in (local, command(nodes, tmp_path / "run", "countdown")):
        done = run(arguments, [place])
        assert done.returncode == 0, done.stderr
    same(tmp_path / "local", tmp_path / "run")


def test_another_version_on_one_node_is_refused_before_the_first_step(nodes, tmp_path):
    place, other = installed(tmp_path / "site", "0.3.0"), installed(tmp_path / "other", "0.4.0")
    node = nodes.join(5, unshared(disk=f"mount --bind {other} {place}", name="node-c"))
    try:
        takes = ["cluster.workers=3", "cluster.worker_cpus=4"]
        done = run(command(nodes, tmp_path / "run", "countdown", *takes), [place])
    finally:
        nodes.leave(node)
    assert done.returncode != 0 and "Traceback" not in done.stderr
    assert "node node-c (" in done.stderr and "coterie-countdown 0.4.0 instead of 0.3.0" in done.stderr
    assert not (tmp_path / "run" / "metrics.jsonl").exists()


@pytest.mark.parametrize("there", ["another", pytest.param("none", marks=pytest.mark.long)])
def test_a_plugin_file_is_compared_by_its_content_and_travels_where_it_is_not(nodes, tmp_path, there):
    place, other = tmp_path / "plugins", tmp_path / "others"
    for folder in (place, other):
        folder.mkdir()
    (place / "own_game.py").write_text(PLUGIN)
    if there == "another":
        (other / "own_game.py").write_text(PLUGIN + "# changed\n")
    before = set(Path(tempfile.gettempdir()).glob("coterie-plugins-*"))
    node = nodes.join(5, unshared(disk=f"mount --bind {other} {place}", name="node-d"))
    try:
        takes = ["cluster.workers=3", "cluster.worker_cpus=4", "env.type=own_game"]
        done = run(command(nodes, tmp_path / "run", MATRIX, "-p", str(place / "own_game.py"), *takes))
    finally:
        nodes.leave(node)
    if there == "another":
        assert done.returncode != 0 and "Traceback" not in done.stderr
        assert "node node-d (" in done.stderr and "has another content of the plugin file" in done.stderr
        assert str(place / "own_game.py") in done.stderr
        assert not (tmp_path / "run" / "metrics.jsonl").exists()
    else:
        assert done.returncode == 0, done.stderr
    assert set(Path(tempfile.gettempdir()).glob("coterie-plugins-*")) <= before


@pytest.mark.long
def test_a_node_that_does_not_see_the_folder_of_weights_is_named_before_the_first_step(nodes, tmp_path):
    shared = tmp_path / "shared"
    shared.mkdir()
    takes = ["cluster.weights=disk", f"cluster.weights_folder={shared}"]
    done = run(command(nodes, tmp_path / "all", MATRIX, *takes))
    assert done.returncode == 0, done.stderr
    node = nodes.join(1, unshared(disk=f"mount -t tmpfs tmpfs {shared}", name="node-e"))
    try:
        done = run(command(nodes, tmp_path / "run", MATRIX, *takes))
    finally:
        nodes.leave(node)
    assert done.returncode != 0 and "Traceback" not in done.stderr
    assert f"1 of 4 nodes can't read what the run writes to {shared}" in done.stderr
    assert "node node-e (" in done.stderr and "FileNotFoundError" in done.stderr
    assert not (tmp_path / "run" / "metrics.jsonl").exists() and not [*shared.iterdir()]


# ------------------------------------------------------------------------------------------------ the driver


def test_a_full_disk_ends_a_run_by_name_and_it_resumes_once_there_is_room(nodes, tmp_path):
    steps = ["schedule.steps=60", "schedule.record_every=0", "schedule.keep_checkpoints=99"]
    disk, start = tmp_path / "disk", command(nodes, tmp_path / "disk" / "run", MATRIX, *steps)
    disk.mkdir()
    again = [sys.executable, "-m", "coterie", "run", "--resume", str(disk / "run")]
    script = (
        f"if {shlex.join(start)}; then exit 9; fi; echo 'it is full' >&2; mount -o remount,size=9m {disk}"
        f" && {shlex.join(again)} && cp -r {disk}/run {tmp_path}/run"
    )
    done = run([*unshared(disk=f"mount -t tmpfs -o size=700k tmpfs {disk}"), "sh", "-c", script])
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    first, _ = done.stderr.split("it is full\n")
    assert "the checkpoint of step" in first and "No space left" in first
    coterie.train(MATRIX, overrides=[*STEPS, *steps], out=tmp_path / "local")
    same(tmp_path / "local", tmp_path / "run")


def test_nothing_is_left_on_any_node_of_a_run_whose_process_is_killed(nodes, tmp_path):
    arguments = command(nodes, tmp_path / "run", MATRIX, "cluster.workers=4", "schedule.steps=100000")
    before = left_in_tmp()
    driver = subprocess.Popen(arguments, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        metrics = tmp_path / "run" / "metrics.jsonl"
        wait_for(lambda: metrics.exists() and metrics.stat().st_size > 0, 90, "the first step")
        assert len(nodes.actors()) == 5
    finally:
        driver.kill()
        driver.wait(30)
    wait_for(lambda: not nodes.actors(), 60, "the end of the actors")
    assert left_in_tmp() <= before


def left_in_tmp() -> set[Path]:
    return {path for path in Path(tempfile.gettempdir()).iterdir() if path.name.startswith("coterie")}


@pytest.mark.long
def test_two_runs_share_the_nodes_and_have_the_results_of_one_alone(nodes, undisturbed, tmp_path):
    drivers = [
        subprocess.Popen(
            command(nodes, tmp_path / name, MATRIX, "cluster.workers=3", f"cluster.engine_gpus={gpus}",
                    f"cluster.engine_cpus={cpus}"),
            cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
        )
        for name, gpus, cpus in (("a", 1, 1), ("b", 0, 0))
    ]  # fmt: skip
    for driver in drivers:
        _, errors = driver.communicate(timeout=120)
        assert driver.returncode == 0, errors
    for name in ("a", "b"):
        same(undisturbed, tmp_path / name)
