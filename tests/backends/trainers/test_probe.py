# ruff: noqa: E402 (torch is asked for first)
"""The probe of forward modes: in 16 bits too, right modes pass and wrong ones don't."""

from __future__ import annotations

import logging
import math
import sys
import types
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from coterie.backends.trainers import attention, forward
from coterie.backends.trainers.attention import Flex, Varlen, kernel_of, prompts, sequences
from coterie.backends.trainers.forward import TokenScorer
from coterie.backends.trainers.packing import Probe, pack
from coterie.backends.trainers.probe import PLAIN, ForwardMode, choose, in_float32, probe_rows
from coterie.core.errors import ConfigError
from tests.backends.trainers.tiny import gradients, samples

pytestmark = pytest.mark.torch
VOCABULARY = 512


def deep(
    scale: float = 0.1,
    kind: str = "Qwen3",
    dtype: Any = torch.bfloat16,
    layers: int = 28,
    **settings: Any,
) -> Any:
    """Random layers: the larger their weights, the more rounding errors grow from layer to layer."""
    torch.manual_seed(0)
    sizes = {
        "vocab_size": VOCABULARY, "hidden_size": 64, "num_hidden_layers": layers, "num_attention_heads": 4,
        "num_key_value_heads": 2, "head_dim": 16, "intermediate_size": 96, "max_position_embeddings": 256,
        "initializer_range": scale, "attn_implementation": "sdpa", **settings,
    }  # fmt: skip
    network = getattr(transformers, f"{kind}ForCausalLM")(getattr(transformers, f"{kind}Config")(**sizes))
    return network.to(dtype).eval()


def moded(network: Any, attention: str = "sdpa") -> ForwardMode:
    return TokenScorer(network, packing=True, budget=1000, name="p", attention=attention).mode


# ------------------------------------------------------------------------------------------ ways to be wrong


def masks(change: Callable[[Any], Any]) -> Callable[..., Any]:
    """`layout_of` with changed masks of completions."""
    original = attention.layout_of

    def layout(packed: Any, device: Any) -> Any:
        right = original(packed, device)
        blocks = tuple((q, k, None if mask is None else change(mask)) for q, k, mask in right.blocks)
        return replace(right, blocks=blocks)

    return layout


def sees_the_next_token(mask: Any) -> Any:
    return torch.cat([torch.ones_like(mask[..., :1]), mask[..., :-1]], -1)


def misses_the_first_token(mask: Any) -> Any:
    changed = mask.clone()
    changed[..., 0] = False
    return changed


def positions_off_by_one(rows: Any) -> Any:
    packed = pack(rows)
    positions = packed.positions.copy()
    positions[:, int(packed.lengths.prompts.sum()) :] += 1
    return replace(packed, positions=positions)


def reads_the_token_before(rows: Any) -> Any:
    packed = pack(rows)
    return replace(packed, select=np.roll(packed.select, 1))


WRONG = {
    "sees the next token": ("layout_of", masks(sees_the_next_token)),
    "misses the first token": ("layout_of", masks(misses_the_first_token)),
    "positions off by one": ("pack", positions_off_by_one),
    "reads the token before": ("pack", reads_the_token_before),
}


@pytest.mark.parametrize("scale", [0.02, 0.2])
def test_a_right_mode_is_taken_however_much_is_rounded(scale: float) -> None:
    network = deep(scale)
    assert moded(network) == ForwardMode(True, True)
    assert network.dtype == torch.bfloat16 and not network._forward_pre_hooks
    assert {parameter.dtype for parameter in network.parameters()} == {torch.bfloat16}


@pytest.mark.parametrize(("wrong", "scale"), [*((wrong, 0.02) for wrong in WRONG), (next(iter(WRONG)), 0.2)])
def test_a_wrong_mode_is_refused_in_16_bits(wrong: str, scale: float, monkeypatch: Any, caplog: Any) -> None:
    """Small weights show a fault least, and large ones round most."""
    name, value = WRONG[wrong]
    monkeypatch.setattr(attention if name == "layout_of" else forward, name, value)
    with caplog.at_level(logging.WARNING, "coterie"):
        assert moded(deep(scale, layers=8)) == ForwardMode(False, True)
    assert "log-probs in float32 differ by" in caplog.text and "no faster mode agrees" in caplog.text


