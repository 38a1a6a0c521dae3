"""Engine `vllm` without vLLM: adapters and their leases, names and shapes, settings, recovery."""

from __future__ import annotations

import asyncio
import errno
import gc
import importlib.util
import logging
import os
import sys
import threading
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from weakref import WeakSet

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
peft = pytest.importorskip("peft")

from coterie.backends.engines.vllm import transfer  # noqa: E402
from coterie.backends.engines.vllm.arguments import check_options, engine_arguments  # noqa: E402
from coterie.backends.engines.vllm.base import BaseServers, runs_inside  # noqa: E402
from coterie.backends.engines.vllm.engine import VLLMEngine  # noqa: E402
from coterie.backends.engines.vllm.server import (  # noqa: E402
    Output,
    ServerLost,
    ServerSpec,
    VersionSpan,
)
from coterie.backends.engines.vllm.settings import RANKS, VLLMConfig  # noqa: E402
from coterie.backends.engines.vllm.sync import BaseWeights, CheckpointLayout  # noqa: E402
from coterie.backends.engines.vllm.transfer import (  # noqa: E402
    AdapterVersions,
    adapter_tensors,
    largest_rank,
    rank_for,
)
from coterie.backends.models import device_memory  # noqa: E402
from coterie.backends.models.merged_weights import Gathered  # noqa: E402
from coterie.backends.models.policy import TorchPolicy  # noqa: E402
from coterie.core.errors import ConfigError, MissingExtra, SystemFault, UserError, WriteError  # noqa: E402
from coterie.core.types import Weights  # noqa: E402
from tests.backends.engines.adapters import adapted  # noqa: E402
from tests.backends.engines.support import awave, context, request, tiny, wait  # noqa: E402
from tests.backends.engines.vllm_servers import (  # noqa: E402
    PARAMS,
    FakeServer,
    fake_servers,
    made_adapter,
    opened,
)

pytestmark = pytest.mark.torch


# ----------------------------------------------------------------------------------------- names and shapes


@pytest.mark.parametrize("kind", ["qwen3", "qwen2", "llama", "gpt2"])
@pytest.mark.parametrize("tied", [True, False])
def test_every_tensor_is_sent_once_by_its_name_in_a_checkpoint(kind, tied):
    model = tiny(kind, tie_word_embeddings=tied)
    sent = dict(BaseWeights(Weights(policy="p", version=1, module=model)))
    expected = dict(model.named_parameters())
    assert sent.keys() == expected.keys() and ("lm_head.weight" in sent) == (not tied)
    assert all(torch.equal(sent[name], expected[name]) for name in expected)


def test_the_base_of_adapters_is_sent_without_them():
    wrapped = adapted(tie_word_embeddings=True)
    plain = tiny(tie_word_embeddings=True)
    sent = dict(BaseWeights(Weights(policy="p", version=1, module=wrapped, adapter="planner")))
    assert sent.keys() == dict(plain.named_parameters()).keys()
    assert all(torch.equal(sent[name], value) for name, value in plain.named_parameters())
    merged = dict(BaseWeights(Weights(policy="p", version=1, module=wrapped, adapter="planner"), merge=True))
    changed = {name for name in merged if not torch.equal(merged[name], sent[name])}
    assert changed == {name for name in sent if ".layers." in name and name.endswith("proj.weight")}


def test_a_merged_adapter_is_in_what_is_sent_also_where_the_trainer_gathers_the_base():
    wrapped = adapted(tie_word_embeddings=True)
    handle = Weights(policy="p", version=1, module=wrapped, adapter="planner")
    expected = dict(BaseWeights(handle, merge=True))
    base = dict(BaseWeights(handle))
    low_rank = Gathered(dict, int, Gathered(lambda: base, int))
    divided = replace(handle, tensors=low_rank)
    sent = dict(BaseWeights(divided, merge=True))
    assert all(torch.equal(sent[name], value) for name, value in expected.items())
    plain = dict(BaseWeights(divided))
    assert all(torch.equal(plain[name], value) for name, value in base.items())


