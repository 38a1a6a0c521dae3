"""Malformed values in layers are told with their path."""

from __future__ import annotations

import pytest

from coterie.core.errors import ConfigError
from coterie.recipes import load

TABLE = {
    "env": "plan_path",
    "team": {
        "order": ["planner", "executor"],
        "roles": {
            "planner": {"type": "plan_path_planner", "policy": "p"},
            "executor": {"type": "plan_path_executor", "policy": "p"},
        },
    },
    "policies": {"p": {"model": {"init": "tabular"}}},
    "algorithm": "at_grpo",
    "engine": "tabular",
    "trainer": "tabular",
    "schedule": {"steps": 1},
}


@pytest.mark.parametrize("override", [
    "team.roles.*.policy={role}", "team.roles.planner.policy=[a]", "team.roles.planner.policy={x: 1}",
])  # fmt: skip
def test_a_policy_that_is_no_name_is_told_to_be_quoted(override):
    with pytest.raises(ConfigError, match="a role's policy is a name") as caught:
        load(TABLE, overrides=[override])
    assert caught.value.path == "team.roles.planner.policy" and "quote it" in caught.value.fix


@pytest.mark.parametrize("policy", ["{rol}", "{role", "{}"])
def test_an_unknown_placeholder_is_told(policy):
    with pytest.raises(ConfigError, match="has a brace"):
        load(TABLE, overrides=[f"team.roles.*.policy='{policy}'"])


@pytest.mark.parametrize(("scales", "path"), [
    (3, "scales"), ([1], "scales"), ({"cpu": 3}, "scales.cpu"), ({"cpu": ["a"]}, "scales.cpu"),
])  # fmt: skip
@pytest.mark.parametrize("scale", [None, "cpu"])
def test_scales_are_tables_of_tables(scales, path, scale, tmp_path):
    with pytest.raises(ConfigError, match="a scale is a table of settings") as caught:
        load({**TABLE, "scales": scales}, scale=scale)
    assert caught.value.path == path
