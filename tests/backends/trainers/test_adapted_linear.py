# ruff: noqa: E402 (torch is asked for first)
"""Adapted layers of a 16-bit base compute what PEFT's do, and keep less."""

from __future__ import annotations

import threading
from typing import Any

import pytest

torch = pytest.importorskip("torch")
peft = pytest.importorskip("peft")

from torch import Tensor

from coterie.backends.trainers.forward import AdaptedLinear, fused_adapters

pytestmark = pytest.mark.torch


class Network(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = torch.nn.Linear(48, 64, bias=True)
        self.outer = torch.nn.Linear(64, 40, bias=False)

    def forward(self, features: Tensor) -> Tensor:
        return self.outer(self.inner(features).tanh())


def adapted(dtype: Any = torch.bfloat16, **settings: Any) -> Any:
    torch.manual_seed(0)
    config = peft.LoraConfig(
        r=4, lora_alpha=6, target_modules=["inner", "outer"], init_lora_weights=False, **settings
    )
    return peft.PeftModel(Network().to(dtype), config)


def results(network: Any, features: Tensor) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
    """Output, the input's gradient and those of the adapter."""
    network.zero_grad()
    leaf = features.detach().requires_grad_()
    output = network(leaf)
    output.backward(torch.randn(output.shape, generator=torch.Generator().manual_seed(1)).to(output.dtype))
    named = {n: p.grad.clone() for n, p in network.named_parameters() if p.grad is not None}
    return output.detach(), leaf.grad, named


def off(one: Tensor, other: Tensor) -> float:
    return float((one.double() - other.double()).norm() / other.double().norm())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_output_and_gradients_are_those_of_peft_but_for_rounding(dtype: Any) -> None:
    network, features = adapted(dtype), torch.randn(2, 30, 48).to(dtype)
    wanted = results(network, features)
    with fused_adapters(network):
        scores = results(network, features)
    assert off(scores[0], wanted[0]) < 0.01 and off(scores[1], wanted[1]) < 0.01
    assert scores[2].keys() == wanted[2].keys() and len(wanted[2]) == 4
    for name, gradient in scores[2].items():
        assert gradient.dtype == torch.float32
        assert off(gradient, wanted[2][name]) < 0.01, name


def test_it_is_the_formula() -> None:
    """In float64, where nothing is rounded, value and gradients are those of two plain products."""
    torch.manual_seed(0)
    features, down, up = (
        torch.randn(*shape, dtype=torch.float64, requires_grad=True) for shape in ((2, 3, 5), (2, 5), (4, 2))
    )
    weight, bias = torch.randn(4, 5, dtype=torch.float64), torch.randn(4, dtype=torch.float64)

    def fused(features: Tensor, down: Tensor, up: Tensor) -> Tensor:
        return AdaptedLinear.apply(features, weight, bias, down, up, 1.5)

    torch.testing.assert_close(
        fused(features, down, up), features @ weight.T + bias + 1.5 * features @ down.T @ up.T
    )
    assert torch.autograd.gradcheck(fused, (features, down, up))


def kept(network: Any, features: Tensor) -> set[tuple[Any, int]]:
    """Dtype and size of what is saved for the backward pass, weights aside."""
    weights = {parameter.data_ptr() for parameter in network.parameters()}
    saved = {}
    hooks = torch.autograd.graph.saved_tensors_hooks(
        lambda t: (saved.update({t.data_ptr(): (t.dtype, t.numel())}), t)[1], lambda t: t
    )
    with hooks:
        network(features)
    return {what for place, what in saved.items() if place not in weights}


def test_no_float32_copy_of_an_input_is_kept() -> None:
    network, features = adapted(), torch.randn(100, 48).bfloat16().requires_grad_()
    copy = (torch.float32, 100 * 48)
    assert copy in kept(network, features)
    with fused_adapters(network):
        assert {dtype for dtype, size in kept(network, features) if size >= 100} == {torch.bfloat16}


def inner_of(network: Any) -> Any:
    return network.base_model.model.inner


def two_active(network: Any) -> None:
    network.add_adapter("other", network.peft_config["default"])
    network.base_model.set_adapter(["default", "other"])


@pytest.mark.parametrize(
    ("settings", "prepare"),
    [
        ({"use_dora": True}, None),
        ({"lora_bias": True}, None),
        ({"lora_dropout": 0.5}, lambda network: network.train()),
        ({}, two_active),
        ({}, lambda network: inner_of(network).enable_adapters(False)),
        ({}, lambda network: inner_of(network).merge()),
        ({}, lambda network: inner_of(network).base_layer.register_forward_hook(lambda *_: None)),
        ({}, lambda network: network.float()),
    ],
    ids=["dora", "bias", "dropout", "two adapters", "disabled", "merged", "hook", "float32"],
)  # fmt: skip
def test_other_layers_keep_their_forward_bit_for_bit(settings: dict[str, Any], prepare: Any) -> None:
    network = adapted(**settings)
    if prepare is not None:
        prepare(network)
    inner = inner_of(network)
    features = torch.randn(7, 48).to(inner.base_layer.weight.dtype)
    torch.manual_seed(5)
    wanted = inner(features)
    torch.manual_seed(5)
    with fused_adapters(network):
        assert torch.equal(inner(features), wanted)


def test_the_layers_are_as_they_were_afterwards() -> None:
    network = adapted()
    with pytest.raises(RuntimeError, match="boom"), fused_adapters(network):
        assert "forward" in vars(inner_of(network))
        with fused_adapters(network):
            pass
        assert "forward" in vars(inner_of(network)), "the outer context ends it"
        raise RuntimeError("boom")
    assert "forward" not in vars(inner_of(network))


def test_another_thread_computes_peft_s_forward_meanwhile() -> None:
    """An engine's numbers must not depend on when the trainer computes."""
    network, features = adapted(), torch.randn(50, 48).bfloat16()
    wanted, seen = network(features), []
    with fused_adapters(network):
        assert not torch.equal(network(features), wanted)
        thread = threading.Thread(target=lambda: seen.append(network(features)))
        thread.start()
        thread.join()
    assert torch.equal(seen[0], wanted)
