"""Engine `vllm` inside the run's process: the trainer's log-probs after every sync, and faults."""

from __future__ import annotations

import asyncio
import errno
import json
import logging
import random
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

pytestmark = [pytest.mark.scale, pytest.mark.xdist_group("vllm")]
pytest.importorskip("vllm", reason="runs in the venv of `make test-scale`")

import torch  # noqa: E402

import coterie  # noqa: E402
from coterie.backends.engines.vllm import transfer, worker  # noqa: E402
from coterie.backends.engines.vllm.engine import VLLMEngine  # noqa: E402
from coterie.backends.engines.vllm.in_process import InProcessServer  # noqa: E402
from coterie.backends.engines.vllm.replicas import Replicas  # noqa: E402
from coterie.backends.engines.vllm.server import Params  # noqa: E402
from coterie.backends.engines.vllm.settings import VLLMConfig, VLLMPolicy  # noqa: E402
from coterie.core.errors import ConfigError, SystemFault, UserError, WriteError  # noqa: E402
from coterie.core.types import Weights  # noqa: E402
from coterie.testing import check_engine  # noqa: E402
from tests.scale.kept_kv import check_kept_keys  # noqa: E402
from tests.scale.vllm_models import (  # noqa: E402
    CONTEXT,
    LONG,
    LORA,
    TOLERANCE,
    VOCABULARY,
    Playing,
    adapted,
    adapter_parameters,
    mixed,
    module,
    request,
    step,
    until,
)

VISIBLE = 1e-3
"""What a wrong log-prob differs by, at least."""
FULL = ["tied", "untied"]


@pytest.fixture(scope="module")
def playing(runner):
    """Five policies on three vLLMs: two adapters and their base, and two whole models."""
    base = adapted(module(tied=True, seed=1), {"planner": 4, "worker": 12})
    modules = {
        "planner": (base, "planner"),
        "worker": (base, "worker"),
        "frozen": (base, None),
        "tied": (module(tied=True, seed=2), None),
        "untied": (module(tied=False, seed=3), None),
    }
    trains = {"planner": "lora", "worker": "lora", "frozen": "none", "tied": "full", "untied": "full"}
    opened = Playing(modules, trains)
    runner.run(opened.open())
    yield opened
    runner.run(opened.engine.close())


def server(playing: Playing, policy: str) -> InProcessServer:
    (made,) = replicas(playing, policy).servers
    return made


def replicas(playing: Playing, policy: str) -> Replicas:
    return playing.engine.served[policy].base.replicas


# ------------------------------------------------------------------------------------------------ log-probs


def test_logprobs_are_the_trainers_after_every_sync(runner, playing):
    """Tied and untied, LoRA and full, base and adapter requests in one batch, prefixes reused."""
    for _ in range(3):
        for policy in ("planner", "worker", "tied", "untied"):
            runner.run(playing.update(policy, size=0.05))
        requests = mixed(LORA + FULL)
        for _ in range(2):  # the second time vLLM has the prefixes
            calls = runner.run(playing.wave(requests))
            assert playing.gap(requests, calls) < TOLERANCE
        versions = {request.policy: call.version for request, call in zip(requests, calls, strict=True)}
        assert versions == playing.versions
    assert playing.rollouts.waiting == playing.rollouts.live == 0


@pytest.mark.parametrize(
    ("module", "name", "policy"),
    [
        (InProcessServer, "reset_prefix_cache", "untied"),
        (worker, "fix_tied_head", "tied"),
    ],
)
def test_without_the_fix_logprobs_after_a_sync_are_wrong(runner, playing, monkeypatch, module, name, policy):
    requests = mixed([policy])
    runner.run(playing.wave(requests))
    with monkeypatch.context() as patch:
        patch.setattr(module, name, lambda *_: None)
        runner.run(playing.update(policy, size=0.05))
        assert playing.gap(requests, runner.run(playing.wave(requests))) > VISIBLE
    runner.run(playing.load(policy))
    assert playing.gap(requests, runner.run(playing.wave(requests))) < TOLERANCE


