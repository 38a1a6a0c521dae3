"""A model is loaded or newly initialised, or the error names what is missing."""

import gc
import json
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from coterie.backends.models import loading  # noqa: E402
from coterie.backends.models.loading import context_of, in_memory, load_model, load_tokenizer  # noqa: E402
from coterie.backends.models.policy import TorchPolicy  # noqa: E402
from coterie.core.config import PolicyConfig  # noqa: E402
from coterie.core.errors import ConfigError, MissingExtra  # noqa: E402

pytestmark = pytest.mark.torch

SMALL = {
    "init": "qwen3",
    "hidden_size": 16,
    "layers": 1,
    "heads": 2,
    "head_dim": 8,
    "mlp_size": 24,
    "context": 40,
}
WORDS = ("U", "D", "L", "R")


def load(model, *, seed=0, vocabulary=WORDS, **more):
    return load_model(TorchPolicy(model=model, **more), policy="main", seed=seed, vocabulary=vocabulary)


def refused(model, **more):
    with pytest.raises(ConfigError) as caught:
        load(model, **more)
    assert caught.value.path.startswith("policies.main.model")
    assert caught.value.fix
    return str(caught.value)


def same(loaded, other):
    states = loaded.module.state_dict(), other.module.state_dict()
    return all(torch.equal(states[0][name], states[1][name]) for name in states[0])


@pytest.fixture
def folder(tmp_path):
    loaded = load(SMALL, seed=5)
    loaded.module.save_pretrained(tmp_path)
    loaded.tokenizer.save_pretrained(tmp_path)
    return tmp_path


def test_a_made_model_is_what_the_table_says():
    loaded = load(SMALL | {"kv_heads": 1})
    config = loaded.module.config
    assert type(loaded.module).__name__ == "Qwen3ForCausalLM" and not loaded.module.training
    assert (config.hidden_size, config.num_hidden_layers, config.num_key_value_heads) == (16, 1, 1)
    assert config.vocab_size == len(loaded.tokenizer) == 3 + len(WORDS)
    assert loaded.context == 40
    assert config._attn_implementation == "sdpa"
    assert loaded.module.lm_head.weight is loaded.module.model.embed_tokens.weight
    untied = load(SMALL | {"tie_embeddings": False})
    assert untied.module.lm_head.weight is not untied.module.model.embed_tokens.weight


def test_the_seed_makes_the_weights_and_nothing_else_moves():
    torch.manual_seed(1)
    expected = torch.rand(3)
    torch.manual_seed(1)
    loaded = load(SMALL, seed=7)
    assert torch.equal(torch.rand(3), expected), "the global generator was used"
    assert same(loaded, load(SMALL, seed=7))
    assert not same(loaded, load(SMALL, seed=8))
    assert loaded.module.model.layers[0].mlp.up_proj.weight.std() > 0.01


def test_the_dtype_is_the_configured_one(folder):
    assert load(SMALL, dtype="bfloat16").module.dtype == torch.bfloat16
    assert load(str(folder), dtype="bfloat16").module.dtype == torch.bfloat16
    assert load(str(folder)).module.dtype == torch.float32


def test_a_folder_gives_back_what_was_saved(folder):
    loaded = load(str(folder))
    assert same(loaded, load(SMALL, seed=5))
    assert loaded.tokenizer.get_vocab() == load(SMALL).tokenizer.get_vocab()
    assert loaded.context == 40 and not loaded.module.training


def test_weights_are_written_and_read_without_a_bar_and_with_warnings(folder, capfd):
    from transformers.utils import logging

    with loading.without_bars():
        load(SMALL).module.save_pretrained(folder)
        assert logging.get_logger().isEnabledFor(logging.WARNING)
    load(str(folder))
    assert "%" not in capfd.readouterr().err
    with logging.tqdm(range(2), desc="A library's own") as bar:
        list(bar)
    assert "A library's own" in capfd.readouterr().err, "what is not ours to silence is left as it was"


def test_a_made_model_can_take_a_tokenizer_from_a_folder(folder):
    loaded = load(SMALL | {"tokenizer": str(folder)}, vocabulary=())
    assert loaded.module.config.vocab_size == len(loaded.tokenizer) == 7


def test_the_tokenizer_can_bound_the_context(folder):
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps(settings | {"model_max_length": 20}))
    assert load(str(folder)).context == 20


