"""The kit's fixtures: a small run, its trees and scores, engines that answer, and trees as literals."""

from __future__ import annotations

import asyncio
import pickle
from functools import partial
from types import SimpleNamespace

import pytest

from coterie import testing
from coterie.core.errors import UserError
from coterie.core.protocols import Batch
from coterie.core.types import TEAM, Key, RewardWeights
from coterie.testing import J, build
from coterie.testing.support.trees import chain, places


def texts(trees):
    """Texts of all branches by role, in the order of the trees."""
    found: dict[str, list[str]] = {}
    for tree in trees:
        for node in tree.nodes():
            for role, decision in node.decisions.items():
                found.setdefault(role, []).extend(branch.text for branch in decision.branches)
    return found


def test_the_fixtures_are_the_functions_of_the_kit(
    coterie_build, coterie_run, play_episode, scripted_engine, tree_literals
):
    assert coterie_build is testing.build and coterie_run is testing.coterie_run
    assert play_episode is testing.play_episode and scripted_engine is testing.scripted_engine
    assert tree_literals is testing.tree_literals


# ---- runs


def test_by_default_branch_b_writes_b_and_the_best_is_committed(coterie_run, play_episode):
    trees, scores = play_episode(coterie_run(), tasks=2)
    assert texts(trees) == {"one": ["0", "1", "2"] * 2, "two": ["0", "1", "2"] * 2}
    for tree in trees:
        assert [node.expanded for node in tree.nodes()] == [(2,), (2,)]
        assert [scores.at(tree.root.key.of_joint(i))[TEAM, "sum"].value for i in range(3)] == [0.0, 1.0, 2.0]


def test_a_run_may_be_played_again_and_draws_what_it_drew(coterie_run, play_episode):
    run = coterie_run(sampler={"expand": "sampled"})
    first, again = (play_episode(run, 8)[0] for _ in range(2))
    assert first == again == play_episode(coterie_run(sampler={"expand": "sampled"}), 8)[0]
    assert len({tree.root.expanded for tree in first}) > 1


def test_tables_replace_the_default_or_are_laid_over_it(coterie_run):
    run = coterie_run(
        env={"tasks": 3},
        order=["writer", ["critic", "editor"]],
        roles={"critic": {"remembers": True}},
        max_turns=2,
        sampler={"expand": "sampled"},
        team={"max_tool_turns": 1},
        policies={"p": {"model": {"init": "tabular"}}},
        engine="tabular",
        trainer={"type": "tabular"},
        schedule={"tasks_per_step": 1},
    )
    assert run.team.order == (("writer",), ("critic", "editor")) and run.config.team.max_turns == 2
    assert (run.sampler.plan.expand, run.sampler.plan.branches) == ("sampled", 3)
    assert run.config.schedule.steps == 1 and len(run.environment.tasks("train", 0)) == 3
    assert run.team.members["critic"].role.remembers and not run.team.members["editor"].role.remembers
    assert type(run.engine).__name__ == "TabularEngine"


def test_the_order_is_that_of_the_roles(coterie_run):
    assert coterie_run(roles={"b": {}, "a": {}}).team.order == (("b",), ("a",))


def test_a_run_plays_ones_own_game_and_roles(coterie_run, play_episode):
    run = coterie_run(
        "U U",
        env={"type": "plan_path", "size": 4},
        roles={"solver": {"type": "plan_path_solver"}},
    )
    trees, scores = play_episode(run)
    (action, *_) = trees[0].root.decisions["solver"].branches
    assert action.parsed == ("U", "U") and {component for _, _, component, _ in scores} >= {"team", "legal"}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"order": "one"}, ("`order`", "order=['one']")),
        ({"order": ["one"], "roles": {"two": {}}}, ("`roles` names 'two'", "known: one")),
        ({"answers": "1", "engine": "tabular"}, ("`answers` and `engine`",)),
        ({"answers": {"one": "1"}}, ("lack the role 'two'", "one, two")),
        ({"answers": {"one": "1", "two": "1", "too": "1"}}, ("name the role 'too'", "not in the team")),
        ({"samplr": {"branches": 2}}, ("samplr", "did you mean 'sampler'")),
        ({"sampler": {"branchs": 2}}, ("sampler.branchs", "did you mean 'branches'")),
        ({"env": {"type": "no_such_game"}}, ("env.type", "no_such_game")),
        ({"env": {"taskss": 1}}, ("env.taskss", "did you mean 'tasks'")),
    ],
)
def test_wrong_arguments_of_a_run_are_told(coterie_run, arguments, words):
    with pytest.raises(UserError) as caught:
        coterie_run(**arguments)
    assert all(word in str(caught.value) for word in words), str(caught.value)


