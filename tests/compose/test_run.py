"""Components from tables: nested ones, shared ones, and classes that break their protocol."""

from __future__ import annotations

import json
from typing import Annotated

import pytest

from coterie import Composed, Plugin, PluginConfig, PolicyConfig, Task, TreeSampler
from coterie.backends.trainers.none import NoTrainer
from coterie.compose import compose
from coterie.core.errors import ConfigError, PluginError
from coterie.core.protocols import RewardSource
from coterie.core.rollout.rewards import branch_rewards
from coterie.recipes import load
from coterie.testing import coterie_run, play_episode
from coterie.testing.support.toys import NumberGame


class Twice(Plugin):
    """A reward source that doubles the scores of another."""

    class Config(PluginConfig):
        inner: Annotated[RewardSource, Composed("reward")]

    scope = "joint"
    components = {"doubled": "increment"}
    weights = {}
    policy_fault = 0.0

    async def score(self, view):
        scores = await self.config.inner.score(view)
        return {("team", "doubled"): 2 * sum(scores.values())}


class Dice(NumberGame):
    """A game of somebody else's, whose gain can be had again and again."""

    not_summable = ("sum",)


SUMMED = {"algorithm": {"type": "magrpo"}, "sampler": {"branches": 2, "expand": "all"}}


def test_a_component_that_may_not_be_summed_is_told_of_the_environment_at_hand():
    with pytest.raises(ConfigError, match="'sum' can't be summed over turns") as caught:
        coterie_run(env={"type": f"{__name__}:Dice"}, order=["one"], **SUMMED)
    assert f"environment '{__name__}:Dice' of tests lists it in `not_summable`" in caught.value.why
    assert "plan_path" not in str(caught.value) and "env.team" not in str(caught.value)
    assert "at_grpo" in caught.value.fix and "weight 0" in caught.value.fix
    with pytest.raises(ConfigError, match="environment 'sokoban' of coterie") as caught:
        roles = {"solver": {"type": "sokoban_solver"}}
        coterie_run(env={"type": "sokoban"}, order=["solver"], roles=roles, **SUMMED)
    assert "env.team=potential" in caught.value.fix


class Planless(TreeSampler):
    """A sampler whose plan is none."""

    plan = None


class Unplanned(TreeSampler):
    @property
    def plan(self):
        raise KeyError("branches")


def test_a_samplers_plan_that_is_none_or_raises_names_the_sampler():
    for sampler in ("Planless", "Unplanned"):
        with pytest.raises((PluginError, KeyError)) as caught:
            coterie_run(order=["one"], sampler={"type": f"{__name__}:{sampler}"})
        told = " ".join([str(caught.value), *getattr(caught.value, "__notes__", ())])
        assert f"sampler '{__name__}:{sampler}' of tests: plan" in told


class Urn(PolicyConfig):
    def check(self, path, run):
        raise KeyError("urn")


class UrnTrainer(NoTrainer):
    Policy = Urn


def test_a_policys_check_that_raises_names_its_class():
    with pytest.raises(KeyError) as caught:
        coterie_run(order=["one"], trainer={"type": f"{__name__}:UrnTrainer"})
    assert any("check" in note and "tests" in note for note in caught.value.__notes__), caught.value.__notes__


def always_one(view):
    return 1.0


class Mute(Plugin):
    """A role that can't parse."""

    def render(self, role_input):
        return [{"role": "user", "content": "hello"}]


def twice(inner):
    return {"r": {"type": "tests.compose.test_run:Twice", "inner": inner}}


INNER = {"type": "function", "function": "tests.compose.test_run:always_one"}


def test_a_field_annotated_with_a_kind_is_composed():
    run = coterie_run(rewards=twice(INNER), order=["one"])
    trees, scores = play_episode(run)
    assert branch_rewards(trees[0].root, "one", scores, run.reward_weights) == [2.0, 2.0, 2.0]


@pytest.mark.parametrize(
    ("inner", "path"),
    [
        ({**INNER, "functoin": "x"}, "rewards.r.inner.functoin"),
        ({"type": "functoin"}, "rewards.r.inner.type"),
        ({"function": "x"}, "rewards.r.inner.type"),
    ],
)
def test_an_error_in_a_nested_table_names_its_path(inner, path):
    with pytest.raises((ConfigError, PluginError)) as error:
        coterie_run(rewards=twice(inner))
    assert error.value.path == path


def test_a_top_level_table_is_used_by_the_component_with_its_field(tmp_path):
    rows = [{"question": f"{n} + 1", "answer": str(n + 1)} for n in range(40)]
    (tmp_path / "sums.jsonl").write_text("\n".join(map(json.dumps, rows)))
    config = {
        "env": {"type": "team_task", "success": {"role": "solver", "match": "exact"}},
        "data": {"type": "jsonl", "path": str(tmp_path / "sums.jsonl"), "val_share": 0.2, "test_share": 0.2},
        "team": {
            "order": ["solver"],
            "roles": {"solver": {"type": "template", "prompt": "{{ question }} =", "policy": "p"}},
        },
        "policies": {"p": {"model": {"init": "none"}, "train": "none"}},
        "sampler": {"branches": 2},
        "algorithm": "at_grpo",
        "engine": {"type": "scripted", "play": "tests.compose.test_run:adds"},
        "trainer": "none",
        "schedule": {"steps": 1, "tasks_per_step": 4},
    }
    trees, _ = play_episode(compose(load(config)), tasks=4)
    assert [leaf.outcome["success"] for tree in trees for _, leaf in tree.leaves()] == [1.0] * 4


