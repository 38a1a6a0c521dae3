"""Weights that travel arrive as they were sent."""

from __future__ import annotations

import gc
import pickle
import weakref
from typing import Any

import pytest

from coterie.backends.executors.ray.shipping import Receiver, Sender, SentWeights
from coterie.core.types import Weights

torch = pytest.importorskip("torch")


class Two(torch.nn.Module):
    """A base, and two adapters on it, named as PEFT names them."""

    def __init__(self) -> None:
        super().__init__()
        self.base = torch.nn.Linear(3, 3)
        self.lora_A = torch.nn.ModuleDict({"a": torch.nn.Linear(3, 2), "ab": torch.nn.Linear(3, 2)})


def travelled(sent: SentWeights) -> SentWeights:
    return pickle.loads(pickle.dumps(sent))  # type: ignore[no-any-return]


def change(module: Any) -> None:
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(torch.randn_like(parameter))


def equal(one: Any, other: Any) -> list[str]:
    """Names of the parameters that are equal."""
    pairs = zip(one.named_parameters(), other.named_parameters(), strict=True)
    return [name for (name, a), (_, b) in pairs if torch.equal(a, b)]


def test_a_module_travels_once_and_then_its_tensors():
    module, sender, receiver = torch.nn.Linear(4, 4), Sender(), Receiver()
    first = sender.send(Weights(policy="p", version=0, module=module, tokenizer="words"))
    got = receiver.receive(travelled(first))
    assert equal(got.module, module) == ["weight", "bias"] and got.tokenizer == "words"
    change(module)
    second = sender.send(Weights(policy="p", version=1, module=module, tokenizer="words"))
    change(module)  # the trainer goes on while they travel
    assert not second.pickled and not second.tokenizer
    again = receiver.receive(travelled(second))
    assert again.module is got.module and again.version == 1 and again.tokenizer == "words"
    assert equal(again.module, module) == []


def test_an_adapter_travels_without_its_base_and_without_the_other():
    """`a` is a part of the name `ab`, and not that adapter."""
    module, sender, receiver = Two(), Sender(), Receiver()
    for adapter in ("a", "ab"):
        weights = Weights(policy=adapter, version=0, module=module, adapter=adapter)
        receiver.receive(travelled(sender.send(weights)))
    change(module)
    sent = sender.send(Weights(policy="a", version=1, module=module, adapter="a"))
    assert sorted(sent.state or {}) == ["lora_A.a.bias", "lora_A.a.weight"]
    assert equal(receiver.receive(travelled(sent)).module, module) == ["lora_A.a.weight", "lora_A.a.bias"]


def test_policies_that_share_a_module_share_it_there_too():
    module, sender, receiver = Two(), Sender(), Receiver()
    got = [
        receiver.receive(travelled(sender.send(Weights(policy=name, version=0, module=module, adapter=name))))
        for name in ("a", "ab")
    ]
    assert got[0].module is got[1].module


class Table(dict):
    """What engine `tabular` has for a module."""


def test_an_object_that_is_no_module_travels_whole_each_time():
    sender, receiver = Sender(), Receiver()
    for version in range(3):
        module = Table(logits=[version])
        sent = sender.send(Weights(policy="p", version=version, module=module))
        assert receiver.receive(travelled(sent)).module == {"logits": [version]}
        freed = weakref.ref(module)
        del module, sent
        gc.collect()
        assert freed() is None, "a table of each version would be kept for ever"


def test_tensors_that_ranks_gathered_travel_as_they_are():
    tensors = [("w", torch.ones(2)), ("b", torch.zeros(1))]
    sent = Sender().send(Weights(policy="p", version=3, module=object(), tensors=lambda: iter(tensors)))
    got = Receiver().receive(travelled(sent))
    assert got.module is None and got.tensors is not None
    for _ in range(2):
        assert [(name, tensor.tolist()) for name, tensor in got.tensors()] == [("w", [1, 1]), ("b", [0])]
