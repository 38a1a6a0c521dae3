"""Weights from a trainer's process to replicas in Ray actors, by a group of each: what arrives, and faults.

The actors, the orders and the calls are real; vLLM and NCCL are fakes, which move real bytes.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from coterie.backends.cluster.transfer import NotAtHand, Order
from coterie.backends.engines.vllm import actor_server, direct
from coterie.backends.engines.vllm.actor_server import ActorServer, actor_servers
from coterie.backends.engines.vllm.base import BaseServers
from coterie.backends.engines.vllm.server import ServerSpec
from coterie.backends.engines.vllm.settings import VLLMConfig
from coterie.backends.engines.vllm.sync import BaseWeights, CheckpointLayout
from coterie.backends.executors.ray.direct_weights import Holder
from coterie.backends.models.merged_weights import Distant
from coterie.core.errors import UserError
from coterie.core.types import Weights
from tests.backends.engines.direct_fakes import DirectActors, FakeSender, digest
from tests.backends.engines.support import tiny
from tests.backends.engines.test_vllm_actors import PARAMS, fakes, in_loop
from tests.ray_cluster import local_cluster

pytestmark = [pytest.mark.ray, pytest.mark.xdist_group("ray"), pytest.mark.timeout(300)]
NCCL = {"vllm p/0": "nccl", "vllm p/1": "nccl"}


@pytest.fixture(scope="module")
def cluster():
    with local_cluster(4) as ray:
        yield ray


@pytest.fixture(autouse=True)
def with_cluster(cluster, monkeypatch):
    monkeypatch.setattr(actor_server, "BEAT_SECONDS", 0.3)
    monkeypatch.setattr(direct, "LOOK_SECONDS", 0.1)
    monkeypatch.setattr(direct, "make_sender", FakeSender)
    monkeypatch.setattr(FakeSender, "made", [])


class Trainer:
    """A policy's weights in this process, and the engine's part of them, which never sees a tensor."""

    def __init__(self, tmp_path: Path, ways: dict[str, str], fake: str = "", **settings: Any) -> None:
        self.model, self.holder, self.ways, self.record = (
            tiny(tie_word_embeddings=True),
            Holder(),
            ways,
            tmp_path,
        )
        self.layout, self.version, self.orders = CheckpointLayout.of(self.model.config), -1, 0
        import ray

        self.ray = ray
        self.actors = DirectActors(**{"timeout": 60, **settings})
        self.record.joinpath("model").mkdir()
        self.record.joinpath("model", "config.json").write_bytes(b"{}")
        options = {"record": str(tmp_path), "fake": fake}
        self.spec = ServerSpec(
            name="p",
            model=str(self.record / "model"),
            ways=ways,
            settings=VLLMConfig(replicas=len(ways) or 1, tensor_parallel=2, options=options),
        )
        self.servers: list[ActorServer] = list(actor_servers(self.spec, self.actors))  # type: ignore[arg-type]
        self.base = BaseServers(self.spec, self.servers, None)  # type: ignore[arg-type]

    async def __aenter__(self) -> Trainer:
        await self.base.open()
        return self

    async def __aexit__(self, *_: Any) -> None:
        await self.holder.close()
        await self.base.close()

    def update(self) -> None:
        with torch.no_grad():
            for parameter in self.model.parameters():
                parameter.add_(torch.randn_like(parameter))

    def weights(self) -> Weights:
        return Weights(policy="p", version=self.version, module=self.model)

    async def load(self) -> None:
        """Send a new version, as `load_weights` of executor and engine do."""
        self.version += 1
        self.holder.keep(self.weights())
        await self.base.sync(self.sent(), self.version)

    def sent(self) -> BaseWeights:
        version = self.version

        async def ask(send: Any) -> None:
            self.orders += 1
            send = self.ray.get(self.ray.put(send))  # as it travels, with another handle of the actor
            await self.holder.fulfil(Order(self.orders, "p", version, send))

        distant: Any = Distant(version, self.ways, ask)
        return BaseWeights(Weights(policy="p", version=version, tensors=distant), layout=self.layout)

    @property
    def digest(self) -> str:
        return digest(BaseWeights(self.weights()))

    def received(self, server: ActorServer) -> str:
        """The digest of the weights that a replica has."""
        assert server.began is not None
        return (self.record / f"{server.began.pid}-{self.version}").read_text()


@in_loop
async def test_replicas_get_the_trainers_bits_each_by_its_way(tmp_path):
    ways = {"vllm p/0": "nccl", "vllm p/1": "ipc", "vllm p/2": ""}
    async with Trainer(tmp_path, ways) as trainer:
        for _ in range(3):
            trainer.update()
            await trainer.load()
            for server in trainer.servers:
                assert server.version == trainer.version
                assert trainer.received(server) == trainer.digest
        assert trainer.actors.ray.puts == 0, "the engine's process sends nothing"
        assert sorted(sender.way for sender in FakeSender.made) == ["ipc", "nccl"], "made once for all syncs"
        assert {sender.sent for sender in FakeSender.made} == {3}
        node = trainer.actors.ray.util.get_node_ip_address()
        assert {sender.address for sender in FakeSender.made} == {node}


@pytest.mark.long
@in_loop
async def test_a_replica_that_is_killed_joins_a_new_group_with_the_version_that_it_served(tmp_path):
    async with Trainer(tmp_path, NCCL) as trainer:
        await trainer.load()
        first, pid = trainer.servers[0], trainer.servers[0].began.pid
        os.kill(pid, signal.SIGKILL)
        while first.alive:
            await asyncio.sleep(0.05)
        for _ in range(30):  # requests of both
            await trainer.base.generate((fakes.ANSWER,), PARAMS, None)
        while not (first.alive and first.version == 0):
            trainer.base.replicas.start_reviving(0, direct.ServerLost("it died"))
            await asyncio.sleep(0.05)
        assert first.began.pid != pid and trainer.received(first) == trainer.digest
        assert len(FakeSender.made) == 3 and not FakeSender.made[2].closed
        assert sorted(sender.closed for sender in FakeSender.made[:2]) == [False, True]
        trainer.update()
        await trainer.load()
        assert {trainer.received(server) for server in trainer.servers} == {trainer.digest}
        assert len(FakeSender.made) == 3


@pytest.mark.parametrize("how", [signal.SIGKILL, pytest.param(signal.SIGSTOP, marks=pytest.mark.long)])
@in_loop
async def test_a_replica_that_dies_within_a_transfer_is_restarted_with_it(tmp_path, caplog, how):
    caplog.set_level(logging.WARNING, "coterie")
    async with Trainer(tmp_path, {"vllm p/0": "nccl"}, "stop", timeout=4) as trainer:
        loading = asyncio.ensure_future(trainer.load())
        while not (tmp_path / "stopped").exists() or not (tmp_path / "stopped").read_text():
            await asyncio.sleep(0.05)
        pid = int((tmp_path / "stopped").read_text())
        assert not loading.done()
        os.kill(pid, how)
        await loading
        (server,) = trainer.servers
        assert server.began.pid != pid and trainer.received(server) == trainer.digest
        assert trainer.base.replicas.restarts == 1
        assert FakeSender.made[0].closed and not FakeSender.made[1].closed


@pytest.mark.long
@in_loop
async def test_a_worker_that_fails_within_a_transfer_ends_it_by_name(tmp_path):
    """The sending side of NCCL hears nothing of it, and would wait for ever."""
    async with Trainer(tmp_path, {"vllm p/0": "nccl"}, "refuse") as trainer:
        with pytest.raises(UserError, match="can't take the new weights") as caught:
            await trainer.load()
        assert "a worker has no such layer" in str(caught.value.why)
        assert len(FakeSender.made) == 4 and all(sender.closed for sender in FakeSender.made)


@pytest.mark.long
@in_loop
async def test_a_group_that_never_forms_falls_back_to_the_store_and_says_so(tmp_path, caplog):
    caplog.set_level(logging.WARNING, "coterie")
    async with Trainer(tmp_path, {"vllm p/0": "nccl"}, "deaf", timeout=2) as trainer:
        began = time.monotonic()
        await trainer.load()
        assert time.monotonic() - began < 40
        (server,) = trainer.servers
        assert trainer.received(server) == trainer.digest
        trainer.update()
        await trainer.load()
        assert trainer.received(server) == trainer.digest and trainer.base.replicas.restarts == 1
        (line,) = [r.getMessage() for r in caplog.records if "from now on" in r.getMessage()]
        assert "the vLLM of 'p', replica 0 gets its weights through Ray's object store" in line
        assert "no connection by NCCL" in line and "after 2 s" in line


@pytest.mark.long
@in_loop
async def test_a_group_that_never_forms_ends_by_name_where_the_way_was_asked_for(tmp_path):
    async with Trainer(tmp_path, {"vllm p/0": "nccl"}, "deaf", timeout=2, weights="nccl") as trainer:
        with pytest.raises(
            UserError, match="weights can't go to the vLLM of 'p', replica 0 by NCCL"
        ) as caught:
            await trainer.load()
        assert caught.value.path == "cluster.weights" and "after 2 s" in str(caught.value.why)
        assert "cluster.weights=auto" in caught.value.fix and FakeSender.made[0].closed


@pytest.mark.long
@in_loop
async def test_weights_that_the_trainer_has_changed_since_are_never_served(tmp_path):
    async with Trainer(tmp_path, {"vllm p/0": "nccl"}) as trainer:
        await trainer.load()
        (server,) = trainer.servers
        trainer.update()  # the version is gone
        os.kill(server.began.pid, signal.SIGKILL)
        with pytest.raises(NotAtHand, match="version 0 of the weights of 'p' is no longer at hand"):
            await trainer.base.generate((fakes.ANSWER,), PARAMS, None)
        assert not server.alive
        await trainer.load()
        assert trainer.received(server) == trainer.digest
        assert (await trainer.base.generate((fakes.ANSWER,), PARAMS, None))[0].token_ids == (fakes.ANSWER,)
