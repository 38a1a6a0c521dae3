"""Reward sources that pass on the environment's scores, or ask a function of the user's."""

from __future__ import annotations

import math
from types import SimpleNamespace

import numpy as np
import pytest

from coterie import Plugin
from coterie.core.errors import ConfigError, PluginError, PolicyFault
from coterie.core.protocols import ActionView, JointView, SiblingsView
from coterie.core.types import TEAM, Action, Task
from coterie.plugins.rewards.environment import EnvironmentReward
from coterie.plugins.rewards.function import FunctionReward
from coterie.testing import coterie_run
from tests.plugins.support import Build, make, wait

TASK = Task(id="t")
ENVIRONMENT = SimpleNamespace(components={"sum": "increment", "best": "potential"}, weights={"best": 0.5})


def joint(emitted=None):
    return JointView(
        task=TASK,
        turn=0,
        actions={},
        state=None,
        after=None,
        emitted=emitted or {},
        info={},
        terminated=False,
    )


def one_action(text="x"):
    return ActionView(
        task=TASK,
        turn=0,
        role="solver",
        observation=None,
        messages=(),
        state=None,
        action=Action(calls=(), text=text),
    )


def siblings(count=2):
    return SiblingsView(
        task=TASK,
        turn=0,
        role="solver",
        observation=None,
        actions=tuple(Action(calls=(), text=str(i)) for i in range(count)),
    )


def source(function, **settings):
    return make(FunctionReward, Build(name="mine", path="rewards.mine"), function=function, **settings)


def test_the_environments_scores_are_passed_on_with_its_weights():
    reward = make(EnvironmentReward, Build(path="rewards.environment", environment=ENVIRONMENT), floor=-1)
    assert (reward.scope, reward.components, reward.weights, reward.policy_fault) == (
        "joint",
        ENVIRONMENT.components,
        {"best": 0.5},
        -1.0,
    )
    emitted = {(TEAM, "sum"): 1.0, ("solver", "best"): None}
    assert wait(reward.score(joint(emitted))) == emitted


def test_a_score_that_the_environment_does_not_declare_is_an_error():
    reward = make(EnvironmentReward, Build(path="rewards.environment", environment=ENVIRONMENT))
    with pytest.raises(PluginError, match="'bonus'"):
        wait(reward.score(joint({(TEAM, "bonus"): 1.0})))


async def later(view):
    return 0.25


@pytest.mark.parametrize(
    ("answer", "settings", "view", "table"),
    [
        (0.5, {}, joint(), {(TEAM, "mine"): 0.5}),
        (True, {}, joint(), {(TEAM, "mine"): 1.0}),
        (None, {}, joint(), {(TEAM, "mine"): None}),
        (0.5, {"scope": "action"}, one_action(), {("solver", "mine"): 0.5}),
        (
            [0.0, None],
            {"scope": "siblings"},
            siblings(),
            [{("solver", "mine"): 0.0}, {("solver", "mine"): None}],
        ),
        ({"mine": 1}, {}, joint(), {(TEAM, "mine"): 1.0}),
        ({"solver.mine": 1}, {}, joint(), {("solver", "mine"): 1.0}),
        (
            {("solver", "style"): 1, "right": None},
            {"components": {"style": "potential", "right": "increment"}},
            joint(),
            {("solver", "style"): 1.0, (TEAM, "right"): None},
        ),
    ],
)
def test_what_a_function_may_return(answer, settings, view, table):
    assert wait(source(lambda seen: answer, **settings).score(view)) == table


def test_a_function_may_be_a_coroutine_and_is_given_the_view():
    assert wait(source(later).score(joint())) == {(TEAM, "mine"): 0.25}
    assert wait(source(lambda view: len(view.action.text), scope="action").score(one_action("abc"))) == {
        ("solver", "mine"): 3.0
    }