def test_without_the_fix_of_the_base_slot_base_requests_get_an_adapter(runner, playing, monkeypatch):
    requests = mixed(LORA)
    base = [request for request in requests if request.policy == "frozen"]
    with monkeypatch.context() as patch:
        patch.setattr(worker, "mask_base_rows", lambda *_: None)
        calls = runner.run(playing.wave(requests))
        assert playing.gap(base, [calls[requests.index(request)] for request in base]) > VISIBLE
    for context in playing.engine.loaded_bases.values():  # the wrong keys and values are cached
        context.replicas.servers[0].reset_prefix_cache()
    assert playing.gap(requests, runner.run(playing.wave(requests))) < TOLERANCE


def test_without_the_fix_of_filters_logprobs_are_of_the_kept_tokens(runner, playing, monkeypatch):
    requests = mixed(["tied"], top_p=0.8, temperature=1.5)
    monkeypatch.setattr(worker, "whole_logprobs", lambda logits: None)
    assert playing.gap(requests, runner.run(playing.wave(requests))) > VISIBLE


def test_weights_by_file(runner):
    """`transfer: file`, in several chunks."""
    opened = Playing({"p": (module(tied=True, seed=5), None)}, {"p": "full"}, transfer="file", kv_gib=0.25)
    runner.run(opened.open())
    files = server(opened, "p").files
    files.chunk = 10_000
    requests = mixed(["p"])
    for _ in range(2):
        runner.run(opened.update("p", size=0.05))
        assert opened.gap(requests, runner.run(opened.wave(requests))) < TOLERANCE
    folders = list(files.folders.made.values())
    assert folders and [[*folder.glob("[!.]*")] for folder in folders] == [[]], "a lock alone"
    runner.run(opened.engine.close())
    assert not any(folder.exists() for folder in folders)


# ------------------------------------------------------------------------------------------------- requests


def test_tokens_are_independent_of_the_batch(runner, playing):
    requests = mixed(["planner", "frozen", "untied"])
    first = runner.run(playing.wave(requests))
    for batch in (requests[::-1], requests[::4], requests[:1]):
        for sent, call in zip(batch, runner.run(playing.wave(batch)), strict=True):
            assert call.token_ids == first[requests.index(sent)].token_ids
    seeds = [request("untied", LONG[:9], number) for number in range(8)]
    assert len({call.token_ids for call in runner.run(playing.wave(seeds))}) == 8


def test_a_request_joins_the_running_batch(runner, playing):
    """There is no barrier: a short request ends while a long one, sent earlier, still runs."""

    async def play():
        long = asyncio.ensure_future(playing.wave([request("tied", LONG, max_new_tokens=200)]))
        await asyncio.sleep(0.02)
        await playing.wave([request("tied", LONG[:7], 1, max_new_tokens=2)])
        assert not long.done()
        assert playing.rollouts.waiting == 1
        return await long

    (call,) = runner.run(play())
    assert call.finish == "length" or call.token_ids[-1] == 1


def test_a_cancelled_request_is_aborted(runner, playing):
    async def play():
        task = asyncio.ensure_future(playing.wave([request("untied", LONG, max_new_tokens=200)]))
        other = asyncio.ensure_future(playing.wave([request("untied", LONG[:9], 1)]))
        while not replicas(playing, "untied").in_flight:  # no longer: it may be short
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await other
        await until(lambda: not server(playing, "untied").engine.has_unfinished_requests())

    runner.run(play())
    made = server(playing, "untied")
    assert made.alive and not replicas(playing, "untied").in_flight
    assert playing.rollouts.waiting == playing.rollouts.live == 0


def test_stops_and_limits(runner, playing):
    requests = [request("untied", LONG[:9], number, max_new_tokens=400) for number in range(8)]
    calls = runner.run(playing.wave(requests))
    assert all((call.finish == "stop") == (call.token_ids[-1] == 1) for call in calls)
    assert all(1 not in call.token_ids[:-1] for call in calls) and any(
        call.finish == "stop" for call in calls
    )
    full = request("untied", (LONG * 2)[: CONTEXT - 3], max_new_tokens=64)
    (call,) = runner.run(playing.wave([full]))
    assert len(call.token_ids) <= 3


def test_a_faulty_prompt_is_refused_and_the_engine_goes_on(runner, playing):
    for prompt, what in (
        ((LONG * 2)[:CONTEXT], "does not fit the context of 512"),
        ((), "prompt is empty"),
        ((3, VOCABULARY), "the token 53 of a prompt is not in the model's vocabulary"),
    ):
        with pytest.raises(ConfigError, match=what):
            runner.run(playing.wave([request("tied", prompt)]))
    faulty = server(playing, "tied").generate((LONG * 2)[:CONTEXT], Params(seed=1, limit=5), None)
    with pytest.raises(SystemFault, match="vLLM refused a request"):
        runner.run(_awaited(faulty))
    good = mixed(["tied"])
    assert playing.gap(good, runner.run(playing.wave(good))) < TOLERANCE


