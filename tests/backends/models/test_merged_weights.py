"""A PEFT model's weights are read under a plain model's names."""

import pytest

torch = pytest.importorskip("torch")
peft = pytest.importorskip("peft")

from coterie.backends.models.merged_weights import MergedWeights  # noqa: E402
from coterie.core.errors import UserError  # noqa: E402
from tests.backends.engines.support import tiny  # noqa: E402

pytestmark = pytest.mark.torch


def adapted(**settings):
    model = peft.get_peft_model(tiny(), peft.LoraConfig(r=2, **settings), adapter_name="one")
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_" in name:
                parameter.normal_(std=0.2)
    return model


@pytest.mark.parametrize(
    "settings",
    [
        {"target_modules": "all-linear"},
        {"target_modules": ["q_proj", "embed_tokens"], "lora_alpha": 3, "use_rslora": True},
        {"target_modules": ["up_proj"], "modules_to_save": ["lm_head"]},
    ],
)
def test_it_gives_what_merging_would(settings):
    model = adapted(**settings)
    if "modules_to_save" in settings:
        with torch.no_grad():
            model.base_model.model.lm_head.modules_to_save["one"].weight.normal_()
    merged_weights = MergedWeights(model, "one")
    values = {name: merged_weights[name].clone() for name in merged_weights}
    merged = model.merge_and_unload()
    expected = dict(merged.named_parameters())
    assert set(values) == set(expected)
    for name, parameter in expected.items():
        assert torch.allclose(values[name], parameter, atol=1e-6), name


def test_without_an_adapter_it_gives_the_base():
    model = adapted(target_modules="all-linear")
    merged_weights = MergedWeights(model)
    expected = dict(tiny().named_parameters())
    assert set(merged_weights) == set(expected)
    assert all(torch.equal(merged_weights[name], parameter) for name, parameter in expected.items())


def test_a_plain_model_is_given_as_it_is():
    model = tiny(tie_word_embeddings=True)
    merged_weights = MergedWeights(model)
    name = "model.layers.0.mlp.up_proj.weight"
    assert merged_weights[name].data_ptr() == model.get_parameter(name).data_ptr()
    assert not merged_weights[name].requires_grad
    assert merged_weights.tied("lm_head.weight", "model.embed_tokens.weight")
    assert not MergedWeights(tiny()).tied("lm_head.weight", "model.embed_tokens.weight")
    assert merged_weights.get("model.layers.0.mlp.up_proj.bias") is None


def test_a_small_delta_is_not_lost_in_bfloat16():
    model = adapted(target_modules=["q_proj"])
    name = "model.layers.0.self_attn.q_proj.weight"
    whole = MergedWeights(model, "one")[name]
    half = model.base_model.model.to(torch.bfloat16)
    assert half.dtype == torch.bfloat16
    assert MergedWeights(model, "one")[name].dtype == torch.float32
    assert (MergedWeights(model, "one")[name] - whole).abs().max() < 2e-2


def test_only_what_no_adapter_changes_is_frozen():
    merged_weights = MergedWeights(adapted(target_modules=["up_proj"], modules_to_save=["lm_head"]), "one")
    assert merged_weights.frozen("model.embed_tokens.weight")
    assert not merged_weights.frozen("lm_head.weight") and not merged_weights.frozen(
        "model.layers.0.mlp.up_proj.weight"
    )
    assert not MergedWeights(tiny()).frozen("model.embed_tokens.weight")


def test_a_low_rank_part_times_itself_is_what_merging_adds():
    model = adapted(target_modules=["q_proj", "embed_tokens"], lora_alpha=3, use_rslora=True)
    base, merged_weights = MergedWeights(model), MergedWeights(model, "one")
    assert len(merged_weights.low_rank) == 3 and not base.low_rank
    for name, part in merged_weights.low_rank.items():
        assert part.down.shape[0] == part.up.shape[1] == 2
        delta = 3 / 2**0.5 * part.up @ part.down
        assert torch.allclose(merged_weights[name] - base[name], delta, atol=1e-5), name


def test_a_snapshot_does_not_follow_the_adapter():
    model = adapted(target_modules=["q_proj"])
    name = "model.layers.0.self_attn.q_proj.weight"
    merged_weights = MergedWeights(model, "one")
    snapshot, before = merged_weights.snapshot(), merged_weights[name].clone()
    with torch.no_grad():
        model.base_model.model.model.layers[0].self_attn.q_proj.lora_B["one"].weight.mul_(2.0)
    assert torch.equal(snapshot[name], before) and not torch.equal(merged_weights[name], before)


def test_what_is_more_than_low_rank_parts_of_a_frozen_base_is_said():
    assert MergedWeights(adapted(target_modules="all-linear"), "one").inseparable is None
    assert MergedWeights(adapted(target_modules="all-linear")).inseparable is None
    saved = adapted(target_modules=["up_proj"], modules_to_save=["lm_head"])
    assert (
        "modules_to_save" in MergedWeights(saved, "one").inseparable
        and MergedWeights(saved).inseparable is None
    )
    trained = adapted(target_modules=["up_proj"])
    trained.get_parameter("base_model.model.model.norm.weight").requires_grad_(True)
    assert MergedWeights(trained, "one").inseparable == "model.norm.weight of the base is trained"
    merged = adapted(target_modules=["up_proj"])
    merged.merge_adapter()
    assert "merged into the base" in MergedWeights(merged, "one").inseparable


def test_an_unknown_adapter_and_one_that_can_not_be_merged_are_refused():
    with pytest.raises(UserError, match="no adapter 'two'"):
        MergedWeights(adapted(target_modules=["q_proj"]), "two")
    with pytest.raises(UserError, match="no adapter"):
        MergedWeights(tiny(), "one")
    with pytest.raises(UserError, match="can't be merged"):
        MergedWeights(adapted(target_modules=["q_proj"], use_dora=True), "one")
