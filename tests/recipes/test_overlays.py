"""Overlays: what they set, in which order, and which combinations are refused."""

from __future__ import annotations

import logging

import pytest

from coterie import hookimpl
from coterie.compose import compose
from coterie.compose.rules.table import check
from coterie.core.errors import ConfigError
from coterie.discovery import Report, plugins
from coterie.recipes import flatten, list_overlays, load, recipes
from tests.recipes.support import listed

TEAM = """
summary: Two roles.
env: {type: "coterie.testing.support.toys:NumberGame", tasks: 4}
team:
  order: [one, two]
  roles:
    one: {type: "coterie.testing.support.toys:EchoRole", policy: p}
    two: {type: "coterie.testing.support.toys:EchoRole", policy: p}
policies: {p: {model: {init: none}, train: none}}
sampler: {branches: 2}
algorithm: {type: at_grpo, alpha: 0.5}
engine: {type: scripted, play: "coterie.testing.support.runs:branch_number"}
trainer: none
schedule: {steps: 3}
scales:
  smoke: {schedule: {steps: 1}, policies: {p: {model: {init: tabular}}}}
  many: {policies: {"*": {dtype: bfloat16}}, schedule: {steps: 9}}
"""
OVERLAYS = {
    "own": 'summary: Own policies.\nteam: {roles: {"*": {policy: "{role}"}}}',
    "one_shared": 'team: {roles: {"*": {policy: both}}}',
    "swapped": "team: {roles: {one: {policy: two}, two: {policy: one}}}",
    "half": 'policies: {"*": {dtype: bfloat16}}',
    "whole": 'policies: {"*": {dtype: float32}}',
    "half_one": "policies: {one: {dtype: bfloat16}}",
    "whole_one": "policies: {one: {dtype: float32}}",
    "half_late": 'every_scale: {policies: {"*": {dtype: bfloat16}}}',
    "whole_late": 'every_scale: {policies: {"*": {dtype: float32}}}',
    "small": 'scales: {smoke: null, many: {schedule: {steps: 2}}, tiny: {policies: {"*": {model: tiny}}}}',
    "small_too": "scales: {smoke: {schedule: {steps: 4}}}",
    "grpo": "algorithm: grpo",
    "alpha": "algorithm: {alpha: 2}",
    "longer": "schedule: {steps: 30, tasks_per_step: 5}",
    "no_tools": 'tools: {"*": null}',
    "judged": 'rewards: {"*": {weights: {team: 0.5}}, extra: {type: function}}',
    "bare": 'rewards: {environment: null, extra: {type: function}}',
    "worded": 'rewards: {environment: {weights: {team: 2}}}',
}  # fmt: skip


@pytest.fixture
def files(tmp_path):
    (tmp_path / "team.yaml").write_text(TEAM)
    for name, text in OVERLAYS.items():
        (tmp_path / f"{name}.yaml").write_text(text)
    return tmp_path


@pytest.fixture
def made(files):
    """`load` of the team with the overlays of this module."""

    def with_overlays(*names, **settings):
        return load(files / "team.yaml", overlays=[str(files / f"{name}.yaml") for name in names], **settings)

    return with_overlays


def test_a_pattern_in_an_overlay_sets_all_and_shows_its_origin(made):
    resolved = made("own", "half", overrides=["policies.two.dtype=float32"])
    assert {name: policy.dtype for name, policy in resolved.config.policies.items()} == {
        "one": "bfloat16",
        "two": "float32",
    }
    assert resolved.origins["policies.one.dtype"].endswith("half.yaml")
    assert resolved.origins["policies.two.dtype"] == "override"
    assert resolved.origins["team.roles.one.policy"].endswith("own.yaml")
    assert resolved.origins["policies.one.train"].endswith("team.yaml"), "a copy keeps the origin"
    assert resolved.name == "team_own_half"
    assert resolved.config.summary == "Two roles. Own policies."
    compose(resolved)


@pytest.mark.parametrize(("first", "second"), [("own", "half"), ("own", "longer"), ("own", "half_one")])
def test_overlays_that_agree_give_one_configuration_in_any_order(made, first, second):
    for scale in (None, "smoke", "many"):
        assert made(first, second, scale=scale).digest() == made(second, first, scale=scale).digest()


