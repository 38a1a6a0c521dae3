"""Replicas of vLLM in Ray actors: what reaches them, what their death and silence do. Without vLLM."""

from __future__ import annotations

import asyncio
import functools
import logging
import os
import signal
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from coterie.backends.engines.vllm import actor_server
from coterie.backends.engines.vllm.actor_server import spec_of_actor
from coterie.backends.engines.vllm.base import BaseServers
from coterie.backends.engines.vllm.engine import VLLMEngine
from coterie.backends.engines.vllm.server import Adapter, Params, ServerLost, ServerSpec
from coterie.backends.engines.vllm.settings import VLLMConfig
from coterie.backends.engines.vllm.sync import BaseWeights
from coterie.core.errors import ConfigError, SystemFault, UserError
from coterie.core.types import Weights
from tests.backends.engines import replica_fakes as fakes
from tests.backends.engines.replica_fakes import FakeActors, folders_of, gone, made, running, spec_of
from tests.ray_cluster import local_cluster

pytestmark = [pytest.mark.ray, pytest.mark.xdist_group("ray"), pytest.mark.timeout(300)]
PARAMS = Params(seed=1, limit=1)


@pytest.fixture(scope="module")
def cluster():
    with local_cluster(4) as ray:
        yield ray


@pytest.fixture(autouse=True)
def with_cluster(cluster, monkeypatch):
    monkeypatch.setattr(actor_server, "BEAT_SECONDS", 0.3)


def in_loop(test: Any) -> Any:
    @functools.wraps(test)
    def run(*arguments: Any, **named: Any) -> None:
        asyncio.run(asyncio.wait_for(test(*arguments, **named), 200))

    return run


async def state(server: Any) -> Any:
    """(process id, sum of the weights, asleep, requests cancelled, adapters) of a replica's fake."""
    return SimpleNamespace(
        **dict(zip(("pid", "sum", "asleep", "cancelled", "adapters"),
                   (await server.generate((fakes.STATE,), PARAMS, None)).token_ids, strict=True))
    )  # fmt: skip


class Sent:
    """Weights that change, as a base's: replicas get the same object."""

    def __init__(self, value: float, count: int = 40, error: tuple[int, Exception] | None = None) -> None:
        self.value, self.count, self.error, self.reads = value, count, error, 0

    def __iter__(self) -> Any:
        self.reads += 1
        for number in range(self.count):
            if self.error is not None and number == self.error[0]:
                raise self.error[1]
            yield f"layer.{number}", torch.full((2, 3), self.value, dtype=torch.bfloat16)


def adapter(tmp_path: Path, number: int, content: bytes = b"\x07\x08") -> Adapter:
    folder = tmp_path / f"adapter-{number}"
    folder.mkdir()
    (folder / "adapter_config.json").write_bytes(b"{}")
    (folder / "adapter_model.safetensors").write_bytes(content)
    return Adapter(f"p@{number}", number, str(folder))


class Opened:
    """Servers of replicas that are open."""

    def __init__(self, tmp_path: Path, replicas: int = 2, actors: FakeActors | None = None, **settings: Any):
        self.actors = actors or FakeActors()
        self.servers = made(tmp_path, replicas, self.actors, **settings)

    async def __aenter__(self) -> list[Any]:
        await asyncio.gather(*(server.open() for server in self.servers))
        return self.servers

    async def __aexit__(self, *_: Any) -> None:
        pids = [server.began.pid for server in self.servers if server.began]
        alive = [server.began.pid for server in self.servers if server.alive]
        folders = [folder for pid in alive for folder in folders_of(pid)]
        await asyncio.gather(*(server.close() for server in self.servers))
        assert await asyncio.to_thread(gone, pids, 30)
        assert not any(folder.exists() for folder in folders)


@pytest.fixture(scope="module")
def pair(cluster, tmp_path_factory):
    """Two replicas for the tests that leave them alive, and the loop in which they live."""
    with asyncio.Runner() as runner:
        opened = Opened(tmp_path_factory.mktemp("pair"))
        runner.run(opened.__aenter__())
        yield runner, opened
        runner.run(opened.__aexit__())


def in_loop_of_pair(test: Any) -> Any:
    """Run an async test in the loop of `pair`, which it gets as `Opened`."""

    @functools.wraps(test)
    def run(**named: Any) -> None:
        runner, opened = named.pop("pair")
        runner.run(asyncio.wait_for(test(pair=opened, **named), 200))

    return run


# ----------------------------------------------------------------------------------------------- what arrives


