"""Adapters of one base in one batch compute what PEFT computes with the loaded weights, mixed or merged."""

from __future__ import annotations

import copy
from functools import partial

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("peft")

from coterie.backends.engines.decoders import StepwiseDecoder  # noqa: E402
from coterie.backends.engines.lean.adapters import unmixable  # noqa: E402
from coterie.backends.engines.lean.cache import Costs  # noqa: E402
from coterie.backends.engines.lean.decode import LeanDecoder  # noqa: E402
from coterie.backends.engines.rows import SharedBase  # noqa: E402
from coterie.backends.models.merged_weights import MergedWeights  # noqa: E402
from tests.backends.engines.adapters import adapted, dealt, trained, worst  # noqa: E402
from tests.backends.engines.support import rows, tiny  # noqa: E402

pytestmark = pytest.mark.torch

MIXED = [(5, 3), (17, 1), (1, 4), (40, 2), (9, 8), (6, 3)]
"""(prompt length, siblings): unequal in both."""
ALL = ("planner", None, "coder")
EVERYONE = ("planner", None, "coder", "speaker")


def shared(model, mixed_rows=None, decoder=LeanDecoder, dtype=torch.float32):
    """A base with all adapters of the model; by default every batch is mixed, with 0 none is."""
    base = SharedBase("base", MergedWeights(model), partial(decoder, dtype=dtype), mixed_rows)
    for adapter in model.peft_config:
        base.load(MergedWeights(model, adapter))
    return base


@pytest.mark.parametrize(
    ("kind", "more", "bucket"),
    [
        ("qwen3", {}, 0.1),
        ("qwen3", {}, 4.0),
        ("qwen3", {}, 1e9),
        ("qwen3", {"num_key_value_heads": 1, "attention_bias": True}, 4.0),
        ("llama", {"attention_bias": True, "mlp_bias": True}, 4.0),
        ("qwen2", {}, 4.0),
    ],
)
def test_a_mixed_batch_is_what_peft_computes_row_by_row(kind, more, bucket):
    model = adapted(("planner", "coder", "speaker"), kind=kind, **more)
    base = shared(model)
    base.prepare(dict.fromkeys(EVERYONE, 1))
    base.mixed.costs = Costs(key=1e-3, bucket=bucket)  # many buckets, some, and a single one
    batch = dealt(rows(MIXED * 2, limit=30, stops=tuple(range(2, 8)), temperature=(1.0, 0.7, 0.0)), EVERYONE)
    drawn = base.generate(batch)
    assert len({len(result.token_ids) for result in drawn}) > 5, "slots should close at different times"
    assert worst(model, batch, drawn) < 1e-5


def test_a_mixed_batch_of_transformers_forward_is_what_peft_computes():
    model = adapted(hidden_act="gelu")
    base = shared(model, decoder=StepwiseDecoder)
    batch = dealt(rows(MIXED, limit=25, stops=(7, 8, 9), temperature=(1.0, 0.7, 0.0)), ALL)
    drawn = base.generate(batch)
    assert base.counts.prompts == len(MIXED)
    assert worst(model, batch, drawn) < 1e-5
    trained(model, seed=5, adapter="planner")
    base.load(MergedWeights(model, "planner"))
    assert worst(model, batch, base.generate(batch)) < 1e-5


def test_embeddings_are_mixed_by_transformers_forward_only():
    import peft

    model = peft.get_peft_model(
        tiny(), peft.LoraConfig(r=2, target_modules=["embed_tokens", "q_proj"]), adapter_name="planner"
    )
    model.add_adapter("coder", peft.LoraConfig(r=3, target_modules=["o_proj"]))
    trained(model.eval(), seed=1)
    assert "embed_tokens" in unmixable(MergedWeights(model, "planner"))
    assert (
        MergedWeights(model, "planner").inseparable is None
        and unmixable(MergedWeights(model, "coder")) is None
    )
    batch = dealt(rows(MIXED), ALL)
    assert worst(model, batch, shared(model, decoder=StepwiseDecoder).generate(batch)) < 1e-5


@pytest.mark.parametrize("decoder", [LeanDecoder, StepwiseDecoder])
def test_tokens_do_not_depend_on_the_rest_of_the_batch_nor_on_mixing(decoder):
    model = adapted()
    batch = dealt(rows(MIXED, limit=12, stops=(7,)), ALL)
    mixed, merged = shared(model, decoder=decoder), shared(model, 0.0, decoder=decoder)
    together = mixed.generate(batch)
    tokens = [result.token_ids for result in together]
    assert [result.token_ids for result in mixed.generate(batch[::-1])][::-1] == tokens
    for index in (0, 3, 4, 8, 10, 20):  # of each prompt, and so of each adapter
        assert mixed.generate([batch[index]])[0].token_ids == tokens[index]
    apart = merged.generate(batch)
    assert [result.token_ids for result in apart] == tokens
    assert worst(model, batch, apart) < 1e-5
    for result, other in zip(together, apart, strict=True):
        assert result.logprobs == pytest.approx(other.logprobs, abs=1e-5)


def test_one_prompt_on_two_adapters_is_prefilled_for_each_and_once_for_siblings():
    base = shared(adapted())
    plain = rows([(9, 4)])
    batch = [*dealt(plain, ["planner"]), *dealt(plain, ["coder"])]
    drawn = base.generate(batch)
    assert base.counts.prompts == 2 and base.counts.prompt_tokens == 18
    assert [result.logprobs for result in drawn[:4]] != [result.logprobs for result in drawn[4:]]