def test_layers_apply_in_order_recipe_overlays_scale_every_scale_overrides(made):
    assert made("longer").config.schedule.steps == 30
    scaled = made("longer", scale="smoke")
    assert (scaled.config.schedule.steps, scaled.config.schedule.tasks_per_step) == (1, 5)
    assert made("longer", scale="smoke", overrides=["schedule.steps=7"]).config.schedule.steps == 7
    assert made("whole", scale="many").config.policies["p"].dtype == "bfloat16", "a scale is above overlays"
    late = made("whole_late", scale="many")
    assert late.config.policies["p"].dtype == "float32"
    assert late.origins["policies.p.dtype"].endswith("whole_late.yaml")
    above = made("whole_late", scale="many", overrides=["policies.*.dtype=bfloat16"])
    assert above.config.policies["p"].dtype == "bfloat16"


def test_new_policies_are_copies_in_each_scale_and_unplayed_ones_are_removed(made):
    for scale, init in ((None, "none"), ("smoke", "tabular")):
        config = made("own", scale=scale).config
        assert {name: policy.model.init for name, policy in config.policies.items()} == {
            "one": init,
            "two": init,
        }
    swapped = made("swapped").config
    assert swapped.team.roles["one"]["policy"] == "two" and sorted(swapped.policies) == ["one", "two"]


def test_a_policy_that_an_overlay_brings_or_that_is_there_keeps_its_settings(files):
    """A role that is sent to it doesn't bring its own policy's settings."""
    (files / "brought.yaml").write_text(
        "team: {roles: {two: {policy: q}}}\npolicies: {q: {model: {init: tabular}, train: full}}\n"
    )
    (files / "both.yaml").write_text(
        "extends: team.yaml\nwith: own.yaml\npolicies: {two: {dtype: bfloat16}}\n"
    )
    brought = load(files / "team.yaml", overlays=[str(files / "brought.yaml")]).config
    assert {name: policy.model.init for name, policy in brought.policies.items()} == {
        "p": "none",
        "q": "tabular",
    }
    swapped = load(files / "both.yaml", overlays=[str(files / "swapped.yaml")]).config
    assert swapped.team.roles["one"]["policy"] == "two"
    assert {name: policy.dtype for name, policy in swapped.policies.items()} == {
        "one": brought.policies["p"].dtype,
        "two": "bfloat16",
    }


def test_policies_become_one_where_they_are_equal_and_are_refused_where_they_differ(files):
    both = [str(files / "one_shared.yaml")]
    (files / "equal.yaml").write_text("extends: team.yaml\nwith: own.yaml\n")
    assert list(load(files / "equal.yaml", overlays=both).config.policies) == ["both"]
    (files / "different.yaml").write_text("extends: equal.yaml\npolicies: {two: {dtype: bfloat16}}\n")
    with pytest.raises(ConfigError, match="can't share the policy 'both'") as refused:
        load(files / "different.yaml", overlays=both)
    assert refused.value.path == "policies.both" and "'one' and 'two' differ" in refused.value.why


@pytest.mark.parametrize(
    ("first", "second", "path"),
    [
        ("half", "whole", "policies.p.dtype"),
        ("half_late", "whole_late", "policies.p.dtype"),
        ("half", "whole_late", "policies.p.dtype"),
        ("half_late", "whole", "policies.p.dtype"),
        ("own", "one_shared", "team.roles.one.policy"),
        ("own", "swapped", "team.roles.one.policy"),
        ("small", "small_too", "scales.smoke"),
        ("alpha", "grpo", "algorithm.alpha"),
        ("bare", "worded", "rewards.environment"),
    ],
)
def test_two_overlays_that_set_one_key_differently_are_refused(made, first, second, path):
    for scale in (None, "many"):
        with pytest.raises(ConfigError, match="set one key differently") as refused:
            made(first, second, scale=scale)
        text = str(refused.value)
        assert f"{first}.yaml" in text and f"{second}.yaml" in text
        assert refused.value.path.startswith(path), text


@pytest.mark.parametrize(("first", "second"), [("half", "whole_one"), ("whole_one", "half")])
def test_a_pattern_and_a_name_that_differ_are_refused(made, first, second):
    with pytest.raises(ConfigError, match="set one key differently") as refused:
        made("own", first, second)
    assert refused.value.path == "policies.one.dtype"
    made("own", "half", "half_one")  # equal values agree