def test_the_first_wrong_tensor_is_named():
    layout = CheckpointLayout.of(tiny(tie_word_embeddings=True).config)
    good = list(layout.shapes.items())
    name, shape = good[3]

    def check(shapes):
        list(layout.checked(((name, torch.empty(shape, device="meta")) for name, shape in shapes), "p"))

    check(good)
    for wrong, why in (
        ([*good[:3], (name, (*shape, 2)), *good[4:]], "its shape is"),
        ([*good[:3], *good[4:]], "the trainer gave 1 too few"),
        ([*good[:4], *good[3:]], "it came twice"),
        ([*good, ("model.extra.weight", (1,))], "no tensor of this name"),
    ):
        with pytest.raises(UserError) as caught:
            check(wrong)
        assert caught.value.path == "policies.p" and why in caught.value.why
        assert ("model.extra.weight" if "no tensor" in why else name) in caught.value.what


def test_tensors_that_pass_are_checked_where_the_trainer_gathers_them():
    """`Weights.tensors`: nothing is known before it is read."""
    model = tiny(tie_word_embeddings=True)
    pairs = list(model.named_parameters())

    def source(pairs):
        return SimpleNamespace(policy="p", version=1, module=model, adapter=None, tensors=lambda: iter(pairs))

    tied = ("lm_head.weight", model.lm_head.weight)
    assert len(list(BaseWeights(source([*pairs, tied])))) == len(pairs)
    stream = iter(BaseWeights(source([*pairs[:2], ("odd", pairs[0][1])])))
    assert [next(stream)[0], next(stream)[0]] == [name for name, _ in pairs[:2]]
    with pytest.raises(UserError, match="odd"):
        next(stream)
    with pytest.raises(UserError, match="is missing"):
        list(BaseWeights(source(pairs[:-1])))


def test_partitioned_and_untied_weights_are_refused():
    model = tiny()
    model.model.layers[0].mlp.up_proj.weight = torch.nn.Parameter(torch.empty(0))
    with pytest.raises(UserError, match="up_proj") as caught:
        BaseWeights(Weights(policy="p", version=1, module=model))
    assert "only a part of it" in caught.value.why
    model = tiny(tie_word_embeddings=True)
    model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.detach().clone())
    with pytest.raises(UserError, match=r"lm_head\.weight") as caught:
        list(BaseWeights(Weights(policy="p", version=1, module=model)))
    assert "differs from model.embed_tokens.weight" in caught.value.why


def test_the_fingerprint_changes_with_every_update():
    model = tiny(tie_word_embeddings=True)
    weights = BaseWeights(Weights(policy="p", version=1, module=model))
    before = weights.fingerprint()
    assert before == weights.fingerprint()
    optimizer = torch.optim.AdamW([model.model.norm.weight])
    model.model.norm.weight.grad = torch.ones_like(model.model.norm.weight)
    optimizer.step()
    assert weights.fingerprint() != before


# ------------------------------------------------------------------------------------------------- adapters


def test_a_version_stays_while_a_request_uses_it():
    gone = []
    adapters = AdapterVersions(gone.append)
    wrapped = adapted()
    handle = Weights(policy="planner", version=1, module=wrapped, adapter="planner")

    def write(version):
        return adapters.write("planner", version, wrapped.peft_config["planner"], adapter_tensors(handle))

    first, second, third = write(1), write(2), write(3)
    assert len({(a.name, a.id, a.path) for a in (first, second, third)}) == 3
    adapters.versions.put("planner", 1, first)
    with adapters.use("planner") as (leased, version):
        assert (leased, version) == (first, 1)
        with adapters.use("planner"):
            adapters.versions.put("planner", 2, second)
        assert not gone and Path(first.path).is_dir() and adapters.held == [second]
    assert gone == [first] and not Path(first.path).exists()
    adapters.versions.put("planner", 3, third)  # nobody uses the second
    assert gone == [first, second] and adapters.held == [third]
    parent = Path(third.path).parent
    adapters.close()
    assert not parent.exists()


