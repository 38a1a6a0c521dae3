"""Settings that exclude each other: the later layer's stay, which is told; of one layer they are refused."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest
from hypothesis import given, settings, strategies as st
from pydantic import ValidationError

from coterie.core.config import ScheduleConfig
from coterie.core.errors import ConfigError, PluginError
from coterie.core.plugins import KINDS, UNCONFIGURED, PluginConfig
from coterie.discovery import plugins
from coterie.recipes import load
from coterie.recipes.exclusive import replace
from coterie.recipes.merging import Layers

RUN = {
    "env": {"type": "team_task", "path": "all.jsonl", "val_share": 0.3},
    "team": {"order": ["one"], "roles": {"one": {"type": "template", "policy": "p"}}},
    "policies": {"p": {"model": {"init": "none"}, "train": "none"}},
    "algorithm": {"type": "grpo"},
    "engine": {"type": "scripted"},
    "trainer": "none",
    "chat": "plain",
    "executor": "local",
    "schedule": {"epochs": 2},
    "scales": {"small": {"schedule": {"steps": 3}}, "budget": {"schedule": {"epochs": None, "tokens": 90}}},
}


def resolved(*overrides, scale=None):
    return load(RUN, overrides=overrides, scale=scale)


@pytest.mark.parametrize(
    ("scale", "overrides", "ends"),
    [
        (None, [], (None, 2, None)),
        (None, ["schedule.steps=20"], (20, None, None)),
        ("small", [], (3, None, None)),
        ("small", ["schedule.epochs=1"], (None, 1, None)),
        ("budget", ["schedule.steps=20"], (20, None, None)),
        ("budget", ["schedule.epochs=20"], (None, 20, None)),
        ("small", ["schedule.tokens=7"], (3, None, 7)),  # the run ends with whichever comes first
        (None, ["schedule.steps=20", "schedule.tokens=7"], (20, None, 7)),
        (None, ["schedule.steps=null"], (None, 2, None)),
        (None, ["schedule={steps: 4}"], (4, None, None)),
    ],
)
def test_the_later_end_replaces_the_earlier(scale, overrides, ends):
    found = resolved(*overrides, scale=scale)
    schedule = found.config.schedule
    assert (schedule.steps, schedule.epochs, schedule.tokens) == ends
    alone = {**RUN, "schedule": dict(zip(("steps", "epochs", "tokens"), ends, strict=True))}
    assert load(alone).digest() == found.digest(), "what was replaced leaves nothing"


def test_what_is_replaced_is_told_with_both_layers_and_shown_as_the_origin(caplog):
    with caplog.at_level(logging.WARNING, "coterie"):
        origins = resolved("schedule.steps=20").origins
    assert [record.getMessage() for record in caplog.records] == [
        "schedule.epochs=2 of python is replaced by schedule.steps (override)"
    ]
    assert origins["schedule.epochs"] == "override, replaced by schedule.steps"
    assert origins["schedule.steps"] == "override, in place of schedule.epochs"
    caplog.clear()
    resolved("schedule.steps=null", "schedule.tasks_per_step=2")
    assert not caplog.records


@pytest.mark.parametrize("scale", [None, "small"])
def test_two_of_one_layer_are_refused(scale):
    with pytest.raises(ConfigError, match="set steps or epochs, not both") as raised:
        resolved("schedule.steps=20", "schedule.epochs=1", scale=scale)
    assert raised.value.why == "schedule.steps=20 is set by override and schedule.epochs=1 is set by override"
    assert raised.value.fix == "leave one of them out, or null it: schedule.steps=null"


def test_two_of_one_file_name_the_file(tmp_path):
    recipe = tmp_path / "both.yaml"
    recipe.write_text("extends: quickstart\nsummary: S.\nschedule: {steps: 3, epochs: 2}\n")
    with pytest.raises(ConfigError, match="not both") as raised:
        load(recipe)
    assert raised.value.why.count("both.yaml") == 2


def test_overlays_of_one_list_are_one_layer(tmp_path):
    for name, text in {"a": "schedule: {steps: 4}", "b": "schedule: {epochs: 5}"}.items():
        (tmp_path / f"{name}.yaml").write_text(f"summary: S.\n{text}\n")
    overlays = [str(tmp_path / f"{name}.yaml") for name in "ab"]
    assert load(RUN, overlays=overlays[:1]).config.schedule.epochs is None
    with pytest.raises(ConfigError, match="not both"):
        load(RUN, overlays=overlays)
    late = load(RUN, overlays=overlays, overrides=["schedule.steps=7"]).config.schedule
    assert (late.steps, late.epochs) == (7, None)


def test_a_budget_over_which_learning_rates_decay_stays():
    schedule = load("plan_path_split", scale="cpu", overrides=["schedule.steps=20"]).config.schedule
    assert (schedule.steps, schedule.tokens) == (20, 300_000)


@pytest.mark.parametrize(
    ("overrides", "env"),
    [
        (["env.train=a", "env.val=b", "env.test=c"], {"train": "a", "val": "b", "test": "c"}),
        (["env.data={type: jsonl, path: d}"], {"data": {"type": "jsonl", "path": "d"}}),
        (["env.path=e"], {"path": "e", "val_share": 0.3}),
        (["env.val_share=0.2"], {"path": "all.jsonl", "val_share": 0.2}),
    ],
)
def test_a_plugins_settings_are_replaced_with_what_goes_with_them(overrides, env):
    """`val_share` is of `path`. Paths are absolute in the table."""
    table = resolved(*overrides).table["env"]
    text = json.dumps({key: value for key, value in table.items() if key != "type"})
    assert json.loads(text.replace(f"{Path.cwd()}/", "")) == env


def test_a_component_inside_a_component_has_its_own():
    table = {**RUN, "env": {"type": "team_task", "data": {"type": "jsonl", "path": "a", "val_share": 0.2}}}
    settings = [f"env.data.{split}={split}.jsonl" for split in ("train", "val", "test")]
    data = load(table, overrides=settings).table["env"]["data"]
    assert set(data) == {"type", "train", "val", "test"}


def declaring():
    """Every settings class of ours that declares settings which exclude each other."""
    found = {}
    for kind in [kind for kind in KINDS if kind not in UNCONFIGURED]:
        for name in plugins().registry.names(kind):
            model = plugins().registry.config_of(kind, name)
            if getattr(model, "exclusive", ()):
                found[f"{kind} {name}"] = model
    return {**found, "schedule": ScheduleConfig}


def test_what_is_declared_are_settings():
    found = declaring()
    assert {"environment math", "environment team_task", "data_source jsonl", "data_source hub", "tool mcp",
            "chat_model gemini", "schedule"} <= set(found)  # fmt: skip
    for name, model in found.items():
        keys = [key for choice in model.exclusive for alternative in choice for key in alternative.split()]
        dependent = dict(model.only_with) if hasattr(model, "only_with") else {}
        for key in (*keys, *dependent, *filter(None, dependent.values())):
            assert key in model.model_fields, f"{name}: {key}"
        assert set(filter(None, dependent.values())) <= set(keys) and not set(dependent) & set(keys), name


VALUES = st.one_of(st.none(), st.just(""), st.integers(1, 3))
LAYER = st.dictionaries(st.sampled_from(["steps", "epochs", "tokens"]), VALUES, max_size=3)


@settings(max_examples=200, deadline=None)
@given(st.lists(LAYER, max_size=4))
def test_of_steps_and_epochs_those_that_were_set_last_stay(layers):
    merged, last = Layers(), {}
    for number, layer in enumerate(layers):
        merged.add({"schedule": layer}, f"layer {number}")
        last |= {key: (number, value) for key, value in layer.items()}
    ends = {key: at for key, at in last.items() if at[1]}
    latest = max((number for key, (number, _) in ends.items() if key != "tokens"), default=-1)
    expected = {
        key: value
        for key, (number, value) in ends.items()
        if number == latest or (key == "tokens" and number > latest)
    }
    replace(merged)
    assert {key: value for key, value in merged.table.get("schedule", {}).items() if value} == expected


def test_a_class_of_ones_own_declares_in_a_line():
    class Config(PluginConfig):
        exclusive = (("url", "command"),)
        only_with = {"headers": "url"}
        url: str | None = None
        headers: str | None = None
        command: str | None = None

    assert Config(url="a").exclusive == (("url", "command"),)
    with pytest.raises(ValidationError):
        Config(exclusive=())
    for names in ({"exclusive": (("urll", "command"),)}, {"only_with": {"headrs": "url"}}):
        with pytest.raises(PluginError, match=r"has no setting .*\n.*did you mean"):
            type("Wrong", (Config,), names)
