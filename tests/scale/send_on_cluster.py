"""A trainer's process that sends weights to a real vLLM in a Ray actor: syncs, a killed replica, checks."""

import asyncio
import json
import os
import signal
import sys

import fake_transfer

from coterie.backends.cluster.hosts import Actors
from coterie.backends.cluster.settings import ClusterConfig
from coterie.backends.cluster.transfer import Order
from coterie.backends.executors.ray.direct_weights import Holder
from coterie.backends.executors.ray.shipping import Receiver, Sender
from coterie.backends.models.merged_weights import Distant
from coterie.core.types import Weights
from tests.ray_cluster import local_cluster
from tests.scale.vllm_models import Playing, mixed, module


class Outlines:
    """The engine, which gets outlines alone; the tensors stay in the holder."""

    def __init__(self, engine, way):
        self.engine, self.ways = engine, {"vllm p/0": way}
        self.holder, self.sender, self.receiver, self.orders = Holder(), Sender(), Receiver(), 0

    async def load_weights(self, weights: Weights) -> None:
        weights = Weights(policy="p", version=weights.version, module=weights.module)
        self.holder.keep(weights)
        sent = self.receiver.receive(self.sender.outline(weights, self.ways))
        assert all(parameter.is_meta for parameter in sent.module.parameters())

        async def ask(send):
            self.orders += 1
            await self.holder.fulfil(Order(self.orders, "p", weights.version, send))

        distant = Distant(weights.version, self.ways, ask)
        await self.engine.load_weights(
            Weights(policy="p", version=weights.version, module=sent.module, tensors=distant)
        )

    def __getattr__(self, name):
        return getattr(self.engine, name)


async def main(way: str) -> None:
    fake_transfer.register()
    playing = Playing({"p": (module(tied=True, seed=2), None)}, {"p": "full"}, kv_gib=0.25)
    playing.engine.use_actors(Actors(ClusterConfig(replica_cpus=0.5)))
    playing.engine = outlines = Outlines(playing.engine, way)
    await playing.open()
    (base,) = outlines.engine.loaded_bases.values()
    (server,) = base.replicas.servers
    requests, gaps = mixed(["p"]), []

    async def check() -> None:
        calls = await playing.wave(requests)
        gaps.append(playing.gap(requests, calls))
        assert {call.version for call in calls} == {playing.versions["p"]}

    for _ in range(2):
        await playing.update("p", size=0.05)
        await check()
    pid = server.began.pid
    os.kill(pid, signal.SIGKILL)
    await check()
    await playing.update("p", size=0.05)
    await check()
    result = {"gaps": gaps, "restarts": base.replicas.restarts, "new": server.began.pid != pid}
    await outlines.holder.close()
    await outlines.engine.close()
    print(json.dumps({**result, "orders": outlines.orders, "way": server.way}), flush=True)


if __name__ == "__main__":
    with local_cluster(4):
        asyncio.run(main(sys.argv[1]))