@in_loop_of_pair
async def test_weights_are_put_once_for_all_replicas(pair, monkeypatch):
    monkeypatch.setattr(actor_server, "packed", functools.partial(actor_server.packed, most=50))  # 4 tensors
    servers = pair.servers
    for version in (1, 2):
        sent, before = Sent(version), pair.actors.ray.puts
        await asyncio.gather(*(server.sync(sent, version) for server in servers))
        assert sent.reads == 1 and pair.actors.ray.puts - before == 10
        assert [server.version for server in servers] == [version] * 2
        assert {(await state(server)).sum for server in servers} == {40 * 6 * version}
    assert not servers[0].publisher.published


@in_loop_of_pair
async def test_an_adapter_travels_with_its_files_and_goes_with_them(pair, tmp_path):
    servers, before = pair.servers, pair.actors.ray.puts
    first, second = adapter(tmp_path, 1), adapter(tmp_path, 2, b"\x09")
    for each in (first, second):
        await asyncio.gather(*(server.add_adapter(each) for server in servers))
    assert pair.actors.ray.puts - before == 2
    for server in servers:
        assert (await server.generate((fakes.ANSWER,), PARAMS, first)).token_ids == (fakes.ANSWER, 7, 8)
        assert (await server.generate((fakes.ANSWER,), PARAMS, second)).token_ids == (fakes.ANSWER, 9)
    folders = [folder for server in servers for folder in folders_of(server.began.pid)]
    assert sum(len(list(folder.glob("adapter-*"))) for folder in folders) == 4
    for server in servers:
        await server.remove_adapter(1)
        await server.remove_adapter(1)  # again: nothing
        assert (await state(server)).adapters == 1
    assert [path.name for folder in folders for path in folder.glob("adapter-*")] == ["adapter-2"] * 2
    with pytest.raises(SystemFault, match="refused the adapter p@3"):
        await servers[0].add_adapter(adapter(tmp_path, 3, b"bad"))
    assert servers[0].alive and (await state(servers[0])).adapters == 1
    for server in servers:
        await server.remove_adapter(2)
    assert not [path for folder in folders for path in folder.glob("adapter-*")]


@in_loop_of_pair
async def test_many_requests_at_once_and_one_that_is_cancelled_or_refused(pair):
    server = pair.servers[0]
    prompts = [(fakes.ANSWER, number) for number in range(300)]
    outputs = await asyncio.gather(*(server.generate(prompt, PARAMS, None) for prompt in prompts))
    assert [output.token_ids for output in outputs] == prompts
    waiting = asyncio.ensure_future(server.generate((fakes.WAIT, 60_000), PARAMS, None))
    await asyncio.sleep(0.3)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    while not (await state(server)).cancelled:
        await asyncio.sleep(0.05)
    with pytest.raises(SystemFault, match="it is refused") as caught:
        await server.generate((fakes.REFUSED,), PARAMS, None)
    assert not isinstance(caught.value, ServerLost) and server.alive


@in_loop_of_pair
async def test_sleep_and_wake_reach_the_replicas(pair, tmp_path):
    base = BaseServers(spec_of(tmp_path), pair.servers, None)
    await base.replicas.sleep()
    for server in pair.servers:
        with pytest.raises(AssertionError):
            await state(server)
    assert (await base.generate((fakes.ANSWER, 5), PARAMS, None))[0].token_ids == (fakes.ANSWER, 5)
    assert {(await state(server)).asleep for server in pair.servers} == {2}  # the request woke them


# ------------------------------------------------------------------------------------------- syncs that fail


@in_loop_of_pair
async def test_tensors_that_are_wrong_before_anything_is_used_leave_the_old_weights(pair):
    wrong, good = UserError("a tensor is wrong", path="policies.p", fix="repair it"), Sent(1)
    await asyncio.gather(*(server.sync(good, 1) for server in pair.servers))
    bad = Sent(2, error=(0, wrong))
    results = await asyncio.gather(*(s.sync(bad, 2) for s in pair.servers), return_exceptions=True)
    assert [type(result) for result in results] == [UserError] * 2
    assert "a tensor is wrong" in str(results[0])
    for server in pair.servers:
        assert server.alive and server.version == 1 and (await state(server)).sum == 240


@in_loop
async def test_tensors_that_are_wrong_half_way_lose_the_server(tmp_path, monkeypatch):
    monkeypatch.setattr(actor_server, "packed", functools.partial(actor_server.packed, most=12))
    wrong = UserError("a tensor is wrong", path="policies.p", fix="repair it")
    async with Opened(tmp_path, 1) as (server,):
        with pytest.raises(ServerLost) as caught:
            await server.sync(Sent(2, error=(20, wrong)), 2)
        assert isinstance(caught.value.__cause__, UserError)
        assert not server.alive
        await server.restart()
        await server.sync(Sent(3), 3)
        assert (await state(server)).sum == 720
        with pytest.raises(ServerLost) as caught:  # vLLM fails, and wants no further tensors
            await asyncio.wait_for(server.sync(Sent(1, count=4000), 666), 60)
        assert "the third tensor is bad" in str(caught.value.__cause__)