@pytest.mark.parametrize(("mixed_rows", "batches"), [(None, 1), (7.0, 1), (6.9, 3), (0.0, 3)])
def test_several_adapters_are_mixed_up_to_the_given_rows_each(mixed_rows, batches):
    base = shared(adapted(), mixed_rows)
    batch = dealt(rows(MIXED, limit=8), ALL)
    assert len(batch) == 3 * 7
    base.generate(batch)
    assert base.counts.steps == 7 * batches


def test_an_adapter_that_has_a_batch_to_itself_is_merged_and_the_base_is_not_copied():
    base = shared(adapted(), 32.0)
    base.generate(dealt(rows(MIXED), ["coder"]))
    assert base.mixed is None and base.merged_adapter == "coder"
    base.generate(dealt(rows(MIXED), ["planner"]))
    assert base.mixed is None and base.merged_adapter == "planner"


@pytest.mark.parametrize("mixed_rows", [None, 0.0, 64.0])
def test_a_batch_repeats_bit_for_bit_whatever_was_computed_before(mixed_rows):
    model = adapted()
    batch, other = dealt(rows(MIXED), ALL), rows(MIXED, seed=3)
    expected = shared(model, mixed_rows).generate(batch)
    base = shared(model, mixed_rows)
    for adapter in ALL:
        alone = base.generate(dealt(other, [adapter]))
        assert base.generate(batch) == expected
        base.load(MergedWeights(model, "coder"))
        assert base.generate(dealt(other, [adapter])) == alone


def test_preparing_makes_what_a_batch_would_make():
    base = shared(adapted(), 32.0)
    base.prepare({})
    assert base.mixed is None and base.spare is None
    base.prepare({"coder": 500, "planner": 1})
    assert base.mixed is None and base.spare is not None
    base.prepare({"coder": 5, "planner": 1})
    assert base.mixed is not None


def test_what_was_loaded_is_held_until_the_next_load():
    model = adapted()
    batch = dealt(rows(MIXED), ALL)
    for mixed_rows in (None, 0.0):
        trained(model, seed=1)
        base = shared(model, mixed_rows)
        trained(model, seed=2)  # before any copy of weights is made
        drawn = base.generate(batch)
        now = copy.deepcopy(model)
        trained(model, seed=1)
        assert worst(model, batch, drawn) < 1e-5
        base.load(MergedWeights(now, "coder"))  # one of the two
        half = base.generate(batch)
        for row, before, after in zip(batch, drawn, half, strict=True):
            assert (before == after) == (row.adapter != "coder")
        trained(model, seed=2)
        coders = [index for index, row in enumerate(batch) if row.adapter == "coder"]
        assert worst(model, [batch[i] for i in coders], [half[i] for i in coders]) < 1e-5


def test_an_adapter_alone_is_merged_anew_when_it_is_loaded():
    model = adapted()
    base, batch = shared(model, 64.0), dealt(rows(MIXED), ["coder"])
    before = base.generate(batch)
    trained(model, seed=2)
    assert base.generate(batch) == before
    base.load(MergedWeights(model, "coder"))
    after = base.generate(batch)
    assert after != before and worst(model, batch, after) < 1e-5


@pytest.mark.parametrize("mixed_rows", [None, 0.0])
def test_a_warm_start_of_the_base_shows_when_weights_are_loaded(mixed_rows):
    model = adapted()
    base = shared(model, mixed_rows)
    batch = dealt(rows(MIXED), ALL)
    base.generate(batch)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_" not in name:
                parameter.mul_(1.1)
    for adapter in ("planner", "coder"):
        base.load(MergedWeights(model, adapter))
    assert worst(model, batch, base.generate(batch)) < 1e-5


def test_the_module_is_never_touched():
    model = adapted(("coder", "speaker"))  # a plain head, then one that is adapted, in one spare copy
    before = copy.deepcopy(model.state_dict())
    base = shared(model, 0.0)
    batch = dealt(rows(MIXED), ("coder", "speaker", None))
    for _ in range(2):
        assert worst(model, batch, base.generate(batch)) < 1e-5
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


@pytest.mark.parametrize(("mixed_rows", "copies"), [(None, 1), (0.0, 2), (64.0, 2)])
def test_the_copies_of_the_base_do_not_grow_with_the_adapters(mixed_rows, copies):
    """Two at most, one of them for batches of a single adapter; the frozen tables are the module's."""
    model = adapted(("planner", "coder", "speaker"))
    base = shared(model, mixed_rows)
    batch = rows(MIXED)
    base.generate(dealt(batch, EVERYONE))
    for adapter in ("planner", "coder"):
        base.generate(dealt(batch, [adapter]))
    weights_of_copies = [decoder.weights for decoder in (base.mixed, base.spare) if decoder is not None]
    assert len(weights_of_copies) == copies
    layers = sum(parameter.numel() for parameter in model.get_base_model().model.layers.parameters())
    low_rank = sum(p.numel() for name, p in model.named_parameters() if "lora_" in name)
    for weights in weights_of_copies:
        held = [getattr(layer, name) for layer in weights.layers for name in layer.__slots__]
        assert sum(tensor.numel() for tensor in held if tensor is not None) < 1.2 * (layers - low_rank)
        assert weights.embedding.data_ptr() == model.get_input_embeddings().weight.data_ptr()


def test_bfloat16_is_as_close_mixed_as_merged():
    model = adapted(scale=2.0)
    batch = dealt(rows(MIXED), ALL)
    noise = worst(model, batch, shared(model, 0.0, dtype=torch.bfloat16).generate(batch))
    assert 1e-4 < worst(model, batch, shared(model, dtype=torch.bfloat16).generate(batch)) < 2 * noise
