"""The fallback decoder supports models that the lean one lacks, and agrees with it on the others."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from coterie.backends.engines.decoders import StepwiseDecoder  # noqa: E402
from coterie.backends.engines.lean.decode import LeanDecoder  # noqa: E402
from coterie.backends.models.merged_weights import MergedWeights  # noqa: E402
from tests.backends.engines.support import rows, tiny, worst_logprob  # noqa: E402

pytestmark = pytest.mark.torch

MIXED = [(5, 3), (17, 1), (1, 4), (9, 2)]


def stepwise(model, adapter=None):
    return StepwiseDecoder(MergedWeights(model, adapter), torch.float32)


@pytest.mark.parametrize(
    ("kind", "more"),
    [("gpt2", {}), ("mistral", {"sliding_window": 16}), ("qwen3", {}), ("qwen3", {"hidden_act": "gelu"})],
)
def test_logprobs_are_those_of_the_models_forward(kind, more):
    model = tiny(kind, scale=2.0, **more)
    batch = rows(MIXED, limit=25, temperature=(1.0, 0.7, 0.0), stops=(7, 8, 9))
    decoder = stepwise(model)
    drawn = decoder.generate(batch)
    assert worst_logprob(model, batch, drawn) < 1e-5
    assert decoder.counts.prompts == len(MIXED)


def test_it_draws_what_the_lean_decoder_draws():
    model = tiny()
    batch = rows(MIXED, limit=20, stops=(7,))
    expected = LeanDecoder(MergedWeights(model), torch.float32).generate(batch)
    drawn = stepwise(model).generate(batch)
    assert [row.token_ids for row in drawn] == [row.token_ids for row in expected]


def test_an_adapter_is_merged_into_a_copy():
    peft = pytest.importorskip("peft")
    config = peft.LoraConfig(r=4, target_modules=["q_proj", "up_proj", "embed_tokens"])
    base = tiny("qwen3", hidden_act="gelu", tie_word_embeddings=False)
    model = peft.get_peft_model(base, config, adapter_name="planner")
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_" in name:
                parameter.normal_(std=0.2)
    batch = rows(MIXED)
    decoder = stepwise(model.eval(), "planner")
    assert worst_logprob(model, batch, decoder.generate(batch)) < 2e-5
    before = decoder.generate(batch)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_" in name:
                parameter.mul_(2.0)
    assert decoder.generate(batch) == before
    decoder.refresh(MergedWeights(model, "planner"))
    assert worst_logprob(model, batch, decoder.generate(batch)) < 2e-5
    assert not any("lora" in name for name, _ in decoder.model.named_parameters())