@in_loop_of_pair
async def test_weights_that_no_replica_can_have_end_by_name(pair, tmp_path):
    wrong = UserError("a tensor is wrong", path="policies.p", fix="repair it")
    base = BaseServers(spec_of(tmp_path), pair.servers, None)
    weights: Any = Sent(1, error=(0, wrong))
    weights.check, weights.fingerprint = lambda: None, lambda: 1
    with pytest.raises(UserError, match="a tensor is wrong"):
        await base.sync(weights, 1)


# ------------------------------------------------------------------------------------------ death and silence


async def base_of(tmp_path: Path, actors: FakeActors, **settings: Any) -> BaseServers:
    spec = spec_of(tmp_path, 2, **settings)
    servers = made(tmp_path, 2, actors, **settings)
    base = BaseServers(spec, servers, None)  # type: ignore[arg-type]
    await base.open()
    weights: Any = Sent(1)
    weights.check, weights.fingerprint = lambda: None, lambda: 1
    await base.sync(weights, 1)
    folder = adapter(tmp_path, 1)
    await base.add("p", folder, 1)
    return base


@pytest.mark.parametrize("how", [signal.SIGKILL, pytest.param(signal.SIGSTOP, marks=pytest.mark.long)])
@in_loop
async def test_a_replica_that_dies_or_freezes_in_play_is_replaced_with_its_version(tmp_path, caplog, how):
    caplog.set_level(logging.WARNING, "coterie")
    actors = FakeActors(timeout=3)
    base = await base_of(tmp_path, actors)
    first = base.replicas.servers[0]
    try:
        pid = first.began.pid
        asked = [(fakes.WAIT, 1500 + number) for number in range(40)]
        playing = asyncio.gather(*(base.generate(prompt, PARAMS, "p") for prompt in asked))
        await asyncio.sleep(0.5)
        assert all(base.replicas.router.in_flight)
        began = time.monotonic()
        os.kill(pid, how)
        outputs = await playing
        assert [output.token_ids for output, _ in outputs] == [(*prompt, 7, 8) for prompt in asked]
        assert {version for _, version in outputs} == {1}
        assert {output.spans[0].version for output, _ in outputs} == {1}
        assert base.replicas.repeated >= 10
        while not first.alive or first.version != 1:
            await asyncio.sleep(0.05)
        assert time.monotonic() - began < 40
        assert base.replicas.restarts == 1
        while not (new := await state(first)).adapters:  # they come after the weights
            await asyncio.sleep(0.05)
        assert new.pid != pid and new.sum == 240 and new.adapters == 1
        assert await asyncio.to_thread(gone, [pid], 30)
        lines = [record.getMessage() for record in caplog.records]
        (named,) = [line for line in lines if "is restarted" in line]
        assert "the vLLM of 'p', replica 0" in named
        assert ("has not answered for 3 s" in named) == (how == signal.SIGSTOP)
    finally:
        await base.close()


@pytest.mark.long
@in_loop
async def test_a_replica_that_computes_no_further_is_killed(tmp_path):
    async with Opened(tmp_path, 1, patience=2.0) as (server,):
        busy = asyncio.ensure_future(server.generate((fakes.WAIT, 4000), PARAMS, None))
        await busy  # longer than the patience, and it computes
        with pytest.raises(ServerLost, match="has not answered for 2 s"):
            await server.generate((fakes.STUCK,), PARAMS, None)
        assert not server.alive


@in_loop
async def test_a_vllm_that_dies_takes_its_actor_along(tmp_path):
    async with Opened(tmp_path, 1) as (server,):
        pid = server.began.pid
        waiting = asyncio.ensure_future(server.generate((fakes.WAIT, 60_000), PARAMS, None))
        await asyncio.sleep(0.2)
        with pytest.raises(ServerLost, match="its engine died"):
            await server.generate((fakes.DIE,), PARAMS, None)
        with pytest.raises(ServerLost, match="its engine died"):
            await waiting
        assert not server.alive and await asyncio.to_thread(gone, [pid], 30)
        with pytest.raises(ServerLost, match="not running"):
            await server.generate((fakes.ANSWER,), PARAMS, None)
        await server.restart()
        assert (await server.generate((fakes.ANSWER,), PARAMS, None)).token_ids == (fakes.ANSWER,)