@pytest.mark.parametrize("source", ["made", "folder"])
def test_a_policy_bounds_the_context_of_its_model(folder, source):
    model = SMALL if source == "made" else str(folder)
    assert load(model, context=30).context == 30 and load(model, context=40).context == 40
    with pytest.raises(ConfigError, match="41 tokens is longer than the model's of 40") as caught:
        load(model, context=41)
    assert caught.value.path == "policies.main.context" and "at most 40" in caught.value.fix


@pytest.mark.parametrize("source", ["made", "folder"])
def test_too_long_a_context_is_refused_before_anything_is_loaded(folder, source, monkeypatch):
    model = SMALL if source == "made" else str(folder)
    monkeypatch.setattr(PolicyConfig, "check", lambda self, path, run: None)
    TorchPolicy(model=model, context=40).check("policies.main", None)
    with pytest.raises(ConfigError, match="longer than the model's") as caught:
        TorchPolicy(model=model, context=41).check("policies.main", None)
    assert caught.value.path == "policies.main.context"


def test_the_context_may_be_set_where_neither_model_nor_tokenizer_sets_one():
    endless = SimpleNamespace(max_position_embeddings=None)
    tokenizer = SimpleNamespace(model_max_length=int(1e30))
    assert context_of(endless, tokenizer, policy="main", limit=77) == 77
    with pytest.raises(ConfigError, match="says how long an input may be") as caught:
        context_of(endless, tokenizer, policy="main")
    assert "policies.main.context" in caught.value.fix


@pytest.mark.parametrize("name", ["/no/such/folder", "./nothing", "~/nothing_here", "a/b/c"])
def test_a_folder_that_is_not_there(name):
    assert "there is no folder" in refused(name)


def test_a_folder_without_weights(folder):
    (folder / "model.safetensors").unlink()
    assert "has no weights" in refused(str(folder))


def test_a_folder_without_a_model(folder):
    (folder / "config.json").unlink()
    assert "holds no model" in refused(str(folder))
    (folder / "adapter_config.json").write_text("{}")
    assert "holds an adapter" in refused(str(folder))


def test_a_folder_without_a_tokenizer(folder):
    for file in (*folder.glob("tokenizer*"), *folder.glob("special_tokens*")):
        file.unlink()
    assert "has no tokenizer" in refused(str(folder))


def test_an_architecture_that_nobody_knows(folder):
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"model_type": "perceptron9000"}))
    assert "can't be loaded" in refused(str(folder))


def test_a_hub_id_without_a_network(monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    message = refused("nobody/has-this-model-cached")
    assert "can't be fetched" in message and "network" in message


@pytest.mark.parametrize(("init", "user"), [("tabular", "tabular"), ("none", "scripted")])
def test_tables_for_other_engines(init, user):
    assert user in refused({"init": init})


def test_words_without_words():
    assert "vocabulary" in refused(SMALL, vocabulary=())


def test_the_tokenizer_alone(folder):
    config = TorchPolicy(model=str(folder))
    assert (
        load_tokenizer(config, policy="main", vocabulary=()).get_vocab() == load(SMALL).tokenizer.get_vocab()
    )


def test_without_torch_the_extra_is_named(monkeypatch):
    real = loading.importlib.util.find_spec
    monkeypatch.setattr(
        loading.importlib.util, "find_spec", lambda name: None if name == "torch" else real(name)
    )
    with pytest.raises(MissingExtra) as caught:
        load(SMALL)
    assert caught.value.extra == "torch" and "policies.main" in str(caught.value)
    assert "torch" in sys.modules  # it was only hidden


def test_weights_in_memory_leave_the_mapped_file_and_stay_tied(folder):
    module = load(str(folder)).module
    before = {name: value.clone() for name, value in module.state_dict().items()}
    assert mapped(folder)
    in_memory(module)
    gc.collect()
    assert not mapped(folder)
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())
    assert module.lm_head.weight is module.model.embed_tokens.weight


def mapped(folder):
    """Whether this process maps a file of the folder."""
    return str(folder) in Path("/proc/self/maps").read_text(encoding="utf-8")


def other_width(folder):
    table = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**table, "hidden_size": 32}))


def cut_weights(folder):
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:200])


def no_tokenizer_file(folder):
    (folder / "tokenizer.json").unlink()


@pytest.mark.parametrize(
    ("damage", "why"),
    [(other_width, "mismatch"), (cut_weights, "header"), (no_tokenizer_file, "serialization file")],
)
def test_a_damaged_folder_is_refused_with_a_whole_reason(folder, damage, why):
    damage(folder)
    assert why in refused(str(folder))
