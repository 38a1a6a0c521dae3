"""An engine stops at every token that ends a family's answers, and the sampled one is in the loss mask."""

from __future__ import annotations

import json

import numpy as np
import pytest

pytest.importorskip("torch")

import torch

from coterie.backends.chat_formats.formats import AutoChat
from coterie.backends.engines.hf import HFEngine
from coterie.backends.engines.requests import stop_ids
from coterie.backends.models.loading import load_model, load_tokenizer
from coterie.backends.models.policy import TorchPolicy
from coterie.core.training.samples import action_samples
from coterie.core.types import Action, Decision, Key, Weights
from tests.backends.chat_formats.families import FAMILIES
from tests.backends.engines.support import context, request, tiny, wait, wave

pytestmark = pytest.mark.torch

ENDS = {
    "chatml": ("<|im_end|>", "<|endoftext|>"),
    "headers": ("<|end_of_text|>", "<|eom_id|>", "<|eot_id|>"),
    "user_and_model": ("<eos>", "<end_of_turn>"),
    "inst": ("</s>",),
}


@pytest.fixture(params=ENDS)
def model(request, tmp_path):
    """(ids that end answers, the policy): a small model that draws every token equally often."""
    tokenizer = FAMILIES[request.param].tokenizer()
    module = tiny(vocab_size=len(tokenizer))
    with torch.no_grad():
        module.model.norm.weight.zero_()
    module.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    ids = tokenizer.convert_tokens_to_ids(list(ENDS[request.param]))
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": ids}))
    return set(ids), TorchPolicy(model=str(tmp_path), dtype="float32")


@pytest.mark.parametrize("decoder", ["lean", "transformers"])
def test_answers_end_with_these_tokens_and_they_are_trained(model, decoder):
    ends, policy = model
    ctx, engine = context({"p": policy}, AutoChat()), HFEngine(HFEngine.Config(decoder=decoder))
    wait(engine.open(ctx))
    loaded = load_model(policy, policy="p", seed=0, vocabulary=())
    weights = Weights(policy="p", version=0, module=loaded.module, tokenizer=loaded.tokenizer)
    wait(engine.load_weights(weights))
    codec = engine.codec("p")
    prompt = codec.encode([{"role": "user", "content": "hi"}]).ids
    calls = wave(
        ctx, engine, [request(prompt, seed=i * 7919, branch=i, max_new_tokens=150) for i in range(24)]
    )
    assert {call.finish for call in calls} == {"stop", "length"}
    assert {call.token_ids[-1] for call in calls if call.finish == "stop"} == ends
    for index, call in enumerate(calls):
        assert ends.isdisjoint(call.token_ids[:-1])
        assert (call.token_ids[-1] in ends) == (call.finish == "stop")
        assert not set(codec.tokenizer.all_special_tokens) & set(codec.decode(call).split())
        decision = Decision(
            role="one", policy="p", observation=None, messages=(), prompt_ids=prompt, prompt_sha256="",
            branches=(), trainable=True,
        )  # fmt: skip
        action = Action(calls=(call,), text="", parsed=None)
        (sample,) = action_samples(Key("t").of_branch("one", index), decision, action, 1.0, 1.0, {})
        assert sample.loss_mask[-1] and sample.loss_mask.sum() == len(call.token_ids)
        assert np.array_equal(sample.token_ids[sample.loss_mask], call.token_ids)


def test_every_engine_of_tensors_gets_the_same_ids(model):
    """vLLM too, which generates elsewhere."""
    ends, policy = model
    tokenizer = load_tokenizer(policy, policy="p", vocabulary=())
    codec = AutoChat().codec(tokenizer, None)
    asked = request(codec.encode([{"role": "user", "content": "hi"}]).ids)
    assert stop_ids(asked, codec, tokenizer) == tuple(sorted(ends))
