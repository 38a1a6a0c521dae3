"""What a loss returns, in both trainers: a wrong value is refused by the loss's name."""

from __future__ import annotations

import asyncio
import traceback
from typing import Any

import numpy as np
import pytest
import torch

from coterie.core.errors import PluginError
from coterie.core.plugins.origin import Origin, record_origin
from coterie.core.protocols import Surrogate
from tests.backends.trainers import test_tabular as tabular, tiny


class Loss:
    needs = ()
    length = "token_mean"
    entropy = 0.0

    def __init__(self, change: Any = None) -> None:
        self.change = change
        record_origin(self, Origin("loss", "plainest", "coterie-lab", "loss"))

    def __call__(self, xp: Any, tokens: Any) -> Any:
        value = -tokens.advantages * xp.exp(tokens.logprobs - tokens.behaviour)
        parts: dict[str, Any] = {"value": value, "grad": value, "metrics": {}}
        return self.change(xp, parts) if self.change else Surrogate(**parts)


def update(trainer: str, loss: Any) -> dict[str, Any]:
    if trainer == "torch":
        opened = tiny.opened({"p": tiny.policy()}, loss)
        samples = tiny.samples(groups=1)
    else:
        opened = tabular.opened(loss)
        samples = [tabular.sample(opened, (1,), ("left", "right", "left"), 1.0)]
    return asyncio.run(opened.update({"p": samples}, 0))


def returning(**changed: Any) -> Any:
    def change(xp: Any, parts: dict[str, Any]) -> Surrogate:
        return Surrogate(**{**parts, **{part: make(xp, parts["value"]) for part, make in changed.items()}})

    return change


@pytest.mark.parametrize("trainer", ["tabular", "torch"])
@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda xp, parts: parts["value"], "return a coterie.Surrogate"),
        (lambda xp, parts: None, "return a coterie.Surrogate"),
        (returning(value=lambda xp, value: value.sum()), "as `value` .*one number for each sampled token"),
        (returning(value=lambda xp, value: [1.0, 2.0, 3.0]), "as `value` a list"),
        (returning(grad=lambda xp, value: value[1:]), "as `grad` .*shape \\(\\d+,\\)"),
        (returning(metrics=lambda xp, value: {"ratio": value[1:]}), "as `ratio` .*shape \\(\\d+,\\)"),
        (returning(metrics=lambda xp, value: [value]), "a mapping of arrays"),
        (returning(metrics=lambda xp, value: {"samples": value}), "'samples'.*'plainest_'"),
        (returning(metrics=lambda xp, value: {"loss": value}), "'loss'.*metric of the trainer's"),
        (returning(metrics=lambda xp, value: {"my/staleness/1": value}), "metric of the trainer's"),
        (returning(metrics=lambda xp, value: {"staleness/mean": value}), "metric of the trainer's"),
        (returning(metrics=lambda xp, value: {"entropy": value}), "'entropy'.*metric of the trainer's"),
        (
            returning(value=lambda xp, value: value * float("nan")),
            "as `value` nan for a token with the log-prob",
        ),
    ],
)
def test_what_a_loss_returns_is_refused_by_its_name(trainer: str, change: Any, text: str) -> None:
    with pytest.raises(
        PluginError, match=f"(?s)loss: loss 'plainest' of coterie-lab: __call__ returned .*{text}"
    ):
        update(trainer, Loss(change))


def test_a_gradient_that_is_not_finite_is_refused_by_the_tabular_trainer() -> None:
    with pytest.raises(PluginError, match="coterie-lab: __call__ returned as `grad` inf"):
        update("tabular", Loss(returning(grad=lambda xp, value: value * np.inf * -1)))


@pytest.mark.parametrize("trainer", ["tabular", "torch"])
def test_an_exception_of_a_loss_names_it(trainer: str) -> None:
    def broken(xp: Any, parts: Any) -> Any:
        raise KeyError("ratio")

    with pytest.raises(KeyError) as raised:
        update(trainer, Loss(broken))
    assert "in loss 'plainest' of coterie-lab: __call__" in "".join(traceback.format_exception(raised.value))


@pytest.mark.parametrize("trainer", ["tabular", "torch"])
def test_a_loss_of_numbers_that_are_not_finite_is_not_to_blame(trainer: str) -> None:
    """The trainer tells of weights that have diverged, as for any loss."""
    loss = Loss()
    if trainer == "torch":
        opened = tiny.opened({"p": tiny.policy()}, loss)
        with torch.no_grad():
            next(iter(opened.weights("p").module.parameters())).fill_(float("nan"))
        samples = tiny.samples(groups=1)
        assert asyncio.run(opened.update({"p": samples}, 0))["p"]["skipped_steps"] == 1.0
    else:
        assert update(trainer, loss)["p"]["samples"] == 1.0
