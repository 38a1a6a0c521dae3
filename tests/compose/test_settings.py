"""All settings of a configuration, defaults of plugins included."""

from __future__ import annotations

from typing import Annotated, Any

import pytest

import coterie
from coterie import Composed, MayChange, Plugin, PluginConfig
from coterie.compose.settings import settings_of
from coterie.core.config import flatten
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
        ("policies.planner.from=null", "policies.planner.from=runs/a"),
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
        ("policies.planner.model", None),
        ("trainer.epochs", None),
        ("sampler.branches", None),
    ],
)
def test_what_decides_only_how_fast_is_marked(path, mark):
    resolved = coterie.load("plan_path", overlays=["per_role"])
    assert settings_of(resolved.config).mark(path) == mark
