"""What a plugin's method returned: the right passes, the wrong is refused by name."""

from __future__ import annotations

import asyncio
from fractions import Fraction
from types import MappingProxyType

import numpy as np
import pytest

from coterie import TEAM, Step, Task
from coterie.core.errors import PluginError
from coterie.core.plugins.origin import Origin, record_origin
from coterie.core.protocols import Rollout, RolloutJob
from coterie.core.rollout import contracts
from coterie.core.types import Credit, Key, Tree
from coterie.plugins.samplers.expansion import check_outcome
from coterie.testing import Forest, J


class Game:
    components = {"right": "increment"}


@pytest.fixture
def game():
    plugin = Game()
    record_origin(plugin, Origin("environment", "toy", "coterie-toys", "env"))
    return plugin


MESSAGE = {"role": "user", "content": "go"}
RIGHT = {(TEAM, "right"): 1.0}
ROLES = ("one", "two")


@pytest.mark.parametrize(
    ("check", "returned"),
    [
        (contracts.check_messages, [MESSAGE]),
        (contracts.check_messages, (MESSAGE, {**MESSAGE, "name": "extra"})),
        (contracts.check_feedback, ()),
        (contracts.check_feedback, ["a sentence"]),
        (contracts.check_step, Step(state=1)),
        (contracts.check_step, Step(state=1, scores={**RIGHT, ("one", "right"): None})),
        (contracts.check_step, Step(state=1, scores=MappingProxyType({(TEAM, "right"): np.float32(1)}))),
        (contracts.check_source, RIGHT),
        (contracts.check_source, {(TEAM, "right"): float("nan")}),  # missing, not a broken contract
        (contracts.check_source, {(TEAM, "right"): Fraction(1, 2)}),
        (contracts.check_source, {(TEAM, "right"): np.array(0.9), ("one", "right"): True}),
        (contracts.check_source, {(TEAM, "right"): float("inf")}),  # missing too
        (check_outcome, {"success": 1, "length": -3.5}),
        (check_outcome, {"success": np.float64(0.5)}),
        (check_outcome, {"success": True}),
    ],
)
def test_what_the_contract_allows_passes(game, check, returned):
    check(game, returned)


@pytest.mark.parametrize(
    ("check", "returned", "texts"),
    [
        (contracts.check_messages, "go", ("render returned 'go'", "fix: return a list")),
        (contracts.check_messages, None, ("render returned None",)),
        (contracts.check_messages, ["go"], ("render returned 'go'", "fix: a message is")),
        (contracts.check_messages, [{"role": "user"}], ("render",)),
        (contracts.check_messages, [{"role": "user", "content": 3}], ("'content': 3",)),
        (contracts.check_feedback, "a sentence", ("tell returned 'a sentence'", "[sentence]")),
        (contracts.check_feedback, [None], ("tell returned None",)),
        (contracts.check_step, (1, {}), ("step returned (1, {})", "coterie.Step")),
        (contracts.check_step, Step(state=1, scores={"right": 1.0}), ("step returned 'right'", "component)")),
        (contracts.check_step, Step(state=1, scores={(TEAM, "rihgt"): 1.0}), ("did you mean 'right'?",)),
        (contracts.check_step, Step(state=1, scores={(TEAM, "right"): "1"}), ("returned '1'", "a number")),
        (contracts.check_step, Step(state=1, scores=[1.0]), ("returned [1.0]",)),
        (contracts.check_source, 1.0, ("score returned 1.0",)),
        (contracts.check_source, {(TEAM, "right"): "0.9"}, ("score returned '0.9'", "'right' is a number")),
        (contracts.check_source, {(TEAM, "right"): [0.9]}, ("score returned [0.9]",)),
        (contracts.check_source, {(TEAM, "right"): np.ones(2)}, ("score returned array([1., 1.])",)),
        (contracts.check_source, {(TEAM, "right"): 10**400}, ("score returned 1000", "'right' is a number")),
        (contracts.check_step, Step(state=1, scores={(TEAM, "right"): np.ones(2)}), ("step returned array",)),
        (check_outcome, {"success": np.ones(2)}, ("outcome returned array", "from 0 to 1")),
        (check_outcome, {"success": 1, "length": np.ones(2)}, ("`length`", "is a number")),
        (contracts.check_source, {("one", "else"): 1.0}, ("'else'", "`components`")),
        (check_outcome, {"solved": 1.0}, ("outcome returned {'solved': 1.0}", "success")),
        (check_outcome, None, ("outcome returned None",)),
        (check_outcome, {"success": 2}, ("outcome returned 2", "from 0 to 1")),
        (check_outcome, {"success": float("nan")}, ("from 0 to 1",)),
        (check_outcome, {"success": "yes"}, ("returned 'yes'",)),
        (check_outcome, {"success": 1, "length": None}, ("`length`", "is a number")),
    ],
)
def test_what_breaks_the_contract_is_refused_by_name(game, check, returned, texts):
    with pytest.raises(PluginError) as caught:
        check(game, returned)
    message = str(caught.value)
    assert message.startswith("env: environment 'toy' of coterie-toys: ")
    assert all(text in message for text in (*texts, "fix: ")), message


@pytest.mark.parametrize("roles", [None, (), ("one",), ("two", "one")])
def test_roles_of_the_team_may_act(game, roles):
    contracts.check_acting(game, roles, ROLES)


@pytest.mark.parametrize(
    ("roles", "text"),
    [
        ("one", "return a tuple"),
        ([], "return a tuple"),  # `== ()` is how the end of an episode is read
        (("onne",), "did you mean 'one'?"),
        (("one", "one"), "once"),
    ],
)
def test_other_roles_may_not(game, roles, text):
    with pytest.raises(PluginError, match="acting_roles returned") as caught:
        contracts.check_acting(game, roles, ROLES)
    assert text in str(caught.value)


