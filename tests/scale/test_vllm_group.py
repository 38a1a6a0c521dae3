"""Engine `vllm` beside a trainer that owns torch's default process group."""

from __future__ import annotations

import asyncio

import pytest

pytestmark = [pytest.mark.scale, pytest.mark.xdist_group("vllm")]
pytest.importorskip("vllm", reason="runs in the venv of `make test-scale`")

from tests.scale.vllm_models import Playing, mixed, module  # noqa: E402


@pytest.fixture
def runner():
    with asyncio.Runner() as runner:
        yield runner


def test_vllm_ends_after_a_trainer_that_ended_the_process_group(runner, caplog):
    """A trainer closes before the engine; vLLM's groups in its process group are gone then."""
    from torch import distributed

    async def play():
        opened = Playing({"tied": (module(tied=True, seed=1), None)}, {"tied": "full"}, kv_gib=0.25)
        await opened.open()
        calls = await opened.wave(mixed(["tied"]))
        distributed.destroy_process_group()
        await opened.engine.close()
        return calls

    if not distributed.is_initialized():
        distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    for _ in range(2):
        assert runner.run(play())
        distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    distributed.destroy_process_group()
    assert "Invalid process group" not in caplog.text
