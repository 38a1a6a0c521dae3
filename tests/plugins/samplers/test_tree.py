"""The tree sampler: who is asked what, what is played, and what goes on."""

from __future__ import annotations

import asyncio
import collections
from dataclasses import replace
from typing import ClassVar

import pytest

from coterie.api.open_run import open_run
from coterie.core.errors import ConfigError, CoterieError, PluginError
from coterie.core.protocols import Batch
from coterie.core.rollout.rewards import branch_rewards
from coterie.testing import coterie_run, play_episode
from coterie.testing.support.toys import NumberGame
from tests import games


def nodes(tree):
    return list(tree.nodes())


def test_siblings_share_prompt_and_state_and_the_best_goes_on():
    tree = play_episode(coterie_run())[0][0]
    first, second = nodes(tree)
    assert [action.text for action in first.decisions["one"].branches] == ["0", "1", "2"]
    prompts = {call.prompt_ids for action in first.decisions["one"].branches for call in action.calls}
    assert prompts == {first.decisions["one"].prompt_ids}
    assert first.expanded == (2,) and first.rule == "best"
    assert second.key.path == (2,)


def test_commit_comes_between_stages_so_the_next_role_sees_it():
    tree = play_episode(coterie_run())[0][0]
    second = nodes(tree)[1]
    assert second.decisions["two"].messages[0]["content"] == "two turn0 one=2"


def test_every_role_is_rewarded_on_its_own_branches():
    run = coterie_run()
    trees, scores = play_episode(run)
    for node in trees[0].nodes():
        for role in node.decisions:
            assert branch_rewards(node, role, scores, run.reward_weights) == pytest.approx([0, 1.1, 2.2])


def test_the_state_moves_on_over_turns():
    tree = play_episode(coterie_run(max_turns=3))[0][0]
    last = nodes(tree)[-1]
    assert last.turn == 2 and last.decisions["two"].observation == "one=2 two=2 one=2 two=2 one=2"
    digests = [node.state_digest for node in tree.nodes()]
    assert len(set(digests)) == len(digests) == 6


def test_first_of_equals_is_committed():
    tree = play_episode(coterie_run(answers="1"))[0][0]
    assert all(node.expanded == (0,) for node in tree.nodes())


@pytest.mark.parametrize(
    ("order", "turns", "branches", "pairing", "leaves"),
    [
        (["one"], 1, 3, "aligned", 3),
        (["one", "two"], 2, 2, "aligned", 2 ** (2 * 2)),
        ([["one", "two"]], 2, 3, "aligned", 3**2),
        ([["one", "two"]], 2, 2, "cross", 2 ** (2 * 2)),
        ([["one", "two"], "three"], 1, 2, "cross", 2**3),
    ],
)
def test_expanding_all_grows_every_leaf(order, turns, branches, pairing, leaves):
    run = coterie_run(
        order=order, max_turns=turns, sampler={"branches": branches, "expand": "all", "pairing": pairing}
    )
    tree = play_episode(run)[0][0]
    assert len(list(tree.leaves())) == leaves == len(list(tree.chains()))
    assert all(node.rule == "all" for node in tree.nodes())


def test_cross_pairs_every_branch_with_every_other():
    run = coterie_run(order=[["one", "two"]], sampler={"branches": 2, "pairing": "cross"})
    node = nodes(play_episode(run)[0][0])[0]
    assert [dict(joint.branches) for joint in node.joints] == [
        {"one": 0, "two": 0},
        {"one": 0, "two": 1},
        {"one": 1, "two": 0},
        {"one": 1, "two": 1},
    ]


def test_in_a_cross_a_branch_is_worth_the_mean_of_its_joints():
    run = coterie_run(order=[["one", "two"]], sampler={"branches": 2, "pairing": "cross"})
    trees, scores = play_episode(run)
    # sum pays both: branch b of `one` meets 0 and 1, so team mean = b + 0.5, own = b / 10
    assert branch_rewards(trees[0].root, "one", scores, run.reward_weights) == pytest.approx([0.5, 1.6])


def test_chains_are_trees_of_their_own_with_draws_of_their_own():
    run = coterie_run(answers=games.keyed, sampler={"chains": 5, "branches": 1}, algorithm={"type": "grpo"})
    trees, _ = play_episode(run)
    assert [tree.chain for tree in trees] == [0, 1, 2, 3, 4]
    assert (
        len(
            {
                tuple(n.decisions[r].branches[0].text for n in tree.nodes() for r in n.decisions)
                for tree in trees
            }
        )
        > 1
    )