def test_replicas_end_with_the_process_that_has_them(cluster, tmp_path):
    owner = cluster.remote(fakes.Owner).options(num_cpus=0.1, max_concurrency=10).remote()
    pids = cluster.get(owner.start.remote(str(tmp_path)))
    assert len(pids) == 3 and all(map(running, pids))
    os.kill(pids[0], signal.SIGKILL)
    assert gone(pids, 60)


# ------------------------------------------------------------------------------------------------ their start


@in_loop
async def test_a_model_that_a_node_lacks_is_refused_by_name(tmp_path):
    actors = FakeActors()
    spec = ServerSpec(name="p", model=str(tmp_path / "none"), stored=True, settings=VLLMConfig())
    (server,) = actor_server.actor_servers(spec, actors)
    with pytest.raises(UserError, match="no such model") as caught:
        await server.open()
    assert caught.value.path == "policies.p.model"
    await server.close()


@in_loop
async def test_a_cluster_without_room_is_refused_with_the_numbers(tmp_path, caplog):
    actors = FakeActors(timeout=1.5, replica_cpus=50)
    (server,) = made(tmp_path, 1, actors, start_seconds=2.0)
    with pytest.raises(UserError) as caught:
        await server.open()
    assert "no room for the vLLM of 'p', replica 0" in str(caught.value)
    assert "50 CPUs" in str(caught.value.why) and "of 4 CPUs" in str(caught.value.why)
    assert "has not begun after 2 s; the cluster has " in caplog.text
    await server.close()


def test_a_replica_has_its_devices_for_itself():
    settings = VLLMConfig(replicas=4, kv_gib=8.0)
    spec = ServerSpec(name="p", model="m", share=0.5, replica=3, settings=settings)
    alone = spec_of_actor(spec, on_gpus=True, shared=False)
    assert (alone.replica, alone.share, alone.settings.replicas) == (0, 1.0, 1)
    assert (alone.settings.kv_gib, alone.settings.memory_share, alone.settings.sleep) == (1.0, 0.9, False)
    shared = spec_of_actor(spec, on_gpus=True, shared=True)
    assert (shared.settings.memory_share, shared.settings.sleep) == (0.4, True)
    assert spec_of_actor(spec, on_gpus=False, shared=True).settings.sleep is False


@pytest.mark.parametrize(
    ("setting", "value", "path"),
    [("transfer", "nccl", "engine.transfer"), ("transfer", "ipc", "engine.transfer"),
     ("devices", [0], "engine.devices")],
)  # fmt: skip
def test_settings_that_actors_cant_have_are_refused(setting, value, path):
    engine = VLLMEngine(VLLMConfig(**{setting: value}))
    with pytest.raises(ConfigError) as caught:
        engine.use_actors(FakeActors())
    assert caught.value.path == path and caught.value.fix


@pytest.mark.parametrize(
    ("transfer", "weights", "fix"),
    [
        ("nccl", "store", "engine.transfer=auto and cluster.weights=nccl"),
        ("ipc", "nccl", "cluster.weights=ipc"),
        ("nccl", "disk", "cluster.weights=nccl"),
        ("file", "nccl", "set engine.transfer=auto"),
    ],
)
def test_two_settings_of_one_thing_must_not_contradict(transfer, weights, fix):
    engine = VLLMEngine(VLLMConfig(transfer=transfer))
    with pytest.raises(
        ConfigError, match=f"transfer is {transfer}, and cluster.weights is {weights}"
    ) as caught:
        engine.use_actors(FakeActors(weights=weights))
    assert caught.value.path == "engine.transfer" and fix in caught.value.fix
    VLLMEngine(VLLMConfig(transfer="nccl")).use_actors(FakeActors(weights="nccl"))
    VLLMEngine(VLLMConfig(transfer="file")).use_actors(FakeActors(weights="store"))


def test_weights_of_a_base_are_one_object_for_all_replicas(tmp_path):
    """What `Publisher` goes by."""
    from tests.backends.engines.support import tiny

    given = []

    class Server:
        alive, version, output = True, 1, "nowhere"

        async def sync(self, named_tensors: Any, version: int) -> None:
            given.append(named_tensors)
            assert len(list(named_tensors)) > 3

    weights = BaseWeights(Weights(policy="p", version=1, module=tiny(tie_word_embeddings=True)))
    base = BaseServers(ServerSpec(name="p", model="m"), [Server(), Server()], weights)  # type: ignore[list-item]
    asyncio.run(base.sync(weights, 1))
    assert len(given) == 2 and given[0] is given[1]
