"""Configuration: layers, overrides, origins of values, and refused settings."""

from __future__ import annotations

import pytest

from coterie.compose import compose
from coterie.core.config import RunConfig
from coterie.core.errors import ConfigError, UserError
from coterie.recipes import find_plugin, load, parse_override, read_yaml, recipes, registered

BASE = """
summary: base
env: {type: "coterie.testing.support.toys:NumberGame", tasks: 4}
team:
  order: [one]
  roles: {one: {type: "coterie.testing.support.toys:EchoRole", policy: p}}
policies: {p: {model: {init: none}, train: none}}
sampler: {branches: 2}
algorithm: {type: at_grpo, alpha: 0.5}
engine: {type: scripted, play: "coterie.testing.support.runs:branch_number"}
trainer: none
schedule: {steps: 3}
scales:
  smoke: {schedule: {steps: 1}}
"""


@pytest.fixture
def files(tmp_path):
    (tmp_path / "base.yaml").write_text(BASE)
    (tmp_path / "child.yaml").write_text(
        "extends: base.yaml\nsummary: child\nschedule: {tasks_per_step: 7}\n"
    )
    return tmp_path


def test_recipes_extend_one_another_and_scales_and_overrides_apply_later(files):
    resolved = load(files / "child.yaml", scale="smoke", overrides=["schedule.evaluate_every=2"])
    assert (resolved.config.schedule.steps, resolved.config.schedule.tasks_per_step) == (1, 7)
    assert resolved.config.summary == "child"
    assert resolved.origins["schedule.steps"] == "scale smoke"
    assert resolved.origins["schedule.tasks_per_step"] == f"file {files / 'child.yaml'}"
    assert resolved.origins["schedule.evaluate_every"] == "override"
    assert resolved.origins["algorithm.alpha"] == f"file {files / 'base.yaml'}"
    assert resolved.origins["schedule.record_every"] == "default"


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("a=1e-5", 1e-5),
        ("a=1", 1),
        ("a=yes", "yes"),
        ("a=true", True),
        ("a=[x, [y, z]]", ["x", ["y", "z"]]),
        ("a=null", None),
        ("a={b: 2}", {"b": 2}),
        ("a=Qwen/Qwen3-1.7B", "Qwen/Qwen3-1.7B"),
        ("a=b=c", "b=c"),
    ],
)
def test_overrides_are_yaml(text, value):
    assert parse_override(text) == {"a": value}


@pytest.mark.parametrize("text", ["a", "=1", "a..b=1", "a=[1"])
def test_overrides_of_the_wrong_form_are_refused(text):
    with pytest.raises(ConfigError):
        parse_override(text)


def test_a_text_field_takes_a_number_as_text(files):
    assert load(files / "base.yaml", overrides=["policies.p.model=123"]).config.policies["p"].model == "123"


def test_another_type_replaces_the_table(files):
    resolved = load(
        files / "base.yaml", overrides=["algorithm.type=grpo", "sampler.chains=2", "sampler.branches=1"]
    )
    assert resolved.config.algorithm == {"type": "grpo"}
    resolved = load(files / "base.yaml", overrides=["algorithm.alpha=2", "algorithm=grpo"])
    assert resolved.config.algorithm == {"type": "grpo"}


def test_null_removes_an_entry_by_name(files):
    resolved = load(
        files / "base.yaml", overrides=["policies.q={model: x}", "team.roles.one.policy=q", "policies.p=null"]
    )
    assert list(resolved.config.policies) == ["q"]


def test_the_resolved_text_loads_to_the_same_configuration(files):
    resolved = load(files / "child.yaml", overrides=["policies.p.optimizer.learning_rate=1e-5"])
    (files / "config.yaml").write_text(resolved.text())
    again = load(files / "config.yaml")
    assert again.config == resolved.config and again.digest() == resolved.digest() and again.name == "child"