class Dealt(NumberGame):
    """The game begins with a number that its reset draws."""

    def reset(self, task, seed):
        return (("dealer", str(seed)),)


def test_chains_of_a_task_start_from_one_reset_and_visits_from_others():
    run = coterie_run(
        answers=games.keyed,
        env={"type": "tests.plugins.samplers.test_tree:Dealt", "tasks": 2},
        sampler={"chains": 3, "branches": 1},
        algorithm={"type": "grpo"},
    )
    trees, _ = play_episode(run, 4)  # both tasks in two epochs
    resets = collections.defaultdict(list)
    for tree in trees:
        resets[tree.task.id, tree.epoch].append(tree.root.decisions["one"].observation)
    assert len(resets) == 4 and all(len(starts) == 3 for starts in resets.values())
    assert [len(set(starts)) for starts in resets.values()] == [1] * 4
    assert len({starts[0] for starts in resets.values()}) == 4


def test_sampled_expansion_is_a_uniform_keyed_draw():
    run = coterie_run(env={"tasks": 600}, sampler={"branches": 3, "expand": "sampled"}, order=["one"])
    trees, _ = play_episode(run, 600)
    taken = collections.Counter(tree.root.expanded[0] for tree in trees)
    assert {tree.root.rule for tree in trees} == {"sampled"}
    assert all(150 < taken[branch] < 250 for branch in range(3))
    again, _ = play_episode(
        coterie_run(env={"tasks": 600}, sampler={"branches": 3, "expand": "sampled"}, order=["one"]), 600
    )
    assert [tree.root.expanded for tree in trees] == [tree.root.expanded for tree in again]


def test_a_terminal_commit_ends_the_turn_and_keeps_what_was_sampled():
    run = coterie_run(
        answers=games.stops,
        order=["one", "two"],
        max_turns=4,
        sampler={"branches": 2},
        rewards={
            "environment": {"type": "environment"},
            "halt": {"type": "function", "function": "tests.plugins.samplers.test_tree:likes_stop"},
        },
    )
    tree = play_episode(run)[0][0]
    assert len(nodes(tree)) == 1 and tree.root.joints[1].terminated
    assert len(tree.root.decisions["one"].branches) == 2
    assert tree.root.joints[1].outcome == {"success": 1.0, "length": 1.0}


def likes_stop(view):
    return float("stop" in {action.text for action in view.actions.values()})


# ------------------------------------------------------------------- joints that earn enough (`stop_above`)


def stopping(threshold, **tables):
    algorithm = {"type": "magrpo", "termination_threshold": threshold}
    tables = {"order": ["one"], "max_turns": 2, "sampler": {"expand": "all"}, **tables}
    return coterie_run(algorithm=algorithm, **tables)


def went_on(node):
    return [index for index, joint in enumerate(node.joints) if joint.child is not None]


def test_a_joint_that_earns_enough_is_not_expanded_and_the_others_are():
    (tree,), _ = play_episode(stopping(1.1))  # branch b earns 1.1 b
    assert went_on(tree.root) == [0]
    assert tree.root.expanded == (0, 1, 2) and len(list(tree.leaves())) == 2 + 3
    enough = tree.root.joints[1]
    assert enough.truncated and not enough.terminated and enough.outcome == {"success": 0.0, "length": 1.0}


@pytest.mark.parametrize(
    ("threshold", "wanted"), [(None, [0, 1, 2]), (2.3, [0, 1, 2]), (2.0, [0, 1]), (0.0, [])]
)
def test_enough_is_the_threshold_or_more(threshold, wanted):
    (tree,), _ = play_episode(stopping(threshold))
    assert went_on(tree.root) == wanted


def test_enough_is_the_average_of_the_roles_that_acted():
    """In a cross the sum pays both, and each a tenth of its own: (a, b) is worth 1.05 (a + b) on average."""
    run = stopping(2.0, order=[["one", "two"]], sampler={"expand": "all", "pairing": "cross"})
    (tree,), _ = play_episode(run)
    combinations = [tuple(tree.root.joints[index].branches.values()) for index in went_on(tree.root)]
    assert combinations == [(0, 0), (0, 1), (1, 0)]


def test_a_joint_whose_score_is_missing_goes_on():
    rewards = {"judge": {"type": "function", "function": "tests.plugins.samplers.test_tree:withholds_2"}}
    (tree,), _ = play_episode(stopping(0.5, rewards=rewards, schedule={"max_missing": 1.0}))
    assert went_on(tree.root) == [0, 2]


