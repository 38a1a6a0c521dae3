"""All settings of a configuration, defaults of plugins included."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import pytest
import yaml

import coterie
from coterie import Composed, ConfigError, MayChange, Plugin, PluginConfig
from coterie.compose.settings import settings_of
from coterie.discovery import plugins
from coterie.recipes import flatten
from coterie.testing.support.runs import coterie_run


class Inner(PluginConfig):
    depth: int = 3
    names: tuple[str, ...] = ("a", "b")


class Judge(Plugin):
    class Config(PluginConfig):
        bonus: float = 0.5
        inner: Inner = Inner()
        threads: Annotated[int, MayChange()] = 2
        judge: Annotated[Any, Composed("reward")] = None
        thing: Any = object()

    scope = "joint"
    components = {"judged": "increment"}
    weights = {}
    policy_fault = 0.0

    async def score(self, view):
        return {}


REFERENCE = f"{__name__}:Judge"


def settings(judge):
    run = coterie_run(rewards={"environment": {"type": "environment"}, "judge": {"type": REFERENCE, **judge}})
    return settings_of(run.config)


@pytest.mark.parametrize(
    ("table", "path", "value"),
    [
        ({}, "bonus", 0.5),
        ({"bonus": 2}, "bonus", 2),
        ({}, "inner.depth", 3),
        ({"inner": {"names": ["c"]}}, "inner.depth", 3),
        ({"inner": {"names": ["c"]}}, "inner.names", ["c"]),
        ({}, "inner.names", ["a", "b"]),
        ({}, "judge", None),
        ({"judge": {"type": REFERENCE, "bonus": 1.0}}, "judge.bonus", 1.0),
        ({"judge": {"type": REFERENCE}}, "judge.inner.depth", 3),
        ({}, "concurrency", None),
        ({}, "thing", "<object>"),
    ],
)
def test_each_setting_has_its_value_or_its_default(table, path, value):
    assert dict(flatten(settings(table).table))[f"rewards.judge.{path}"] == value


def test_marks_hold_below_their_path_and_in_composed_components():
    marked = settings({"judge": {"type": REFERENCE}})
    assert marked.mark("rewards.judge.threads") == marked.mark("rewards.judge.judge.threads") == MayChange()
    assert marked.mark("rewards.judge.bonus") is None
    assert marked.components["rewards.judge.judge"] == ("reward", REFERENCE)


def test_the_configuration_is_not_touched():
    run = coterie_run()
    before = run.config.model_dump(mode="json")
    settings_of(run.config).table["sampler"]["chains"] = 99
    assert run.config.model_dump(mode="json") == before


@pytest.mark.parametrize(
    ("neutral", "other"),
    [
        ("team.overflow=floor", "team.overflow=stop"),
        ("team.max_stages=1000", "team.max_stages=999"),
        ("deterministic=auto", "deterministic=false"),
        ("deterministic=true", "deterministic=false"),
        ("policies.planner.from=null", "policies.planner.from=runs/a"),
        ("policies.planner.context=null", "policies.planner.context=100"),
    ],
)
def test_a_later_setting_is_part_of_the_digest_where_it_changes_something(neutral, other):
    plain = coterie.load("plan_path", overlays=["per_role"]).digest()
    assert coterie.load("plan_path", overlays=["per_role"], overrides=[neutral]).digest() == plain
    assert coterie.load("plan_path", overlays=["per_role"], overrides=[other]).digest() != plain


@pytest.mark.parametrize(
    ("path", "mark"),
    [
        ("engine.max_batch", MayChange()),
        ("trainer.micro_tokens", MayChange()),
        ("trainer.device", MayChange()),
        ("executor.max_live", MayChange()),
        ("policies.planner.optimizer.learning_rate", MayChange(asked=True)),
        ("policies.planner.context", MayChange(asked=True)),
        ("policies.planner.model", None),
        ("trainer.epochs", None),
        ("sampler.branches", None),
    ],
)
def test_what_decides_only_how_fast_is_marked(path, mark):
    resolved = coterie.load("plan_path", overlays=["per_role"])
    assert settings_of(resolved.config).mark(path) == mark


@pytest.mark.parametrize("kind", ["tools", "trackers", "rewards"])
def test_a_component_without_a_type_has_the_type_of_its_name_or_says_that_it_is_missing(kind):
    config = coterie_run().config
    known = {"tools": "python", "trackers": "jsonl", "rewards": "environment"}[kind]
    table = config.model_copy(update={kind: {known: {}}})
    assert settings_of(table).table[kind][known]["type"] == known
    if kind != "rewards":  # there the name is always the type
        with pytest.raises(ConfigError, match="'type' is missing") as missing:
            settings_of(config.model_copy(update={kind: {"other": {}}}))
        assert missing.value.path == f"{kind}.other.type" and known in missing.value.fix


def test_the_tools_page_shows_tools_that_can_be_made():
    page = (Path(__file__).parents[2] / "docs" / "tools.md").read_text(encoding="utf-8")
    shown = yaml.safe_load(page.partition("```yaml\n")[2].partition("```")[0])
    config = coterie_run().config.model_copy(update={"tools": shown["tools"]})
    for name, table in settings_of(config).table["tools"].items():
        assert plugins().registry.find("tool", table["type"]), name
        assert shown["tools"][name]["type"] == table["type"]
