# ruff: noqa: E402 (torch is asked for first)
"""Log-probs, entropies and gradients of the head in blocks equal those of a plain log_softmax."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from hypothesis import given, settings, strategies as st
from torch import Tensor

from coterie.backends.trainers import head as head_module
from coterie.backends.trainers.head import Term, adding_to, embedded, head_scores, terms_of

pytestmark = pytest.mark.torch


@pytest.fixture(autouse=True)
def narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks of any width: small vocabularies then have many."""
    monkeypatch.setattr(head_module, "NARROWEST_BLOCK", 1)


def independent(logits: Tensor, targets: Tensor, temperatures: Tensor | None) -> tuple[Tensor, Tensor]:
    """Log-probs and entropies by torch's distribution, in float64."""
    scaled = logits.double() if temperatures is None else logits.double() / temperatures.double()[:, None]
    drawn = torch.distributions.Categorical(logits=scaled)
    return drawn.log_prob(targets), drawn.entropy()


def drawn(
    seed: int, tokens: int, vocabulary: int, hidden: int, dtype: Any = torch.float64
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Features, weight, targets (one of them twice) and temperatures."""
    rng = torch.Generator().manual_seed(seed)
    features = torch.randn(tokens, hidden, generator=rng, dtype=torch.float64).to(dtype)
    weight = (2 * torch.randn(vocabulary, hidden, generator=rng, dtype=torch.float64)).to(dtype)
    targets = torch.randint(0, vocabulary, (tokens,), generator=rng)
    targets[-1] = targets[0]
    temperatures = 0.3 + 2 * torch.rand(tokens, generator=rng, dtype=torch.float32)
    return features.requires_grad_(), weight.requires_grad_(), targets, temperatures


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    tokens=st.integers(1, 9),
    vocabulary=st.integers(1, 23),
    most=st.integers(1, 80),
    heated=st.booleans(),
    biased=st.booleans(),
    second=st.booleans(),
    frozen=st.booleans(),
)
def test_scores_and_gradients_are_those_of_a_log_softmax(
    seed: int, tokens: int, vocabulary: int, most: int, heated: bool, biased: bool, second: bool, frozen: bool
) -> None:
    features, weight, targets, temperatures = drawn(seed, tokens, vocabulary, 4)
    weight.requires_grad_(not frozen)
    bias = torch.randn(vocabulary, dtype=torch.float64, requires_grad=not frozen) if biased else None
    terms, leaves = [Term(features, weight)], [features] if frozen else [features, weight]
    logits = features @ weight.T
    if second:  # a second term, as an adapter's
        inner, up, _, _ = drawn(seed + 1, tokens, vocabulary, 2)
        terms.append(Term(inner, up))
        leaves += [inner, up]
        logits = logits + inner @ up.T
    if bias is not None:
        leaves += [] if frozen else [bias]
        logits = logits + bias
    given_temperatures = temperatures if heated else None
    wanted = independent(logits, targets, given_temperatures)
    scores = head_scores(terms, bias, targets, given_temperatures, entropy_grad=not frozen, most=most)
    weights = torch.randn(2, tokens, dtype=torch.float64)
    if frozen:
        assert not scores[1].requires_grad
        weights[1] = 0
    for one, other in zip(scores, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-9)
    mine = torch.autograd.grad((weights * torch.stack(scores)).sum(), leaves)
    theirs = torch.autograd.grad((weights * torch.stack(wanted)).sum(), leaves)
    for one, other in zip(mine, theirs, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-8, atol=1e-8)


def test_gradients_pass_gradcheck() -> None:
    features, weight, targets, temperatures = drawn(0, 5, 7, 3)
    bias = torch.zeros(7, dtype=torch.float64, requires_grad=True)

    def scores(features: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
        return head_scores(
            [Term(features, weight)], bias, targets, temperatures.double(), entropy_grad=True, most=15
        )

    assert torch.autograd.gradcheck(scores, (features, weight, bias))


def test_entropies_are_constants_unless_their_gradient_is_asked_for() -> None:
    features, weight, targets, _ = drawn(0, 4, 9, 3)
    logprobs, entropies = head_scores(
        [Term(features, weight)], None, targets, None, entropy_grad=False, most=8
    )
    assert logprobs.requires_grad and not entropies.requires_grad


def test_16_bit_products_are_summed_in_float32() -> None:
    """The error is that of rounding logits to bfloat16, and sums over the vocabulary add none."""
    features, weight, targets, _ = drawn(0, 40, 3000, 8, torch.bfloat16)
    scores = head_scores([Term(features, weight)], None, targets, None, entropy_grad=False, most=4000)
    rounded = (features @ weight.T).detach()
    wanted = independent(rounded, targets, None)
    for one, other in zip(scores, wanted, strict=True):
        assert one.dtype == torch.float32
        torch.testing.assert_close(one.double(), other, rtol=0, atol=2e-5)


def test_a_frozen_head_in_16_bits_has_the_gradient_of_a_trained_one() -> None:
    features, weight, targets, temperatures = drawn(0, 40, 3000, 16, torch.bfloat16)
    weights, results = torch.randn(40), []
    for trained in (True, False):
        weight.requires_grad_(trained)
        scores = head_scores(
            [Term(features, weight)], None, targets, temperatures, entropy_grad=False, most=4000
        )
        gradient = torch.autograd.grad((scores[0] * weights).sum(), features)[0]
        results.append((*scores, gradient.double()))
    assert torch.equal(results[0][0], results[1][0]) and torch.equal(results[0][1], results[1][1])
    assert (results[0][2] - results[1][2]).norm() / results[0][2].norm() < 0.01


@pytest.mark.parametrize("padding", [None, 3])
def test_an_embedding_s_gradient_is_added_to_the_sum(
    monkeypatch: pytest.MonkeyPatch, padding: int | None
) -> None:
    monkeypatch.setattr(head_module, "LOGITS_AT_ONCE", 0)
    module = torch.nn.Embedding(9, 4, padding_idx=padding)
    ids = torch.tensor([[3, 1, 3], [8, 8, 0]])
    weights = torch.randn(2, 3, 4)
    (module(ids) * weights).sum().backward()
    wanted, module.weight.grad = module.weight.grad, None
    assert embedded(module, ids) is None, "no sum"
    total = torch.ones(9, 4)
    with adding_to(lambda tensor: (lambda: total) if tensor is module.weight else None):
        rows = embedded(module, ids)
        with torch.no_grad():
            assert embedded(module, ids) is None
        module.register_forward_hook(lambda *_: None)
        assert embedded(module, ids) is None
    torch.testing.assert_close(rows, module(ids))
    (rows * weights).sum().backward()
    assert module.weight.grad is None
    torch.testing.assert_close(total - 1, wanted)


def test_frozen_weights_get_no_gradient() -> None:
    features, weight, targets, _ = drawn(0, 4, 9, 3)
    weight = weight.detach()
    head_scores([Term(features, weight)], None, targets, None, entropy_grad=False, most=8)[0].sum().backward()
    assert features.grad is not None and weight.grad is None


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_a_weights_gradient_is_added_where_a_sum_is_given(dtype: Any) -> None:
    features, weight, targets, _ = drawn(0, 6, 30, 4, dtype)
    wanted = torch.autograd.grad(independent(features @ weight.T, targets, None)[0].sum(), weight)[0]
    total = torch.ones(30, 4, dtype=torch.float64 if dtype == torch.float64 else torch.float32)

    def sum_of(tensor: Tensor) -> Any:
        return (lambda: total) if tensor is weight else None

    with adding_to(sum_of):
        logprobs, _ = head_scores([Term(features, weight)], None, targets, None, entropy_grad=False, most=40)
    logprobs.sum().backward()
    assert weight.grad is None and features.grad is not None
    exact = dtype == torch.float64
    torch.testing.assert_close(
        total.double() - 1, wanted.double(), rtol=0 if exact else 0.05, atol=1e-12 if exact else 0.1
    )
    head_scores([Term(features, weight)], None, targets, None, entropy_grad=False, most=40)[
        0
    ].sum().backward()
    assert weight.grad is not None, "outside of the context autograd adds it"


def test_nothing_as_large_as_all_logits_exists(monkeypatch: pytest.MonkeyPatch) -> None:
    features, weight, targets, _ = drawn(0, 64, 2000, 4)
    made: list[int] = []

    class Watch(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            result = function(*args, **(kwargs or {}))
            made.extend(t.numel() for t in torch.utils._pytree.tree_leaves(result) if isinstance(t, Tensor))
            return result

    with Watch():
        scores = head_scores([Term(features, weight)], None, targets, None, entropy_grad=True, most=6400)
        torch.stack(scores).sum().backward()
    assert max(made) <= max(6400, weight.numel()) < 64 * 2000


# ------------------------------------------------------------------------------------- the forms of a head


def logits_of(known: Any) -> Tensor:
    terms, bias = known
    logits = sum(term.features @ term.weight.T for term in terms)
    return logits if bias is None else logits + bias


@pytest.mark.parametrize("bias", [True, False])
def test_a_plain_head_is_one_term(bias: bool) -> None:
    head = torch.nn.Linear(4, 9, bias=bias)
    features = torch.randn(3, 4)
    known = terms_of(head, features)
    torch.testing.assert_close(logits_of(known), head(features))
    assert known[0][0].weight is head.weight and known[1] is head.bias


class Network(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lm_head = torch.nn.Linear(4, 9, bias=False)

    def forward(self, features: Tensor) -> Tensor:
        return self.lm_head(features)


@pytest.mark.parametrize("how", ["lora", "two adapters", "saved", "disabled", "merged", "rslora"])
def test_the_terms_of_peft_s_heads_are_their_logits(how: str) -> None:
    peft = pytest.importorskip("peft")
    torch.manual_seed(0)
    network = Network()
    config = peft.LoraConfig(
        r=2, lora_alpha=3, init_lora_weights=False, use_rslora=how == "rslora", target_modules=["lm_head"]
    )
    if how == "saved":
        network.lm_head = peft.utils.ModulesToSaveWrapper(network.lm_head, "default")
        torch.nn.init.normal_(network.lm_head.modules_to_save["default"].weight)
    else:
        wrapped = peft.PeftModel(network, config)
    if how == "two adapters":
        wrapped.add_adapter("other", config)
        wrapped.set_adapter("other")
    if how == "disabled":
        network.lm_head.enable_adapters(False)
    if how == "merged":
        network.lm_head.merge()
    features = torch.randn(3, 4)
    torch.testing.assert_close(logits_of(terms_of(network.lm_head, features)), network.lm_head(features))


def test_heads_of_other_forms_are_left_to_their_own_forward() -> None:
    class Scaled(torch.nn.Linear):
        def forward(self, features: Tensor) -> Tensor:
            return 2 * super().forward(features)

    features = torch.randn(3, 4)
    assert terms_of(Scaled(4, 9), features) is None
    hooked = torch.nn.Linear(4, 9)
    hooked.register_forward_hook(lambda module, args, output: output * 2)
    assert terms_of(hooked, features) is None
    peft = pytest.importorskip("peft")
    network = Network()
    peft.PeftModel(network, peft.LoraConfig(r=2, target_modules=["lm_head"], use_dora=True))
    assert terms_of(network.lm_head, features) is None
