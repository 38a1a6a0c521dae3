"""Every group-relative estimator against numbers worked out by hand."""

from __future__ import annotations

import math

import pytest

from coterie.testing.support.trees import Forest, J, chain, places
from tests.plugins.algos.support import BRANCHES, CHAINS, advantages, credit, estimator

SEQUENTIAL = (("one",), ("two",))


def play_of_two() -> Forest:
    """AT-GRPO's tree: `one` then `two`, two turns; the best of each decision was played on.

    Rewards with alpha 1/2:
    - turn 0, one: 0/2 + .2, 1/2 + 0, 1/2 + .4 = .2, .5, .9
    - turn 0, two: 1/2 + .1, 0/2 + .1, lost
    - turn 1, one: 1/2, 1/2, 1/2
    - turn 1, two: 2/2, missing, 0/2, 1/2 (unequal groups: four were sampled)
    """
    last = [J(2), J(None), J(0), J(1)]
    later = [J(1, last), J(1), J(1)]
    second = [J(1, later, role_gain={"two": 0.1}), J(0, role_gain={"two": 0.1}), J(lost=True)]
    first = [J(0, role_gain={"one": 0.2}), J(1, role_gain={"one": 0.0}), J(1, second, role_gain={"one": 0.4})]
    return Forest(order=SEQUENTIAL).grow(first)


def test_at_grpo_centres_each_decision():
    advantage = advantages("at_grpo", play_of_two(), alpha=0.5, normalise={"type": "none"})
    assert advantage == pytest.approx(
        {
            # mean of .2, .5, .9 is 1.6/3
            "0:one0": 0.2 - 1.6 / 3,
            "0:one1": 0.5 - 1.6 / 3,
            "0:one2": 0.9 - 1.6 / 3,
            # mean of the two that were played is .35
            "0.2:two0": 0.25,
            "0.2:two1": -0.25,
            "0.2.0:one0": 0.0,
            "0.2.0:one1": 0.0,
            "0.2.0:one2": 0.0,
            # mean of 1, 0, .5 is .5
            "0.2.0.0:two0": 0.5,
            "0.2.0.0:two2": -0.5,
            "0.2.0.0:two3": 0.0,
        }
    )


def test_at_grpo_divides_by_the_sample_deviation():
    advantage = advantages("at_grpo", play_of_two(), alpha=0.5)
    # .2, .5, .9 less their mean: -1/3, -1/30, 11/30; squares .1111 + .0011 + .1344, over 2, root .35119
    assert [advantage[f"0:one{b}"] for b in range(3)] == pytest.approx(
        [-0.94916, -0.09492, 1.04407], abs=1e-4
    )
    # .6 and .1: deviation .5 / sqrt 2, so +-.25 become +-1 / sqrt 2
    assert advantage["0.2:two0"] == -advantage["0.2:two1"] == pytest.approx(math.sqrt(0.5), abs=1e-5)
    # 1, 0, .5: deviation 1/2
    assert advantage["0.2.0.0:two0"] == pytest.approx(1.0, abs=1e-5)
    assert advantage["0.2.0:one1"] == 0.0


def test_at_grpo_tells_what_the_advantages_were_made_from():
    result = credit(estimator("at_grpo", alpha=0.5), play_of_two())
    assert places(result.returns)["0:one2"] == pytest.approx(0.9)
    assert result.metrics == {
        "groups/one/zero_variance": 0.5,
        "groups/one/too_small": 0.0,
        "groups/one/missing_rows": 0.0,
        "groups/two/zero_variance": 0.0,
        "groups/two/too_small": 0.0,
        "groups/two/missing_rows": 2.0,
    }


def chains() -> Forest:
    """Four chains of one task, `one` before `two`; the team's pay, place by place.

    | chain | one | two | one | two | what became of it |
    |---|---|---|---|---|---|
    | 0 | 1 | 0 | 2 | 0 | the turn limit: 3 |
    | 1 | 4 | | | | over when `one` had spoken: 4 |
    | 2 | 0 | 1 | | | over after the first turn: 1 |
    | 3 | 1 | ? | | | a score is missing |
    """
    return Forest(order=SEQUENTIAL).grow(chain(1, 0, 2, 0), chain(4), chain(0, 1), chain(1, None))


