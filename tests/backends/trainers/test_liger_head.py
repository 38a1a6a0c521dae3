"""The head by Liger's kernel, of which a stand-in with its signature computes the numbers on a CPU."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import Tensor

from coterie.backends.trainers.head import adding_to
from coterie.backends.trainers.liger_head import liger_kernel, liger_scores, wrong_numbers


def kernel(
    *,
    _input: Tensor,
    weight: Tensor,
    target: Tensor,
    reduction: str,
    accum_dtype: torch.dtype,
    token_grad_output: Tensor | None,
    compute_gradients: bool,
    weight_requires_grad: bool,
    chunk_mem_const: int,
) -> tuple[Any, ...]:
    """`fused_linear_cross_entropy_forward` of liger-kernel 0.8, in plain operations."""
    assert reduction == "none" and compute_gradients and chunk_mem_const >= 1
    assert not _input.requires_grad and not weight.requires_grad
    logits = _input @ weight.T
    loss = torch.nn.functional.cross_entropy(logits, target, reduction="none")
    gradient = logits.softmax(-1) - torch.nn.functional.one_hot(target, len(weight)).to(logits.dtype)
    if token_grad_output is not None:
        gradient = gradient * token_grad_output[:, None]
    d_weight = gradient.T @ _input if weight_requires_grad else None
    return loss, None, None, None, gradient @ weight, d_weight, None


def problem(seed: int, tokens: int, vocabulary: int) -> tuple[Tensor, ...]:
    generator = torch.Generator().manual_seed(seed)
    features, weight = (
        torch.randn(rows, 6, generator=generator, dtype=torch.float64).requires_grad_(True)
        for rows in (tokens, vocabulary)
    )
    targets = torch.randint(vocabulary, (tokens,), generator=generator)
    temperatures = torch.rand(tokens, generator=generator, dtype=torch.float64) + 0.3
    return features, weight, targets, temperatures, torch.randn(tokens, generator=generator).double()


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 99), st.integers(1, 9), st.integers(2, 30), st.booleans())
def test_log_probs_entropies_and_gradients_are_those_of_the_definition(seed, tokens, vocabulary, warm):
    features, weight, targets, temperatures, given_ = problem(seed, tokens, vocabulary)
    used = temperatures if warm else None
    logprobs, entropy = liger_scores(kernel, features, weight, targets, used)
    got = torch.autograd.grad(logprobs, (features, weight), given_)
    exact = (features @ weight.T / (temperatures[:, None] if warm else 1.0)).log_softmax(-1)
    chosen = exact.gather(-1, targets[:, None])[:, 0]
    expected = torch.autograd.grad(chosen, (features, weight), given_)
    torch.testing.assert_close(logprobs, chosen)
    # The entropy comes through float32.
    torch.testing.assert_close(entropy, -(exact.exp() * exact).sum(-1).detach(), rtol=1e-4, atol=1e-4)
    assert not entropy.requires_grad
    for mine, theirs in zip(got, expected, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-6)


def test_a_weights_gradient_is_added_where_the_optimiser_wants_it():
    features, weight, targets, _, given_ = problem(3, 5, 11)
    total = torch.ones(11, 6, dtype=torch.float64)
    with adding_to(lambda tensor: (lambda: total) if tensor is weight else None):
        logprobs, _ = liger_scores(kernel, features, weight, targets, None)
    logprobs.backward(given_)
    chosen = (features @ weight.T).log_softmax(-1).gather(-1, targets[:, None])[:, 0]
    (expected,) = torch.autograd.grad(chosen, weight, given_)
    torch.testing.assert_close(total, expected + 1)
    assert weight.grad is None and features.grad is not None


def test_a_frozen_head_needs_no_second_pass():
    features, weight, targets, _, given_ = problem(4, 5, 11)
    calls = []

    def counted(**settings: Any) -> tuple[Any, ...]:
        calls.append(settings["weight_requires_grad"])
        return kernel(**settings)

    logprobs, _ = liger_scores(counted, features, weight.detach(), targets, None)
    logprobs.backward(given_)
    assert calls == [False]


def test_a_kernel_whose_numbers_are_wrong_is_named():
    weight = torch.randn(50, 8)
    assert wrong_numbers(kernel, weight) is None

    def without_targets(**settings: Any) -> tuple[Any, ...]:
        loss, *rest = kernel(**settings)
        return (loss + 0.01, *rest)

    def stale(**settings: Any) -> tuple[Any, ...]:
        results = list(kernel(**settings))
        results[4] = results[4] * 1.1
        return tuple(results)

    assert "log-probs" in str(wrong_numbers(without_targets, weight))
    assert str(wrong_numbers(stale, weight)).startswith("its ")


def test_a_cpu_has_no_such_kernel():
    assert liger_kernel(torch.randn(50, 8)) is None


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_real_kernel_agrees_with_coteries_head(dtype):
    pytest.importorskip("liger_kernel")
    weight = (torch.randn(151_936, 256, device="cuda") * 0.05).to(dtype)
    assert liger_kernel(weight) is not None
