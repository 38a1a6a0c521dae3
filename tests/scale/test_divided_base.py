"""A vLLM that restarts while ZeRO stage 3 has divided the weights that it needs."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from coterie.backends.engines.vllm.engine import VLLMEngine
from coterie.backends.engines.vllm.server import Output, Params, ServerLost, VersionSpan
from coterie.backends.engines.vllm.settings import VLLMConfig
from coterie.backends.models.policy import TorchPolicy
from coterie.core.errors import SystemFault
from coterie.core.types import Weights
from coterie.plugins.losses.ppo_clip import PPOClip
from tests.backends.engines.support import context
from tests.backends.trainers import tiny
from tests.scale.divided import DividedTrainer

pytestmark = pytest.mark.scale


class FakeServer:
    """A server that keeps copies of what it is sent, and dies when it is asked to."""

    def __init__(self) -> None:
        self.alive, self.dies, self.version, self.restarts = True, False, -1, 0
        self.output = "vllm-p-0.log"
        self.base: dict[str, torch.Tensor] = {}

    async def open(self) -> None: ...

    async def close(self) -> None: ...

    async def sleep(self) -> None: ...

    async def wake(self) -> None: ...

    async def add_adapter(self, adapter: Any) -> None: ...

    async def remove_adapter(self, adapter_id: int) -> None: ...

    async def restart(self) -> None:
        self.alive, self.version, self.base = True, -1, {}
        self.restarts += 1

    async def sync(self, named_tensors: Any, version: int) -> None:
        try:
            self.base = {name: tensor.clone() for name, tensor in named_tensors}
        except Exception as error:
            self.alive = False
            raise ServerLost("the sync failed") from error
        self.version = version

    async def generate(self, prompt_ids: Any, params: Any, adapter: Any) -> Output:
        if self.dies:
            self.dies = self.alive = False
            raise ServerLost("killed")
        return Output((1,), (-1.0,), "stop", (VersionSpan(self.version, 0, 1),))


def expected(train: str) -> dict[str, torch.Tensor]:
    """What a server must have: the base of an adapter, or all weights."""
    reference = tiny.opened({"p": tiny.policy(train)}, PPOClip())
    if train == "full":
        tiny.update(reference, {"p": rows(0)}, 0)
    module: Any = reference.weights("p").module
    plain = module.get_base_model() if train == "lora" else module
    return {
        name.replace(".base_layer", ""): tensor.detach()
        for name, tensor in plain.named_parameters()
        if "lora_" not in name
    }


def rows(step: int) -> list[Any]:
    return tiny.with_old(tiny.samples("p", seed=step))


@pytest.mark.parametrize(("train", "ranks"), [("lora", 2), ("full", 1)])
def test_a_vllm_that_dies_after_the_division_gets_its_weights_again(
    train: str, ranks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = FakeServer()
    monkeypatch.setattr("coterie.backends.engines.vllm.engine.make_servers", lambda spec, actors: [server])
    monkeypatch.setattr(VLLMConfig, "check_packages", lambda self: None)
    wanted = expected(train)
    trainer = tiny.opened({"p": tiny.policy(train)}, PPOClip(), trainer=DividedTrainer, stage=3, ranks=ranks)
    parameters = Params(seed=1, limit=1)

    async def go() -> None:
        engine = VLLMEngine(VLLMConfig())
        await engine.open(context({"p": TorchPolicy(model={"init": "qwen3"}, train=train)}))

        async def load() -> None:
            weights: Weights = trainer.weights("p")
            tokenizer = SimpleNamespace(model_max_length=200, unk_token_id=None)
            await engine.load_weights(
                Weights(policy="p", version=weights.version, module=weights.module, tensors=weights.tensors,
                        adapter=weights.adapter, tokenizer=tokenizer)
            )  # fmt: skip

        await load()
        base = engine.served["p"].base
        with torch.no_grad():  # as a warm start does, before the division
            next(trainer.policies["p"].model.parameters()).add_(0.0)
        assert not base.current
        await load()
        assert base.current
        await trainer.update({"p": rows(0)}, 0)
        assert next(trainer.policies["p"].model.parameters()).numel() == 0, "nothing was divided"
        server.dies = True
        if train == "full":  # the trainer went on, and the sync has not come yet
            with pytest.raises(SystemFault, match="no longer at hand"):
                await base.generate((1,), parameters, None)
        else:
            await base.generate((1,), parameters, "p")
        await load()
        assert base.current
        server.dies, before = True, server.restarts
        output, _ = await base.generate((1,), parameters, "p" if train == "lora" else None)
        assert server.restarts == before + 1
        assert output.spans[0].version == (1 if train == "full" else 0)
        assert server.base.keys() == wanted.keys()
        assert all(torch.allclose(server.base[n], wanted[n], atol=1e-5) for n in wanted)
        await engine.close()

    try:
        asyncio.run(go())
    finally:
        asyncio.run(trainer.close())