def test_dr_grpo_centres_the_chains_of_a_task_role_by_role():
    assert advantages("dr_grpo", chains()) == pytest.approx(
        {
            # one: returns 3, 4, 1, mean 8/3
            "0:one0": 1 / 3,
            "0.0.0:one0": 1 / 3,
            "1:one0": 4 / 3,
            "2:one0": -5 / 3,
            # two: 3 and 1, mean 2; chain 1 ended before it
            "0.0:two0": 1.0,
            "0.0.0.0:two0": 1.0,
            "2.0:two0": -1.0,
        }
    )


def test_grpo_divides_that_by_the_groups_deviation():
    advantage = advantages("grpo", chains())
    # one: squares 1/9 + 16/9 + 25/9 = 42/9, over 2, root 1.527525; TRL's 1e-4 on top
    assert [advantage[f"{c}:one0"] for c in range(3)] == pytest.approx(
        [(1 / 3) / 1.527625, (4 / 3) / 1.527625, (-5 / 3) / 1.527625], abs=1e-6
    )
    assert advantage["0.0:two0"] == pytest.approx(1 / (math.sqrt(2) + 1e-4))


def test_rloo_leaves_the_chain_itself_out_of_its_baseline():
    advantage = advantages("rloo", chains())
    # one: 3 - (4 + 1)/2, 4 - (3 + 1)/2, 1 - (3 + 4)/2; two: 3 - 1, 1 - 3
    assert [advantage[f"{c}:one0"] for c in range(3)] == pytest.approx([0.5, 2.0, -2.5])
    assert [advantage["0.0:two0"], advantage["2.0:two0"]] == pytest.approx([2.0, -2.0])


def test_reinforce_pays_what_came_after():
    advantage = advantages("reinforce", chains(), gamma=0.5)
    assert advantage == pytest.approx(
        {
            "0:one0": 1 + 0 + 0.5 * (2 + 0),
            "0.0:two0": 0 + 0.5 * (2 + 0),
            "0.0.0:one0": 2 + 0,
            "0.0.0.0:two0": 0,
            "1:one0": 4,
            "2:one0": 0 + 1,
            "2.0:two0": 1,
        }
    )


def test_reinforce_whitened_over_the_step():
    advantage = advantages(
        "reinforce", Forest().grow(chain(1), chain(3), chain(8)), normalise={"type": "whiten"}
    )
    # mean 4, squares 9 + 1 + 16 = 26, over 2
    assert list(advantage.values()) == pytest.approx(
        [-3 / math.sqrt(13), -1 / math.sqrt(13), 4 / math.sqrt(13)], abs=1e-5
    )


def test_reinforce_pp_baseline_takes_the_tasks_mean_then_the_batchs_deviation():
    forest = Forest(logprobs={"u/0:one0": (-0.5,) * 3})
    forest.grow(chain(0, 5), chain(2, 7)).grow(chain(10), chain(11), task="u")
    advantage = advantages("reinforce_pp_baseline", forest)
    # By (task, turn): 0, 2 | 5, 7 | 10, 11 less their means: -1, 1, -1, 1, -.5, .5. One token each, three
    # for the -.5: sum -1.5 + .5 = -1 over 8 tokens, mean -.125; squares 5 over 8, less .125^2: .609375.
    scale = math.sqrt(0.609375)
    assert advantage == pytest.approx(
        {
            "0:one0": -1 / scale,
            "1:one0": 1 / scale,
            "0.0:one0": -1 / scale,
            "1.0:one0": 1 / scale,
            "u/0:one0": -0.5 / scale,
            "u/1:one0": 0.5 / scale,
        },
        rel=1e-6,
    )