def test_an_adapters_folder_is_what_peft_reads():
    wrapped = adapted()
    adapters = AdapterVersions(lambda _: None)
    handle = Weights(policy="coder", version=1, module=wrapped, adapter="coder")
    written = adapters.write("coder", 1, wrapped.peft_config["coder"], adapter_tensors(handle))
    read = peft.PeftModel.from_pretrained(tiny(), written.path).eval()
    ids = torch.arange(2, 30)[None]
    wrapped.set_adapter("coder")
    with torch.no_grad():
        assert torch.allclose(read(ids).logits, wrapped(ids).logits, atol=1e-5)
    provided = SimpleNamespace(
        adapter="coder",
        tensors=lambda: ((n, p) for n, p in wrapped.named_parameters() if ".coder." in n),
    )
    assert adapter_tensors(provided).keys() == adapter_tensors(handle).keys()
    adapters.close()


def test_ranks():
    ranks = [rank_for({"p": peft.LoraConfig(r=rank)}, "p") for rank in (1, 2, 8, 9, 100, 512)]
    assert ranks == [1, 8, 8, 16, 128, 512] and rank_for({}, "p") == 0
    with pytest.raises(ConfigError, match="rank 513"):
        rank_for({"p": peft.LoraConfig(r=513)}, "p")
    assert list(RANKS) == sorted(RANKS)
    assert largest_rank(peft.LoraConfig(r=4, rank_pattern={"q_proj": 9})) == 9


# --------------------------------------------------------------------------------------------------- files


def test_what_shared_memory_has_no_room_for_goes_to_the_disk(tmp_path, monkeypatch, caplog):
    shared, disk = tmp_path / "shm", tmp_path / "tmp"
    shared.mkdir(), disk.mkdir()
    monkeypatch.setattr(transfer, "SHARED_MEMORY", shared)
    monkeypatch.setattr(transfer.tempfile, "gettempdir", lambda: str(disk))
    folders, full = transfer.Folders(), set()

    def write(path):
        path.write_bytes(b"half")
        if any(place in path.parents for place in full):
            raise OSError(errno.ENOSPC, "No space left on device")

    assert shared in folders.write("a", 4, write).parents
    full.add(shared)
    with caplog.at_level(logging.WARNING, logger="coterie"):
        assert disk in folders.write("b", 4, write).parents
        folders.write("c", 4, write)
    assert len(caplog.records) == 1 and "No space left" in caplog.text  # said once
    assert not list(shared.rglob("b"))  # the half that was written is gone
    full.add(disk)
    with pytest.raises(WriteError, match="weights for vLLM can't be written") as caught:
        folders.write("d", 4, write)
    assert str(shared) in caught.value.why and str(disk) in caught.value.why and "TMPDIR" in caught.value.fix
    full.clear()
    free = SimpleNamespace(free=3)
    monkeypatch.setattr(transfer.shutil, "disk_usage", lambda place: free)
    with pytest.raises(WriteError, match="can't be written"):
        folders.write("e", 4, write)
    folders.close()
    assert not list(shared.iterdir()) and not list(disk.iterdir())


def test_tensors_are_written_in_chunks_one_file_at_a_time():
    from safetensors.torch import load_file

    tensors = {f"t{index}": torch.arange(index + 1.0) for index in range(9)}
    files = transfer.TensorFiles(chunk=60)
    read, paths = {}, []
    for path in files.written(tensors.items()):
        assert not any(old.exists() for old in paths)
        part = load_file(path)
        assert len(part) == 1 or sum(tensor.nbytes for tensor in part.values()) <= 60
        read |= part
        paths.append(path)
    assert list(read) == list(tensors) and len(paths) > 2 and not paths[-1].exists()
    assert all(torch.equal(read[name], tensor) for name, tensor in tensors.items())
    files.close()
    assert not paths[0].parent.exists()


@pytest.mark.parametrize("count", [1, 2, 4])
def test_a_file_is_there_while_it_is_read_though_the_next_is_written_meanwhile(count):
    files, paths = transfer.TensorFiles(chunk=4, at_once=2), []

    async def read():
        tensors = ((f"t{index}", torch.zeros(1)) for index in range(count))
        async with transfer.made_ahead(files.written(tensors)) as each:
            async for path in each:
                await asyncio.sleep(0.05)  # the next is written, if there is one
                assert path.exists() and sum(old.exists() for old in paths) <= 1
                paths.append(path)

    asyncio.run(read())
    assert len(set(paths)) == count and not list(paths[0].parent.glob("*.safetensors"))
    files.close()


