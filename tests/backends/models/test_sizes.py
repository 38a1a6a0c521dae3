"""A model's size, counted on the meta device, is that of the model that a run loads."""

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from coterie.backends.models.loading import load_model  # noqa: E402
from coterie.backends.models.policy import TorchPolicy  # noqa: E402
from coterie.backends.models.sizes import blueprint  # noqa: E402
from coterie.core.errors import ConfigError  # noqa: E402
from tests.backends.trainers.tiny import opened  # noqa: E402

pytestmark = pytest.mark.torch

WORDS = tuple(f"w{number}" for number in range(29))
MODEL = {
    "init": "qwen3",
    "hidden_size": 32,
    "layers": 2,
    "heads": 4,
    "kv_heads": 2,
    "head_dim": 8,
    "mlp_size": 48,
    "context": 128,
}


def policy(train="full", **settings):
    return TorchPolicy.model_validate({"model": MODEL, "train": train, **settings})


def size_of(**policies):
    return blueprint(policies, vocabulary=WORDS).size


@pytest.mark.parametrize(
    "changes", [{}, {"tie_embeddings": False}, {"kv_heads": None}, {"layers": 5, "mlp_size": 16}]
)
def test_a_made_model_has_as_many_parameters_as_are_counted(changes):
    config = policy(model={**MODEL, **changes})
    module = load_model(config, policy="main", seed=0, vocabulary=WORDS).module
    size = size_of(main=config)
    assert size.parameters == sum(parameter.numel() for parameter in module.parameters())
    assert size.vocabulary == len(WORDS) + 3 and size.context == 128
    assert size.cache == 2 * module.config.num_hidden_layers * module.config.num_key_value_heads * 8


def test_a_folder_is_read_by_its_configuration_alone(tmp_path):
    module = load_model(policy(), policy="main", seed=0, vocabulary=WORDS).module
    module.config.save_pretrained(tmp_path)
    config = policy(model=str(tmp_path))
    described = blueprint({"main": config}, vocabulary=WORDS)
    assert described.size.parameters == sum(parameter.numel() for parameter in module.parameters())
    assert described.tokenizer is None and described.size.context == 128
    with pytest.raises(ConfigError, match="no tokenizer"):
        load_model(config, policy="main", seed=0, vocabulary=WORDS)


def test_each_policy_has_the_context_that_it_sets():
    described = blueprint({"a": policy(context=60), "b": policy("lora")}, vocabulary=WORDS)
    assert described.contexts == {"a": 60, "b": 128} and described.size.context == 128
    with pytest.raises(ConfigError, match="129 tokens is longer than the model's of 128"):
        blueprint({"a": policy(context=129)}, vocabulary=WORDS)


def test_nothing_is_allocated():
    described = blueprint({"a": policy(), "b": policy("lora")}, vocabulary=WORDS)
    tensors = [tensor for module, _ in described.modules.values() for tensor in module.parameters()]
    assert tensors and all(tensor.is_meta for tensor in tensors)


@pytest.mark.parametrize(
    "target_modules", ["all-linear", ["q_proj", "v_proj"], r".*layers\.0\.mlp\.down_proj"]
)
def test_adapters_are_those_that_the_trainer_attaches(target_modules):
    lora = {"alpha": 8, "target_modules": target_modules}
    configs = {
        "small": policy("lora", lora={"rank": 2, **lora}),
        "large": policy("lora", lora={"rank": 6, **lora}),
    }
    trainer = opened(configs)
    size = size_of(**configs)
    for name in configs:
        adapter = trainer.policies[name].own_parameters()
        assert size.adapters[name] == sum(parameter.numel() for parameter in adapter.values()) > 0
    assert size.adapters["large"] == 3 * size.adapters["small"]
    assert size.parameters == size_of(main=policy()).parameters, "adapters are not the model's"


def test_policies_share_a_module_as_the_trainer_has_it():
    modules = blueprint(
        {
            "own": policy(),
            "other": policy(),
            "a": policy("lora"),
            "b": policy("lora"),
            "base": policy("none"),
        },
        vocabulary=WORDS,
    ).modules
    own, other, a, b, base = (modules[name] for name in ("own", "other", "a", "b", "base"))
    assert own[0] is not other[0] and own[0] is not a[0]
    assert a[0] is b[0] is base[0]
    assert a[1] != b[1] and own[1] is base[1] is None
    assert all(parameter.requires_grad for parameter in own[0].parameters())


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ("nobody/nothing", "is not in the cache"),
        ("./nowhere", "there is no folder"),
        ("/no/such/place", "no folder"),
    ],
)
def test_a_model_that_cant_be_read_says_so_and_how_to_mend_it(model, message):
    with pytest.raises(ConfigError, match=message) as caught:
        blueprint({"main": policy(model=model)}, vocabulary=WORDS)
    assert caught.value.path == "policies.main.model" and caught.value.fix


def test_a_folder_that_holds_no_model(tmp_path):
    with pytest.raises(ConfigError, match="can't be read here"):
        blueprint({"main": policy(model=str(tmp_path))}, vocabulary=WORDS)