@pytest.mark.parametrize(
    ("override", "path", "message"),
    [
        ("schedule.stpes=1", "schedule.stpes", "did you mean 'steps'?"),
        ("algorthm.alpha=1", "algorthm", "did you mean 'algorithm'?"),
        ("algorithm.alhpa=1", "algorithm.alhpa", "did you mean 'alpha'?"),
        ("env.taks=1", "env.taks", "did you mean 'tasks'?"),
        ("sampler.roles.one.temprature=1", "sampler.roles.one.temprature", "did you mean 'temperature'?"),
        ("policies.p.optimizer.lr=1", "policies.p.optimizer.lr", "known: "),
        (
            "policies.p.model={init: qwen3, hiden_size: 3}",
            "policies.p.model.hiden_size",
            "did you mean 'hidden_size'?",
        ),
        ("schedule.steps=many", "schedule.steps", "'many'"),
        ("algorithm.alpha=high", "algorithm.alpha", "'high'"),
        ("algorithm.type=at_grop", "algorithm.type", "did you mean 'at_grpo'?"),
        ("team.roles.one.policy=q", "team.roles.one.policy", "unknown policy 'q'"),
        ("team.order=[one, tow]", "team.order", "unknown role 'tow'"),
        ("team.roles.two={type: x, policy: p}", "team.roles.two", "nothing uses this"),
        ("policies.q={model: x}", "policies.q", "nothing uses this"),
        ("sampler.roles.tow.temperature=1", "sampler.roles.tow", "unknown role 'tow'"),
        ("policies.p.lora.rank=4", "policies.p.lora", "nothing reads"),
        ("policies.p.model=null", "policies.p.model", ""),
        ("data.type=jsonl", "data", "nothing consumes"),
        ("sandbox.type=local", "sandbox", "nothing consumes"),
        ("tools.python={type: python}", "tools.python", "nothing uses this"),
        ("sampler.branches=1", "sampler.branches", "one member"),
        ("policies.p.optimizer.schedule=linear", "policies.p.optimizer.horizon", "needs its horizon"),
    ],
)
def test_an_error_names_the_path(files, override, path, message):
    with pytest.raises(UserError) as error:
        compose(load(files / "base.yaml", overrides=[override]))
    assert error.value.path == path
    assert message in str(error.value)


def test_a_policy_without_model_and_a_role_without_policy_are_refused(files):
    text = BASE.replace("{model: {init: none}, train: none}", "{train: none}")
    (files / "base.yaml").write_text(text)
    with pytest.raises(ConfigError, match="'model' is missing") as error:
        load(files / "base.yaml")
    assert error.value.path == "policies.p.model"
    (files / "base.yaml").write_text(BASE.replace(", policy: p", ""))
    with pytest.raises(ConfigError, match="role 'one' has no policy"):
        compose(load(files / "base.yaml"))


def test_files_that_are_no_recipes_are_refused(files):
    with pytest.raises(ConfigError, match="did you mean 'plan_path'"):
        load("plan_pth")
    with pytest.raises(ConfigError, match="no such recipe file"):
        load("nowhere.yaml")
    with pytest.raises(ConfigError, match="no scale 'smok'"):
        load(files / "base.yaml", scale="smok")
    (files / "bad.yaml").write_text("a: [")
    with pytest.raises(ConfigError, match="not valid YAML"):
        load(files / "bad.yaml")
    (files / "twice.yaml").write_text("a: 1\na: 2\n")
    with pytest.raises(ConfigError, match="repeats the key 'a'"):
        read_yaml(files / "twice.yaml")
    (files / "loop.yaml").write_text("extends: loop.yaml\n")
    with pytest.raises(ConfigError, match="extends itself"):
        load(files / "loop.yaml")


@pytest.mark.parametrize("info", recipes(), ids=lambda info: info.name)
def test_every_shipped_recipe_resolves_at_every_scale(info):
    assert info.summary
    scales = read_yaml(__import__("pathlib").Path(info.path)).get("scales", {})
    for scale in (None, *[name for name, table in scales.items() if table is not None]):
        assert isinstance(load(info.name, scale=scale).config, RunConfig)


def test_an_override_of_a_type_warns_of_the_settings_that_it_drops(caplog: pytest.LogCaptureFixture) -> None:
    table = {
        **load("quickstart").table,
        "trainer": {"type": "torch", "minibatch_size": 8, "micro_tokens": 512},
    }
    load(table, overrides=["trainer.type=torch", "trainer.minibatch_size=4"])
    assert not caplog.records
    load(table, overrides=["trainer.micro_tokens=256", "trainer.type=deepspeed"])
    (record,) = caplog.records
    assert "trainer.minibatch_size=8" in record.getMessage()
    assert "micro_tokens" not in record.getMessage()  # an override sets it again


@pytest.mark.parametrize("ask", [registered, lambda kind: find_plugin(kind, "at_grpo")])
def test_a_kind_that_there_is_none_of_is_told(ask):
    with pytest.raises(ConfigError, match="there is no kind of plugins 'studies'") as caught:
        ask("studies")
    assert "did you mean 'study'?" in str(caught.value.fix)


def test_files_are_named_by_text_too(tmp_path):
    (tmp_path / "a.yaml").write_text("x: 1")
    assert read_yaml(str(tmp_path / "a.yaml")) == {"x": 1}