def test_an_item_is_made_while_the_one_before_is_used_and_the_first_at_the_entry():
    made, used = [], []

    def items():
        for number in range(3):
            made.append(number)
            yield number

    async def use():
        async with transfer.made_ahead(items()) as each:
            assert made == [0]
            async for item in each:
                while len(made) < min(item + 2, 3):  # the next is made though this one is in use
                    await asyncio.sleep(0.001)
                used.append(item)

    asyncio.run(asyncio.wait_for(use(), 10))
    assert used == [0, 1, 2]


@pytest.mark.parametrize("end", ["use fails", "use is cancelled", "an item fails", "the first fails"])
def test_a_generator_that_runs_in_a_thread_is_closed_when_the_thread_is_done(end):
    going, gone_on, closed = threading.Event(), threading.Event(), []

    def items():
        try:
            if end == "the first fails":
                raise OSError("full")
            yield 0
            going.set()
            gone_on.wait(10)
            if end == "an item fails":
                raise OSError("full")
            yield 1
        finally:
            closed.append(gone_on.is_set())

    async def use():
        async with transfer.made_ahead(items()) as each:
            async for _ in each:
                while not going.is_set():
                    await asyncio.sleep(0.001)
                asyncio.get_running_loop().call_later(0.05, gone_on.set)
                if end == "use fails":
                    raise ValueError("lost")
                if end == "use is cancelled":
                    asyncio.current_task().cancel()
                    await asyncio.sleep(0)

    kinds = {"use fails": ValueError, "use is cancelled": asyncio.CancelledError}
    with pytest.raises(kinds.get(end, OSError)):
        asyncio.run(use())
    assert closed == [end != "the first fails"]


# ------------------------------------------------------------------------------------------------- settings


def test_where_vllm_runs():
    assert runs_inside(VLLMConfig()) and runs_inside(VLLMConfig(process="inside"))
    assert not runs_inside(VLLMConfig(process="own"))
    for many in ("replicas", "tensor_parallel"):
        assert not runs_inside(VLLMConfig(**{many: 2}))
        with pytest.raises(ConfigError, match=f"{many}: 2"):
            runs_inside(VLLMConfig(process="inside", **{many: 2}))


def test_engine_arguments():
    settings = VLLMConfig(max_batch=7, options={"quantization": "fp8"})
    spec = ServerSpec(
        name="p", model="m", context=5000, adapters=3, adapter_rank=16, share=0.5, settings=settings
    )
    on_gpu = engine_arguments(spec, inside=True, on_cpu=False, backend="b")
    assert on_gpu["gpu_memory_utilization"] == 0.2 and on_gpu["kv_cache_memory_bytes"] is None
    assert (on_gpu["max_loras"], on_gpu["max_cpu_loras"], on_gpu["max_lora_rank"]) == (3, 6, 16)
    assert (on_gpu["max_num_seqs"], on_gpu["quantization"], on_gpu["enforce_eager"]) == (7, "fp8", False)
    assert on_gpu["logprobs_mode"] == "processed_logprobs" and on_gpu["load_format"] == "dummy"
    own = engine_arguments(spec, inside=False, on_cpu=False, backend="b")
    assert own["gpu_memory_utilization"] == 0.45 and "async_scheduling" not in own
    on_cpu = engine_arguments(spec, inside=True, on_cpu=True, backend="b")
    assert on_cpu["enforce_eager"] and not on_cpu["enable_chunked_prefill"]
    assert on_cpu["max_num_batched_tokens"] == 5000 and on_cpu["kv_cache_memory_bytes"] == 2**30
    plain = ServerSpec(name="p", model="m", settings=VLLMConfig(kv_gib=3))
    arguments = engine_arguments(plain, inside=True, on_cpu=False, backend="b")
    assert "enable_lora" not in arguments and arguments["kv_cache_memory_bytes"] == 3 * 2**30


def test_options_of_vllm_are_checked():
    spec = ServerSpec(name="p", model="m", settings=VLLMConfig(options={"max_model_len": 3}))
    with pytest.raises(ConfigError) as caught:
        engine_arguments(spec, inside=True, on_cpu=True, backend="b")
    assert caught.value.path == "engine.options.max_model_len"
    with pytest.raises(ConfigError, match="no such engine argument") as caught:
        check_options({"quantisation": 1}, {"quantization", "model"})
    assert "quantization" in caught.value.fix