def withholds_2(view):
    (action,) = view.actions.values()
    return None if action.text == "2" else float(action.text)


def test_an_evaluation_plays_to_the_end():
    run = stopping(1.0, answers="1", max_turns=3)

    async def go():
        await open_run(run)
        try:
            jobs = run.jobs(1, 1)
            trained = await run.play(jobs)
            evaluated = await run.play([replace(job, evaluation=True) for job in jobs])
            return trained.trees[0], evaluated.trees[0]
        finally:
            await run.close()

    trained, evaluated = asyncio.run(go())
    assert [node.turn for node in trained.nodes()] == [0]
    assert [node.turn for node in evaluated.nodes()] == [0, 1, 2]


def test_the_score_of_a_whole_episode_can_stop_nothing():
    def with_a_judge(threshold, weight):
        judge = {
            "type": "function",
            "function": "tests.plugins.samplers.test_tree:likes_stop",
            "scope": "episode",
            "weights": {"judge": weight},
        }
        return stopping(threshold, rewards={"environment": {"type": "environment"}, "judge": judge})

    with pytest.raises(ConfigError, match="whole episode") as error:
        with_a_judge(1.0, 1.0)
    assert error.value.path == "algorithm.termination_threshold" and error.value.fix
    with_a_judge(1.0, 0.0)
    with_a_judge(None, 1.0)


@pytest.mark.parametrize("fill", ["difference", "repeat"])
def test_stopping_at_a_potential_earns_no_less_than_going_on_from_it(fill):
    """The potential is the best number so far: after a 2 no turn adds to it, so stopping there costs
    nothing."""
    returns = {}
    for threshold in (None, 2.0):
        run = stopping(
            threshold,
            max_turns=3,
            rewards={"environment": {"type": "environment", "weights": {"best": 1, "sum": 0, "own": 0}}},
        )
        estimator = type(run.estimator)(run.estimator.config.model_copy(update={"fill": fill}))
        estimator.check(run.sampler.plan, run.team)
        trees, scores = play_episode(run)
        credit, _ = estimator(
            Batch(trees=trees, scores=scores, annotations={}, reward_weights=run.reward_weights), None
        )
        root = trees[0].root.key
        returns[threshold] = [credit.returns[root.of_branch("one", branch)] for branch in range(3)]
    assert returns[None] == pytest.approx(returns[2.0])
    assert max(returns[2.0]) == returns[2.0][2]


# ----------------------------------------------------------------------------------------------- ends


def test_the_turn_limit_cuts_and_says_so():
    ((_, leaf),) = play_episode(coterie_run())[0][0].leaves()
    assert leaf.truncated and not leaf.terminated


def test_an_environment_may_decide_who_acts():
    run = coterie_run(env={"stages": [["two"], ["one"], ["two"]]}, max_turns=3)
    tree = play_episode(run)[0][0]
    assert [tuple(node.decisions) for node in tree.nodes()] == [("two",), ("one",), ("two",)]
    assert next(iter(tree.leaves()))[1].terminated


def test_per_role_commit_plays_the_recombined_joint_outside_the_baseline():
    run = coterie_run(
        order=[["one", "two"]],
        answers=opposed,
        max_turns=2,
        sampler={"branches": 3, "commit": "per_role"},
    )
    trees, scores = play_episode(run)
    root = trees[0].root
    assert root.rule == "per_role" and len(root.joints) == 4
    assert root.joints[3].recombined and dict(root.joints[3].branches) == {"one": 2, "two": 0}
    assert root.expanded == (3,)
    # own = text / 10 and the aligned sum is 2 for all: the fourth joint (sum 4) is in no mean
    assert branch_rewards(root, "one", scores, run.reward_weights) == pytest.approx([2.0, 2.1, 2.2])


PAYS = {"0 0": 5.0, "0 1": -5.0, "1 0": 1.0, "1 1": 1.0}
"""The best joint action holds the branch of role one that is worth less on average."""
LOST_PAIRS = {"0 0": 1.0, "0 1": None, "1 0": None, "1 1": 2.0}
"""Every branch met a partner with which the score was lost."""


def pays(view):
    return PAYS[" ".join(view.actions[role].text for role in ("one", "two"))]


def pays_in_part(view):
    return LOST_PAIRS[" ".join(view.actions[role].text for role in ("one", "two"))]


