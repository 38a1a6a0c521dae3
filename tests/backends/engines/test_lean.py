"""The lean decoder computes what the model of transformers computes, with less."""

from __future__ import annotations

import copy

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from hypothesis import (  # noqa: E402
    given,
    settings,
    strategies as st,
)

from coterie.backends.engines.lean.cache import Costs, plan  # noqa: E402
from coterie.backends.engines.lean.decode import LeanDecoder  # noqa: E402
from coterie.backends.engines.lean.weights import unsupported  # noqa: E402
from coterie.backends.models.merged_weights import MergedWeights  # noqa: E402
from tests.backends.engines.support import rows, tiny, worst_logprob  # noqa: E402

pytestmark = pytest.mark.torch

MIXED = [(5, 3), (17, 1), (1, 4), (40, 2), (9, 8), (6, 3)]
"""(prompt length, siblings): unequal in both."""


def lean(model, adapter=None, dtype=torch.float32):
    return LeanDecoder(MergedWeights(model, adapter), dtype)


@pytest.mark.parametrize(
    ("kind", "more"),
    [
        ("qwen3", {}),
        ("qwen3", {"num_key_value_heads": 4, "tie_word_embeddings": True}),
        ("qwen3", {"num_key_value_heads": 1, "attention_bias": True}),
        ("qwen2", {}),
        ("llama", {"attention_bias": True, "mlp_bias": True}),
        (
            "llama",
            {
                "rope_parameters": {
                    "rope_type": "llama3",
                    "rope_theta": 1000.0,
                    "factor": 4.0,
                    "low_freq_factor": 1.0,
                    "high_freq_factor": 4.0,
                    "original_max_position_embeddings": 64,
                }
            },
        ),
        (
            "qwen2",
            {
                "rope_parameters": {
                    "rope_type": "yarn",
                    "rope_theta": 1000.0,
                    "factor": 4.0,
                    "original_max_position_embeddings": 64,
                }
            },
        ),
        ("mistral", {}),
    ],
)
def test_logprobs_are_those_of_the_models_forward(kind, more):
    model = tiny(kind, **more)
    assert unsupported(model) is None
    batch = rows(MIXED, temperature=(1.0, 0.7, 1.5, 0.0), stops=(7, 8))
    drawn = lean(model).generate(batch)
    assert {result.finish for result in drawn} == {"stop", "length"}
    assert worst_logprob(model, batch, drawn) < 1e-5


@pytest.mark.parametrize("bucket", [0.1, 4.0, 1e9])
def test_logprobs_hold_when_slots_close_at_different_times(bucket):
    model = tiny()
    batch = rows(MIXED * 4, limit=40, stops=tuple(range(2, 12)))
    decoder = lean(model)
    decoder.costs = Costs(key=1e-3, bucket=bucket)  # many buckets, some, and a single one
    drawn = decoder.generate(batch)
    lengths = [len(result.token_ids) for result in drawn]
    assert max(lengths) > 3 * np.mean(lengths), "the case should have stragglers"
    if bucket < 1e9:
        assert decoder.counts.slots < 0.6 * len(batch) * decoder.counts.steps, "closed slots are computed"
    assert worst_logprob(model, batch, drawn) < 1e-5


def test_long_prompts_are_exact_too():
    model = tiny(max_position_embeddings=1024)
    batch = rows([(700, 3), (512, 2), (3, 2)], limit=6)
    assert worst_logprob(model, batch, lean(model).generate(batch)) < 1e-5


def test_rows_have_limits_of_their_own():
    batch = rows([(4, 1)], limit=1) + rows([(4, 2)], limit=9) + rows([(6, 1)], limit=40)
    drawn = lean(tiny()).generate(batch)
    assert [len(result.token_ids) for result in drawn] == [1, 9, 9, 40]
    assert {result.finish for result in drawn} == {"length"}


def test_a_distinct_prompt_is_prefilled_once():
    decoder = lean(tiny())
    batch = rows(MIXED)
    decoder.generate(batch + batch)  # the same prompts again, further down in the batch
    assert decoder.counts.prompts == len(MIXED)
    assert decoder.counts.prompt_tokens == sum(length for length, _ in MIXED)


def test_tokens_do_not_depend_on_the_batch():
    decoder = lean(tiny())
    batch = rows(MIXED, limit=20, stops=(7,))
    together = decoder.generate(batch)
    for row, expected in zip(batch, together, strict=True):
        (alone,) = decoder.generate([row])
        assert alone.token_ids == expected.token_ids
    backwards = decoder.generate(batch[::-1])
    assert [result.token_ids for result in backwards[::-1]] == [result.token_ids for result in together]