def test_a_missing_vllm_names_the_extra(monkeypatch):
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "vllm" else find(name))
    monkeypatch.delitem(sys.modules, "vllm", raising=False)
    with pytest.raises(MissingExtra) as caught:
        wait(VLLMEngine(VLLMConfig()).open(context({})))
    assert "pip install 'coterie[vllm]'" in str(caught.value)


# ------------------------------------------------------------------------------------------------- recovery


@pytest.fixture(autouse=True)
def lenders(monkeypatch):
    """Engines that a test leaves open are not asked for memory by the trainers of other tests."""
    monkeypatch.setattr(device_memory, "lenders", WeakSet())


def test_a_dead_server_gets_the_newest_weights_and_adapters_and_the_request_again(tmp_path):
    base, (server,), weights, _ = opened()

    async def go():
        await base.sync(weights, 4)
        await base.add("a", made_adapter(1, tmp_path), 7)
        server.failing.append("generate")
        output, version = await base.generate((1,), PARAMS, "a")
        assert output.spans[0].version == 4 and version == 7
        assert server.asked == {"sync": 2, "add_adapter": 2, "generate": 2, "restart": 1}
        base.replicas.forgive()
        server.failing += ["generate"] * 4
        with pytest.raises(SystemFault, match="died 4 times in one request"):
            await base.generate((1,), PARAMS, None)
        await base.sync(weights, 5)
        assert (await base.generate((1,), PARAMS, None))[1] is None

    asyncio.run(go())


def test_a_server_that_keeps_dying_is_not_restarted_for_ever():
    base, (server,), weights, _ = opened()

    async def go():
        await base.sync(weights, 4)
        server.failing += ["generate"] * 20
        for _ in range(10):
            with pytest.raises(SystemFault):
                await base.generate((1,), PARAMS, None)
        assert server.asked["restart"] == VLLMConfig().restarts
        server.failing.clear()
        await base.sync(weights, 5)  # new weights: it may be tried again
        assert (await base.generate((1,), PARAMS, None))[0].spans[0].version == 5

    asyncio.run(go())


def test_a_server_is_never_restarted_with_weights_of_another_version():
    base, (server,), weights, model = opened()

    async def go():
        await base.sync(weights, 4)
        with torch.no_grad():
            model.model.norm.weight.add_(1)  # the trainer went on
        assert not base.current
        server.failing.append("generate")
        with pytest.raises(SystemFault, match="the weights of version 4 are no longer at hand"):
            await base.generate((1,), PARAMS, None)
        assert not server.asked["restart"]
        await base.sync(weights, 5)
        assert (await base.generate((1,), PARAMS, None))[0].spans[0].version == 5

    asyncio.run(go())


def test_a_server_is_never_restarted_with_weights_of_which_nobody_knows_the_version():
    """A trainer's own function gathers them, and says nothing of their state."""
    model = tiny(tie_word_embeddings=True)
    handle = Weights(policy="p", version=4, module=model, tensors=lambda: iter(model.named_parameters()))
    server = FakeServer()
    base = BaseServers(ServerSpec(name="p", model="m"), [server], weights := BaseWeights(handle))

    async def go():
        await base.sync(weights, 4)
        assert not base.current
        server.failing.append("generate")
        with pytest.raises(SystemFault, match="no longer at hand"):
            await base.generate((1,), PARAMS, None)
        assert not server.asked["restart"]

    asyncio.run(go())


def test_a_failed_sync_and_a_failed_adapter_restart_the_server(tmp_path):
    base, (server,), weights, _ = opened()

    async def go():
        server.failing.append("sync")
        await base.sync(weights, 4)
        assert server.version == 4 and server.asked["restart"] == 1
        server.failing.append("add_adapter")
        await base.add("a", made_adapter(1, tmp_path), 1)
        assert list(server.adapters) == [1] and server.asked["restart"] == 2
        server.failing += ["sync"] * 5
        with pytest.raises(UserError, match="can't take the new weights"):
            await base.sync(weights, 5)

    asyncio.run(go())