def test_a_kernel_of_16_bits_is_judged_by_its_mean_error(monkeypatch: Any) -> None:
    """Some kernels compute in 16 bits only; SDPA stands for one here."""
    monkeypatch.setattr("coterie.backends.trainers.probe.HALF_ONLY", ("sdpa",))
    network = deep(0.1, layers=8)
    assert moded(network) == ForwardMode(True, True)
    for wrong, (name, value) in WRONG.items():
        with monkeypatch.context() as patched:
            patched.setattr(attention if name == "layout_of" else forward, name, value)
            assert moded(network) == ForwardMode(False, True), wrong


@pytest.mark.parametrize("attention", ["sdpa", "flash_attention_2"])
def test_a_mode_that_gives_no_numbers_is_refused_in_16_bits(attention: str) -> None:
    def logprobs(rows: Any, mode: ForwardMode) -> Any:
        count = sum(int(row.loss_mask.sum()) for row in rows)
        return torch.full((count,), math.nan) if mode.packed else torch.linspace(-5, -1, count)

    mode, failures = choose(deep(layers=1), logprobs, True, attention)
    assert mode == ForwardMode(False, True) and len(failures) == 2


@pytest.mark.parametrize(
    ("kind", "settings", "mode"),
    [
        ("Mistral", {"sliding_window": 4}, ForwardMode(False, True)),
        ("Granite", {"logits_scaling": 3.0}, ForwardMode(True, False)),
    ],
)
def test_models_that_need_a_slower_mode_get_it_in_16_bits(
    kind: str, settings: dict[str, Any], mode: ForwardMode
) -> None:
    assert moded(deep(kind=kind, layers=4, **settings)) == mode


def test_the_mode_and_its_cost_are_logged(caplog: Any) -> None:
    with caplog.at_level(logging.INFO, "coterie"):
        moded(deep(layers=2))
    assert "policy 'p': updates compute each prompt once, and logits of trained tokens only" in caplog.text
    caplog.clear()
    sizes = {"head_dim": 16, "final_logit_softcapping": 2.0, "query_pre_attn_scalar": 8}
    with caplog.at_level(logging.WARNING, "coterie"):
        assert moded(deep(kind="Gemma2", layers=2, attn_implementation="eager", **sizes)) == PLAIN
    gigabytes = 3 * 4 * VOCABULARY * 1000 / 1e9
    assert f"logits of all tokens: up to {gigabytes:.2g} GB in a micro-batch of 1,000 tokens" in caplog.text


def test_a_model_is_computed_in_float32_module_by_module_and_left_as_it_was() -> None:
    network = deep(layers=2)
    before = {name: parameter.data_ptr() for name, parameter in network.named_parameters()}
    exact = deep(layers=2).float()
    ids = torch.arange(1, 12)[None]
    with in_float32(network), torch.no_grad():
        torch.testing.assert_close(network(ids).logits, exact(ids).logits, rtol=0, atol=1e-5)
    with pytest.raises(IndexError), in_float32(network):
        network(torch.tensor([[VOCABULARY + 5]]))
    assert before == {name: parameter.data_ptr() for name, parameter in network.named_parameters()}
    assert network(ids).logits.dtype == torch.bfloat16


# ---------------------------------------------------------------------------------------------------- kernels


@pytest.mark.parametrize("setting", ["flash_attention_2", "flex"])
def test_a_kernel_that_cant_train_here_is_refused_with_the_reason(setting: str) -> None:
    cpu, gpu = torch.device("cpu"), torch.device("cuda")
    assert kernel_of("auto", cpu, torch.float32) == "sdpa"
    for device in (cpu, gpu) if setting == "flash_attention_2" else (cpu,):
        with pytest.raises(ConfigError) as refused:
            kernel_of(setting, device, torch.bfloat16)
        assert refused.value.path == "trainer.attention" and "sdpa" in str(refused.value.fix)
        reason = "not installed" if setting == "flash_attention_2" else "no backward pass"
        assert reason in str(refused.value.why)


def test_flash_attention_is_refused_for_weights_of_32_bits(monkeypatch: Any) -> None:
    monkeypatch.setitem(sys.modules, "flash_attn", fake_flash([]))
    gpu = torch.device("cuda")
    assert kernel_of("flash_attention_2", gpu, torch.bfloat16) == "flash_attention_2"
    with pytest.raises(ConfigError, match="can't be used") as refused:
        kernel_of("flash_attention_2", gpu, torch.float32)
    assert "weights are float32" in str(refused.value.why)
    with pytest.raises(ConfigError) as refused:
        kernel_of("flash_attention_2", torch.device("cpu"), torch.bfloat16)
    assert "computes on GPUs" in str(refused.value.why)