def test_rae_compares_with_the_roles_own_past():
    algorithm = estimator("rae", decay=0.5)
    result = credit(algorithm, chains(), state={"one": 2.0})
    # two has no past yet: its mean is 0
    assert places(result.advantage) == pytest.approx(
        {
            "0:one0": 1.0,
            "0.0.0:one0": 1.0,
            "1:one0": 2.0,
            "2:one0": -1.0,
            "0.0:two0": 3.0,
            "0.0.0.0:two0": 3.0,
            "2.0:two0": 1.0,
        }
    )


# ------------------------------------------------------------------------------------------- one's own


def test_a_composed_one_compares_rewards_to_go_turn_by_turn():
    advantage = advantages(
        "compose",
        Forest().grow(chain(1, 2), chain(3, 5)),
        plan=CHAINS,
        group="turn",
        **{"return": "to_go"},
        baseline="loo",
        normalise={"type": "none"},
        gamma=0.5,
    )
    # turn 0: 1 + 1 = 2 and 3 + 2.5 = 5.5; turn 1: 2 and 5
    assert advantage == pytest.approx({"0:one0": -3.5, "1:one0": 3.5, "0.0:one0": -3.0, "1.0:one0": 3.0})


def test_a_composed_one_compares_all_of_a_role_or_all_of_the_step():
    forest = Forest(order=SEQUENTIAL).grow(chain(1, 2)).grow(chain(5, 6), task="u")
    pieces = {"return": "immediate", "normalise": {"type": "none"}}
    by_role = advantages("compose", forest, plan=CHAINS, group="role", **pieces)
    assert by_role == pytest.approx({"0:one0": -2, "0.0:two0": -2, "u/0:one0": 2, "u/0.0:two0": 2})
    by_step = advantages("compose", forest, plan=CHAINS, group="batch", **pieces)
    assert by_step == pytest.approx({"0:one0": -2.5, "0.0:two0": -1.5, "u/0:one0": 1.5, "u/0.0:two0": 2.5})
    best = advantages("compose", forest, plan=CHAINS, group="batch", baseline="max", **pieces)
    assert best == pytest.approx({"0:one0": -5, "0.0:two0": -4, "u/0:one0": -1, "u/0.0:two0": 0})


def test_a_shared_start_of_two_paths_gets_the_mean_of_their_advantages():
    # Paths worth 1 + 2, 1 + 4 and 0: mean 8/3. Branch 0 of the root lies on the first two.
    forest = Forest().grow([J(1, [J(2), J(4)]), J(0)])
    advantage = advantages(
        "compose", forest, group="task", **{"return": "episode"}, normalise={"type": "none"}
    )
    assert advantage == pytest.approx(
        {"0:one0": 4 / 3, "0:one1": -8 / 3, "0.0:one0": 1 / 3, "0.0:one1": 7 / 3}
    )


def test_roles_that_act_at_once_share_the_pay_and_have_their_own():
    forest = Forest(order=(("one", "two"),)).grow(
        [J(1, role_gain={"one": 0.2}), J(0, role_gain={"two": 0.6}), J(2, role_gain={"one": 0.1, "two": 0.0})]
    )
    advantage = advantages("at_grpo", forest, plan=BRANCHES, normalise={"type": "none"})
    # one: 1.2, 0, 2.1, mean 1.1; two: 1, .6, 2, mean 1.2
    assert [advantage[f"0:one{b}"] for b in range(3)] == pytest.approx([0.1, -1.1, 1.0])
    assert [advantage[f"0:two{b}"] for b in range(3)] == pytest.approx([-0.2, -0.6, 0.8])


def test_a_recombined_joint_is_in_no_baseline_and_leads_on():
    # Branch 0 of one with branch 1 of two was played once more, paid 9, and went on.
    forest = Forest(order=(("one", "two"),)).grow(
        [J(0), J(2), J(9, [J(1), J(3)], recombined={"one": 0, "two": 1})]
    )
    advantage = advantages("at_grpo", forest, plan=BRANCHES, normalise={"type": "none"})
    assert [advantage[f"0:{role}{b}"] for role in ("one", "two") for b in (0, 1)] == [-1, 1, -1, 1]
    assert [advantage[f"0.2:{role}{b}"] for role in ("one", "two") for b in (0, 1)] == [-1, 1, -1, 1]