def test_overlays_of_a_recipe_are_part_of_it_and_others_go_over_them(files):
    (files / "child.yaml").write_text(
        "extends: team.yaml\nwith: [own.yaml, half.yaml]\npolicies: {one: {dtype: float32}}\n"
    )
    dtypes = {name: policy.dtype for name, policy in load(files / "child.yaml").config.policies.items()}
    assert dtypes == {"one": "float32", "two": "bfloat16"}
    whole = load(files / "child.yaml", overlays=[str(files / "whole.yaml")])
    assert {policy.dtype for policy in whole.config.policies.values()} == {"float32"}
    again = load(files / "child.yaml", overlays=[str(files / "own.yaml")])
    assert again.digest() == load(files / "child.yaml").digest(), "applied twice, it changes nothing"


def test_an_overlay_given_twice_is_applied_once(made):
    assert made("own", "half", "own").digest() == made("own", "half").digest()
    assert made("own", "own").name == "team_own"


def test_scales_of_an_overlay_are_added_and_removed(made):
    assert made("own", "small", scale="many").config.schedule.steps == 2
    assert {policy.model for policy in made("own", "small", scale="tiny").config.policies.values()} == {
        "tiny"
    }
    with pytest.raises(ConfigError, match="no scale 'smoke'"):
        made("small", scale="smoke")


def test_names_come_after_patterns_in_one_layer_whatever_their_order(files, made):
    (files / "both.yaml").write_text('policies: {one: {dtype: float32}, "*": {dtype: bfloat16}}')
    config = made("own", "both").config
    assert [config.policies[name].dtype for name in ("one", "two")] == ["float32", "bfloat16"]


def test_a_scale_that_has_the_policy_an_overlay_makes_keeps_its_settings(files):
    (files / "split.yaml").write_text(
        "extends: team.yaml\nscales:\n  apart:\n"
        "    team: {roles: {one: {policy: one}, two: {policy: two}}}\n"
        "    policies: {p: null, one: {model: {init: tabular}}, two: {model: {init: none}, train: none}}\n"
    )
    alone, own = (
        load(files / "split.yaml", scale="apart", overlays=overlays)
        for overlays in ([], [str(files / "own.yaml")])
    )
    assert list(own.config.policies) == ["one", "two"]
    assert own.config.policies["one"].model == alone.config.policies["one"].model
    # A table, or the schema of a trainer that another test loaded.
    assert "tabular" in repr(own.config.policies["one"].model)
    assert list(load(files / "split.yaml", overlays=[str(files / "own.yaml")]).config.policies) == [
        "one",
        "two",
    ]


def test_a_pattern_in_a_scale_sets_what_lower_layers_have_there_and_revives_nothing(files):
    (files / "lower.yaml").write_text(
        "extends: team.yaml\nteam: {roles: {one: {policy: q}, two: {policy: q}}}\npolicies: {p: null}\n"
        "scales: {smoke: {policies: {p: null, q: {model: small, dtype: bfloat16}}}}\n"
    )
    (files / "upper.yaml").write_text(
        "extends: lower.yaml\npolicies: {q: {model: m}}\n"
        'scales: {smoke: {policies: {"*": {dtype: float32}}}}\n'
    )
    assert load(files / "upper.yaml", scale="smoke").config.policies["q"].dtype == "float32"
    assert list(load(files / "upper.yaml", scale="smoke").config.policies) == ["q"]


@pytest.mark.parametrize(
    ("override", "changed", "origin"),
    [
        ("policies.*.dtype=bfloat16", ["policies.one.dtype", "policies.two.dtype"],
         "override policies.*.dtype"),
        ("policies.t*.dtype=bfloat16", ["policies.two.dtype"], "override policies.t*.dtype"),
        ("team.roles.*.show_thoughts=true", [f"team.roles.{role}.show_thoughts" for role in ("one", "two")],
         "override team.roles.*.show_thoughts"),
        ("rewards.*.weights={team: 2}", ["rewards.environment.weights.team"], "override rewards.*.weights"),
        ("trackers.*=null", ["trackers"], None),
    ],
)  # fmt: skip
def test_an_override_with_a_pattern_sets_all_that_it_matches(made, override, changed, origin):
    before, after = dict(flatten(made("own").table)), made("own", overrides=[override])
    table = dict(flatten(after.table))
    assert {path for path in table if table[path] != before.get(path, ...)} == set(changed)
    for path in changed if origin else ():
        assert after.origins[path] == origin