async def _awaited(work):
    return await work


# -------------------------------------------------------------------------------------------------- versions


def test_an_adapter_is_replaced_while_a_request_is_in_flight(runner, playing):
    """The request keeps the version that it began with; new ones get the new version; the old one goes."""
    slow = request("planner", LONG, max_new_tokens=200)
    base = playing.engine.served["planner"].base
    before = playing.versions["planner"]
    (old,) = (adapter for adapter in base.adapters.held if adapter.name.startswith("planner@"))

    async def play():
        task = asyncio.ensure_future(playing.wave([slow]))
        await asyncio.sleep(0.02)
        kept = [
            value.detach().clone() for value in adapter_parameters(playing.modules["planner"][0], "planner")
        ]
        await playing.update("planner", size=0.05)
        assert not task.done() and Path(old.path).is_dir()
        fast = mixed(["planner"])
        calls = await playing.wave(fast)
        assert playing.gap(fast, calls) < TOLERANCE
        assert {call.version for call in calls} == {before + 1}
        (call,) = await task
        held = {adapter.id for adapter in base.adapters.held}
        await until(lambda: server(playing, "planner").engine.list_loras() == held)
        return kept, call

    kept, call = runner.run(play())
    assert call.version == before
    assert not Path(old.path).exists()
    parameters = adapter_parameters(playing.modules["planner"][0], "planner")
    new = [value.detach().clone() for value in parameters]
    _fill(parameters, kept)
    assert playing.gap([slow], [call]) < TOLERANCE
    _fill(parameters, new)


@pytest.mark.long  # test_vllm_process.py has it with vLLM's own processes
def test_a_sync_in_flight_keeps_keys_and_values_or_computes_them_again(runner, playing):
    check_kept_keys(runner, playing, "untied")


@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_tokens_are_drawn_from_the_distribution_that_is_trained(runner, playing, temperature):
    """Pearson's test over first tokens. The seeds are fixed, so the verdict is the same in every run."""
    seeds, prompt = random.Random(0), LONG[:7]
    asked = [
        replace(
            request("untied", prompt, max_new_tokens=1, temperature=temperature), seed=seeds.getrandbits(64)
        )
        for _ in range(3000)
    ]
    calls = runner.run(playing.wave(asked))
    drawn = torch.bincount(torch.tensor([call.token_ids[0] for call in calls]), minlength=VOCABULARY).double()
    with torch.no_grad():
        logits = playing.modules["untied"][0](input_ids=torch.tensor([prompt])).logits[0, -1]
    expected = (logits / temperature).double().softmax(-1) * len(asked)
    often = expected >= 5
    drawn, expected = (torch.cat([part[often], part[~often].sum()[None]]) for part in (drawn, expected))
    drawn, expected = drawn[expected > 0], expected[expected > 0]
    freedom = len(drawn) - 1
    assert freedom >= 20
    assert ((drawn - expected) ** 2 / expected).sum() < freedom + 3 * (2 * freedom) ** 0.5


def test_a_call_that_spans_versions_is_visible(runner, playing, caplog):
    """A sync in flight: its tokens are of two versions, each computed wholly with that version's weights."""
    slow = [request("untied", LONG, number, max_new_tokens=200, temperature=1.5) for number in range(8)]
    played, before = playing.modules["untied"][0], playing.versions["untied"]
    old = [value.detach().clone() for value in played.parameters()]

    async def play():
        task = asyncio.ensure_future(playing.wave(slow))
        while not server(playing, "untied").engine.has_unfinished_requests():
            await asyncio.sleep(0.005)
        await asyncio.sleep(0.05)
        await playing.update("untied", size=0.05)
        assert not task.done(), "some of the eight are long"
        return await task

    with caplog.at_level(logging.WARNING, logger="coterie"):
        calls = runner.run(play())
    assert "several versions of the weights drew the tokens of one call" in caplog.text
    spanning = [(asked, call) for asked, call in zip(slow, calls, strict=True) if call.version_runs]
    assert all([run[0] for run in call.version_runs] == [before, before + 1] for _, call in spanning)
    asked, call = spanning[0]
    assert call.version == before
    drawn, cut = torch.tensor(call.logprobs), call.version_runs[0][1]
    assert (playing.expected(asked, call) - drawn)[cut:].abs().max() < TOLERANCE
    new = [value.detach().clone() for value in played.parameters()]
    _fill(played.parameters(), old)
    assert (playing.expected(asked, call) - drawn)[:cut].abs().max() < TOLERANCE
    _fill(played.parameters(), new)