def adds(request, text):
    return str(int(text.split()[0]) + 1)


def test_a_class_that_lacks_a_method_of_its_kind_is_refused_by_name():
    roles = {"one": {"type": "tests.compose.test_run:Mute", "policy": "p"}}
    with pytest.raises(PluginError, match="lacks parse") as error:
        coterie_run(order=["one"], team={"order": ["one"], "roles": roles})
    assert error.value.path == "team.roles.one.type"


def test_a_type_that_is_no_class_is_refused():
    with pytest.raises(PluginError, match="is no class"):
        coterie_run(rewards={"r": {"type": "tests.compose.test_run:always_one"}})


@pytest.mark.parametrize("weights", [{"sum": 0.0, "own": 0.0, "best": 1.0}, {"best": 1.0}])
def test_a_threshold_warns_of_increments_that_a_stopped_episode_forgoes(weights, caplog):
    coterie_run(
        order=[["one", "two"]],
        sampler={"expand": "all"},
        algorithm={"type": "magrpo", "termination_threshold": 0.5},
        rewards={"environment": {"type": "environment", "weights": weights}},
    )
    assert ("forgoes what 'own', 'sum' would pay" in caplog.text) == ("sum" not in weights)


TABULAR = {
    "policies": {"p": {"model": {"init": "tabular"}}},
    "engine": {"type": "tabular"},
    "sampler": {"branches": 3, "sampling": {"max_new_tokens": 2}},
}


@pytest.mark.parametrize(
    ("trainer", "one"),
    [({"minibatch_size": 4}, "null"), ({"epochs": 2}, "1"), ({"epochs": 3, "minibatch_size": 4}, "1")],
)
def test_a_loss_without_a_ratio_takes_one_optimiser_step_an_update(trainer, one):
    """From the second step on its gradient is that of a policy that is gone."""
    tables = TABULAR | {"trainer": {"type": "tabular", **trainer}}
    with pytest.raises(ConfigError, match="one optimiser step an update") as error:
        coterie_run(loss={"type": "reinforce"}, **tables)
    key = "epochs" if "epochs" in trainer else "minibatch_size"
    assert error.value.path == f"trainer.{key}" and f"trainer.{key}={one}" in error.value.fix
    for loss in ("ppo_clip", "gspo", "cispo", {"type": "reinforce", "correction": {"cap": 2.0}}):
        coterie_run(loss=loss if isinstance(loss, dict) else {"type": loss}, **tables)
    coterie_run(loss={"type": "reinforce"}, **TABULAR, trainer={"type": "tabular"})


def test_the_torch_trainer_is_asked_too():
    trainer = {"type": "torch", "minibatch_size": 8}
    with pytest.raises(ConfigError, match="minibatch_size=8 makes several"):
        load_and_compose("plan_path", ["loss={type: reinforce}"], trainer)


def load_and_compose(recipe, overrides, trainer):
    return compose(load(recipe, overrides=[*overrides, f"trainer={json.dumps(trainer)}"], scale="smoke"))


@pytest.mark.parametrize("recipe", ["magrpo", "magrpo_v1"])
@pytest.mark.parametrize("scale", ["gpu", "cpu", "smoke", None])
def test_the_recipes_with_such_a_loss_take_one(recipe, scale):
    table = load(recipe, scale=scale).table
    assert table["loss"]["type"] == "reinforce" and table["trainer"]["minibatch_size"] is None
    assert table["trainer"].get("epochs", 1) == 1


@pytest.mark.parametrize("weight", [float("inf"), float("nan"), True, "1"])
def test_a_weight_is_a_finite_number(weight):
    with pytest.raises(ConfigError, match="a weight is a finite number") as error:
        coterie_run(rewards={"environment": {"type": "environment", "weights": {"sum": weight}}})
    assert error.value.path == "rewards.environment.weights.sum"


class Numbers(NumberGame):
    """A game whose `tasks` returns what a table says."""

    class Config(NumberGame.Config):
        returned: str = "integers"

    def tasks(self, split, seed):
        return {
            "integers": [1, 2],
            "twice": [Task(id=name) for name in ("a", "b", "a")],
            "empty": [],
            "generator": (Task(id=str(number)) for number in range(2)),
            "none": None,
            "lazy": Lazy([Task(id="same")] * 9),
            "one": [Task(id="a")],
            "other": (Task(id="b"),),
        }[self.config.returned]


class Lazy:
    """A source that makes its tasks when it is asked."""

    def __init__(self, tasks):
        self.tasks = tasks

    def __len__(self):
        return len(self.tasks)

    def __getitem__(self, index):
        return self.tasks[index]


