"""16 bits: an adapter's small change survives in the engine, and scores are float32."""

from __future__ import annotations

import copy
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
peft = pytest.importorskip("peft")

from coterie.backends.engines.decoders import decoder_factory  # noqa: E402
from coterie.backends.engines.hf import HFEngine  # noqa: E402
from coterie.backends.engines.lean.decode import LeanDecoder  # noqa: E402
from coterie.backends.engines.lean.weights import attend, cache_dtype, product  # noqa: E402
from coterie.backends.engines.rows import SharedBase  # noqa: E402
from coterie.backends.engines.sampling import RowSettings, SamplingState, draw_by_blocks  # noqa: E402
from coterie.backends.models.merged_weights import MergedWeights  # noqa: E402
from coterie.backends.models.policy import TorchPolicy  # noqa: E402
from coterie.backends.models.tokenizers import words_tokenizer  # noqa: E402
from coterie.core.types import Weights  # noqa: E402
from tests.backends.engines.support import context, request, rows, tiny, wait, wave, worst_logprob  # noqa: E402

pytestmark = pytest.mark.torch

WORDS = tuple(f"w{index}" for index in range(47))
POLICY = TorchPolicy(model={"init": "qwen3"}, dtype="bfloat16")


def lora(targets="all-linear", **more: Any) -> Any:
    """A bfloat16 base with a new adapter, as trainer `torch` makes it: the adapter is in float32."""
    config = peft.LoraConfig(r=4, lora_alpha=8, target_modules=targets, **more)
    base = tiny(scale=1.0, tie_word_embeddings=True).to(torch.bfloat16)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        return peft.get_peft_model(base, config, adapter_name="planner").eval()


def updated(model: Any, steps: int) -> None:
    """Adam steps at the learning rate of the recipes, with random gradients."""
    parameters = [parameter for name, parameter in model.named_parameters() if "lora_" in name]
    optimizer = torch.optim.AdamW(parameters, lr=2e-5, weight_decay=0.0)
    generator = torch.Generator().manual_seed(0)
    for _ in range(steps):
        for parameter in parameters:
            parameter.grad = torch.randn(parameter.shape, generator=generator)
        optimizer.step()


def opened(model: Any, folder: str | None = None, **settings: Any) -> Any:
    ctx = context({"p": POLICY}, vocabulary=WORDS)
    engine = HFEngine(HFEngine.Config(**settings))
    wait(engine.open(ctx))
    source: dict[str, Any] = {"folder": folder} if folder else {"module": model, "adapter": "planner"}
    wait(engine.load_weights(Weights(policy="p", version=0, tokenizer=words_tokenizer(WORDS), **source)))
    wave(ctx, engine, [request([5, 6, 7], max_new_tokens=2, branch=branch) for branch in range(3)])
    return engine


def held(engine: Any, model: Any) -> float:
    """The share of the adapter's change that the effective weights of the engine's decoder have."""
    decoder = engine.served.at("p").decoder
    adapter = engine.served.at("p").adapter
    if isinstance(decoder, SharedBase):
        decoder = decoder.mixed
    merged = MergedWeights(model, "planner")
    kept = wanted = 0.0
    for index in range(len(decoder.weights.layers)):
        names = [f"model.layers.{index}.mlp.{name}_proj.weight" for name in ("gate", "up")]
        change = torch.cat([merged.low_rank[name].product() for name in names]).detach()
        base = torch.cat([MergedWeights(model)[name] for name in names]).float()
        effective = decoder.weights.layers[index].gate_up.float().cpu()  # exported weights go to a GPU
        parts = decoder.adapters.get(adapter)
        if adapter is not None and parts is not None:
            part = parts.layers[index]["gate_up"]
            effective = effective + (part.down.float() @ part.up.float()).T.cpu()
        kept += float(((effective - base) * change).sum())
        wanted += float((change * change).sum())
    return kept / wanted