def test_overrides_with_patterns_apply_from_left_to_right(made):
    last = made("own", overrides=["policies.one.dtype=bfloat16", "policies.*.dtype=float32"])
    assert {policy.dtype for policy in last.config.policies.values()} == {"float32"}
    last = made("own", overrides=["policies.*.dtype=float32", "policies.one.dtype=bfloat16"])
    assert last.config.policies["one"].dtype == "bfloat16"


@pytest.mark.parametrize(
    ("override", "path", "why"),
    [
        ("tools.*.limit=3", "tools.*", "tools has no entries"),
        ("tools.*=null", "tools.*", "tools has no entries"),
        ("policies.x*.dtype=float32", "policies.x*", "policies has one, two"),
        ("team.roles.three*.policy=one", "team.roles.three*", "team.roles has one, two"),
    ],
)
def test_a_pattern_that_matches_nothing_is_refused(made, override, path, why):
    with pytest.raises(ConfigError, match="matches nothing") as refused:
        made("own", overrides=[override])
    assert (refused.value.path, refused.value.why) == (path, why)
    with pytest.raises(ConfigError, match="matches nothing"):
        made("no_tools")


def test_a_pattern_where_none_may_stand_is_an_unknown_key(made):
    with pytest.raises(ConfigError, match=r"unknown key '\*'"):
        made(overrides=["schedule.*=3"])


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("extends: quickstart", "extends"),
        ("with: own", "with"),
        ("every_scale: 3", "every_scale"),
        ("schedul: {steps: 3}", "schedul"),
        ("team: 3", "team"),
        ("team: {roles: [one]}", "team.roles"),
    ],
)
def test_a_wrong_overlay_is_refused(files, made, text, path):
    (files / "wrong.yaml").write_text(text)
    with pytest.raises(ConfigError) as refused:
        made("wrong")
    assert refused.value.path.endswith(path)


@pytest.mark.parametrize(
    ("overlays", "message"),
    [
        (["per_rol"], "did you mean 'per_role'?"),
        ("per_role,l3", "did you mean 'l"),
        (["nowhere.yaml"], "no such overlay file"),
        ([3], "names no overlays"),
        ({"per_role": 1}, "names no overlays"),
    ],
)
def test_an_unknown_overlay_is_refused(overlays, message):
    with pytest.raises(ConfigError) as refused:
        load("sudoku_split", overlays=overlays)
    assert message in str(refused.value)


def test_with_needs_extends(files):
    (files / "alone.yaml").write_text(TEAM + "with: [own.yaml]\n")
    with pytest.raises(ConfigError, match="`with` needs `extends`") as refused:
        load(files / "alone.yaml")
    assert refused.value.path == "with"


GPUS = ("gpu_24gb", "gpu_80gb")


@pytest.mark.xdist_group("listed recipes")
def test_per_role_on_a_single_agent_names_its_policy_and_is_not_listed():
    single, per_role = load("sudoku_single"), load("sudoku_single", overlays=["per_role"])
    assert list(per_role.config.policies) == ["solver"]
    assert per_role.config.policies["solver"] == single.config.policies["shared"]
    assert listed()["sudoku_single"].overlays == [*GPUS, "l0", "l1", "l2", "one_gpu", "ray", "sudoku_9x9"]
    assert listed()["sudoku_split"].overlays == [
        *GPUS,
        "l0",
        "l1",
        "l2",
        "one_gpu",
        "per_role",
        "ray",
        "sudoku_9x9",
    ]
    assert listed()["magrpo"].overlays == [*GPUS, "l0", "l1", "l2", "one_gpu", "ray", "shared"]
    assert (listed()["magrpo"].order, listed()["sudoku_tool"].order) == ("planner + executor", "tool > plan")


@pytest.mark.parametrize("overlay", [info.name for info in list_overlays()])
@pytest.mark.parametrize("recipe", ["sudoku_single", "sudoku_tool", "magrpo", "quickstart"])
def test_shipped_overlays_go_over_shipped_recipes(recipe, overlay):
    if overlay == "coach_feedback":
        with pytest.raises(ConfigError, match="'coach\\*' matches nothing"):
            load(recipe, overlays=[overlay])
        recipe = "mathchat_coach"
    check(load(recipe, overlays=[overlay]).config)