def fake_flash(calls: list[Any]) -> Any:
    """`flash_attn` with its variable-length function as its documentation describes it, in plain torch."""

    def varlen(q, k, v, *, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, softmax_scale, causal,
               deterministic):  # fmt: skip
        calls.append((max_seqlen_q, max_seqlen_k, k.shape))
        repeats, outputs = q.shape[1] // k.shape[1], []
        for i in range(len(cu_seqlens_q) - 1):
            queries = q[cu_seqlens_q[i] : cu_seqlens_q[i + 1]]
            keys, values = (
                t[cu_seqlens_k[i] : cu_seqlens_k[i + 1]].repeat_interleave(repeats, 1) for t in (k, v)
            )
            assert len(queries) <= max_seqlen_q and len(keys) <= max_seqlen_k
            scores = torch.einsum("qhd,khd->hqk", queries, keys) * softmax_scale
            # "If seqlen_q != seqlen_k and causal=True, the mask is aligned to the bottom right corner."
            below = torch.ones(len(queries), len(keys), dtype=torch.bool).tril(len(keys) - len(queries))
            outputs.append(
                torch.einsum("hqk,khd->qhd", scores.masked_fill(~below, -torch.inf).softmax(-1), values)
            )
        return torch.cat(outputs)

    module = types.ModuleType("flash_attn")
    module.__spec__ = types.SimpleNamespace(name="flash_attn")  # type: ignore[assignment]
    module.flash_attn_varlen_func = varlen  # type: ignore[attr-defined]
    return module


def attended(layout: Any, tokens: int, heads: int = 4, groups: int = 2) -> tuple[Any, Any]:
    torch.manual_seed(1)
    query, key, value = (torch.randn(tokens, n, 8, dtype=torch.float64) for n in (heads, groups, groups))
    return layout.attend(query, key, value, 0.3), (query, key, value)


