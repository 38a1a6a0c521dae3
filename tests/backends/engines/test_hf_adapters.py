"""The engine with several LoRA policies on one base: their batches, and the weights that generate."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import threading

import pytest

from coterie.testing.support.toys import ROLE

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
peft = pytest.importorskip("peft")

from coterie.api.open_run import open_run  # noqa: E402
from coterie.backends.chat_formats.formats import PlainChat  # noqa: E402
from coterie.backends.engines.hf import HFEngine  # noqa: E402
from coterie.backends.engines.rows import BatchRow, Drawn  # noqa: E402
from coterie.backends.models.policy import TorchPolicy  # noqa: E402
from coterie.backends.models.tokenizers import words_tokenizer  # noqa: E402
from coterie.compose import compose  # noqa: E402
from coterie.core.errors import ConfigError  # noqa: E402
from coterie.core.loop import train  # noqa: E402
from coterie.core.types import Weights  # noqa: E402
from coterie.recipes import load  # noqa: E402
from tests.backends.engines.adapters import adapted, trained, worst  # noqa: E402
from tests.backends.engines.support import context, request, tiny, wait, wave, worst_logprob  # noqa: E402

pytestmark = pytest.mark.torch

WORDS = tuple(f"w{index}" for index in range(30))
POLICY = TorchPolicy(model={"init": "qwen3"})
ADAPTERS = {"plan": "planner", "code": "coder", "judge": None}
"""Policy -> its adapter."""


class Opened:
    """An engine, and the PEFT model of the policies of `ADAPTERS`."""

    def __init__(self, model=None, ahead=0, **settings):
        plain = context(dict.fromkeys((*ADAPTERS, "own", "other"), POLICY), PlainChat(), WORDS)
        self.ctx = dataclasses.replace(plain, ahead=ahead)
        self.engine = HFEngine(HFEngine.Config(**settings))
        wait(self.engine.open(self.ctx))
        self.model = adapted() if model is None else model
        for policy, adapter in ADAPTERS.items():
            self.load(0, policy, module=self.model, adapter=adapter)

    def load(self, version, policy, **weights):
        tokenizer = words_tokenizer(WORDS)
        wait(
            self.engine.load_weights(Weights(policy=policy, version=version, tokenizer=tokenizer, **weights))
        )

    def __call__(self, *requests):
        return wave(self.ctx, self.engine, requests)

    @property
    def batches(self):
        return self.engine.batcher.batches

    def steps(self):
        """Decode steps of all decoders; decoders that are shared count once."""
        counts = {id(served.decoder): served.decoder.counts for served in self.engine.served.values()}
        return sum(count.steps for count in counts.values())


def of_all_policies(policies=tuple(ADAPTERS), *, prompts=2, **sampling):
    """Requests of decisions with 3 branches each, for every policy."""
    return [
        request(
            [5 + number, 6, 7, *range(8, 8 + index)],
            seed=7919 * (9 * number + 3 * index + branch),
            policy=policy,
            branch=branch,
            task=f"t{number}{index}",
            **{"max_new_tokens": 8, **sampling},
        )
        for number, policy in enumerate(policies)
        for index in range(prompts)
        for branch in range(3)
    ]


def deviation(model, requests, calls):
    """Largest difference from the log-probs of the model's own forward, PEFT's where it has adapters."""
    rows = [
        BatchRow(
            prompt_ids=sent.prompt_ids,
            seed=sent.seed,
            limit=1,
            stops=(),
            temperature=sent.sampling.temperature,
            adapter={"other": "coder", **ADAPTERS}.get(sent.policy),
        )
        for sent in requests
    ]
    drawn = [Drawn(call.token_ids, call.logprobs, "length") for call in calls]
    return worst(model, rows, drawn) if hasattr(model, "peft_config") else worst_logprob(model, rows, drawn)


@pytest.mark.parametrize("decoder", ["lean", "transformers"])
@pytest.mark.parametrize("adapters", ["auto", "mixed"])
def test_policies_of_one_base_that_wait_together_are_one_batch(adapters, decoder):
    opened = Opened(adapters=adapters, decoder=decoder)
    requests = of_all_policies(stop=(), temperature=0.9)
    calls = opened(*requests)
    assert opened.batches == 1
    counts = opened.engine.counts("plan")
    assert counts is opened.engine.counts("judge")
    assert counts.prompts == 6 and counts.steps == max(len(call.token_ids) for call in calls) - 1
    assert deviation(opened.model, requests, calls) < 1e-5


@pytest.mark.parametrize("decoder", ["lean", "transformers"])
def test_merged_policies_have_batches_of_their_own_and_draw_the_same(decoder):
    opened = Opened(adapters="merged", decoder=decoder)
    requests = of_all_policies()
    calls = opened(*requests)
    assert opened.batches == 3
    assert opened.engine.counts("plan").prompts == opened.engine.counts("judge").prompts == 2
    assert deviation(opened.model, requests, calls) < 1e-5
    mixed = Opened(adapters="mixed", decoder=decoder)(*requests)
    assert [call.token_ids for call in mixed] == [call.token_ids for call in calls]


def test_a_mixed_batch_is_one_whatever_the_order_and_the_company():
    opened = Opened()
    requests = of_all_policies()
    together = opened(*requests)
    assert opened(*requests[::-1]) == together[::-1]  # bit for bit: rows are in key order anyway
    assert [opened(sent)[0].token_ids for sent in requests] == [call.token_ids for call in together]


def test_many_rows_of_an_adapter_are_computed_for_themselves():
    opened = Opened()
    few, many = of_all_policies(("plan", "code"), prompts=21), of_all_policies(("plan", "code"), prompts=22)
    before = opened.steps()
    opened(*few)
    assert opened.steps() - before == 7
    before = opened.steps()
    calls = opened(*many)
    assert opened.steps() - before == 14
    assert deviation(opened.model, many, calls) < 1e-5


def test_copies_can_be_made_ahead_of_the_batches_that_need_them():
    opened = Opened()
    base = opened.engine.served.at("plan").decoder
    opened.engine.prepare({"code": 700, "plan": 1})
    assert base.mixed is None and base.spare is not None
    opened.engine.prepare({"code": 60, "plan": 60, "judge": 0})
    assert base.mixed is not None
    before, requests = base.mixed, of_all_policies()
    assert deviation(opened.model, requests, opened(*requests)) < 1e-5 and base.mixed is before
    many = Opened(max_batch=100)
    many.engine.prepare({"code": 700, "plan": 700})  # parts of 100 rows
    assert many.engine.served.at("plan").decoder.mixed is not None


def test_mixed_batches_are_split_in_key_order():
    opened, small = Opened(), Opened(max_batch=7)
    requests = of_all_policies()
    assert [call.token_ids for call in small(*requests)] == [call.token_ids for call in opened(*requests)]
    assert small.batches == 1 and small.engine.counts("plan").prompts == 6


def test_one_policy_is_loaded_and_the_others_answer_as_before():
    opened = Opened()
    requests = of_all_policies()
    old = opened(*requests)
    trained(opened.model, seed=9)
    assert opened(*requests) == old  # not before they are loaded
    opened.load(4, "code", module=opened.model, adapter="coder")
    new = opened(*requests)
    for sent, before, after in zip(requests, old, new, strict=True):
        assert after.version == (4 if sent.policy == "code" else 0)
        assert (after == before) == (sent.policy != "code")
    coders = [index for index, sent in enumerate(requests) if sent.policy == "code"]
    assert deviation(opened.model, [requests[i] for i in coders], [new[i] for i in coders]) < 1e-5


def test_no_weights_change_under_a_batch():
    opened = Opened(ahead=1)  # batches and loads are in threads of their own then
    base = opened.engine.served.at("plan").decoder
    started, generate = threading.Event(), base.generate

    def slow(rows):
        started.set()
        assert not loading.wait(0.2), "weights were loaded while a batch was computed"
        return generate(rows)

    base.generate, loading = slow, threading.Event()

    def load_later():
        started.wait(10)
        opened.load(4, "code", module=opened.model, adapter="coder")
        loading.set()

    thread = threading.Thread(target=load_later)
    thread.start()
    assert {call.version for call in opened(*of_all_policies())} == {0}
    thread.join(10)
    base.generate = generate
    assert {call.version for call in opened(*of_all_policies(("code",)))} == {4}


def test_full_policies_and_other_bases_are_served_beside_them():
    opened = Opened()
    full_model, other = tiny(seed=5), adapted(("coder",), seed=6)
    opened.load(2, "own", module=full_model)
    opened.load(3, "other", module=other, adapter="coder")
    requests = of_all_policies((*ADAPTERS, "own", "other"))
    calls = opened(*requests)
    assert opened.batches == 3
    for model, version, policies in (
        (opened.model, 0, tuple(ADAPTERS)),
        (full_model, 2, ("own",)),
        (other, 3, ("other",)),
    ):
        served = [(sent, call) for sent, call in zip(requests, calls, strict=True) if sent.policy in policies]
        assert deviation(model, *zip(*served, strict=True)) < 1e-5
        assert {call.version for _, call in served} == {version}


def test_a_policy_may_leave_its_base():
    opened = Opened()
    before = opened(*of_all_policies())
    full_model = tiny(seed=5)
    opened.load(7, "code", module=full_model)
    requests = of_all_policies()
    calls = opened(*requests)
    assert opened.engine.batch_of("code") == "code" and opened.engine.batch_of("judge") == "plan"
    for sent, old, new in zip(requests, before, calls, strict=True):
        assert (new.version, new == old) == ((7, False) if sent.policy == "code" else (0, True))
    for policy in ADAPTERS:
        opened.load(8, policy, module=full_model)
    assert not opened.engine.loaded_bases, "an unused base is released"


def saved_head():
    """A model whose planner has its own head and whose coder is plain LoRA."""
    config = peft.LoraConfig(r=2, target_modules=["q_proj"], modules_to_save=["lm_head"])
    model = peft.get_peft_model(tiny(), config, adapter_name="planner")
    model.add_adapter("coder", peft.LoraConfig(r=2, target_modules=["up_proj"]))
    trained(model, seed=1)
    with torch.no_grad():
        model.base_model.model.lm_head.modules_to_save["planner"].weight.normal_()
    return model.eval()


def test_an_adapter_that_is_more_than_low_rank_is_merged_and_warned_about_once(caplog):
    with caplog.at_level(logging.WARNING, logger="coterie"):
        opened = Opened(saved_head())
        opened.load(1, "plan", module=opened.model, adapter="planner")
    warnings = [record.message for record in caplog.records if "policy plan" in record.message]
    assert len(warnings) == 1 and "modules_to_save" in warnings[0]
    requests = of_all_policies()
    calls = opened(*requests)
    assert opened.batches == 2 and deviation(opened.model, requests, calls) < 1e-5


def test_where_mixing_is_asked_for_what_can_not_be_mixed_is_refused():
    with pytest.raises(ConfigError, match="modules_to_save") as caught:
        Opened(saved_head(), adapters="mixed")
    assert caught.value.path == "engine.adapters" and "fix" in str(caught.value)


def test_the_folder_of_a_policy_is_served_beside_a_base(tmp_path):
    tiny(seed=5).save_pretrained(tmp_path)
    opened = Opened()
    opened.load(2, "own", folder=str(tmp_path))
    opened.load(2, "other", module=tiny(seed=5))
    requests = of_all_policies(("own",)), of_all_policies(("other",))
    assert [call.token_ids for call in opened(*requests[0])] == [
        call.token_ids for call in opened(*requests[1])
    ]


@pytest.mark.parametrize(("adapters", "batches"), [("auto", 1), ("merged", 2)])
def test_two_roles_that_act_at_once_on_two_lora_policies_generate_in_one_batch_a_step(adapters, batches):
    size = {"init": "qwen3", "hidden_size": 32, "layers": 1, "heads": 2, "head_dim": 16, "mlp_size": 64}
    policies = {
        "row": {"model": size, "train": "lora", "lora": {"rank": 2}, "optimizer": {"learning_rate": 1e-2}},
        "column": {
            "model": size,
            "train": "lora",
            "lora": {"rank": 4, "target_modules": ["q_proj", "v_proj"]},
        },
    }
    config = {
        "env": {"type": "tests.games:Matrix"},
        "team": {
            "order": [["row", "column"]],
            "max_turns": 1,
            "roles": {role: {"type": ROLE, "policy": role} for role in policies},
        },
        "policies": policies,
        "sampler": {"branches": 4, "sampling": {"max_new_tokens": 3}},
        "algorithm": {"type": "at_grpo", "normalise": {"type": "none"}},
        "engine": {"type": "hf", "adapters": adapters},
        "trackers": {},
        "schedule": {"steps": 3, "tasks_per_step": 4},
    }
    run = compose(load(config))

    async def go():
        await open_run(run)
        before = run.trainer.digest()
        await train(run)
        versions = run.versions
        moved = {name for name, digest in run.trainer.digest().items() if digest != before[name]}
        counted = run.engine.batcher.batches, run.engine.counts("row").prompts
        await run.close()
        return moved, counted, versions

    moved, (formed, prompts), versions = asyncio.run(go())
    assert formed == 3 * batches
    assert prompts == 3 * 2 // batches  # every task shows each role one and the same prompt
    assert moved == {"row", "column"}
    assert versions == {"row": 3, "column": 3}
