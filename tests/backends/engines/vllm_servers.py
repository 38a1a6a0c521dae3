"""Servers that are not vLLM, for tests of what the engine `vllm` asks of them."""

from __future__ import annotations

from collections import Counter

from coterie.backends.engines.vllm.base import BaseServers
from coterie.backends.engines.vllm.server import (
    Adapter,
    Output,
    Params,
    ServerLost,
    ServerSpec,
    VersionSpan,
)
from coterie.backends.engines.vllm.settings import VLLMConfig
from coterie.backends.engines.vllm.sync import BaseWeights
from coterie.core.types import Weights
from tests.backends.engines.support import tiny


class FakeServer:
    """A server that dies when it is told to; it counts what was asked of it."""

    output = "vllm-p-0.log"

    def __init__(self):
        self.alive, self.asked, self.failing = True, Counter(), []
        self.adapters, self.version, self.hold = {}, None, None

    def _do(self, what):
        self.asked[what] += 1
        if what in self.failing:
            self.failing.remove(what)
            self.alive = False
            raise ServerLost(f"died in {what}")
        if not self.alive and what not in ("restart", "close"):
            raise ServerLost("it is dead")

    async def open(self):
        self._do("open")

    async def generate(self, prompt_ids, params, adapter):
        self._do("generate")
        if self.hold is not None:
            await self.hold.wait()
        assert adapter is None or self.adapters[adapter.id] == adapter
        return Output((1,), (-1.0,), "stop", (VersionSpan(self.version, 0, 1),))

    async def add_adapter(self, adapter):
        self._do("add_adapter")
        self.adapters[adapter.id] = adapter

    async def remove_adapter(self, adapter_id):
        self._do("remove_adapter")
        self.adapters.pop(adapter_id, None)

    async def sync(self, named_tensors, version):
        self._do("sync")
        assert len(list(named_tensors)) > 1
        self.version = version

    async def restart(self):
        self._do("restart")
        self.alive, self.adapters, self.version = True, {}, None

    async def sleep(self):
        self._do("sleep")

    async def wake(self):
        self._do("wake")

    async def close(self):
        self._do("close")


PARAMS = Params(seed=1, limit=1)


def opened(count=1, **spec):
    model = tiny(tie_word_embeddings=True)
    weights = BaseWeights(Weights(policy="p", version=1, module=model))
    made = [FakeServer() for _ in range(count)]
    return BaseServers(ServerSpec(name="p", model="m", **spec), made, weights), made, weights, model


def made_adapter(number, tmp_path):
    path = tmp_path / str(number)
    path.mkdir()
    return Adapter(f"a@{number}", number, str(path))


def fake_servers(monkeypatch):
    """Give engines fake servers; returns their specs and the servers, in the order of their start."""
    made = []

    def make(spec, actors=None):
        made.append((spec, FakeServer()))
        return [made[-1][1]]

    monkeypatch.setattr("coterie.backends.engines.vllm.engine.make_servers", make)
    monkeypatch.setattr(VLLMConfig, "check_packages", staticmethod(lambda: None))
    return made