def test_a_server_that_lives_on_after_a_failed_sync_of_the_same_version_is_restarted():
    """A frozen base that is read again has the same version, and other values."""
    base, (server,), weights, _ = opened()

    async def go():
        await base.sync(weights, 0)
        sync = server.sync

        async def failing(named_tensors, version):
            server.sync = sync
            raise ServerLost("half-way")

        server.sync = failing
        await base.sync(weights, 0)
        assert server.asked["restart"] == 1 and server.asked["sync"] == 2 and server.version == 0

    asyncio.run(go())


def test_a_full_disk_in_a_sync_is_the_users_error():
    base, (server,), weights, _ = opened()

    async def full(named_tensors, version):
        server.alive = False
        raise ServerLost("half-way") from WriteError("no room")

    async def go():
        sync, server.sync = server.sync, full
        with pytest.raises(WriteError, match="no room"):
            await base.sync(weights, 4)
        server.sync, server.alive = sync, True
        await base.sync(weights, 4)
        server.sync, server.failing = full, ["generate"]
        with pytest.raises(WriteError, match="no room"):  # at the restart too
            await base.generate((1,), PARAMS, None)
        assert server.asked["restart"] == 1

    asyncio.run(go())


def test_requests_wait_while_a_server_gets_its_weights():
    """Between its start and its sync a server has random weights."""
    base, (server,), weights, _ = opened()

    async def go():
        await base.sync(weights, 4)
        begun, proceed = asyncio.Event(), asyncio.Event()
        sync = server.sync

        async def slow(named_tensors, version):
            begun.set()
            await proceed.wait()
            await sync(named_tensors, version)

        server.sync, server.failing = slow, ["generate"]
        first = asyncio.ensure_future(base.generate((1,), PARAMS, None))
        await begun.wait()
        second = asyncio.ensure_future(base.generate((1,), PARAMS, None))
        await asyncio.sleep(0)
        assert server.alive and server.asked["generate"] == 1
        proceed.set()
        assert [output.spans[0].version for output, _ in await asyncio.gather(first, second)] == [4, 4]

    asyncio.run(go())


def test_requests_go_to_the_server_with_the_fewest():
    base, made, weights, _ = opened(3)

    async def go():
        await base.sync(weights, 1)
        for server in made:
            server.hold = asyncio.Event()
        tasks = [asyncio.ensure_future(base.generate((1,), PARAMS, None)) for _ in range(6)]
        await asyncio.sleep(0.01)
        assert [server.asked["generate"] for server in made] == [2, 2, 2]
        for server in made:
            server.hold.set()
        await asyncio.gather(*tasks)

    asyncio.run(go())


# ------------------------------------------------------------------------------------------- whole engine


@pytest.fixture
def faked(monkeypatch):
    return fake_servers(monkeypatch)


def test_a_base_serves_its_adapters_and_its_frozen_policies(faked):
    wrapped = adapted(tie_word_embeddings=True)
    whole = tiny(seed=3)
    policies = {
        "planner": TorchPolicy(model={"init": "qwen3"}, train="lora"),
        "coder": TorchPolicy(model={"init": "qwen3"}, train="lora"),
        "frozen": TorchPolicy(model={"init": "qwen3"}, train="none"),
        "whole": TorchPolicy(model={"init": "qwen3"}),
    }

    async def go():
        engine = VLLMEngine(VLLMConfig())
        ctx = context(policies)
        await engine.open(ctx)
        tokenizer = SimpleNamespace(model_max_length=200, unk_token_id=None)
        for policy, module in (
            ("planner", wrapped),
            ("coder", wrapped),
            ("frozen", wrapped),
            ("whole", whole),
        ):
            adapter = policy if policy in ("planner", "coder") else None
            await engine.load_weights(
                Weights(policy=policy, version=5, module=module, adapter=adapter, tokenizer=tokenizer)
            )
        (base, one), (other, two) = faked
        assert (base.adapters, base.adapter_rank, base.tied, base.share) == (2, 8, True, 0.5)
        assert (other.adapters, other.tied, other.context) == (0, False, 200)
        assert (one.version, two.version, len(one.adapters)) == (0, 5, 2)
        calls = await awave(ctx, engine, [request((3, 4), policy=name) for name in policies])
        assert [call.version for call in calls] == [5, 5, 5, 5]
        assert one.asked["generate"] == 3 and ctx.active_rollouts.waiting == 0
        with torch.no_grad():
            wrapped.get_base_model().model.norm.weight.add_(1)
        await engine.load_weights(Weights(policy="frozen", version=5, module=wrapped, tokenizer=tokenizer))
        assert one.asked["sync"] == 2  # the base changed under its adapters
        await engine.close()

    asyncio.run(go())