def by_definition(packed: Any, query: Any, key: Any, value: Any) -> Any:
    """Each token's attention to its prompt and to itself, one token after the other."""
    sequence, prompt = sequences(packed.lengths), prompts(packed.lengths)
    outputs = []
    for at in range(len(sequence)):
        own = np.flatnonzero((sequence == sequence[at]) & (np.arange(len(sequence)) <= at))
        seen = np.concatenate([np.flatnonzero(sequence == prompt[at]), own])
        keys, values = (
            tensor[seen].repeat_interleave(query.shape[1] // key.shape[1], 1) for tensor in (key, value)
        )
        weights = torch.einsum("hd,khd->hk", query[at], keys * 0.3).softmax(-1)
        outputs.append(torch.einsum("hk,khd->hd", weights, values))
    return torch.stack(outputs)


@pytest.mark.parametrize("name", ["sdpa", "flash_attention_2", "flex"])
def test_every_kernel_computes_packed_attention(name: str, monkeypatch: Any) -> None:
    """Flash by a stand-in of its function, flex without its compiler: the indices and masks are ours."""
    calls: list[Any] = []
    monkeypatch.setitem(sys.modules, "flash_attn", fake_flash(calls))
    packed = pack([*samples(groups=4), *probe_rows(30)])
    layout = attention.layout_for(name, packed, torch.device("cpu"))
    output, inputs = attended(layout, packed.ids.size)
    torch.testing.assert_close(output, by_definition(packed, *inputs), rtol=0, atol=1e-12)
    if name == "flash_attention_2":
        assert isinstance(layout, Varlen) and len(calls) == 2, "prompts, then completions"
        assert calls[1][2][1] == 2, "keys are gathered and not repeated for each query head"
    if name == "flex":
        assert isinstance(layout, Flex)


def test_flash_attention_is_not_called_for_completions_without_tokens(monkeypatch: Any) -> None:
    """The last token is never an input, so completions of one token leave nothing to compute."""
    calls: list[Any] = []
    monkeypatch.setitem(sys.modules, "flash_attn", fake_flash(calls))
    rows = [Probe(np.arange(5), np.arange(5) >= 4), Probe(np.arange(5) + 3, np.arange(5) >= 4)]
    packed = pack(rows)
    output, inputs = attended(Varlen.of(packed.lengths, torch.device("cpu")), packed.ids.size)
    torch.testing.assert_close(output, by_definition(packed, *inputs), rtol=0, atol=1e-12)
    assert len(calls) == 1, "prompts alone"


@pytest.mark.parametrize(
    ("name", "packed", "inside"),
    [
        ("sdpa", False, "eager"), ("flex", False, "eager"), ("flash_attention_2", False, "flash_attention_2"),
        ("sdpa", True, attention.NAME), ("flash_attention_2", True, attention.NAME),
    ],
)  # fmt: skip
def test_a_kernel_is_the_models_inside_its_block_alone(name: str, packed: bool, inside: str) -> None:
    """Padded rows with SDPA keep what the model was loaded with."""
    model = types.SimpleNamespace(config=types.SimpleNamespace(_attn_implementation="eager"))
    with pytest.raises(ZeroDivisionError), attention.kernel(model, name, packed=packed):
        assert model.config._attn_implementation == inside
        raise ZeroDivisionError
    assert model.config._attn_implementation == "eager"


def test_grouped_heads_with_a_mask_fold_into_queries() -> None:
    """The way of GPUs, whose kernels with a mask know no groups; CPUs compute the same by `enable_gqa`."""
    from coterie.backends.trainers.attention import folded_sdpa, grouped_sdpa

    torch.manual_seed(0)
    query, key, value = (
        torch.randn(3, heads, length, 8, dtype=torch.float64, requires_grad=True)
        for heads, length in ((6, 5), (2, 9), (2, 9))
    )
    for count in (1, 3):
        mask = torch.rand(count, 1, 5, 9) > 0.3
        mask[..., 0] = True
        folded = folded_sdpa(query, key, value, mask.repeat(1, 1, 3, 1), 0.5)
        grouped = grouped_sdpa(query, key, value, mask, 0.5)
        torch.testing.assert_close(folded, grouped, rtol=0, atol=1e-12)
        for one, other in zip(
            torch.autograd.grad(folded.sin().sum(), (query, key, value)),
            torch.autograd.grad(grouped.sin().sum(), (query, key, value)),
            strict=True,
        ):
            torch.testing.assert_close(one, other, rtol=0, atol=1e-12)


@pytest.mark.parametrize("masked", [True, False])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_attention_of_16_bits_is_that_of_float32_rounded(masked: bool, dtype: Any) -> None:
    from coterie.backends.trainers.attention import grouped_sdpa

    torch.manual_seed(0)
    tensors = [
        torch.randn(3, heads, length, 8).to(dtype).requires_grad_()
        for heads, length in ((6, 5), (2, 9 if masked else 5), (2, 9 if masked else 5))
    ]
    mask = torch.zeros(3, 1, 5, 9).masked_fill_(torch.rand(3, 1, 5, 9) > 0.6, -math.inf) if masked else None
    if mask is not None:
        mask[..., 0] = 0
    exact = [tensor.detach().double().requires_grad_() for tensor in tensors]
    given = None if mask is None else mask.to(dtype)
    output = grouped_sdpa(*tensors, given, 0.5)
    wanted = grouped_sdpa(*exact, None if mask is None else mask.double(), 0.5)
    assert output.dtype == dtype
    torch.testing.assert_close(output.double(), wanted, rtol=0.01, atol=0.01)
    weights = torch.randn_like(wanted)
    (output * weights).sum().backward()
    (wanted * weights).sum().backward()
    for one, other in zip(tensors, exact, strict=True):
        assert (one.grad.double() - other.grad).norm() / other.grad.norm() < 0.01


def test_keys_of_grouped_heads_are_saved_once() -> None:
    network = deep(dtype=torch.float32, layers=1, num_attention_heads=8, num_key_value_heads=1)
    scorer = TokenScorer(network, packing=True, budget=1000, name="p")
    rows = samples(groups=2, siblings=4)
    wide = []
    with scorer.session():
        keep = torch.autograd.graph.saved_tensors_hooks(lambda t: (wide.append(t.shape), t)[1], lambda t: t)
        with keep:
            scorer(rows).logprobs.sum().backward()
    packed = pack(rows)
    blocks = {tuple(block.keys.shape) for block in packed.blocks if block.keys is not None}
    assert blocks
    for count, length in blocks:
        assert (count, 1, length, 16) in wide and (count, 8, length, 16) not in wide
    assert gradients(network)


@pytest.mark.parametrize("gpu", [24e9, 80e9, 141e9])
def test_chunks_of_the_head_grow_with_the_gpu(gpu: float) -> None:
    from coterie.backends.models.memory import most_logits

    assert most_logits(None) == 2**26 <= most_logits(gpu)
    assert 3 * 4 * most_logits(gpu) <= 0.05 * gpu
    if gpu > 50e9:
        assert most_logits(gpu) // 151_936 > 4 * 441, "four times the tokens of a CPU's chunk"
