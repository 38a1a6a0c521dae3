"""A frozen base is held once by module and lean decoder; only the place of its numbers changes."""

from __future__ import annotations

import copy
import logging

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("peft")

from safetensors.torch import load_file, save_file  # noqa: E402

from coterie.backends.engines import hf  # noqa: E402
from coterie.backends.engines.lean.decode import LeanDecoder  # noqa: E402
from coterie.backends.engines.lean.weights import joined, share  # noqa: E402
from coterie.backends.models.merged_weights import MergedWeights  # noqa: E402
from tests.backends.engines.adapters import adapted, dealt, trained, worst  # noqa: E402
from tests.backends.engines.support import rows, tiny  # noqa: E402
from tests.backends.engines.test_hf_adapters import Opened, of_all_policies  # noqa: E402

pytestmark = pytest.mark.torch


def frozen(**more):
    """A PEFT model whose base is frozen; every weight is a multiple of 64 bytes."""
    return adapted(**more, head_dim=16)


def storages(tensors):
    """Bytes by storage."""
    return {tensor.untyped_storage()._cdata: tensor.untyped_storage().nbytes() for tensor in tensors}


def held(decoder):
    """The tensors of a lean decoder."""
    weights = decoder.weights
    layers = [getattr(layer, name) for layer in weights.layers for name in layer.__slots__]
    return [
        tensor for tensor in (weights.embedding, weights.head, weights.norm, *layers) if tensor is not None
    ]


def base_parameters(model):
    return [parameter for name, parameter in model.named_parameters() if "lora_" not in name]


def additional(decoder, model):
    """Bytes that the decoder holds beside the module's."""
    of_module = storages(base_parameters(model))
    return sum(size for key, size in storages(held(decoder)).items() if key not in of_module)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    ("kind", "more"),
    [
        ("qwen3", {}),
        ("llama", {"attention_bias": True, "mlp_bias": True, "intermediate_size": 64}),
        ("qwen2", {"head_dim": 8, "num_key_value_heads": 4}),
    ],
)
def test_the_decoder_reads_the_modules_tensors(kind, more, dtype):
    model = adapted(kind=kind, **({"head_dim": 16} | more)).to(dtype)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    whole = sum(storages(base_parameters(model)).values())
    batch = rows([(5, 3), (9, 2)])
    copied = LeanDecoder(MergedWeights(model), dtype)
    assert additional(copied, model) > 0.3 * whole
    assert share(MergedWeights(model), dtype) is None
    decoder = LeanDecoder(MergedWeights(model), dtype)
    # Norms of queries and keys are repeated for each head, in a copy; they are small in real models.
    assert additional(decoder, model) == (0 if kind != "qwen3" else 2 * 6 * 16 * dtype.itemsize)
    assert sum(storages(base_parameters(model)).values()) == whole
    assert decoder.generate(batch) == copied.generate(batch)
    after = model.state_dict()
    assert list(after) == list(before)
    assert all(torch.equal(value, before[name]) for name, value in after.items())
    share(MergedWeights(model), dtype)  # again: nothing moves
    assert additional(decoder, model) == additional(LeanDecoder(MergedWeights(model), dtype), model)


def test_what_is_saved_copied_and_merged_is_what_it_was(tmp_path):
    model = frozen()
    twin = copy.deepcopy(model)
    share(MergedWeights(model), torch.float32)
    save_file(dict(model.get_base_model().model.layers.state_dict()), str(tmp_path / "layers.safetensors"))
    saved = load_file(str(tmp_path / "layers.safetensors"))
    expected = twin.get_base_model().model.layers.state_dict()
    assert saved.keys() == expected.keys()
    assert all(torch.equal(value, expected[name]) for name, value in saved.items())
    for name, make in {
        "base": lambda m: copy.deepcopy(m).unload(),
        "merged": lambda m: copy.deepcopy(m).merge_and_unload(adapter_names=["planner"]),
    }.items():
        for which, each in (("shared", model), ("plain", twin)):
            make(each).save_pretrained(tmp_path / name / which)
        first, second = (
            (tmp_path / name / which / "model.safetensors").read_bytes() for which in ("shared", "plain")
        )
        assert first == second
    half = copy.deepcopy(model).to(torch.bfloat16)
    for other in base_parameters(half):
        assert other.untyped_storage().nbytes() == other.numel() * 2  # each is by itself again
    assert all(torch.equal(a, b) for a, b in zip(base_parameters(model), base_parameters(twin), strict=True))