def test_a_server_has_the_longest_context_of_its_policies(faked):
    wrapped = adapted(tie_word_embeddings=True)
    policies = {
        name: TorchPolicy(model={"init": "qwen3"}, train="lora", context=context)
        for name, context in (("planner", 40), ("coder", 90))
    }
    tokenizer = SimpleNamespace(model_max_length=200, unk_token_id=None)

    async def go():
        engine = VLLMEngine(VLLMConfig())
        await engine.open(context(policies))
        for policy in policies:
            await engine.load_weights(
                Weights(policy=policy, version=1, module=wrapped, adapter=policy, tokenizer=tokenizer)
            )
        ((spec, _),) = faked
        assert spec.context == 90
        with pytest.raises(ConfigError, match="context"):
            await engine.generate(request((3,) * 50, policy="planner"))
        await engine.generate(request((3,) * 50, policy="coder"))
        await engine.close()

    asyncio.run(go())


def test_a_call_that_several_versions_drew_has_the_oldest_and_is_counted(faked, caplog):
    tokenizer = SimpleNamespace(model_max_length=200, unk_token_id=None)

    async def go():
        ctx, engine = context({"p": TorchPolicy(model={"init": "qwen3"})}), VLLMEngine(VLLMConfig())
        await engine.open(ctx)
        await engine.load_weights(Weights(policy="p", version=5, module=tiny(), tokenizer=tokenizer))
        ((_, server),) = faked
        spans = (VersionSpan(4, 0, 1), VersionSpan(5, 1, 3))

        async def generate(prompt_ids, params, adapter):
            return Output((1, 2, 3), (-1.0,) * 3, "stop", spans)

        server.generate = generate
        (call,) = await awave(ctx, engine, [request((3, 4))])
        assert call.version == 4 and engine.spanning == 1
        assert call.version_runs == ((4, 1), (5, 2))
        await engine.close()

    asyncio.run(go())
    assert "4: [0, 1), 5: [1, 3)" in caplog.text


def test_weights_that_a_trainer_gathers(faked):
    """Trainers that divide weights over ranks hand over a module first, then functions."""
    wrapped, whole = adapted(tie_word_embeddings=True), tiny(tie_word_embeddings=True)
    policies = {
        "planner": TorchPolicy(model={"init": "qwen3"}, train="lora"),
        "whole": TorchPolicy(model={"init": "qwen3"}),
    }
    tokenizer = SimpleNamespace(model_max_length=200, unk_token_id=None)

    def handle(policy, adapter, pairs):
        return SimpleNamespace(
            policy=policy, version=6, module=None, folder=None, adapter=adapter, tokenizer=tokenizer,
            tensors=lambda: iter(pairs),
        )  # fmt: skip

    plain = list(whole.named_parameters())
    low_rank = [
        (name.removeprefix("base_model.model.").replace(".planner", ""), value)
        for name, value in wrapped.named_parameters()
        if ".planner." in name
    ]

    async def go():
        engine = VLLMEngine(VLLMConfig())
        await engine.open(context(policies))
        with pytest.raises(UserError, match="can't take these weights"):
            await engine.load_weights(handle("whole", None, plain))
        for policy, module, adapter in (("planner", wrapped, "planner"), ("whole", whole, None)):
            await engine.load_weights(
                Weights(policy=policy, version=5, module=module, adapter=adapter, tokenizer=tokenizer)
            )
        (_, one), (_, two) = faked
        (before,) = one.adapters.values()
        await engine.load_weights(handle("planner", "planner", low_rank))
        (after,) = engine.served["planner"].base.adapters.held
        assert one.adapters[after.id] == after != before
        assert (
            adapter_tensors(handle("planner", "planner", low_rank)).keys()
            == adapter_tensors(Weights(policy="planner", version=5, module=wrapped, adapter="planner")).keys()
        )
        await engine.load_weights(handle("whole", None, plain))
        assert two.version == 6 and two.asked["sync"] == 2
        with pytest.raises(UserError, match="is missing"):
            await engine.load_weights(handle("whole", None, plain[:-1]))
        await engine.close()

    asyncio.run(go())


