# ruff: noqa: E402 (torch is asked for first)
"""The plan's arithmetic of an update holds at a real vocabulary, where the head decides."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("peft")

from coterie.backends.models.memory import (
    FP32,
    NARROWEST_BLOCK,
    Activations,
    Forward,
    block_logits,
    largest_forward,
    most_logits,
    trainer_bytes,
)
from coterie.backends.models.sizes import ModelSize, adapted_layers, size_of as size_of_model
from tests.backends.trainers import tiny
from tests.backends.trainers.test_checkpointing import Held

pytestmark = pytest.mark.torch

TOKENS = 151_936
"""Of the vocabulary; three are for control."""
MODEL = {
    "init": "qwen3", "hidden_size": 96, "layers": 2, "heads": 4, "kv_heads": 2, "head_dim": 32,
    "mlp_size": 256, "context": 512, "tie_embeddings": True,
}  # fmt: skip
PROMPT, ANSWER = 32, 128


@pytest.fixture(scope="module", autouse=True)
def _words() -> Any:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(tiny, "WORDS", tuple(f"w{number}" for number in range(TOKENS - 3)))
        yield


def rows(count: int) -> list[Any]:
    rng = np.random.default_rng(0)
    prompt = rng.integers(3, TOKENS, PROMPT)
    return [
        tiny.sample("p", "task", number, prompt, rng.integers(3, TOKENS, ANSWER), [True] * ANSWER)
        for number in range(count)
    ]


def size_of(trainer: Any) -> ModelSize:
    """The size of the policy's model, adapters counted apart."""
    owner = trainer.policies["p"]
    size = size_of_model(owner.model, None)
    if owner.adapter is None:
        return size
    adapter = sum(weight.numel() for weight in owner.own_parameters().values())
    layers = adapted_layers(owner.model, owner.adapter)
    return replace(size, parameters=size.parameters - adapter, adapters={"p": adapter}, adapted={"p": layers})


@pytest.mark.parametrize(
    ("dtype", "train"),
    [
        ("float32", "full"),
        ("bfloat16", "lora"),
        pytest.param("float32", "lora", marks=pytest.mark.long),
        pytest.param("bfloat16", "full", marks=pytest.mark.long),
    ],
)
def test_the_plan_of_an_update_is_what_its_tensors_take(train, dtype):
    policy, budget = tiny.policy(train, model=MODEL, dtype=dtype), 400  # two samples in a micro-batch
    trainer = tiny.opened({"p": policy}, micro_tokens=budget)
    trainer.rank_update({"p": rows(1)}, 0)  # the moments are made
    with Held() as held:
        trainer.rank_update({"p": rows(4)}, 1)
    size = size_of(trainer)
    assert size.vocabulary == TOKENS
    forward = largest_forward(1, 4, PROMPT, ANSWER, budget=budget, packing=True)
    assert forward.trained == 2 * ANSWER
    activations = Activations(size, policy, "p").most(forward)
    gradients = trainer_bytes({"p": policy}, size)["p"]["gradients"]
    planned = gradients + activations
    assert planned == pytest.approx(held.peak, rel=0.15)
    logits = FP32 * forward.trained * TOKENS
    assert activations < logits / 3, "no array of tokens x vocabulary"


@pytest.mark.parametrize("gpu", [None, 80e9])
@pytest.mark.parametrize("trained", [40, 500, 100_000])
def test_a_head_holds_two_blocks_whatever_the_vocabulary(gpu, trained):
    size = ModelSize(
        parameters=1, layers=2, hidden=96, mlp=1, heads=4, kv_heads=2, head_dim=32, vocabulary=TOKENS,
        context=None,
    )  # fmt: skip
    block = trained * min(max(block_logits(gpu) // trained, NARROWEST_BLOCK), TOKENS)
    states = trained * size.hidden
    for dtype, of_block, of_states in (("float32", 8, 8), ("bfloat16", 10, 6)):
        policy = tiny.policy(model=MODEL, dtype=dtype)
        counted = Activations(size, policy, "p", gpu=gpu).head(Forward(trained, trained))
        assert counted == of_block * block + of_states * states
    chunk = min(most_logits(gpu), trained * TOKENS)
    kept = FP32 * trained * TOKENS if trained * TOKENS <= 2**26 else 0
    divided = Activations(size, policy, "p", gpu=gpu, divided=True).head(Forward(trained, trained))
    assert divided == 3 * FP32 * chunk - kept, "ranks that divide the model have chunks of tokens"