@pytest.mark.parametrize(
    ("answer", "settings", "view", "message"),
    [
        ("good", {}, joint(), "a score must be a number or None"),
        ("0.9", {}, joint(), "a score must be a number or None"),
        ({"mine": "0.9"}, {}, joint(), "a score must be a number or None"),
        (np.ones(2), {}, joint(), "a score must be a number or None"),
        ({"mine": 10**400}, {}, joint(), "a score must be a number or None"),
        ({"mine": 1.0, "team.mine": 2.0}, {}, joint(), "it scores team.mine twice"),
        ({"mine": 1.0, ("solver", "mine"): 2.0}, {"scope": "action"}, one_action("a"), "solver.mine twice"),
        ({3: 1.0}, {}, joint(), "a name, `role.name` or \\(role, name\\)"),
        ({("solver", "mine", "x"): 1.0}, {}, joint(), "a name, `role.name` or \\(role, name\\)"),
        (0.9, {"scope": "siblings"}, siblings(), "a list of 2 scores"),
        ({"their": 1}, {}, joint(), "not among its components"),
        (1.0, {"components": {"a": "potential", "b": "potential"}}, joint(), "return a table"),
        ([1.0], {"scope": "siblings"}, siblings(), "a list of 2 scores"),
        ({"mine": 1.0}, {"scope": "siblings"}, siblings(), "a list of 2 scores"),
    ],
)
def test_what_a_function_may_not_return(answer, settings, view, message):
    with pytest.raises(PluginError, match=message) as caught:
        wait(source(lambda seen: answer, **settings).score(view))
    assert caught.value.path == "rewards.mine.function"


def test_faults_pass_through_and_the_floor_is_the_users():
    def blames(view):
        raise PolicyFault("it hung")

    reward = source(blames, floor=-0.5, scope="episode")
    assert (
        reward.policy_fault == -0.5
        and reward.scope == "episode"
        and reward.components == {"mine": "increment"}
    )
    with pytest.raises(PolicyFault):
        wait(reward.score(joint()))


@pytest.mark.parametrize("floor", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize(
    "table", [{"type": "environment"}, {"type": "function", "function": f"{__name__}:later"}]
)
def test_a_floor_is_a_finite_number(table, floor):
    with pytest.raises(ConfigError, match="finite number") as caught:
        coterie_run(rewards={"mine": {**table, "floor": floor}})
    assert caught.value.path == "rewards.mine.floor"


@pytest.mark.parametrize("floor", [math.nan, math.inf])
def test_a_floor_of_a_class_is_a_finite_number(floor, monkeypatch):
    monkeypatch.setattr(Infinite, "policy_fault", floor)
    with pytest.raises(PluginError, match="`policy_fault` is") as caught:
        coterie_run(rewards={"mine": {"type": f"{__name__}:Infinite"}})
    assert caught.value.path == "rewards.mine"


class Infinite(Plugin):
    scope = "joint"
    components = {"r": "increment"}
    weights = {}
    policy_fault = 0.0

    async def score(self, view):
        return {}


def test_a_number_that_is_none_is_left_for_the_core_to_call_missing():
    (value,) = wait(source(lambda view: float("nan")).score(joint())).values()
    assert math.isnan(value)


def test_functions_of_the_working_folder_are_found(tmp_path, monkeypatch):
    (tmp_path / "own_reward_module.py").write_text("def score(view):\n    return 1.0\n")
    (tmp_path / "own_broken_module.py").write_text("import not_there_at_all\n")
    monkeypatch.chdir(tmp_path)
    assert wait(source("own_reward_module:score").score(joint())) == {(TEAM, "mine"): 1.0}
    for reference, message in (
        ("own_reward_module:scor", "did you mean 'score'"),
        ("own_broken_module:f", "not_there_at_all"),
        ("nonsense", "module:function"),
        ("math:pi", "is a float, not a function"),
    ):
        with pytest.raises(ConfigError, match=message) as caught:
            source(reference)
        assert caught.value.path == "rewards.mine.function"
