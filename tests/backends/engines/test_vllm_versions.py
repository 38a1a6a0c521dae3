"""Engine `vllm` with steps ahead, without vLLM: leased adapters, what is refused, and restarts meanwhile."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from types import SimpleNamespace
from weakref import WeakSet

import pytest
from hypothesis import given, strategies as st

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
peft = pytest.importorskip("peft")

from coterie.backends.engines.vllm.arguments import engine_arguments  # noqa: E402
from coterie.backends.engines.vllm.engine import VLLMEngine  # noqa: E402
from coterie.backends.engines.vllm.server import Adapter, prompt  # noqa: E402
from coterie.backends.engines.vllm.settings import VLLMConfig  # noqa: E402
from coterie.backends.engines.vllm.transfer import AdapterVersions  # noqa: E402
from coterie.backends.models import device_memory  # noqa: E402
from coterie.backends.models.compute_threads import compute  # noqa: E402
from coterie.backends.models.policy import TorchPolicy  # noqa: E402
from coterie.core.errors import ConfigError, SystemFault  # noqa: E402
from coterie.core.protocols.engine import LeasesVersions  # noqa: E402
from coterie.core.types import Weights  # noqa: E402
from tests.backends.engines.adapters import adapted  # noqa: E402
from tests.backends.engines.support import awave, context, request, tiny  # noqa: E402
from tests.backends.engines.vllm_servers import PARAMS, fake_servers, made_adapter, opened  # noqa: E402

pytestmark = pytest.mark.torch

TOKENIZER = SimpleNamespace(model_max_length=200, unk_token_id=None)
MODEL = {"init": "qwen3"}
TEAM = {
    "planner": TorchPolicy(model=MODEL, train="lora"),
    "coder": TorchPolicy(model=MODEL, train="lora"),
    "frozen": TorchPolicy(model=MODEL, train="none"),
}


@pytest.fixture(autouse=True)
def lenders(monkeypatch):
    monkeypatch.setattr(device_memory, "lenders", WeakSet())
    return device_memory.lenders


@pytest.fixture
def faked(monkeypatch):
    return fake_servers(monkeypatch)


# ------------------------------------------------------------------------------------------------- adapters


@given(
    st.lists(
        st.tuples(st.sampled_from(["load", "reload", "lease", "release", "use", "end"]), st.integers(0, 9)),
        max_size=60,
    )
)
def test_what_is_leased_or_used_stays_and_all_else_goes_once(actions):
    gone, made, leases, uses = [], {}, [], []
    adapters, newest = AdapterVersions(gone.append), -1
    for action, choice in actions:
        if action == "load" or (action == "reload" and newest >= 0):
            newest += action == "load"
            number = len(made) + 1
            made[number] = Adapter(f"p@{newest}.{number}", number, f"/nowhere/{number}")
            adapters.versions.put("p", newest, made[number])
        elif action == "lease" and newest >= 0:
            adapters.versions.lease("p", newest)
            leases.append(newest)
        elif action == "release" and leases:
            adapters.versions.release("p", leases.pop(choice % len(leases)))
        elif action == "use" and newest >= 0:
            held = sorted({*leases, newest})
            wanted = held[choice % len(held)]
            use = adapters.use("p", None if wanted == newest and choice % 2 else wanted)
            adapter, version = use.__enter__()
            assert version == wanted and adapter.name.startswith(f"p@{wanted}.")
            uses.append((use, adapter))
        elif action == "end" and uses:
            uses.pop(choice % len(uses))[0].__exit__(None, None, None)
        needed = {*leases, newest} - {-1}
        assert {adapter.name.partition(".")[0] for adapter in adapters.held} == {f"p@{v}" for v in needed}
        assert len(adapters.held) == len(needed)
        staying = {adapter.id for adapter in adapters.held} | {adapter.id for _, adapter in uses}
        assert sorted(adapter.id for adapter in gone) == sorted(made.keys() - staying)
        for version in set(range(newest)) - needed:
            with pytest.raises(SystemFault, match=f"no version {version} of 'p'"), adapters.use("p", version):
                pass


def test_a_resumed_run_loads_older_versions_after_the_newest():
    gone = []
    adapters = AdapterVersions(gone.append)
    numbered = [Adapter(f"p@{version}", number, f"/nowhere/{number}") for number, version in
                enumerate((5, 3, 4, 5), 1)]  # fmt: skip
    adapters.versions.put("p", 5, numbered[0])
    for adapter, version in zip(numbered[1:3], (3, 4), strict=True):
        adapters.versions.put("p", version, adapter)
        adapters.versions.lease("p", version)
    adapters.versions.put("p", 5, numbered[3])
    assert gone == numbered[:1] and adapters.held == numbered[1:]
    with adapters.use("p") as (adapter, version):
        assert (adapter, version) == (numbered[3], 5)


# ---------------------------------------------------------------------------------------------- whole engine


async def load(engine, policy, version, module):
    adapter = policy if policy in getattr(module, "peft_config", {}) else None
    await engine.load_weights(
        Weights(policy=policy, version=version, module=module, adapter=adapter, tokenizer=TOKENIZER)
    )


async def started(ahead, policies=TEAM, *, pinned=True, **settings):
    """A context, and an engine with version 0 of all policies, on one base."""
    ctx = replace(context(policies), ahead=ahead, pinned=pinned)
    engine, module = VLLMEngine(VLLMConfig(**settings)), adapted(tie_word_embeddings=True)
    await engine.open(ctx)
    for policy in policies:
        await load(engine, policy, 0, module)
    return ctx, engine, module


def at(version, policy="planner"):
    return replace(request((3, 4), policy=policy), version=version)


def names(server):
    return sorted(adapter.name.partition(".")[0] for adapter in server.adapters.values())


def test_a_request_draws_with_the_version_that_it_names(faked):
    async def go():
        ctx, engine, module = await started(2)
        assert isinstance(engine, LeasesVersions)
        ((_, server),) = faked
        for version in (1, 2):
            await engine.lease("planner", version - 1)
            await load(engine, "planner", version, module)
        calls = await awave(ctx, engine, [at(version) for version in (0, 1, 2, None)])
        assert [call.version for call in calls] == [0, 1, 2, 2]
        assert names(server) == ["coder@0", "planner@0", "planner@1", "planner@2"]
        with pytest.raises(SystemFault, match="no version 3 of 'planner', and no lease kept it"):
            await engine.generate(at(3))
        await engine.lease("planner", 0)  # another step that is pinned to it
        await engine.release("planner", 0)
        assert (await engine.generate(at(0))).version == 0
        await engine.release("planner", 0)
        await asyncio.sleep(0)
        assert names(server) == ["coder@0", "planner@1", "planner@2"]
        for work in (engine.generate(at(0)), engine.lease("planner", 0)):
            with pytest.raises(SystemFault, match="no version 0 of 'planner'"):
                await work
        assert ctx.active_rollouts.waiting == 0
        await engine.close()

    asyncio.run(go())


def test_a_version_that_is_released_goes_with_its_last_request(faked):
    async def go():
        _, engine, module = await started(1)
        ((_, server),) = faked
        await engine.lease("planner", 0)
        await load(engine, "planner", 1, module)
        server.hold = asyncio.Event()
        task = asyncio.ensure_future(engine.generate(at(0)))
        await asyncio.sleep(0)
        await engine.release("planner", 0)
        await asyncio.sleep(0)
        assert "planner@0" in names(server)
        server.hold.set()
        assert (await task).version == 0
        await asyncio.sleep(0)
        assert names(server) == ["coder@0", "planner@1"]
        await engine.close()

    asyncio.run(go())


def test_frozen_policies_have_one_version(faked):
    async def go():
        _, engine, _ = await started(1)
        await engine.lease("frozen", 0)
        await engine.release("frozen", 0)
        assert (await engine.generate(at(0, "frozen"))).version == 0
        with pytest.raises(SystemFault, match="no version 1 of 'frozen'"):
            await engine.generate(at(1, "frozen"))
        await engine.close()
        await engine.release("planner", 0)  # nothing is left to release

    asyncio.run(go())


@pytest.mark.parametrize(
    ("ahead", "pinned", "loras"), [(0, True, 2), (0, False, 2), (2, True, 8), (2, False, 4)]
)
def test_vllm_has_room_for_every_version(faked, lenders, ahead, pinned, loras):
    async def go():
        _, engine, _ = await started(ahead, pinned=pinned)
        ((spec, _),) = faked
        arguments = engine_arguments(spec, inside=True, on_cpu=False, backend="b")
        assert (arguments["max_loras"], arguments["max_cpu_loras"]) == (loras, 2 * loras)
        assert arguments["enable_sleep_mode"] == (ahead == 0) == bool(lenders)  # never during an update
        await engine.close()

    asyncio.run(go())


# ------------------------------------------------------------------------------------------- what is refused


def test_pinned_steps_ahead_need_adapters(faked):
    whole = {**TEAM, "whole": TorchPolicy(model=MODEL)}

    async def open(ahead, pinned, policies=whole, **settings):
        await VLLMEngine(VLLMConfig(**settings)).open(replace(context(policies), ahead=ahead, pinned=pinned))

    for ahead, pinned in ((0, True), (2, False)):
        asyncio.run(open(ahead, pinned))
    asyncio.run(open(2, True, TEAM))
    with pytest.raises(ConfigError) as caught:
        asyncio.run(open(2, True))
    error = caught.value
    assert error.path == "schedule.max_staleness" and "one version of policy 'whole'" in error.what
    assert "all of its weights are trained" in error.why and "3 times the whole model" in error.why
    for fix in ("schedule.play=in_flight", "max_staleness=0", "policies.whole.train=lora", "engine.type=hf"):
        assert fix in error.fix


@pytest.mark.parametrize("pinned", [True, False])
def test_vllm_can_not_be_told_to_sleep_during_updates(faked, pinned):
    async def open(ahead):
        ctx = replace(context(TEAM), ahead=ahead, pinned=pinned)
        await VLLMEngine(VLLMConfig(sleep=True)).open(ctx)

    asyncio.run(open(0))
    with pytest.raises(ConfigError, match="can't sleep during updates") as caught:
        asyncio.run(open(1))
    assert caught.value.path == "engine.sleep"


@pytest.mark.parametrize(("ahead", "pinned"), [(0, True), (1, False), (1, True)])
def test_a_merged_adapter_is_refused_where_versions_are_pinned(faked, ahead, pinned):
    settings = peft.LoraConfig(r=2, target_modules=["q_proj"], modules_to_save=["lm_head"])
    module = peft.get_peft_model(tiny(), settings, adapter_name="planner")

    async def go():
        engine = VLLMEngine(VLLMConfig())
        policies = {"planner": TEAM["planner"]}
        await engine.open(replace(context(policies), ahead=ahead, pinned=pinned))
        if ahead and pinned:
            with pytest.raises(ConfigError, match="one version of policy 'planner'") as caught:
                await load(engine, "planner", 0, module)
            assert caught.value.path == "schedule.max_staleness" and "modules_to_save" in caught.value.why
            assert not faked
        else:
            await load(engine, "planner", 0, module)
            with pytest.raises(ConfigError, match="one version of policy 'planner'"):
                await engine.lease("planner", 0)
        await engine.close()

    asyncio.run(go())


def test_the_memory_of_versions_is_told_where_it_is_known(faked):
    """A folder's model or one that is made on the spot is counted; a hub isn't asked."""
    large = {**MODEL, "hidden_size": 4096, "mlp_size": 12288, "layers": 32, "heads": 32, "head_dim": 128}
    large["kv_heads"] = 8
    for model, dtype, told in (
        (large, "bfloat16", "(3 x 11.5 GiB or more)"),
        (large, "float32", "(3 x 23.0 GiB or more)"),
        (large, "auto", "(3 x 11.5 GiB or more)"),
        (MODEL, "float32", "the whole model; vLLM"),
        ("nobody/nothing", "float32", "the whole model; vLLM"),
    ):
        policies = {"whole": TorchPolicy(model=model, dtype=dtype)}
        with pytest.raises(ConfigError) as caught:
            VLLMEngine(VLLMConfig()).check_ahead(policies, 2, True)
        assert told in caught.value.why, (model, dtype)
    VLLMEngine(VLLMConfig()).check_ahead(TEAM, 2, True)


def test_kept_keys_without_an_effect_are_told(faked, caplog):
    async def go(ahead, pinned, kv):
        caplog.clear()
        _, engine, _ = await started(ahead, pinned=pinned, kv=kv)
        await engine.close()
        return "engine.kv=keep has no effect" in caplog.text

    cases = ((0, True, "keep"), (1, False, "keep"), (1, True, "recompute"), (1, True, "keep"))
    with caplog.at_level(logging.WARNING, logger="coterie"):
        assert [asyncio.run(go(*case)) for case in cases] == [False, False, False, True]


def test_prompts_of_two_syncs_share_no_block():
    """vLLM hashes the salt with the first block, and each block with the one before."""
    assert prompt((3, 4), None) == {"prompt_token_ids": [3, 4]}
    assert prompt((3, 4), 0) == {"prompt_token_ids": [3, 4], "cache_salt": "0"}  # "" would be none
    assert prompt((3, 4), 1)["cache_salt"] != prompt((3, 4), 0)["cache_salt"]


def test_a_vllm_that_waits_for_updates_is_told(faked, caplog):
    async def go(ahead, process):
        caplog.clear()
        _, engine, _ = await started(ahead, process=process)
        await engine.close()
        return "generates nothing during an update" in caplog.text

    with caplog.at_level(logging.WARNING, logger="coterie"):
        told = [asyncio.run(go(*case)) for case in ((0, "inside"), (1, "inside"), (1, "auto"), (1, "own"))]
    assert told == [False, True, True, False]


# --------------------------------------------------------------------------------- vLLM dies during an update


def test_a_restarted_vllm_has_all_leased_versions(faked):
    async def go():
        ctx, engine, module = await started(2)
        ((_, server),) = faked
        for version in (1, 2):
            await engine.lease("planner", version - 1)
            await load(engine, "planner", version, module)
        server.failing.append("generate")
        calls = await awave(ctx, engine, [at(0), at(1), at(None)])
        assert [call.version for call in calls] == [0, 1, 2] and server.asked["restart"] == 1
        assert names(server) == ["coder@0", "planner@0", "planner@1", "planner@2"]
        await engine.close()

    asyncio.run(go())


@pytest.mark.parametrize("when", ["before", "between", "after"])
def test_a_version_that_is_released_during_a_restart_is_no_fault(tmp_path, when):
    """Its files are gone when its turn comes, or it was loaded and nobody needs it any more."""
    base, (server,), weights, _ = opened(adapters=3, adapter_rank=8, beside_updates=True)
    old, new = made_adapter(1, tmp_path), made_adapter(2, tmp_path)
    plain = server.add_adapter

    async def add(adapter):
        if adapter == old and when == "before":
            base.adapters.versions.release("a", 1)
        try:
            if not (tmp_path / str(adapter.id)).is_dir():
                raise SystemFault("vLLM refused the adapter")
            await plain(adapter)
        finally:
            if adapter == old and when == "between":
                base.adapters.versions.release("a", 1)

    async def go():
        await base.sync(weights, 0)
        await base.add("a", old, 1)
        base.adapters.versions.lease("a", 1)
        await base.add("a", new, 2)
        server.add_adapter = add
        server.failing.append("generate")
        assert (await base.generate((1,), PARAMS, "a"))[1] == 2
        if when == "after":
            base.adapters.versions.release("a", 1)
        await asyncio.sleep(0.01)
        assert [*server.adapters] == [2] and server.asked["restart"] == 1

    asyncio.run(go())


def test_an_adapter_that_a_restarted_vllm_refuses_is_a_fault(tmp_path):
    base, (server,), weights, _ = opened()

    async def refuse(adapter):
        raise SystemFault("vLLM refused the adapter")

    async def go():
        await base.sync(weights, 0)
        await base.add("a", made_adapter(1, tmp_path), 1)
        server.add_adapter = refuse
        await server.restart()
        with pytest.raises(SystemFault, match="refused the adapter"):
            await base.refill(server)

    asyncio.run(go())


@pytest.mark.parametrize("trained", [True, False])
def test_weights_that_an_update_changes_while_they_are_read_are_not_used(trained):
    """The update runs in the compute thread, and the read may begin and end within it."""
    base, (server,), weights, model = opened(beside_updates=True, adapters=0 if trained else 2)
    plain = server.sync

    async def go():
        begun, proceed = asyncio.Event(), asyncio.Event()
        loop = asyncio.get_running_loop()

        def update():
            loop.call_soon_threadsafe(begun.set)
            asyncio.run_coroutine_threadsafe(proceed.wait(), loop).result(10)
            if trained:
                with torch.no_grad():
                    model.model.norm.weight.add_(1)

        async def sync(named_tensors, version):
            updating.append(asyncio.ensure_future(compute(update)))
            await begun.wait()
            await plain(named_tensors, version)
            loop.call_later(0.05, proceed.set)

        await base.sync(weights, 4)
        updating = []
        server.sync, server.failing = sync, ["generate"]
        if trained:
            with pytest.raises(SystemFault, match="the weights of version 4 are no longer at hand"):
                await base.generate((1,), PARAMS, None)
            server.sync = plain
            await updating[0]
            await base.sync(weights, 5)
        output, _ = await base.generate((1,), PARAMS, None)
        assert output.spans[0].version == (5 if trained else 4)
        await updating[0]

    asyncio.run(go())
