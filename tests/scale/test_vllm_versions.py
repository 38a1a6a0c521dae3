"""Engine `vllm` with pinned steps ahead: older adapters draw what they drew when they were new."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

pytestmark = [pytest.mark.scale, pytest.mark.xdist_group("vllm")]
pytest.importorskip("vllm", reason="runs in the venv of `make test-scale`")

from coterie.core.errors import SystemFault  # noqa: E402
from tests.scale.vllm_models import LORA, TOLERANCE, Playing, adapted, mixed, module, until  # noqa: E402

AHEAD = 2


@pytest.mark.parametrize("process", ["inside", pytest.param("own", marks=pytest.mark.long)])
def test_a_pinned_version_draws_the_same_tokens_while_newer_ones_are_loaded(runner, process):
    """All versions in one batch, beside their frozen base; also after vLLM died and has them again."""
    base = adapted(module(tied=True, seed=1), {"planner": 4, "worker": 12})
    modules = {"planner": (base, "planner"), "worker": (base, "worker"), "frozen": (base, None)}
    trains = {"planner": "lora", "worker": "lora", "frozen": "none"}
    playing = Playing(modules, trains, ahead=AHEAD, process=process, kv_gib=0.5)
    requests, drawn = mixed(LORA, max_new_tokens=6), {}

    async def play():
        await playing.open()
        for _ in range(AHEAD + 1):
            for policy in ("planner", "worker"):
                await playing.update(policy)
                await playing.engine.lease(policy, playing.versions[policy])
            calls = await playing.wave(requests)
            assert playing.gap(requests, calls) < TOLERANCE
            drawn[playing.versions["planner"]] = calls
        for policy in ("planner", "worker"):
            await playing.update(policy)  # one that no step is pinned to
        served = playing.engine.served["planner"].base
        (server,) = served.replicas.servers
        for after in ("updates", "a restart"):
            await check(after)
            if after == "updates":
                await server.restart()  # without adapters, and without weights
                await served.refill(server)
        await let_go(server)
        await playing.engine.close()

    async def check(after):
        pinned = [
            replace(asked, version=version if asked.policy != "frozen" else playing.versions["frozen"])
            for version in drawn
            for asked in requests
        ]
        *again, newest = await asyncio.gather(playing.wave(pinned), playing.wave(requests))
        expected = [call for calls in drawn.values() for call in calls]
        assert [call.token_ids for call in again[0]] == [call.token_ids for call in expected], after
        assert [call.version for call in again[0]] == [asked.version for asked in pinned]
        assert (
            max(
                abs(one - other)
                for call, before in zip(again[0], expected, strict=True)
                for one, other in zip(call.logprobs, before.logprobs, strict=True)
            )
            < TOLERANCE
        )
        assert playing.gap(requests, newest) < TOLERANCE, after
        for calls in drawn.values():
            adapters = [n for n, asked in enumerate(requests) if asked.policy != "frozen"]
            assert all(calls[n].token_ids != newest[n].token_ids for n in adapters[:4]), "versions differ"

    async def let_go(server):
        for version in drawn:
            for policy in ("planner", "worker"):
                await playing.engine.release(policy, version)
        await until(lambda: len(server.adapters) == 2)
        with pytest.raises(SystemFault, match="no version"):
            await playing.engine.generate(replace(requests[0], version=min(drawn)))

    runner.run(play())