def test_wrong_calls_of_an_episode_are_told(coterie_run, play_episode):
    with pytest.raises(UserError, match="received a dict, not a run"):
        play_episode({"env": "plan_path"})
    for tasks in (0, -1, True, 1.5, "2"):
        with pytest.raises(UserError, match="tasks is"):
            play_episode(coterie_run(), tasks=tasks)

    async def inside():
        play_episode(coterie_run())

    with pytest.raises(UserError, match="inside a coroutine"):
        asyncio.run(inside())


# ---- engines


def names_role(request, text):
    return f"{request.key.role}{request.key.branch}"


async def waits(request, text):
    await asyncio.sleep(0)
    return text.split()[0]


@pytest.mark.parametrize(
    ("answers", "one", "two"),
    [
        ("7", ["7"] * 3, ["7"] * 3),
        (["a", "b"], ["a", "b", "a"], ["a", "b", "a"]),
        (("a", "b", "c", "d"), ["a", "b", "c"], ["a", "b", "c"]),
        (names_role, ["one0", "one1", "one2"], ["two0", "two1", "two2"]),
        (waits, ["one"] * 3, ["two"] * 3),
        (lambda request, text: "x", ["x"] * 3, ["x"] * 3),
        (partial(names_role), ["one0", "one1", "one2"], ["two0", "two1", "two2"]),
        ({"one": ["a", "b"], "two": names_role}, ["a", "b", "a"], ["two0", "two1", "two2"]),
    ],
)
def test_answers(coterie_run, play_episode, answers, one, two):
    assert texts(play_episode(coterie_run(answers))[0]) == {"one": one, "two": two}


def test_a_list_goes_on_with_the_chain(coterie_run, play_episode):
    run = coterie_run(
        ["a", "b", "c"],
        order=["one"],
        sampler={"chains": 4, "branches": 1},
        algorithm={"type": "grpo"},
    )
    assert texts(play_episode(run)[0]) == {"one": ["a", "b", "c", "a"]}


def test_an_engines_table_goes_wherever_a_table_goes(coterie_run, play_episode, scripted_engine):
    engine = scripted_engine({"one": "1", "two": names_role})
    assert pickle.loads(pickle.dumps(engine)) == engine, "another process may have it"
    assert texts(play_episode(coterie_run(engine=engine))[0])["one"] == ["1"] * 3


def test_a_function_of_another_process_is_told(scripted_engine):
    table = scripted_engine(lambda request, text: "1")
    table["answers"]["function"] += 1000
    engine = build("engine", table)
    with pytest.raises(UserError, match="of another process"):
        engine.config.play(SimpleNamespace(key=Key("t").of_branch("one", 0)), "")


def test_a_role_without_an_answer_is_told(coterie_run, play_episode, scripted_engine):
    run = coterie_run(engine=scripted_engine({"one": "1", "tow": "1"}))
    with pytest.raises(UserError, match="no answer for the role 'two'") as caught:
        play_episode(run)
    assert "did you mean 'tow'?" in str(caught.value)


@pytest.mark.parametrize(
    ("answers", "words"),
    [
        ({}, "are empty"),
        ([], "are empty"),
        (7, "are 7, of the type int"),
        (None, "are None, of the type NoneType"),
        (["a", 7], "item 1 is 7, of the type int"),
        ({"one": []}, "the answers of 'one' are empty"),
        ({"one": {"a": "b"}}, "the answers of 'one' are {'a': 'b'}, of the type dict"),
    ],
)
def test_wrong_answers_are_told(scripted_engine, answers, words):
    with pytest.raises(UserError) as caught:
        scripted_engine(answers)
    assert words in str(caught.value) and caught.value.fix


