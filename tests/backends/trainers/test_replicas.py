# ruff: noqa: E402 (torch is asked for first)
"""What another rank has after it received rank 0's state: everything that a step or a checkpoint reads."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("peft")

from coterie.backends.trainers.policies import PolicyWeights
from coterie.backends.trainers.replicas import layout_of, receive
from coterie.backends.trainers.torch_trainer import TorchTrainer
from tests.backends.trainers.tiny import opened, policy, samples, turn_heads, update, with_targets

pytestmark = pytest.mark.torch


class Wire:
    """The broadcasts of one rank: rank 0 records what it sends, the other gets it in the same order."""

    def __init__(self, number: int, sent: list[Any]) -> None:
        self.number, self.sent = number, sent

    def broadcast(self, tensors: Any) -> None:
        with torch.no_grad():
            for tensor in tensors:
                if self.number == 0:
                    self.sent.append(tensor.detach().clone())
                else:
                    tensor.copy_(self.sent.pop(0))


def trainer(train: str, seed: int) -> TorchTrainer:
    made = opened({"p": policy(train)}, needs=("values",), seed=seed)
    turn_heads(made)
    return made


def state(played: PolicyWeights) -> dict[str, Any]:
    optimizer = played.optimizer
    assert optimizer is not None
    head = {} if played.value_head is None else {"head": played.value_head}
    return {**dict(played.model.named_parameters()), **head, **optimizer.state()}


@pytest.mark.parametrize("train", ["full", "lora"])
def test_a_rank_gets_weights_value_head_optimiser_and_version(train):
    first, other = trainer(train, 0), trainer(train, 1)
    for step in range(2):
        update(first, {"p": with_targets(samples())}, step)
    (mine,), (theirs,) = first.policies.values(), other.policies.values()
    mine.version = 7
    sent: list[Any] = []
    layout = layout_of(first.initial_weights, first.policies)
    receive(Wire(0, sent), layout, first.initial_weights, first.policies)
    receive(Wire(1, sent), layout, other.initial_weights, other.policies)
    assert not sent, "both sides name the same tensors"
    assert theirs.version == 7 and theirs.optimizer.count == mine.optimizer.count == 2
    expected, got = state(mine), state(theirs)
    assert expected.keys() == got.keys() and any("exp_avg" in name for name in got) and "head" in got
    assert all(torch.equal(expected[name], got[name]) for name in expected)