SUDOKU = ("sudoku_single", "sudoku_split", "sudoku_tool")


@pytest.mark.parametrize("recipe", SUDOKU)
@pytest.mark.parametrize("scale", [None, "gpu"])
def test_sudoku_is_the_papers_4x4_and_9x9_is_an_overlay(recipe, scale):
    small, large = (load(recipe, scale=scale, overlays=names) for names in ([], ["sudoku_9x9"]))
    assert small.config.env["size"] == 4
    task = compose(large).environment.tasks("test", 0)[0]
    assert (task.payload.size, task.payload.blanks) == (9, 40)
    before, after = (dict(flatten(resolved.table)) for resolved in (small, large))
    differing = {path for path in {*before, *after} if before.get(path) != after.get(path)}
    assert differing - {"summary"} == {"env.size", "env.blanks"}
    for other in ("cpu", "smoke"):
        with pytest.raises(ConfigError, match=f"no scale '{other}'"):
            load(recipe, scale=other, overlays=["sudoku_9x9"])


@pytest.mark.xdist_group("listed recipes")
def test_the_overlay_of_one_game_is_refused_and_not_listed_for_others():
    assert {name for name, info in listed().items() if "sudoku_9x9" in info.overlays} == {*SUDOKU}
    for recipe in ("plan_path_split", "sokoban_single", "quickstart"):
        with pytest.raises(ConfigError, match="unknown key 'blanks'") as refused:
            compose(load(recipe, overlays=["sudoku_9x9"]))
        assert refused.value.path == "env.blanks"


class OtherPlugin:
    """A distribution with a recipe over one of ours, a recipe of its own, and an overlay."""

    def __init__(self, folder):
        self.folder = folder

    @hookimpl
    def register_recipes(self, register):
        register("other_longer", str(self.folder / "longer_base.yaml"))
        register("other_team", str(self.folder / "team.yaml"))

    @hookimpl
    def register_overlays(self, register):
        register("other_own", str(self.folder / "own.yaml"))
        register("other_planner", str(self.folder / "planner.yaml"))
        register("l0", str(self.folder / "own.yaml"))


@pytest.fixture
def other_plugin(files):
    text = "extends: sudoku_split\nwith: [per_role, l1]\nschedule: {steps: 4}\n"
    (files / "longer_base.yaml").write_text(text)
    (files / "planner.yaml").write_text("summary: S.\nteam: {roles: {planner: {show_thoughts: true}}}\n")
    plugins.cache_clear()  # what is registered here is of this test alone
    report = Report("other", "other", "1")
    plugins().add(OtherPlugin(files), report)
    yield report
    plugins.cache_clear()


def test_recipes_and_overlays_of_plugins_compose_with_ours(other_plugin):
    resolved = load("other_longer", overlays=["one_gpu"], scale="small")
    assert list(resolved.config.policies) == ["planner", "executor"] and resolved.config.schedule.steps == 4
    assert resolved.origins["policies.planner.model"] == "scale small"
    assert load("other_team", overlays=["other_own", "other:l0"]).name == "other_team_other_own_l0"
    assert "l0' of other is already registered by coterie" in other_plugin.errors[0]
    fitting = {info.name: info.overlays for info in recipes(details=True)}
    assert fitting["other_team"] == ["other_own", "per_role", "ray"], "trainer none trains nothing"
    assert "other_planner" in fitting["sudoku_split"]
    assert "other_planner" not in fitting["sudoku_tool"], "the team has no planner"


def test_a_plugins_missing_files_leave_the_other_recipes_listed(other_plugin, caplog):
    plugins().registry.add("overlay", "gone", "/no/such/overlay.yaml", "other")
    plugins().registry.add("recipe", "lost", "/no/such/recipe.yaml", "other")
    with caplog.at_level(logging.WARNING, "coterie"):
        overlays = {info.name for info in list_overlays()}
    assert "per_role" in overlays and "gone" not in overlays
    assert "overlay 'gone' of other is left out" in caplog.text
    for details in (False, True):
        listed = {info.name: info for info in recipes(details=details)}
        assert "/no/such/recipe.yaml" in listed["lost"].error and not listed["sudoku_split"].error