@pytest.mark.parametrize("returned", [RIGHT, [RIGHT], [RIGHT, RIGHT, RIGHT], [RIGHT, 1.0]])
def test_siblings_get_a_list_with_a_table_for_each_branch(game, returned):
    contracts.check_source(game, [RIGHT, {}], tables=2)
    with pytest.raises(PluginError, match="score returned"):
        contracts.check_source(game, returned, tables=2)


TREES = [Forest(order=(("one",),), logprobs={"0:one0": (-0.5, -0.5)}).grow([J(), J()], task="t").trees[0]]
KEY = TREES[0].root.key.of_branch("one", 0)
"""Of a branch with two sampled tokens."""


@pytest.mark.parametrize("returned", [
    None, Credit(advantage={}), ({}, None), (Credit(advantage={KEY: float("nan")}), None),
    (Credit(advantage={KEY: np.array([1.0, np.inf])}), None), (Credit(advantage={KEY: "1"}), None),
    (Credit(advantage={"t": 1.0}), None), (Credit(advantage=[KEY]), None),
    (Credit(advantage={KEY: 1.0}), {"mean": object()}),
    (Credit(advantage={}, target={KEY: np.array([np.nan])}), None),
    (Credit(advantage={}, metrics={"mean": "0.9"}), None),
    (Credit(advantage={}, metrics={"mean": np.ones(2)}), None),
    (Credit(advantage={KEY: np.ones(1)}), None), (Credit(advantage={KEY: np.ones(99)}), None),
    (Credit(advantage={KEY: np.ones((2, 1))}), None),
    (Credit(advantage={KEY: 1.0}, weight={KEY: -1.0}), None),
    (Credit(advantage={KEY: 1.0}, weight={KEY: float("inf")}), None),
    (Credit(advantage={KEY: 1.0}, weight={KEY: np.ones(2)}), None),
    (Credit(advantage={KEY: 1.0}, target={KEY: 0.5}), None),
    (Credit(advantage={KEY._replace(branch=7): 1.0}), None),
    (Credit(advantage={KEY.node: 1.0}), None),
    (Credit(advantage={KEY: 1.0}, weight={Key("u").of_branch("one", 0): 1.0}), None),
    (Credit(advantage={KEY: 1.0}, returns={KEY: "1"}), None),
    (Credit(advantage={KEY: 1.0}, returns={"t": 1.0}), None),
    (Credit(advantage={KEY: 1.0}, returns={KEY: float("nan")}), None),
], ids=[str(number) for number in range(25)])  # fmt: skip
def test_credit_that_can_not_be_trained_on_is_refused(game, returned):
    with pytest.raises(PluginError, match="environment 'toy' of coterie-toys: __call__ returned"):
        contracts.check_credit(game, returned, TREES)


def test_the_next_state_is_the_one_that_a_checkpoint_gives_back(game):
    for returns in ({KEY: 1.0}, {KEY: np.ones(2)}):
        returned = Credit(advantage={KEY: 1.0}, returns=returns), {1: (2, 3)}
        assert contracts.check_credit(game, returned, TREES) == {"1": [2, 3]}


def test_a_wrong_shape_is_refused_with_the_number_of_sampled_tokens(game):
    with pytest.raises(PluginError, match=r"(?s)t/e0/c0/n/one/b0.*each of the branch's 2 sampled tokens"):
        contracts.check_credit(game, (Credit(advantage={KEY: np.ones(3)}), None), TREES)


@pytest.mark.parametrize(
    "name",
    ["step", "", "success", "success_committed", "eval/success", "policy/x/loss", "time/step", "tokens/total",
     "curriculum/level", "reward/planner", "prompts/truncated"],
)  # fmt: skip
def test_metrics_under_the_frameworks_names_are_refused_by_the_plugins_name(game, name):
    with pytest.raises(
        PluginError, match=f"(?s)environment 'toy' of coterie-toys: .*'{name}'.*begin its name"
    ):
        contracts.check_credit(game, (Credit(advantage={}, metrics={name: 36.0}), None), TREES)
    contracts.check_credit(game, (Credit(advantage={}, metrics={f"toy/{name}": 36.0}), None), TREES)


def test_sound_credit_passes(game):
    other = KEY._replace(branch=1)
    tokens = sum(len(call.token_ids) for call in TREES[0].root.decisions["one"].branches[1].calls)
    credit = Credit(
        advantage={KEY: 1.0, other: np.ones(tokens)}, weight={KEY: 0.0}, target={KEY: np.zeros(2)}
    )
    contracts.check_credit(game, (credit, {"mean": [0.5]}), TREES)
    contracts.check_credit(game, (Credit(advantage={}, metrics={"mean": float("nan")}), None), TREES)


def test_an_executor_returns_the_rollout_of_its_job(game):
    job = RolloutJob(task=Task(id="a"), epoch=1, chain=2)

    loop = asyncio.new_event_loop()
    future = loop.create_future()
    loop.close()

    def rollout(name, epoch=1, chain=2):
        return Rollout(Tree(task=Task(id=name), chain=chain, epoch=epoch, root=None), future)

    right = rollout("a")
    assert contracts.check_rollout(game, job, right) is right
    others = [rollout("b"), rollout("a", epoch=0), rollout("a", chain=0)]
    others += [Rollout(None, right.scored), Rollout(right.tree, None)]
    for wrong in (None, 3, [right], right.tree, *others):
        with pytest.raises(PluginError, match="play returned"):
            contracts.check_rollout(game, job, wrong)