def test_nothing_asked_nothing_drawn():
    assert lean(tiny()).generate([]) == []


def test_weights_are_copies_refreshed_in_place():
    model = tiny()
    decoder = lean(model)
    batch = rows(MIXED)
    before = decoder.generate(batch)
    place = decoder.weights.layers[0].qkv.data_ptr()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.1)
    assert decoder.generate(batch) == before, "a trainer's step showed before it was loaded"
    decoder.refresh(MergedWeights(model))
    after = decoder.generate(batch)
    assert after != before
    assert decoder.weights.layers[0].qkv.data_ptr() == place
    assert worst_logprob(model, batch, after) < 1e-5


@pytest.fixture(scope="module")
def adapted():
    """A PEFT model with two adapters of different rank and targets, both trained away from zero."""
    peft = pytest.importorskip("peft")
    base = tiny(tie_word_embeddings=True)
    model = peft.get_peft_model(
        base, peft.LoraConfig(r=4, lora_alpha=16, target_modules="all-linear"), adapter_name="planner"
    )
    model.add_adapter("coder", peft.LoraConfig(r=2, use_rslora=True, target_modules=["q_proj", "down_proj"]))
    torch.manual_seed(1)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_" in name:
                parameter.normal_(std=0.3)
    return model.eval()


@pytest.mark.parametrize("adapter", ["planner", "coder"])
def test_lora_is_merged_without_touching_the_module(adapted, adapter):
    before = copy.deepcopy(adapted.state_dict())
    active = adapted.active_adapter
    batch = rows(MIXED, temperature=(1.0, 0.8))
    drawn = lean(adapted, adapter).generate(batch)
    assert adapted.active_adapter == active
    assert all(torch.equal(value, before[name]) for name, value in adapted.state_dict().items())
    adapted.set_adapter(adapter)
    assert worst_logprob(adapted, batch, drawn) < 2e-5
    adapted.set_adapter(active)


def test_a_peft_model_without_adapter_is_its_base(adapted):
    batch = rows(MIXED)
    drawn = lean(adapted).generate(batch)
    with adapted.disable_adapter():
        assert worst_logprob(adapted, batch, drawn) < 1e-5


def test_bfloat16_is_as_close_as_bfloat16_gets():
    model = tiny(scale=2.0)
    batch = rows(MIXED)
    drawn = lean(model, dtype=torch.bfloat16).generate(batch)
    half = copy.deepcopy(model).to(torch.bfloat16)
    theirs = lean(model).generate(batch)
    noise = worst_logprob(half, batch, theirs)  # of transformers' own bfloat16 against float32
    assert worst_logprob(model, batch, drawn) < 3 * noise


@pytest.mark.parametrize(
    ("kind", "more", "why"),
    [
        ("gpt2", {}, "GPT2LMHeadModel"),
        ("qwen3", {"hidden_act": "gelu"}, "gelu"),
        ("mistral", {"sliding_window": 16}, "slides"),
        ("qwen2", {"use_sliding_window": True, "sliding_window": 16, "max_window_layers": 1}, "slides"),
        (
            "llama",
            {"rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}},
            "rotary embedding is of type dynamic",
        ),
    ],
)
def test_what_it_can_not_compute_is_said(kind, more, why):
    assert why in unsupported(tiny(kind, **more))


@settings(deadline=None, max_examples=60)
@given(st.lists(st.tuples(st.integers(1, 600), st.integers(1, 16)), min_size=1, max_size=40))
def test_buckets_hold_every_group_once_and_cost_no_more_than_one(shapes):
    costs = Costs(key=1e-3, bucket=8.0)
    groups = [(length, np.arange(siblings)) for length, siblings in shapes]
    buckets = plan(groups, costs)
    assert sorted(index for bucket in buckets for index in bucket) == list(range(len(groups)))

    def cost(members):
        return costs.of(len(members), max(shapes[i][1] for i in members), max(shapes[i][0] for i in members))

    assert sum(cost(bucket) for bucket in buckets) <= cost(range(len(shapes))) + 1e-9


def test_a_prompt_shared_by_many_is_not_padded_with_its_neighbours():
    buckets = plan([(500, np.arange(16)), *[(10, np.arange(1))] * 30], Costs(key=1e-3, bucket=8.0))
    assert [0] in buckets
