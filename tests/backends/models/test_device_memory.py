"""Engines free device memory before a trainer computes, and not before it asks."""

import asyncio
import gc
import socket
from weakref import WeakKeyDictionary, WeakSet

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("peft")

import torch

from coterie.backends.engines.vllm import own_process
from coterie.backends.engines.vllm.replicas import Replicas
from coterie.backends.engines.vllm.server import ServerSpec
from coterie.backends.engines.vllm.settings import VLLMConfig
from coterie.backends.models import device_memory
from coterie.backends.models.device_memory import RankDevice
from coterie.backends.trainers import torch_weights
from coterie.core.errors import UserError
from coterie.plugins.losses.reinforce import ReinforceLoss
from tests.backends.engines.vllm_servers import PARAMS, FakeServer, opened
from tests.backends.trainers import tiny

pytestmark = pytest.mark.torch


def test_the_trainer_asks_for_the_memory_before_updates_and_annotations(monkeypatch):
    monkeypatch.setattr(device_memory, "lenders", WeakSet())  # engines of other tests may not be closed yet
    configs = {"p": tiny.policy("full")}
    trainer = tiny.opened(configs, ReinforceLoss(), needs=("ref_logprobs",))
    order = []

    class Lender:
        async def sleep(self):
            await asyncio.sleep(0)
            order.append("free")

    for name in ("rank_update", "rank_annotate"):
        compute = getattr(trainer, name)
        monkeypatch.setattr(
            trainer, name, lambda *args, name=name, compute=compute: (order.append(name), compute(*args))[1]
        )
    lender = Lender()
    device_memory.lend(lender)
    try:
        tiny.annotate(trainer, tiny.samples(), "ref_logprobs")
        tiny.update(trainer, {"p": tiny.samples()}, 0)
    finally:
        device_memory.withdraw(lender)
    assert order == ["free", "rank_annotate", "free", "rank_update"]
    tiny.update(trainer, {"p": tiny.samples()}, 1)
    assert order[4:] == ["rank_update"]


def test_an_engine_that_was_never_closed_is_not_kept():
    class Lender:
        async def sleep(self):
            raise AssertionError

    device_memory.lend(Lender())
    gc.collect()
    asyncio.run(device_memory.reclaim())


def test_a_trainer_says_on_which_gpus_of_this_host_its_ranks_compute(monkeypatch):
    here, there = (RankDevice(host, gpu=None) for host in (socket.gethostname(), "elsewhere"))
    devices = [here._replace(gpu=1), here._replace(gpu=0), there._replace(gpu=2), here._replace(gpu=3)]
    monkeypatch.setattr(device_memory, "occupied", WeakKeyDictionary())
    assert device_memory.trainer_gpus() == (0,), "a trainer of a plugin may say nothing"
    monkeypatch.setattr(torch_weights, "rank_device", lambda device: devices[0])
    trainer = tiny.opened({"p": tiny.policy("full")}, ReinforceLoss())
    assert device_memory.trainer_gpus() == (1,)
    device_memory.occupy(trainer, devices)
    assert device_memory.trainer_gpus() == (1, 0, 3)
    asyncio.run(trainer.close())
    assert device_memory.trainer_gpus() == (0,)
    monkeypatch.undo()
    assert device_memory.rank_device(torch.device("cpu")) == here
    assert device_memory.rank_device(torch.device("cuda", 2)) == here._replace(gpu=2)


def test_servers_with_processes_of_their_own_keep_off_the_ranks_gpus(monkeypatch):
    here = socket.gethostname()
    monkeypatch.setattr(device_memory, "occupied", WeakKeyDictionary())
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    seen = []

    def launch(spec, placement, backend):
        seen.append((placement.gpus, placement.shared, backend))
        raise UserError("no GPU here", path="engine")

    monkeypatch.setattr(own_process, "launch", launch)
    holder = device_memory.RankDevice  # any object that lives long enough
    settings = VLLMConfig(process="own", tensor_parallel=2)
    for ranks in (2, 3):
        device_memory.occupy(holder, [RankDevice(here, gpu) for gpu in range(ranks)])
        with pytest.raises(UserError):
            asyncio.run(
                own_process.OwnProcessServer(ServerSpec(name="p", model="m", settings=settings)).open()
            )
    assert seen == [((2, 3), False, "nccl"), ((2, 3), True, "nccl")]


def test_a_trainer_leaves_before_servers_start_and_before_they_wake(monkeypatch):
    """Their KV cache would not fit beside it."""
    monkeypatch.setattr(device_memory, "occupied", WeakKeyDictionary())
    order = []

    class Trainer:
        async def offload(self):
            await asyncio.sleep(0)
            order.append("the trainer leaves")

    class AlwaysThere:
        """A trainer of a plugin, which can't leave."""

    trainers = Trainer(), AlwaysThere()
    for trainer in trainers:
        device_memory.occupy(trainer, ())
    base, (server,), weights, _ = opened()

    def note(name):
        method = getattr(server, name)

        async def noted(*given):
            order.append(name)
            return await method(*given)

        setattr(server, name, noted)

    for name in ("open", "sleep", "wake", "sync", "generate"):
        note(name)

    async def go():
        await base.open()
        await base.sync(weights, 1)
        await base.generate((1,), PARAMS, None)
        await device_memory.reclaim()
        await base.sync(weights, 2)
        await base.generate((1,), PARAMS, None)
        await device_memory.reclaim()
        await base.generate((1,), PARAMS, None)  # the update has changed no weights
        await base.close()

    asyncio.run(go())
    leaves = "the trainer leaves"
    assert order == [
        *(leaves, "open", "sync", "generate", "sleep"),
        *(leaves, "wake", "sync", "generate", "sleep"),
        *(leaves, "wake", "generate"),
    ]


def test_an_engine_without_room_on_the_trainers_gpu_wakes_again_later(monkeypatch):
    """What the trainer raises ends the request, and the servers still sleep."""
    monkeypatch.setattr(device_memory, "occupied", WeakKeyDictionary())
    fails = [True]

    class Trainer:
        async def offload(self):
            if fails:
                raise UserError("no room", path="trainer")

    trainer = Trainer()
    device_memory.occupy(trainer, ())
    server = FakeServer()

    async def refill(server):
        raise AssertionError

    async def go():
        replicas = Replicas([server], name="p", restarts=0, refill=refill, current=lambda server: True)
        await replicas.open()
        await replicas.sleep()
        with pytest.raises(UserError, match="no room"):
            await replicas.run(None, lambda server: server.generate((1,), PARAMS, None))
        assert not server.asked["wake"]
        fails.clear()
        await replicas.run(None, lambda server: server.generate((1,), PARAMS, None))
        assert server.asked["wake"] == 1

    asyncio.run(go())