# ---- trees


def credit_of(forest, name="at_grpo", **settings):
    batch = Batch(trees=forest.trees, scores=forest.scores, annotations={}, reward_weights=RewardWeights())
    return build("estimator", {"type": name, "normalise": {"type": "none"}, **settings})(batch, None)[0]


def test_a_literal_is_a_tree_with_scores(tree_literals):
    forest = tree_literals([J(0, [J(2), J(0)]), J(1, role_gain={"one": 0.5}), J(lost=True)], chain(1, 3))
    tree, second = forest.trees
    root, child = tree.nodes()
    assert (tree.task.id, tree.chain, second.chain) == ("t", 0, 1) and len(list(second.nodes())) == 2
    assert root.expanded == (0, 1) and root.joints[0].child is child and root.joints[1].terminated
    assert (child.turn, child.stage, len(child.joints)) == (1, 0, 2)
    assert root.joints[2].fault is not None and not root.decisions["one"].branches[2].trainable
    assert forest.scores.at(root.key.of_joint(1))[TEAM, "gain"].value == 1
    assert forest.scores.at(root.key.of_branch("one", 1))["one", "own"].value == 0.5
    assert places(credit_of(tree_literals([J(0), J(3), J(None)])).advantage) == {
        "0:one0": -1.5,
        "0:one1": 1.5,
    }


def test_what_a_literal_may_say_of_branches_and_ends(tree_literals):
    forest = tree_literals(
        [J(1, committed=False), J(2, outcome={"success": 1.0}, scores={("one", "style"): 0.25})],
        logprobs={"0:one0": (-1.0, -2.0)},
        truncated=["0:one1"],
        untrained=["one"],
        rule="best",
    )
    root = forest.trees[0].root
    assert root.expanded == (1,) and root.rule == "best" and not root.joints[0].terminated
    assert root.joints[1].terminated and root.joints[1].outcome == {"success": 1.0}
    assert forest.scores.at(root.key.of_joint(1))["one", "style"].value == 0.25
    first, second = (branch.calls[0] for branch in root.decisions["one"].branches)
    assert first.logprobs == (-1.0, -2.0) and (first.finish, second.finish) == ("stop", "length")
    assert not root.decisions["one"].trainable
    lost = tree_literals([J(0), J(lost=["one"])], order=[["one", "two"]]).trees[0].root
    assert [lost.decisions[role].branches[1].trainable for role in ("one", "two")] == [False, True]


def test_roles_take_turns_or_act_at_once(tree_literals):
    turns = tree_literals(chain(0, 1, 2), order=["one", "two"]).trees[0]
    assert [(node.turn, node.stage, *node.decisions) for node in turns.nodes()] == [
        (0, 0, "one"),
        (0, 1, "two"),
        (1, 0, "one"),
    ]
    cross = tree_literals([J(0), J(1), J(2), J(3)], order=[["one", "two"]], pairing="cross").trees[0]
    assert [tuple(joint.branches.values()) for joint in cross.root.joints] == [(0, 0), (0, 1), (1, 0), (1, 1)]


@pytest.mark.parametrize(
    ("root", "settings", "words"),
    [
        (J(1), {}, "a list of `J`"),
        ([], {}, "a list of `J`"),
        ([J(1), 2], {}, "item 1 of the node at 0 is 2"),
        ([J(1, [J(0), None])], {}, "item 1 of the node at 0.0 is None"),
        ([J(0)], {"truncated": ["0:one1"]}, "no branch '0:one1'"),
        ([J(0)], {"logprobs": {"0:noe0": (-1.0,)}}, "no branch '0:noe0'"),
        ([J(0)] * 3, {"order": [["one", "two"]], "pairing": "cross"}, "3 joint actions are not all"),
    ],
)
def test_wrong_literals_are_told(tree_literals, root, settings, words):
    with pytest.raises(UserError) as caught:
        tree_literals(root, **settings)
    assert words in str(caught.value) and caught.value.fix
