"""The engine with several LoRA policies on one base: who shares a batch, whose weights answer."""

from __future__ import annotations

import asyncio
import logging
import threading

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
peft = pytest.importorskip("peft")

from coterie.api.open_run import open_run  # noqa: E402
from coterie.backends.chat_formats.formats import PlainChat  # noqa: E402
from coterie.backends.engines.hf import HFEngine  # noqa: E402
from coterie.backends.engines.rows import Drawn, Row  # noqa: E402
from coterie.backends.models.word_tokenizer import words_tokenizer  # noqa: E402
from coterie.core.config import PolicyConfig, load  # noqa: E402
from coterie.core.errors import ConfigError  # noqa: E402
from coterie.core.loop import train  # noqa: E402
from coterie.core.training.assemble import compose  # noqa: E402
from coterie.core.types import Weights  # noqa: E402
from tests.backends.engines.adapters import adapted, trained, worst  # noqa: E402
from tests.backends.engines.support import context, request, tiny, wait, wave, worst_logprob  # noqa: E402

pytestmark = pytest.mark.torch

WORDS = tuple(f"w{index}" for index in range(30))
POLICY = PolicyConfig(model={"init": "qwen3"})
ADAPTERS = {"plan": "planner", "code": "coder", "judge": None}
"""Policy -> its adapter."""


class Opened:
    """An engine, and a PEFT model that the policies of `ADAPTERS` stand on."""

    def __init__(self, model=None, **settings):
        self.ctx = context(dict.fromkeys((*ADAPTERS, "own", "other"), POLICY), PlainChat(), WORDS)
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
        return self.engine._batcher.batches

    def steps(self):
        """Decode steps of all decoders; decoders that are shared count once."""
        counts = {id(one.decoder): one.decoder.counts for one in self.engine._served.values()}
        return sum(one.steps for one in counts.values())


def everybody(policies=tuple(ADAPTERS), *, prompts=2, **sampling):
    """Requests of decisions with 3 branches each, for every policy."""
    return [
        request(
            [5 + place, 6, 7, *range(8, 8 + index)],
            seed=7919 * (9 * place + 3 * index + branch),
            policy=policy,
            branch=branch,
            task=f"t{place}{index}",
            **{"max_new_tokens": 8, **sampling},
        )
        for place, policy in enumerate(policies)
        for index in range(prompts)
        for branch in range(3)
    ]


def off(model, asked, calls):
    """Largest difference from the log-probs of the model's own forward, PEFT's where it has adapters."""
    rows = [
        Row(
            prompt_ids=one.prompt_ids,
            seed=one.seed,
            limit=1,
            stops=(),
            temperature=one.sampling.temperature,
            adapter={"other": "coder", **ADAPTERS}.get(one.policy),
        )
        for one in asked
    ]
    drawn = [Drawn(call.token_ids, call.logprobs, "length") for call in calls]
    return worst(model, rows, drawn) if hasattr(model, "peft_config") else worst_logprob(model, rows, drawn)


@pytest.mark.parametrize("decoder", ["lean", "transformers"])
@pytest.mark.parametrize("adapters", ["auto", "mixed"])
def test_policies_of_one_base_that_wait_together_are_one_batch(adapters, decoder):
    opened = Opened(adapters=adapters, decoder=decoder)
    asked = everybody(stop=(), temperature=0.9)
    calls = opened(*asked)
    assert opened.batches == 1
    counts = opened.engine.counts("plan")
    assert counts is opened.engine.counts("judge")
    assert counts.prompts == 6 and counts.steps == max(len(call.token_ids) for call in calls) - 1
    assert off(opened.model, asked, calls) < 1e-5


@pytest.mark.parametrize("decoder", ["lean", "transformers"])
def test_merged_policies_have_batches_of_their_own_and_draw_the_same(decoder):
    opened = Opened(adapters="merged", decoder=decoder)
    asked = everybody()
    calls = opened(*asked)
    assert opened.batches == 3
    assert opened.engine.counts("plan").prompts == opened.engine.counts("judge").prompts == 2
    assert off(opened.model, asked, calls) < 1e-5
    mixed = Opened(adapters="mixed", decoder=decoder)(*asked)
    assert [call.token_ids for call in mixed] == [call.token_ids for call in calls]


def test_a_mixed_batch_is_one_whatever_the_order_and_the_company():
    opened = Opened()
    asked = everybody()
    together = opened(*asked)
    assert opened(*asked[::-1]) == together[::-1]  # bit for bit: rows are in key order anyway
    assert [opened(one)[0].token_ids for one in asked] == [call.token_ids for call in together]


def test_many_rows_of_an_adapter_are_computed_for_themselves():
    opened = Opened()
    few, many = everybody(("plan", "code"), prompts=21), everybody(("plan", "code"), prompts=22)
    before = opened.steps()
    opened(*few)
    assert opened.steps() - before == 7
    before = opened.steps()
    calls = opened(*many)
    assert opened.steps() - before == 14
    assert off(opened.model, many, calls) < 1e-5


def test_copies_can_be_made_ahead_of_the_batches_that_need_them():
    opened = Opened()
    base = opened.engine._served["plan"].decoder
    opened.engine.prepare({"code": 700, "plan": 1})
    assert base._mixed is None and base._spare is not None
    opened.engine.prepare({"code": 60, "plan": 60, "judge": 0})
    assert base._mixed is not None
    before, asked = base._mixed, everybody()
    assert off(opened.model, asked, opened(*asked)) < 1e-5 and base._mixed is before
    many = Opened(max_batch=100)
    many.engine.prepare({"code": 700, "plan": 700})  # parts of 100 rows
    assert many.engine._served["plan"].decoder._mixed is not None