async def later():
    """What nothing awaits."""


class AsyncTasks(NumberGame):
    def tasks(self, split, seed):
        return later()


@pytest.mark.parametrize(
    ("returned", "texts"),
    [
        ("integers", ("tasks returned 1", "coterie.Task")),
        ("twice", ("tasks returned 'a'", "another id")),
        ("lazy", ("tasks returned 'same'", "another id")),
        ("empty", ("split has no tasks", "tasks returned none")),
        ("generator", ("tasks returned <generator", "a list of coterie.Task")),
        ("none", ("tasks returned None", "a list of coterie.Task")),
    ],
)
@pytest.mark.parametrize("split", ["train", "val"])
def test_tasks_that_can_not_be_played_are_told_of_the_environment_before_anything_is_loaded(
    split, returned, texts
):
    run = coterie_run(env={"type": f"{__name__}:Numbers", "returned": returned}, order=["one"])
    with pytest.raises((PluginError, ConfigError)) as caught:
        compose(run.resolved, [split])
    message = str(caught.value)
    assert all(text in message for text in (f"environment '{__name__}:Numbers' of tests", *texts)), message


@pytest.mark.filterwarnings("error")
def test_tasks_gives_nothing_to_await():
    run = coterie_run(env={"type": f"{__name__}:AsyncTasks"}, order=["one"])
    with pytest.raises(PluginError, match="`tasks` isn't `async def`"):
        compose(run.resolved, ["train"])


def test_a_single_task_and_levels_of_a_curriculum_pass_and_a_levels_tasks_are_checked():
    one = coterie_run(env={"type": f"{__name__}:Numbers", "returned": "one"}, order=["one"])
    compose(one.resolved, ["train", "val"])
    for values in (["one", "other"], ["one", "twice"]):
        curriculum = {"field": "returned", "values": values, "promote_at": 0.5}
        env = {"type": f"{__name__}:Numbers", "returned": "one", "curriculum": curriculum}
        run = coterie_run(env=env, order=["one"])
        if "twice" in values:
            with pytest.raises(PluginError, match="tasks returned 'a'"):
                compose(run.resolved, ["train"])
        else:
            compose(run.resolved, ["train"])


class NumbersForWords(NumberGame):
    def vocabulary(self):
        return (number for number in range(3))


class NoWords(NumberGame):
    def vocabulary(self):
        return None


class TextForWords(NumberGame):
    def vocabulary(self):
        return "0123"


@pytest.mark.parametrize("name", ["NoWords", "TextForWords"])
def test_a_vocabulary_that_is_no_list_names_the_environment(name):
    with pytest.raises(PluginError, match=f"{name}' of tests: vocabulary returned "):
        coterie_run(env={"type": f"{__name__}:{name}"}, order=["one"])


class BreakingWords(NumberGame):
    def vocabulary(self):
        yield "1"
        raise KeyError("words")


def test_a_vocabulary_that_breaks_half_way_names_the_environment():
    with pytest.raises(KeyError) as caught:
        coterie_run(env={"type": f"{__name__}:BreakingWords"}, order=["one"])
    assert any("BreakingWords' of tests: vocabulary" in note for note in caught.value.__notes__)


def test_a_vocabulary_of_no_words_names_the_environment_before_the_engine_is_made():
    with pytest.raises(PluginError, match="vocabulary returned 0") as caught:
        coterie_run(env={"type": f"{__name__}:NumbersForWords"}, order=["one"])
    assert f"env: environment '{__name__}:NumbersForWords' of tests" in str(caught.value)


@pytest.mark.parametrize("name", ["a/b", "../up", "", ".x", "a b", "x" * 101])
def test_a_tracker_has_a_name_that_a_file_may_have(name):
    overrides = [f"trackers={json.dumps({name: {'type': 'jsonl'}})}"]
    with pytest.raises(ConfigError, match="a tracker can't be named") as refused:
        compose(load("tests/recipes/tabular.yaml", overrides=overrides))
    assert refused.value.path == "trackers"


def test_two_trackers_whose_names_end_alike_are_two():
    named = {name: {"type": "jsonl"} for name in ("a.x", "b.x", "9", "a-b_c")}
    composed = compose(load("tests/recipes/tabular.yaml", overrides=[f"trackers={json.dumps(named)}"]))
    assert [*composed.trackers] == [*named]


class Shares(Plugin):
    scope = "action"
    components = {"share": "increment"}
    weights = {"share": 1.0}
    policy_fault = 0.0

    async def score(self, view):
        return {(view.role, "share"): 0.0}


def test_a_component_named_share_would_hide_the_share_of_missing_scores():
    rewards = {"environment": {"type": "environment"}, "mine": {"type": f"{__name__}:Shares"}}
    with pytest.raises(ConfigError, match="can't be named 'share'") as refused:
        compose(load("tests/recipes/tabular.yaml", overrides=[f"rewards={json.dumps(rewards)}"]))
    assert refused.value.path == "rewards.mine"