def _fill(parameters, values):
    with torch.no_grad():
        for parameter, value in zip(parameters, values, strict=True):
            parameter.copy_(value)


# ---------------------------------------------------------------------------------------------------- faults


def test_a_sync_that_fails_half_way_restarts_vllm_with_the_newest_weights(
    runner, playing, monkeypatch, caplog
):
    failures = [RuntimeError("the cable broke")]
    send = worker.MemoryTransfer.tensors

    def broken(self, update_info):
        for number, pair in enumerate(send(self, update_info)):
            if number == 5 and failures:
                raise failures.pop()
            yield pair

    monkeypatch.setattr(worker.MemoryTransfer, "tensors", broken)
    with caplog.at_level(logging.WARNING, logger="coterie"):
        runner.run(playing.update("tied", size=0.05))
    assert "vLLM of 'tied' is restarted: the cable broke" in caplog.text
    requests = mixed(["tied", "planner", "untied"])  # the other vLLMs of the process live on
    calls = runner.run(playing.wave(requests))
    assert playing.gap(requests, calls) < TOLERANCE
    assert {call.version for call, sent in zip(calls, requests, strict=True) if sent.policy == "tied"} == {
        playing.versions["tied"]
    }


@pytest.mark.long
def test_a_sync_that_keeps_failing_ends_with_the_reason(runner, playing, monkeypatch):
    def broken(self, update_info):
        raise RuntimeError("no cable")
        yield

    with monkeypatch.context() as patch:
        patch.setattr(worker.MemoryTransfer, "tensors", broken)
        with pytest.raises(UserError, match="can't take the new weights") as caught:
            runner.run(playing.update("tied", size=0.05))
        assert "no cable" in caught.value.why
    runner.run(playing.load("tied"))
    requests = mixed(["tied"])
    assert playing.gap(requests, runner.run(playing.wave(requests))) < TOLERANCE


def test_a_wrong_tensor_is_named_and_nothing_is_sent(runner, playing):
    wrong = module(tied=False, seed=3)
    wrong.model.layers[1].mlp.up_proj = torch.nn.Linear(64, 95, bias=False)
    base = playing.engine.served["untied"].base
    kept, playing.modules["untied"] = playing.modules["untied"], (wrong, None)
    key = next(key for key, value in playing.engine.loaded_bases.items() if value is base)
    playing.engine.loaded_bases[id(wrong)] = base
    with pytest.raises(UserError) as caught:
        runner.run(playing.load("untied"))
    del playing.engine.loaded_bases[id(wrong)]
    playing.modules["untied"] = kept
    playing.versions["untied"] -= 1
    assert str(caught.value).startswith("policies.untied: the tensor model.layers.1.mlp.up_proj.weight")
    assert "its shape is (95, 64), not (96, 64)" in str(caught.value)
    assert key in playing.engine.loaded_bases and server(playing, "untied").alive
    requests = mixed(["untied"])
    assert playing.gap(requests, runner.run(playing.wave(requests))) < TOLERANCE


def test_vllm_that_dies_in_a_step_is_restarted_and_requests_run_again(runner, playing, monkeypatch):
    requests = mixed(["planner", "frozen"])
    expected = runner.run(playing.wave(requests))
    made = server(playing, "planner")
    monkeypatch.setattr(made.engine, "step", lambda: 1 / 0)
    calls = runner.run(playing.wave(requests))
    assert [call.token_ids for call in calls] == [call.token_ids for call in expected]
    assert playing.gap(requests, calls) < TOLERANCE