@pytest.mark.parametrize("steps", [1, 5, 20])
@pytest.mark.parametrize("settings", [{}, {"adapters": "mixed"}, {"adapters": "merged"}])
def test_the_engine_has_99_percent_of_a_small_change(steps, settings):
    model = lora()
    updated(model, steps)
    assert held(opened(model, **settings), model) == pytest.approx(1.0, abs=0.01)


def test_a_merge_in_16_bits_would_round_the_change_away():
    model = lora()
    updated(model, 1)
    engine = opened(model)
    served = engine.served.at("p")
    served.decoder, served.adapter = LeanDecoder(MergedWeights(model, "planner"), torch.bfloat16), None
    assert held(engine, model) < 0.5


def test_an_adapter_that_cannot_stay_apart_is_merged_in_float32(caplog):
    model = lora(["gate_proj", "up_proj"], modules_to_save=["lm_head"])
    updated(model, 1)
    engine = opened(model)
    assert not isinstance(engine.served.at("p").decoder, SharedBase)
    assert held(engine, model) == pytest.approx(1.0, abs=0.01)
    assert "merged into a copy of the weights in float32, since bfloat16" in caplog.text
    assert engine.served.at("p").kv.token == 2 * 2 * 2 * 12 * 4, "its cache is float32 too"


def test_an_exported_adapter_stays_beside_its_16_bit_base(tmp_path):
    model = lora()
    updated(model, 1)
    model.get_base_model().save_pretrained(tmp_path / "base")  # PEFT's layers in it have no effect below
    plain = tiny(scale=1.0, tie_word_embeddings=True).to(torch.bfloat16)
    plain.save_pretrained(tmp_path / "base")
    model.peft_config["planner"].base_model_name_or_path = str(tmp_path / "base")
    model.save_pretrained(tmp_path / "out")
    engine = opened(model, folder=str(tmp_path / "out" / "planner"))
    assert engine.served.at("p").adapter == "default"
    assert held(engine, model) == pytest.approx(1.0, abs=0.01)


# ---------------------------------------------------------------------------------------------------- float32