def test_an_open_dtype_is_the_trainers(faked, tmp_path, monkeypatch):
    """vLLM's own `auto` is the model configuration's dtype, e.g. bfloat16 where the trainer has float32."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)  # whose `auto` is bfloat16
    stored = str(tmp_path / "model")
    tiny(tie_word_embeddings=True).bfloat16().save_pretrained(stored)
    modules = {"single": tiny(), "half": tiny(seed=1).bfloat16()}
    policies = {name: TorchPolicy(model={"init": "qwen3"}) for name in modules} | {
        "read": TorchPolicy(model=stored, train="none"),
        "same": TorchPolicy(model=stored, train="none", dtype="float32"),
        "fixed": TorchPolicy(model=stored, train="none", dtype="bfloat16"),
    }
    tokenizer = SimpleNamespace(model_max_length=200, unk_token_id=None)

    async def go():
        engine = VLLMEngine(VLLMConfig())
        await engine.open(context(policies))
        for policy in policies:
            module = modules.get(policy)
            await engine.load_weights(Weights(policy=policy, version=0, module=module, tokenizer=tokenizer))
        dtypes = {spec.name: engine_arguments(spec, inside=True, on_cpu=True, backend="x")["dtype"]
                  for spec, _ in faked}  # fmt: skip
        assert dtypes == {"single": "float32", "half": "bfloat16", "read": "float32", "fixed": "bfloat16"}
        assert faked[0][0].share == 1 / len(faked)
        await engine.close()

    asyncio.run(go())


def test_the_configuration_folder_of_a_killed_run_goes_with_the_next_start(faked, tmp_path, monkeypatch):
    monkeypatch.setattr(transfer, "SHARED_MEMORY", tmp_path)
    tokenizer = SimpleNamespace(model_max_length=200, unk_token_id=None)
    held = []

    async def start():
        engine = VLLMEngine(VLLMConfig())
        await engine.open(context({"p": TorchPolicy(model={"init": "qwen3"})}))
        await engine.load_weights(Weights(policy="p", version=0, module=tiny(), tokenizer=tokenizer))
        held.append(Path(faked[-1][0].model).parent)
        return engine

    async def go():
        _, other = await start(), await start()
        assert held[0].parent == tmp_path and held[0].is_dir()
        lock = str(held[0] / ".lock")
        links = [link for link in Path("/proc/self/fd").iterdir() if link.exists()]
        (descriptor,) = [int(link.name) for link in links if os.readlink(link) == lock]
        os.close(descriptor)  # as the kernel does for a killed process
        last = await start()
        assert not held[0].exists() and held[1].is_dir() and held[2].is_dir()
        await other.close()
        await last.close()
        assert not any(tmp_path.iterdir())

    asyncio.run(go())


def test_a_server_that_dies_while_an_adapter_is_removed_is_no_error(tmp_path, caplog):
    base, (server,), weights, _ = opened()
    unread = []

    async def go():
        asyncio.get_running_loop().set_exception_handler(lambda _, details: unread.append(details["message"]))
        await base.sync(weights, 4)
        await base.add("a", made_adapter(1, tmp_path), 1)
        server.failing.append("remove_adapter")
        await base.add("a", made_adapter(2, tmp_path), 2)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        gc.collect()
        assert server.asked["remove_adapter"] == 1 and not server.alive
        await base.generate((1,), PARAMS, "a")
        assert list(server.adapters) == [2]

    asyncio.run(go())
    assert not unread and "nobody uses" not in caplog.text


def test_vllm_has_processes_of_its_own_beside_a_group_of_ranks(monkeypatch):
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    for ranks in (1, 2):
        monkeypatch.setattr(torch.distributed, "get_world_size", lambda ranks=ranks: ranks)
        assert runs_inside(VLLMConfig()) == (ranks == 1)
        assert runs_inside(VLLMConfig(process="inside"))  # its start names the reason