def test_gradients_of_an_adapter_on_a_shared_base_are_those_of_the_plain_one():
    model = frozen()
    twin = copy.deepcopy(model)
    share(MergedWeights(model), torch.float32)
    ids = torch.arange(2, 14)[None]
    for each in (model, twin):
        each.set_adapter("planner")
        each(input_ids=ids, labels=ids).loss.backward()
    pairs = list(zip(model.named_parameters(), twin.parameters(), strict=True))
    assert any(parameter.grad is not None for (_, parameter), _ in pairs)
    for (name, ours), theirs in pairs:
        assert (ours.grad is None) == (theirs.grad is None), name
        assert ours.grad is None or torch.equal(ours.grad, theirs.grad), name


def test_trained_weights_and_those_of_another_dtype_are_copied():
    model = frozen()
    assert "trained" in share(MergedWeights(tiny()), torch.float32)
    assert "float32" in share(MergedWeights(model), torch.bfloat16)
    assert "64 bytes" in share(MergedWeights(adapted(hidden_size=33, head_dim=10)), torch.float32)
    layer = model.get_base_model().model.layers[0].self_attn
    assert joined([layer.q_proj.base_layer.weight, layer.k_proj.base_layer.weight]) is None
    full = tiny()
    decoder, batch = LeanDecoder(MergedWeights(full), torch.float32), rows([(5, 2)])
    before = decoder.generate(batch)
    with torch.no_grad():
        for parameter in full.parameters():
            parameter.mul_(1.5)  # half an update
    assert decoder.generate(batch) == before


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_engine_holds_one_base_for_all_adapters_and_sees_an_adapters_change(dtype):
    model = frozen().to(dtype)
    opened = Opened(model, adapters="mixed")
    before = [copy.deepcopy(parameter) for parameter in base_parameters(model)]
    calls = opened(*of_all_policies())
    (base,) = opened.engine.loaded_bases.values()
    assert base.spare is None
    assert additional(base.mixed, model) == 2 * 6 * 16 * dtype.itemsize  # the norms of heads
    trained(model, seed=5, adapter="planner")
    opened.load(1, "plan", module=model, adapter="planner")
    after = opened(*of_all_policies())
    changed = {
        request.policy
        for request, first, second in zip(of_all_policies(), calls, after, strict=True)
        if first.logprobs != second.logprobs
    }
    assert changed == {"plan"}
    assert additional(base.mixed, model) == 2 * 6 * 16 * dtype.itemsize
    assert all(torch.equal(a, b) for a, b in zip(base_parameters(model), before, strict=True))


def test_a_model_that_the_trainer_does_not_train_is_held_once():
    model = tiny(head_dim=16).requires_grad_(False)
    opened = Opened()
    opened.load(0, "own", module=model)
    opened(*of_all_policies(("own",)))
    decoder = opened.engine.served.newest("own").decoder
    assert additional(decoder, model) == 2 * 6 * 16 * 4


def test_what_cannot_be_shared_is_logged_once_a_load(caplog):
    with caplog.at_level(logging.INFO, logger="coterie"):
        Opened(adapted(hidden_size=33, head_dim=10))
    assert "the engine copies frozen weights that it could share" in caplog.text
    caplog.clear()
    with caplog.at_level(logging.INFO, logger="coterie"):
        Opened(frozen())
    assert "copies" not in caplog.text


@pytest.mark.parametrize(("numbers", "merged"), [(10**4, False), (10**6, True)])
def test_an_adapter_alone_is_merged_into_a_copy_of_a_small_base_only(monkeypatch, numbers, merged):
    monkeypatch.setattr(hf, "MERGED_NUMBERS", numbers)
    model = frozen()
    assert 10**4 < MergedWeights(model).base_numbers < 10**6
    opened = Opened(model)
    calls = opened(*of_all_policies(("plan",)))
    (base,) = opened.engine.loaded_bases.values()
    assert (base.spare is not None) == merged == (base.mixed is None)
    batch = dealt(rows([(5, 2)]), ["planner"])
    assert calls and worst(model, batch, base.generate(batch)) < 1e-5