def attention(q, keys, values, own_keys, own_values):
    """In float64, of one group: K slots with R queries, one prompt."""
    heads, slots = len(keys), len(own_keys) // len(keys)
    output = torch.empty(len(own_keys), q.shape[1] // slots, q.shape[2], dtype=torch.float64)
    for head in range(heads):
        for slot in range(slots):
            index = head * slots + slot
            all_keys = torch.cat((keys[head], own_keys[index])).double()
            all_values = torch.cat((values[head], own_values[index])).double()
            queries = q[head].view(slots, -1, q.shape[2])[slot].double()
            output[index] = torch.softmax(queries @ all_keys.T / q.shape[2] ** 0.5, -1) @ all_values
    return output


def test_scores_and_softmax_are_float32():
    generator = torch.Generator().manual_seed(0)
    shapes = ((2, 12, 16), (2, 30, 16), (2, 30, 16), (8, 9, 16), (8, 9, 16))
    # Scores of up to about 40: rounded to bfloat16 they would be off by .125, and shares by 13 %.
    inputs = [torch.randn(shape, generator=generator).mul(3.0).bfloat16() for shape in shapes]
    mask = torch.zeros(2, 1, 30, dtype=torch.bfloat16)
    expected = attention(*inputs)
    error = (attend(*inputs, mask).double() - expected).abs() / (expected.abs() + 1.0)
    assert error.max() < 0.01
    rounded = inputs[0] @ inputs[1].mT / 4
    exact = product(inputs[0], inputs[1].mT) / 4
    difference = torch.softmax(rounded.float(), -1) - torch.softmax(exact, -1)
    assert difference.abs().max() > 0.01, "the case should tell them apart"


def test_padded_prompts_are_masked():
    inputs = [
        torch.randn(shape).bfloat16() for shape in ((2, 3, 8), (2, 6, 8), (2, 6, 8), (2, 4, 8), (2, 4, 8))
    ]
    mask = torch.zeros(2, 1, 6, dtype=torch.bfloat16)
    mask[:, :, 4:] = -torch.inf
    short = [inputs[0], inputs[1][:, :4], inputs[2][:, :4], *inputs[3:]]
    assert torch.equal(attend(*inputs, mask), attend(*short, None))


def test_a_16_bit_decoder_is_close_to_its_model_in_float32():
    """Closer than a forward that rounds its scores."""
    model = tiny(scale=2.0).to(torch.bfloat16)
    batch = rows([(40, 3), (9, 8)], limit=20)
    drawn = LeanDecoder(MergedWeights(model), torch.bfloat16).generate(batch)
    assert worst_logprob(copy.deepcopy(model).float(), batch, drawn) < 0.35


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_bound_of_a_batch_counts_a_cpus_keys_and_values_in_float32(dtype):
    merged = MergedWeights(tiny().to(getattr(torch, dtype)))
    made = decoder_factory("p", merged, dtype, decoder="lean", adapters="auto", warn=pytest.fail)
    numbers = 2 * 2 * 2 * 12  # keys and values of 2 layers, 2 heads of 12
    assert made.kv.token == 4 * numbers
    plain = decoder_factory("p", merged, dtype, decoder="transformers", adapters="auto", warn=pytest.fail)
    assert plain.kv.token == getattr(torch, dtype).itemsize * numbers


def test_only_a_cpus_keys_and_values_are_widened():
    assert cache_dtype(torch.bfloat16, torch.device("cpu")) == torch.float32
    assert cache_dtype(torch.bfloat16, torch.device("cuda")) == torch.bfloat16


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_keys_in_the_order_of_products_change_no_result(dtype):
    model = tiny(scale=2.0).to(dtype)
    batch = rows([(40, 3), (9, 8), (17, 1)], limit=40, stops=(3, 4, 5, 6))  # room grows, and slots close
    decoder = LeanDecoder(MergedWeights(model), dtype)
    results = []
    for turned in (False, True):
        decoder.turned = turned
        results.append(decoder.generate(batch))
    for first, second in zip(*results, strict=True):
        assert first.token_ids == second.token_ids
        assert first.logprobs == pytest.approx(second.logprobs, abs=1e-5 if dtype == torch.float32 else 0.05)


# ------------------------------------------------------------------------------------- the paths of GPUs


def test_products_on_a_gpu_keep_float32_without_copies_of_their_factors(monkeypatch):
    def on_gpu(dimensions):
        return SimpleNamespace(device=SimpleNamespace(type="cuda"), dim=lambda: dimensions)

    for name in ("bmm", "mm"):
        monkeypatch.setattr(torch, name, lambda a, b, out_dtype, name=name: (name, out_dtype))
    assert product(on_gpu(3), None) == ("bmm", torch.float32)
    assert product(on_gpu(2), None) == ("mm", torch.float32)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_step_and_a_draw_read_no_value(dtype):
    """On tensors without values, reading one, which would wait for a GPU, is an error."""
    device = torch.device("meta")
    model = tiny().to(dtype).to(device)
    decoder = LeanDecoder(MergedWeights(model), dtype)
    assert decoder.exact
    batch = rows([(10, 4), (7, 4)], limit=20)
    with torch.inference_mode():
        buckets, logits = decoder.begin(batch, SamplingState(batch, device, 50))
        settings = RowSettings(
            np.arange(8, dtype=np.uint64), np.linspace(0, 1, 8, dtype=np.float32),
            np.array([0, 5] * 4), np.array([1.0, 0.9] * 4), device,
        )  # fmt: skip
        tokens, logprobs = draw_by_blocks(logits, settings, 0)
        assert tokens.is_meta and logprobs.is_meta and logprobs.dtype == torch.float32
        assert decoder.step(buckets, tokens, 0, 20).shape == (8, 50)
    with pytest.raises(RuntimeError, match="meta"):  # a read would have waited for the device
        tokens.tolist()
