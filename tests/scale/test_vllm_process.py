"""Engine `vllm` in processes of its own: log-probs after each sync, killed processes, full disks, orphans."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytestmark = [pytest.mark.scale, pytest.mark.xdist_group("vllm_process"), pytest.mark.timeout(600)]
pytest.importorskip("vllm", reason="runs in the venv of `make test-scale`")

from coterie.backends.engines.vllm import transfer  # noqa: E402
from coterie.backends.engines.vllm.transfer import TensorFiles  # noqa: E402
from coterie.core.errors import WriteError  # noqa: E402
from tests.scale.fake_plugin import with_fake_transfer  # noqa: E402
from tests.scale.kept_kv import check_kept_keys  # noqa: E402
from tests.scale.vllm_models import LONG, LORA, TOLERANCE, Playing, adapted, mixed, module, request, until  # noqa: E402

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def playing(runner, tmp_path_factory):
    """Two adapters and their frozen base, on one server: the first of this machine, with no cache."""
    base = adapted(module(tied=True, seed=1), {"planner": 4, "worker": 12})
    modules = {"planner": (base, "planner"), "worker": (base, "worker"), "frozen": (base, None)}
    trains = {"planner": "lora", "worker": "lora", "frozen": "none"}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VLLM_CACHE_ROOT", str(tmp_path_factory.mktemp("vllm")))
        yield from opened(runner, Playing(modules, trains, process="own", kv_gib=0.25))


@pytest.fixture(scope="module")
def two(runner):
    """A policy with all weights trained, on two servers."""
    trained = {"tied": (module(tied=True, seed=2), None)}
    yield from opened(runner, Playing(trained, {"tied": "full"}, process="own", replicas=2, kv_gib=0.5))


def opened(runner, playing):
    runner.run(playing.open())
    pids = [pid for server in servers(playing) for pid in server.pids]
    assert len(pids) >= 2 * len(servers(playing))  # an engine and a worker each
    yield playing
    folders = [folder for server in servers(playing) for folder in folders_of(server)]
    pids = [pid for server in servers(playing) for pid in server.pids]
    runner.run(playing.engine.close())
    assert not any(running(pid) for pid in pids)
    assert not any(folder.exists() for folder in folders)


def servers(playing):
    (base,) = playing.engine.loaded_bases.values()
    return base.replicas.servers


def replicas(playing):
    (base,) = playing.engine.loaded_bases.values()
    return base.replicas


def folders_of(server):
    return [] if server.files is None else list(server.files.folders.made.values())


def running(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


async def kill_soon(server, which, seconds=0.15):
    """Kill the engine (0) or the worker (-1) of a server while requests are in flight."""
    pid = server.pids[which]
    await asyncio.sleep(seconds)
    os.kill(pid, signal.SIGKILL)


# ------------------------------------------------------------------------------------------------ log-probs


def test_logprobs_are_the_trainers_after_every_sync(runner, playing):
    """Adapters and base mixed in one batch, prefixes reused."""
    for _ in range(2):
        for policy in ("planner", "worker"):
            runner.run(playing.update(policy, size=0.05))
        requests = mixed(LORA)
        for _ in range(2):  # the second time vLLM has the prefixes
            calls = runner.run(playing.wave(requests))
            assert playing.gap(requests, calls) < TOLERANCE
        versions = {request.policy: call.version for request, call in zip(requests, calls, strict=True)}
        assert versions["planner"] == playing.versions["planner"]
        assert versions["worker"] == playing.versions["worker"]


def test_logprobs_of_both_replicas_are_the_trainers_after_every_sync(runner, two):
    for _ in range(2):
        runner.run(two.update("tied", size=0.05))
        requests = [request("tied", LONG, number) for number in range(24)]
        requests += [request("tied", LONG[:9], number, temperature=1.5) for number in range(24)]
        calls = runner.run(two.wave(requests))
        assert two.gap(requests, calls) < TOLERANCE
        assert {call.version for call in calls} == {two.versions["tied"]}
        assert [server.version for server in servers(two)] == [two.versions["tied"]] * 2
        for server in servers(two):
            assert [list(folder.glob("*.safetensors")) for folder in folders_of(server)] == [[]]


def test_a_sync_while_requests_are_in_flight_is_seen_in_their_versions(runner, two):
    slow = [request("tied", LONG, number, max_new_tokens=200) for number in range(4)]
    before = two.versions["tied"]

    async def play():
        task = asyncio.ensure_future(two.wave(slow))
        await asyncio.sleep(0.1)
        await two.update("tied", size=0.05)
        return await task, await two.wave(fast)

    fast = mixed(["tied"])
    spanning, new = runner.run(play())
    assert {call.version for call in spanning} <= {before, before + 1}
    assert before in {call.version for call in spanning}
    assert two.engine.spanning > 0
    assert two.gap(fast, new) < TOLERANCE and {call.version for call in new} == {before + 1}


def test_a_sync_in_flight_keeps_keys_and_values_or_computes_them_again(runner, two):
    check_kept_keys(runner, two, "tied")


def test_a_cancelled_request_is_aborted(runner, playing):
    async def play():
        task = asyncio.ensure_future(playing.wave([request("frozen", LONG, max_new_tokens=200)]))
        (server,) = servers(playing)
        while not server.llm.get_num_unfinished_requests():  # no longer: on a fast machine it is short
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await until(lambda: server.llm.get_num_unfinished_requests() == 0)
        assert not replicas(playing).in_flight

    runner.run(play())


def test_ctrl_c_in_the_terminal_does_not_end_vllm(runner, playing):
    (server,) = servers(playing)
    for pid in server.pids:
        os.kill(pid, signal.SIGINT)
    requests = mixed(LORA)
    assert playing.gap(requests, runner.run(playing.wave(requests))) < TOLERANCE
    assert replicas(playing).restarts == 0


# ---------------------------------------------------------------------------------------------------- kills


def test_an_engine_killed_in_a_wave_is_restarted_and_its_requests_repeat(runner, playing, caplog):
    """The restarted engine has the newest weights and both adapters; the tokens are those of the seeds."""
    requests = [request(policy, LONG, n, max_new_tokens=100) for n, policy in enumerate(LORA * 4)]
    expected = runner.run(playing.wave(requests))
    (server,) = servers(playing)
    pids = server.pids

    async def play():
        killing = asyncio.ensure_future(kill_soon(server, 0))
        calls = await playing.wave(requests)
        await killing
        return calls

    with caplog.at_level(logging.WARNING, "coterie"):
        calls = runner.run(play())
    assert replicas(playing).restarts == 1 and replicas(playing).repeated > 0
    assert "vLLM of 'planner' is restarted" in caplog.text
    assert not any(running(pid) for pid in pids)
    assert [call.token_ids for call in calls] == [call.token_ids for call in expected]
    assert playing.gap(requests, calls) < TOLERANCE


@pytest.mark.parametrize("which", [0, pytest.param(-1, marks=pytest.mark.long)], ids=["engine", "worker"])
def test_a_vllm_that_is_stopped_is_killed_and_restarted_like_a_dead_one(runner, playing, caplog, which):
    """No token comes, and no process ends: past the patience one line says who was waited for."""
    requests = [request(policy, LONG, n, max_new_tokens=100) for n, policy in enumerate(LORA * 4)]
    expected = runner.run(playing.wave(requests))
    (server,) = servers(playing)
    pids, before, server.patience.seconds = server.pids, replicas(playing).restarts, 2.0

    async def play():
        waves = asyncio.ensure_future(playing.wave(requests))
        while not server.llm.get_num_unfinished_requests():
            await asyncio.sleep(0)
        os.kill(pids[which], signal.SIGSTOP)
        while server.alive:
            await asyncio.sleep(0.05)
        server.patience.seconds = 300.0  # a busy machine's restart takes longer
        return await waves

    with caplog.at_level(logging.WARNING, "coterie"):
        calls = runner.run(play())
    assert replicas(playing).restarts == before + 1
    assert "restarted: the vLLM of 'planner' has not answered for 2 s, since " in caplog.text
    assert not any(running(pid) for pid in pids)
    assert [call.token_ids for call in calls] == [call.token_ids for call in expected]
    assert playing.gap(requests, calls) < TOLERANCE


def test_a_sync_with_a_vllm_that_is_stopped_restarts_it_with_the_new_weights(runner, two, caplog):
    first, _ = servers(two)
    pids, first.patience.seconds = first.pids, 2.0
    os.kill(pids[0], signal.SIGSTOP)

    async def sync():
        updated = asyncio.ensure_future(two.update("tied", size=0.05))
        while first.alive:
            await asyncio.sleep(0.05)
        first.patience.seconds = 300.0
        await updated

    with caplog.at_level(logging.WARNING, "coterie"):
        runner.run(sync())
    assert "has not answered for 2 s, since " in caplog.text and not any(running(pid) for pid in pids)
    assert [server.version for server in servers(two)] == [two.versions["tied"]] * 2


@pytest.mark.long
def test_a_killed_replica_leaves_its_requests_to_the_other(runner, two):
    requests = [request("tied", LONG, n, max_new_tokens=100) for n in range(16)]
    expected = runner.run(two.wave(requests))
    first, second = servers(two)

    async def play():
        killing = asyncio.ensure_future(kill_soon(first, -1))
        calls = await two.wave(requests)
        await killing
        return calls, first.alive

    before = time.monotonic()
    calls, back = runner.run(play())
    assert not back and second.alive  # the calls came while the other was down
    assert replicas(two).repeated > 0
    assert [call.token_ids for call in calls] == [call.token_ids for call in expected]
    assert two.gap(requests, calls) < TOLERANCE

    async def wait():
        await asyncio.gather(*replicas(two).reviving.values())

    runner.run(wait())
    assert first.alive and first.version == two.versions["tied"]
    assert time.monotonic() > before


@pytest.mark.long
def test_a_sync_interrupted_half_way_ends_with_the_new_weights_everywhere(runner, two, monkeypatch):
    """A worker is killed between two files of a sync."""
    first, _ = servers(two)
    written, killed = TensorFiles.written, []

    def interrupted(self, named_tensors):
        for number, path in enumerate(written(self, named_tensors)):
            if self is first.files and number == 2 and not killed:
                killed.append(first.pids[-1])
                os.kill(killed[0], signal.SIGKILL)
            yield path

    for server in servers(two):
        server.files.chunk = 10_000
    monkeypatch.setattr(TensorFiles, "written", interrupted)
    runner.run(two.update("tied", size=0.05))
    assert killed and not running(killed[0])
    assert [server.version for server in servers(two)] == [two.versions["tied"]] * 2
    requests = [request("tied", LONG, n) for n in range(40)]
    calls = runner.run(two.wave(requests))
    assert two.gap(requests, calls) < TOLERANCE
    assert {call.version for call in calls} == {two.versions["tied"]}
    for server in servers(two):
        assert [list(folder.glob("*.safetensors")) for folder in folders_of(server)] == [[]]


# --------------------------------------------------------------------------------------------------- no room


@pytest.fixture
def tiny_disks(tmp_path, monkeypatch):
    """Two file systems of 64 KiB, as shared memory and as the folder for temporary files."""
    places = [tmp_path / "shm", tmp_path / "tmp"]
    for place in places:
        place.mkdir()
        done = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(place)])
        if done.returncode:
            pytest.skip("mounting a file system needs root")
    monkeypatch.setattr(transfer, "SHARED_MEMORY", places[0])
    monkeypatch.setattr(transfer.tempfile, "gettempdir", lambda: str(places[1]))
    yield places
    for place in places:
        subprocess.run(["umount", "-l", str(place)], check=True)


def test_a_full_disk_ends_a_sync_with_the_reason_and_vllm_goes_on(
    runner, two, tiny_disks, monkeypatch, caplog
):
    """Shared memory is too small: the next place is taken. Both are: an error, and no stale tokens."""
    restarts = replicas(two).restarts
    for server in servers(two):
        server.files.close()
        server.files = TensorFiles(at_once=2)
    with caplog.at_level(logging.WARNING, "coterie"), pytest.raises(WriteError) as caught:
        runner.run(two.update("tied", size=0.05))
    assert all(str(place) in caught.value.why for place in tiny_disks)
    assert "TMPDIR" in caught.value.fix
    assert replicas(two).restarts == restarts and all(server.alive for server in servers(two))
    subprocess.run(["mount", "-o", "remount,size=16m", str(tiny_disks[1])], check=True)
    two.versions["tied"] -= 1
    caplog.clear()
    with caplog.at_level(logging.WARNING, "coterie"):
        runner.run(two.load("tied"))
    requests = mixed(["tied"])
    calls = runner.run(two.wave(requests))
    assert two.gap(requests, calls) < TOLERANCE
    assert {call.version for call in calls} == {two.versions["tied"]}
    for server in servers(two):
        server.files.close()
        server.files = TensorFiles(at_once=2)


# --------------------------------------------------------------------------------------------------- transfer


@pytest.mark.parametrize("way", ["nccl", pytest.param("ipc", marks=pytest.mark.long)])
def test_gpu_transfers_follow_the_interface_and_a_killed_run_leaves_no_process(tmp_path, way):
    """vLLM's trainer and worker classes exchange the four calls; then SIGKILL ends the run's process."""
    run = subprocess.Popen(
        [sys.executable, str(ROOT / "tests/scale/serve_and_die.py"), way],
        env=with_fake_transfer(tmp_path),
        stdout=subprocess.PIPE,
        stderr=(tmp_path / "stderr").open("w"),
        text=True,
    )
    try:
        line = next((line for line in run.stdout if line.startswith("{")), None)
        assert line is not None, (tmp_path / "stderr").read_text()[-4000:]
        result = json.loads(line)
        assert max(result["gaps"]) < TOLERANCE
        assert len(result["pids"]) == 2 and all(running(pid) for pid in result["pids"])
    finally:
        run.kill()
        run.wait()
    deadline = time.monotonic() + 10
    while any(running(pid) for pid in result["pids"]) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(running(pid) for pid in result["pids"])
