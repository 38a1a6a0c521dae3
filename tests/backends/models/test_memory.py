"""Sizes in bytes, computed by hand; tests/cli/test_plan.py compares the sums with runs."""

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from coterie.backends.models.memory import (  # noqa: E402
    batch_of,
    cache_bytes,
    trainer_bytes,
    warm_start_bytes,
)
from coterie.backends.models.policy import TorchPolicy  # noqa: E402
from coterie.backends.models.sizes import ModelSize  # noqa: E402

pytestmark = pytest.mark.torch

SIZE = ModelSize(
    parameters=1000,
    layers=3,
    hidden=10,
    mlp=40,
    heads=2,
    kv_heads=1,
    head_dim=5,
    vocabulary=7,
    context=64,
    adapters={"a": 30, "b": 60},
)


def policy(train, dtype="float32"):
    return TorchPolicy.model_validate({"model": {"init": "qwen3"}, "train": train, "dtype": dtype})


def of(dtype="float32", references=False, values=False, low_gradients=False, **policies):
    """The parts that are not 0, by policy."""
    configs = {name: policy(train, dtype) for name, train in policies.items()}
    by_policy = trainer_bytes(
        configs, SIZE, references=references, values=values, low_gradients=low_gradients
    )
    return {name: {part: size for part, size in parts.items() if size} for name, parts in by_policy.items()}


def test_full_weights_are_trained_where_they_lie():
    assert of(one="full") == {"one": {"weights": 4000, "moments": 8000, "gradients": 4000}}


def test_bf16_has_masters_and_gradients_in_fp32_and_all_gradients_in_both_where_a_trainer_keeps_them():
    parts = {"weights": 2000, "masters": 4000, "moments": 8000, "gradients": 4000}
    assert of("bfloat16", one="full") == {"one": parts}
    assert of("bfloat16", one="full", low_gradients=True) == {"one": {**parts, "gradients": 4000 + 2000}}


def test_each_full_policy_has_weights_of_its_own_and_one_reference_serves_all():
    parts = {"weights": 4000, "moments": 8000, "gradients": 4000}
    assert of(one="full", two="full", references=True) == {"one": {**parts, "reference": 4000}, "two": parts}


def test_adapters_stand_in_fp32_on_one_base_which_is_their_reference_too():
    by_policy = of("bfloat16", a="lora", b="lora", c="none", references=True)
    assert by_policy["a"] == {"weights": 2000, "adapter": 120, "moments": 240, "gradients": 120}
    assert by_policy["b"] == {"adapter": 240, "moments": 480, "gradients": 240}
    assert by_policy["c"] == {}


def test_a_full_policy_beside_an_adapter_has_a_frozen_base_to_refer_to():
    by_policy = of(one="full", a="lora", references=True)
    assert by_policy["one"] == {"weights": 4000, "moments": 8000, "gradients": 4000}
    assert by_policy["a"]["weights"] == 4000


def test_a_value_head_is_a_vector_for_each_trained_policy():
    by_policy = of(one="full", c="none", values=True)
    assert by_policy["one"] == {"weights": 4000 + 40, "moments": 8000 + 80, "gradients": 4000 + 40}
    assert by_policy["c"] == {"weights": 4000}


def test_a_warm_start_trains_all_weights_even_below_an_adapter():
    assert warm_start_bytes(policy("lora"), SIZE) == 3 * 4000  # gradients and two moments
    assert warm_start_bytes(policy("lora", "bfloat16"), SIZE) == 3 * 4000 + 4000


def test_a_batch_keeps_siblings_together_where_they_fit():
    assert batch_of(20, 8, 512) == (20, 160)
    assert batch_of(100, 8, 512) == (64, 512)
    assert batch_of(100, 6, 16) == (2, 12)
    assert batch_of(3, 100, 16) == (1, 16)


def test_a_cache_holds_keys_and_values_of_prompts_and_answers():
    assert SIZE.cache == 2 * 3 * 1 * 5
    assert cache_bytes(SIZE, "bfloat16", prompts=4, prompt=11, rows=16, answer=3) == 2 * 30 * (44 + 48)