def test_an_adapter_of_a_larger_rank_is_refused(runner, playing):
    import peft

    base, _ = playing.modules["planner"]
    base.add_adapter("wide", peft.LoraConfig(r=17, target_modules="all-linear", task_type="CAUSAL_LM"))
    step(adapter_parameters(base, "wide"), seed=0)
    playing.modules["planner"] = (base, "wide")
    with pytest.raises(ConfigError) as caught:
        runner.run(playing.load("planner"))
    playing.modules["planner"] = (base, "planner")
    base.delete_adapter("wide")
    assert "can't take an adapter of rank 17" in str(caught.value)
    assert "started for ranks up to 16" in str(caught.value)
    runner.run(playing.load("planner"))
    requests = mixed(LORA)
    assert playing.gap(requests, runner.run(playing.wave(requests))) < TOLERANCE


def test_a_full_disk_stops_an_adapter_and_not_the_engine(runner, playing, monkeypatch, caplog):
    """Shared memory is full: the temporary folder takes the adapter. Both are full: an error says so."""
    requests = mixed(LORA)
    save = transfer.Folders.folder

    def full(self, place):
        if place == transfer.SHARED_MEMORY or everywhere:
            raise OSError(errno.ENOSPC, "No space left on device")
        return save(self, place)

    everywhere = False
    monkeypatch.setattr(transfer.Folders, "folder", full)
    with caplog.at_level(logging.WARNING, logger="coterie"):
        runner.run(playing.update("worker", size=0.05))
    assert "can't be written to /dev/shm" in caplog.text
    assert playing.gap(requests, runner.run(playing.wave(requests))) < TOLERANCE
    everywhere = True
    with pytest.raises(WriteError, match="weights for vLLM can't be written"):
        runner.run(playing.load("worker"))
    playing.versions["worker"] -= 1
    everywhere = False
    calls = runner.run(playing.wave(requests))
    assert playing.gap(requests, calls) < TOLERANCE


# ------------------------------------------------------------------------------------------------- whole runs


def test_a_folder_is_read_by_vllm_itself(runner, tmp_path):
    """A frozen policy without a trainer's module: vLLM reads the weights, and a hub id is read alike."""
    played = module(tied=True, seed=7)
    played.save_pretrained(tmp_path)
    opened = Playing({"p": (played, None)}, {"p": "none"}, kv_gib=0.25)
    opened.context.policies["p"] = VLLMPolicy(model=str(tmp_path), train="none")

    async def play():
        await opened.engine.open(opened.context)
        tokenizer = SimpleNamespace(model_max_length=CONTEXT, unk_token_id=None)
        await opened.engine.load_weights(Weights(policy="p", version=4, tokenizer=tokenizer))
        requests = mixed(["p"])
        calls = await opened.wave(requests)
        await opened.engine.close()
        return requests, calls

    requests, calls = runner.run(play())
    assert opened.gap(requests, calls) < TOLERANCE
    assert {call.version for call in calls} == {4}


@pytest.mark.parametrize("train", ["full", pytest.param("lora", marks=pytest.mark.long)])
def test_steps_of_the_quickstart_play_what_is_trained(tmp_path, train):
    """All weights are trained, or an adapter. The trainer recomputes every log-prob."""
    overrides = [
        "engine.type=vllm", "engine.kv_gib=0.5", "schedule.steps=8", "schedule.tasks_per_step=4",
        "schedule.evaluate_every=8", "schedule.evaluate_tasks=8", "schedule.checkpoint_every=8",
        "policies.shared.warm_start.steps=20", "policies.shared.warm_start.batch=128",
        f"policies.shared.train={train}",
    ]  # fmt: skip
    result = coterie.train("quickstart", overrides=overrides, out=tmp_path / "run")
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    trained = [row["policy/shared/mismatch_max"] for row in rows if "policy/shared/mismatch_max" in row]
    assert result.finished and result.step == 8 and len(trained) >= 3  # some steps have no gradient
    assert max(trained) < TOLERANCE


# ----------------------------------------------------------------------------------------------- conformance


def test_the_engine_conforms():
    engine = VLLMEngine(VLLMConfig(kv_gib=0.25))
    table = {"init": "qwen3", "hidden_size": 64, "layers": 1, "mlp_size": 64, "context": 64}
    check_engine(engine, model=table, weights=[Weights(policy="policy", version=3)], leases=False)


def test_heads_that_vllm_has_no_attention_for_are_refused():
    table = {"init": "qwen3", "hidden_size": 64, "layers": 1, "heads": 4, "head_dim": 24, "mlp_size": 64}
    with pytest.raises(Exception, match="no attention for heads of size 24"):
        check_engine(VLLMEngine(VLLMConfig(kv_gib=0.25)), model=table, leases=False)