def test_mixed_batches_are_split_in_key_order():
    opened, small = Opened(), Opened(max_batch=7)
    asked = everybody()
    assert [call.token_ids for call in small(*asked)] == [call.token_ids for call in opened(*asked)]
    assert small.batches == 1 and small.engine.counts("plan").prompts == 6


def test_one_policy_is_loaded_and_the_others_answer_as_before():
    opened = Opened()
    asked = everybody()
    old = opened(*asked)
    trained(opened.model, seed=9)
    assert opened(*asked) == old  # not before they are loaded
    opened.load(4, "code", module=opened.model, adapter="coder")
    new = opened(*asked)
    for one, before, after in zip(asked, old, new, strict=True):
        assert after.version == (4 if one.policy == "code" else 0)
        assert (after == before) == (one.policy != "code")
    coders = [index for index, one in enumerate(asked) if one.policy == "code"]
    assert off(opened.model, [asked[i] for i in coders], [new[i] for i in coders]) < 1e-5


def test_no_weights_change_under_a_batch():
    opened = Opened()
    base = opened.engine._served["plan"].decoder
    started, generate = threading.Event(), base.generate

    def slow(rows):
        started.set()
        assert not loading.wait(0.2), "weights were loaded while a batch was computed"
        return generate(rows)

    base.generate, loading = slow, threading.Event()

    def load_later():
        started.wait(10)
        opened.engine._load(Weights(policy="code", version=4, module=opened.model, adapter="coder"))
        loading.set()

    thread = threading.Thread(target=load_later)
    thread.start()
    assert {call.version for call in opened(*everybody())} == {0}
    thread.join(10)
    base.generate = generate
    assert {call.version for call in opened(*everybody(("code",)))} == {4}


def test_full_policies_and_other_bases_are_served_beside_them():
    opened = Opened()
    own, other = tiny(seed=5), adapted(("coder",), seed=6)
    opened.load(2, "own", module=own)
    opened.load(3, "other", module=other, adapter="coder")
    asked = everybody((*ADAPTERS, "own", "other"))
    calls = opened(*asked)
    assert opened.batches == 3
    for model, version, policies in (
        (opened.model, 0, tuple(ADAPTERS)),
        (own, 2, ("own",)),
        (other, 3, ("other",)),
    ):
        found = [(one, call) for one, call in zip(asked, calls, strict=True) if one.policy in policies]
        assert off(model, *zip(*found, strict=True)) < 1e-5
        assert {call.version for _, call in found} == {version}


def test_a_policy_may_leave_its_base():
    opened = Opened()
    before = opened(*everybody())
    own = tiny(seed=5)
    opened.load(7, "code", module=own)
    asked = everybody()
    calls = opened(*asked)
    assert opened.engine.batch_of("code") == "code" and opened.engine.batch_of("judge") == "plan"
    for one, old, new in zip(asked, before, calls, strict=True):
        assert (new.version, new == old) == ((7, False) if one.policy == "code" else (0, True))
    for policy in ADAPTERS:
        opened.load(8, policy, module=own)
    assert not opened.engine._bases, "a base that nobody stands on is let go"


def saved_head():
    """A model whose planner has a head of its own, beside a plain coder."""
    config = peft.LoraConfig(r=2, target_modules=["q_proj"], modules_to_save=["lm_head"])
    model = peft.get_peft_model(tiny(), config, adapter_name="planner")
    model.add_adapter("coder", peft.LoraConfig(r=2, target_modules=["up_proj"]))
    trained(model, seed=1)
    with torch.no_grad():
        model.base_model.model.lm_head.modules_to_save["planner"].weight.normal_()
    return model.eval()


def test_an_adapter_that_is_more_than_low_rank_is_merged_and_that_is_said_once(caplog):
    with caplog.at_level(logging.WARNING, logger="coterie"):
        opened = Opened(saved_head())
        opened.load(1, "plan", module=opened.model, adapter="planner")
    said = [record.message for record in caplog.records if "policy plan" in record.message]
    assert len(said) == 1 and "modules_to_save" in said[0]
    asked = everybody()
    calls = opened(*asked)
    assert opened.batches == 2 and off(opened.model, asked, calls) < 1e-5


def test_where_mixing_is_asked_for_what_can_not_be_mixed_is_refused():
    with pytest.raises(ConfigError, match="modules_to_save") as caught:
        Opened(saved_head(), adapters="mixed")
    assert caught.value.path == "engine.adapters" and "fix" in str(caught.value)


def test_the_folder_of_a_policy_is_served_beside_a_base(tmp_path):
    tiny(seed=5).save_pretrained(tmp_path)
    opened = Opened()
    opened.load(2, "own", folder=str(tmp_path))
    opened.load(2, "other", module=tiny(seed=5))
    asked = everybody(("own",)), everybody(("other",))
    assert [call.token_ids for call in opened(*asked[0])] == [call.token_ids for call in opened(*asked[1])]


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
            "roles": {role: {"type": "tests.games:Seat", "policy": role} for role in policies},
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
        moved = {name for name, digest in run.trainer.digest().items() if digest != before[name]}
        counted = run.engine._batcher.batches, run.engine.counts("row").prompts
        await run.close()
        return moved, counted

    moved, (formed, prompts) = asyncio.run(go())
    assert formed == 3 * batches
    assert prompts == 3 * 2 // batches  # every task shows each role one and the same prompt
    assert moved == {"row", "column"}
    assert set(run.versions.values()) == {3}
