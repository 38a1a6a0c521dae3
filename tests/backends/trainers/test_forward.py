# ruff: noqa: E402 (torch is asked for first)
"""Log-probs of every forward mode equal those of the plain model, row by row."""

from __future__ import annotations

import itertools
import logging
from typing import Any

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from coterie.backends.trainers import forward, head as head_module
from coterie.backends.trainers.forward import ForwardMode, TokenScorer
from tests.backends.trainers.tiny import VOCABULARY, gradients, independent_logprobs, really_double, samples

pytestmark = pytest.mark.torch

SIZES: dict[str, Any] = {
    "vocab_size": VOCABULARY, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "intermediate_size": 48, "max_position_embeddings": 128,
}  # fmt: skip


def model(kind: str = "Qwen3", **settings: Any) -> Any:
    torch.manual_seed(0)
    attention = "eager" if kind == "Gemma2" else "sdpa"  # it caps the scores, which SDPA can't
    sizes = {**SIZES, "attn_implementation": attention, "initializer_range": 0.2, **settings}
    network = getattr(transformers, f"{kind}ForCausalLM")(getattr(transformers, f"{kind}Config")(**sizes))
    return network.double().eval() if kind == "Gemma2" else really_double(network)


def scored(
    network: Any, rows: list, packing: bool = True, budget: int = 10_000, **how: Any
) -> tuple[Any, Any, TokenScorer]:
    """Log-probs and entropies in the order of the rows."""
    scorer = TokenScorer(network, packing=packing, budget=budget, name="p")
    logprobs: dict[int, Any] = {}
    entropies: dict[int, Any] = {}
    with scorer.session():
        for indices in scorer.plan(rows):
            counts = [int(rows[index].loss_mask.sum()) for index in indices]
            scores = scorer([rows[index] for index in indices], **how)
            logprobs.update(zip(indices, scores.logprobs.split(counts), strict=True))
            entropies.update(zip(indices, scores.entropy.split(counts), strict=True))
    order = range(len(rows))
    return torch.cat([logprobs[i] for i in order]), torch.cat([entropies[i] for i in order]), scorer


@pytest.mark.parametrize("packing", [True, False])
@pytest.mark.parametrize("kind", ["Qwen3", "Qwen2", "Llama"])
def test_logprobs_are_those_of_the_plain_model(kind: str, packing: bool) -> None:
    network = model(kind)
    rows = samples(groups=6, temperatures=(1.0, 0.7, 1.5))
    wanted = torch.cat([independent_logprobs(network, row) for row in rows])
    logprobs, _, scorer = scored(network, rows, packing)
    assert scorer.mode == ForwardMode(packing, True)
    torch.testing.assert_close(logprobs, wanted, rtol=0, atol=1e-12)


def test_gradients_depend_neither_on_packing_nor_on_the_split() -> None:
    network = model()
    rows = samples(groups=3)
    torch.cat([independent_logprobs(network, row) for row in rows]).square().sum().backward()
    wanted = gradients(network)
    for packing, budget in itertools.product((True, False), (1, 60, 10_000)):
        network.zero_grad()
        scored(network, rows, packing, budget)[0].square().sum().backward()
        for name, gradient in gradients(network).items():
            torch.testing.assert_close(gradient, wanted[name], rtol=1e-9, atol=1e-9)


def test_entropy_is_that_of_the_whole_distribution() -> None:
    network = model()
    rows = samples(groups=1, siblings=1, temperatures=(0.5,))
    ids = torch.from_numpy(rows[0].token_ids)
    logits = network(ids[None]).logits[0] / 0.5
    at = torch.from_numpy(rows[0].loss_mask.nonzero()[0]) - 1
    wanted = torch.distributions.Categorical(logits=logits[at]).entropy()
    _, entropies, _ = scored(network, rows)
    torch.testing.assert_close(entropies, wanted)
    assert not entropies.requires_grad
    assert scored(network, rows, entropy_grad=True)[1].requires_grad


def test_the_head_in_chunks_gives_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    network, rows = model(), samples(groups=3, temperatures=(1.0, 2.0))
    whole = scored(network, rows)[0]
    whole.square().sum().backward()
    wanted = gradients(network)
    network.zero_grad()
    monkeypatch.setattr(forward, "most_logits", lambda _: 7 * VOCABULARY)
    chunked = scored(network, rows)[0]
    chunked.square().sum().backward()
    torch.testing.assert_close(chunked, whole, rtol=0, atol=1e-12)
    for name, gradient in gradients(network).items():
        torch.testing.assert_close(gradient, wanted[name])


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("lora", [True, False])
def test_the_head_in_blocks_gives_the_same(monkeypatch: pytest.MonkeyPatch, tied: bool, lora: bool) -> None:
    network, rows = model(tie_word_embeddings=tied), samples(groups=3, temperatures=(1.0, 2.0))
    if lora:
        peft = pytest.importorskip("peft")
        settings = peft.LoraConfig(r=4, target_modules=["q_proj", "lm_head"], init_lora_weights=False)
        peft.get_peft_model(network, settings)
    whole = scored(network, rows, entropy_grad=True)
    (whole[0].square().sum() + whole[1].sum()).backward()
    wanted = gradients(network)
    network.zero_grad()
    monkeypatch.setattr(forward, "LOGITS_AT_ONCE", 0)
    monkeypatch.setattr(forward, "block_logits", lambda _: 11)
    monkeypatch.setattr(head_module, "NARROWEST_BLOCK", 7)
    called = []
    monkeypatch.setattr(
        forward, "head_scores", lambda *a, **k: (called.append(1), head_module.head_scores(*a, **k))[1]
    )
    blocks = scored(network, rows, entropy_grad=True)
    (blocks[0].square().sum() + blocks[1].sum()).backward()
    assert called
    for one, other in zip(blocks[:2], whole[:2], strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-12)
    for name, gradient in gradients(network).items():
        torch.testing.assert_close(gradient, wanted[name])


