# ruff: noqa: E402 (torch is asked for first)
"""The trainer's annotations: log-probs of the initial and of the present weights, and values."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("peft")

from coterie.core.errors import ConfigError
from coterie.plugins.losses.reinforce import ReinforceLoss
from tests.backends.trainers.tiny import (
    annotate,
    in_float64,
    independent_logprobs,
    opened,
    policy,
    samples,
    turn_heads,
    update,
)

pytestmark = pytest.mark.torch


@pytest.fixture(autouse=True)
def _exact(monkeypatch: pytest.MonkeyPatch) -> None:
    in_float64(monkeypatch)


@pytest.mark.parametrize("train", ["full", "lora", "none"])
def test_reference_log_probs_are_those_of_the_starting_weights(train: str) -> None:
    configs = {"p": policy(train), "other": policy("lora")}
    trainer = opened(configs, ReinforceLoss(), needs=("ref_logprobs",))
    rows = samples(temperatures=(1.0, 0.6))
    initial = opened({"p": policy("none")}).policies["p"].model
    with torch.no_grad():
        wanted = {row.key: independent_logprobs(initial, row).numpy() for row in rows}
    for step in range(2):
        update(trainer, {"other": samples("other")} | ({"p": rows} if train != "none" else {}), step)
    annotations = annotate(trainer, [*rows, *samples("other", groups=1, seed=5)], "ref_logprobs")
    assert all(values.dtype == np.float32 for values in annotations.values())
    for key, values in wanted.items():
        np.testing.assert_allclose(annotations[key], values, rtol=1e-6)


@pytest.mark.parametrize("train", ["full", "lora", "none"])
def test_old_log_probs_are_those_of_the_present_weights_as_they_play(train: str) -> None:
    configs = {"p": policy(train, **({"lora": {"dropout": 0.5}} if train == "lora" else {})),
               "other": policy("lora")}  # fmt: skip
    trainer = opened(configs, ReinforceLoss(), needs=("old_logprobs", "ref_logprobs"), micro_tokens=60)
    rows = samples(temperatures=(1.0, 0.6))
    for step in range(2):
        update(trainer, {"other": samples("other")} | ({"p": rows} if train != "none" else {}), step)
    owner = trainer.policies["p"]
    with torch.no_grad(), owner.scoring():
        wanted = {row.key: independent_logprobs(owner.model, row).numpy() for row in rows}
    annotations, initial = annotate(trainer, rows, "old_logprobs"), annotate(trainer, rows, "ref_logprobs")
    for key, values in wanted.items():
        np.testing.assert_allclose(annotations[key], values, rtol=1e-6)
    moved = max(float(np.abs(annotations[key] - initial[key]).max()) for key in wanted)
    assert (moved > 1e-3) == (train != "none")


@pytest.mark.parametrize("how", [{}, {"packing": False, "micro_tokens": 60}])
@pytest.mark.parametrize("train", ["full", "lora"])
def test_values_are_the_heads_of_the_hidden_states_that_predict_each_token(train: str, how: dict) -> None:
    trainer = opened({"p": policy(train), "other": policy("lora")}, needs=("values",), **how)
    rows = samples(temperatures=(1.0, 0.6))
    update(trainer, {"p": rows, "other": samples("other")})
    turn_heads(trainer)
    owner = trainer.policies["p"]
    with torch.no_grad(), owner.scoring():
        for row in rows:
            hidden = owner.model(torch.from_numpy(row.token_ids)[None], output_hidden_states=True)
            at = torch.from_numpy(np.flatnonzero(row.loss_mask)) - 1
            wanted = (hidden.hidden_states[-1][0, at] * owner.value_head).sum(-1).numpy()
            np.testing.assert_allclose(annotate(trainer, [row], "values")[row.key], wanted, rtol=1e-6)
    together = annotate(trainer, rows, "values")
    for row in rows:
        np.testing.assert_allclose(together[row.key], annotate(trainer, [row], "values")[row.key], rtol=1e-6)


def test_values_are_found_without_the_language_models_head() -> None:
    trainer = opened({"p": policy()}, needs=("values",))
    calls: list[int] = []
    trainer.policies["p"].model.lm_head.register_forward_hook(lambda *_: calls.append(1))
    annotate(trainer, samples(), "values")
    assert not calls
    annotate(trainer, samples(), "old_logprobs")
    assert calls


def test_values_of_a_policy_that_isnt_trained_are_zero() -> None:
    trainer = opened({"p": policy("none"), "q": policy("lora")}, needs=("values",))
    turn_heads(trainer)
    rows = samples("p")
    annotations = annotate(trainer, [*rows, *samples("q")], "values")
    for row in rows:
        np.testing.assert_array_equal(annotations[row.key], np.zeros(row.loss_mask.sum(), np.float32))
    assert any(annotations[row.key].any() for row in samples("q"))


def test_what_was_not_kept_or_made_is_refused() -> None:
    trainer = opened({"p": policy()})
    assert trainer.initial_weights[0].frozen is None
    with pytest.raises(ConfigError, match="no reference weights"):
        annotate(trainer, samples(), "ref_logprobs")
    with pytest.raises(ConfigError, match="no value head"):
        annotate(trainer, samples(), "values")
    with pytest.raises(ConfigError, match="has no annotation teacher_logprobs"):
        annotate(trainer, samples(), "teacher_logprobs")


def test_parts_of_one_branch_are_joined_in_order() -> None:
    trainer = opened({"p": policy("none")})
    first, second = samples(groups=1, siblings=2)
    apart = annotate(trainer, [first, second], "ref_logprobs")
    joined = annotate(trainer, [first, replace(second, key=first.key)], "ref_logprobs")
    np.testing.assert_array_equal(joined[first.key], np.concatenate([apart[first.key], apart[second.key]]))