@pytest.mark.parametrize(("function", "played_on"), [("pays", "1 0"), ("pays_in_part", "1 1")])
def test_per_role_commit_in_a_cross_takes_the_best_mean_as_it_trains(function, played_on):
    """Where no mean is known, the roles keep the branches of the best joint action."""
    run = coterie_run(
        order=[["one", "two"]],
        rewards={"pay": {"type": "function", "function": f"tests.plugins.samplers.test_tree:{function}"}},
        sampler={"branches": 2, "pairing": "cross", "commit": "per_role"},
        schedule={"max_missing": 1.0},
    )
    root = play_episode(run)[0][0].root
    (index,) = root.expanded
    assert root.rule == "per_role" and len(root.joints) == 4 and not root.joints[index].recombined
    assert " ".join(str(root.joints[index].branches[role]) for role in ("one", "two")) == played_on


def of_one_alone(view):
    """Role one's third branch is best; nothing is known of role two."""
    return {("one", "pay"): [0.0, 1.0, 3.0, 2.0][int(view.actions["one"].text)], ("two", "pay"): None}


def test_a_role_of_which_nothing_is_known_does_not_cost_the_others_their_best_branch():
    run = coterie_run(
        order=[["one", "two"]],
        rewards={"pay": {"type": "function", "function": "tests.plugins.samplers.test_tree:of_one_alone"}},
        sampler={"branches": 4, "commit": "per_role"},
        schedule={"max_missing": 1.0},
    )
    for tree in play_episode(run, tasks=8)[0]:
        (index,) = tree.root.expanded
        assert tree.root.rule == "per_role" and tree.root.joints[index].branches["one"] == 2


def opposed(request, text):
    return str(request.key.branch if request.key.role == "one" else 2 - request.key.branch)


def test_the_same_run_twice_is_the_same_whatever_the_order_of_finishing():
    def texts():
        trees, _ = play_episode(
            coterie_run(answers=games.keyed, env={"pause": True, "tasks": 20}, max_turns=2), 20
        )
        return [
            [
                (node.key, action.text)
                for node in tree.nodes()
                for d in node.decisions.values()
                for action in d.branches
            ]
            for tree in trees
        ]

    assert texts() == texts()


def test_when_every_candidate_is_missing_a_keyed_draw_decides_and_is_recorded():
    run = coterie_run(
        rewards={"broken": {"type": "function", "function": "tests.plugins.samplers.test_tree:breaks"}},
        schedule={"max_missing": 1.0},
    )
    trees, _ = play_episode(run)
    assert {node.rule for node in trees[0].nodes()} == {"uniform (all missing)"}


def breaks(view):
    raise ConnectionError("503")


def test_a_task_that_is_over_before_anybody_acts_is_an_error():
    with pytest.raises(CoterieError, match="over before any role acts"):
        play_episode(coterie_run(env={"stages": []}))


class Waits(NumberGame):
    """Its steps wait at the same time; one has a bug, the others end when they are cancelled."""

    concurrent = True
    ended: ClassVar[list[str]] = []

    async def step(self, state, actions, ctx):
        (action,) = actions.values()
        if action.text == "1":
            return "no step"
        try:
            await asyncio.sleep(120)
        finally:
            await asyncio.sleep(0.01)
            self.ended.append(action.text)

    async def close(self):
        self.ended.append("close")


def test_after_a_bug_no_step_of_the_same_node_goes_on_when_the_environment_is_closed():
    Waits.ended.clear()
    with pytest.raises(PluginError, match="step returned 'no step'"):
        play_episode(coterie_run(env={"type": "tests.plugins.samplers.test_tree:Waits"}))
    assert sorted(Waits.ended[:-1]) == ["0", "2"] and Waits.ended[-1] == "close"


def test_a_conversation_extends_the_ids_that_were_sampled():
    run = coterie_run(max_turns=2, roles={"one": {"remembers": True}})
    first, second = nodes(play_episode(run)[0][0])
    call = first.decisions["one"].branches[2].calls[0]
    assert (
        second.decisions["one"].prompt_ids[: len(call.prompt_ids) + len(call.token_ids)]
        == call.prompt_ids + call.token_ids
    )
    assert second.decisions["one"].branches[0].calls[0].continues


def test_scripted_prompts_are_what_the_engine_is_asked():
    asked = []

    def records(request, text):
        asked.append(text)
        return "1"

    play_episode(coterie_run(records))
    assert [text.strip() for text in asked[:3]] == ["one turn0"] * 3