def test_few_logits_and_divided_models_keep_the_head_in_one(monkeypatch: pytest.MonkeyPatch) -> None:
    network, rows = model(), samples(groups=3)
    trained = sum(int(row.loss_mask.sum()) for row in rows)

    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("the head ran in blocks")

    monkeypatch.setattr(forward, "LOGITS_AT_ONCE", trained * VOCABULARY)
    scorer = TokenScorer(network, packing=True, budget=10_000, name="p")
    monkeypatch.setattr(forward, "head_scores", refuse)
    with scorer.session():
        scorer(rows)
        monkeypatch.setattr(forward, "LOGITS_AT_ONCE", trained * VOCABULARY - 1)
        with pytest.raises(AssertionError, match="in blocks"):
            scorer(rows)
        scorer.divide(lambda compute: compute())
        scorer(rows)


def test_lora_layers_are_scored_too() -> None:
    peft = pytest.importorskip("peft")
    network = model()
    settings = peft.LoraConfig(
        r=4, target_modules="all-linear", init_lora_weights=False, task_type="CAUSAL_LM"
    )
    peft.get_peft_model(network, settings)
    rows = samples(groups=3)
    wanted = torch.cat([independent_logprobs(network, row) for row in rows])
    torch.testing.assert_close(scored(network, rows)[0], wanted, rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    ("kind", "settings", "mode"),
    [
        ("Mistral", {"sliding_window": 4}, ForwardMode(False, True)),  # the packed attention has no window
        ("Granite", {"logits_scaling": 3.0}, ForwardMode(True, False)),  # logits are not the head's output
        (
            "Gemma2",
            {"final_logit_softcapping": 2.0, "head_dim": 8, "query_pre_attn_scalar": 8},
            ForwardMode(False, False),
        ),
    ],
)
def test_a_short_cut_that_would_be_wrong_is_not_taken_and_is_warned_about(
    kind: str, settings: dict[str, Any], mode: ForwardMode, caplog: pytest.LogCaptureFixture
) -> None:
    network, rows = model(kind, **settings), samples(groups=3)
    with caplog.at_level(logging.WARNING, "coterie"):
        logprobs, _, scorer = scored(network, rows)
    assert scorer.mode == mode
    assert "no faster mode agrees" in caplog.text
    wanted = torch.cat([independent_logprobs(network, row) for row in rows])
    torch.testing.assert_close(logprobs, wanted, rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    ("kind", "settings", "packing"),
    [
        ("Qwen3", {}, True),
        ("Qwen3", {}, False),
        ("Granite", {"logits_scaling": 3.0}, True),
        ("Gemma2", {"final_logit_softcapping": 2.0, "head_dim": 8, "query_pre_attn_scalar": 8}, False),
    ],
)
def test_values_are_of_the_last_hidden_states_by_every_way(
    kind: str, settings: dict[str, Any], packing: bool
) -> None:
    network, rows = model(kind, **settings), samples(groups=3)
    head = torch.randn(SIZES["hidden_size"], dtype=torch.float64, requires_grad=True)
    wanted = []
    for row in rows:
        hidden = network.model(torch.from_numpy(row.token_ids)[None]).last_hidden_state[0]
        wanted.append(hidden[torch.from_numpy(row.loss_mask.nonzero()[0]) - 1] @ head)
    scorer = TokenScorer(network, packing=packing, budget=10_000, name="p")
    with scorer.session():
        (indices,) = scorer.plan(rows)
        scores = scorer([rows[index] for index in indices], value_head=head)
        alone = scorer.values([rows[index] for index in indices], head)
        assert scorer(rows).values is None
    torch.testing.assert_close(scores.values, torch.cat([wanted[index] for index in indices]))
    torch.testing.assert_close(alone, scores.values)


def test_the_models_attention_is_as_it_was_afterwards() -> None:
    network = model()
    scored(network, samples(groups=1))
    assert network.config._attn_implementation == "sdpa"


def test_an_engine_may_use_the_model_meanwhile() -> None:
    """Without a layout the packed attention is plain SDPA, masks included."""
    network = model()
    ids = torch.randint(3, VOCABULARY, (2, 9))
    mask = torch.tensor([[0, 0] + [1] * 7, [1] * 9])
    wanted = network(ids, attention_mask=mask).logits
    with TokenScorer(network, packing=True, budget=100, name="p").session():
        torch.testing.assert_close(network(ids, attention_mask=mask).logits, wanted)


def test_greedy_samples_are_refused() -> None:
    with pytest.raises(ValueError, match="temperature 0"):
        scored(model(), samples(groups=1, temperatures=(0.0,)))
