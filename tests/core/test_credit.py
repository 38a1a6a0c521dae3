"""Credit against numbers worked out by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coterie.core.credit import (
    BASELINES,
    Group,
    Normaliser,
    credit_groups,
    mean_baseline,
)
from coterie.core.errors import ConfigError
from coterie.core.protocols import Batch
from coterie.core.returns import Row, episode_return
from coterie.core.scoring import Mix
from coterie.core.types import TEAM, Action, Decision, Joint, Key, Node, Score, Scores
from tests.games import play, run_of


def group(values, role="r"):
    return Group(
        role, tuple(Row(role, value, (Key("t").of_branch(role, i),)) for i, value in enumerate(values))
    )


def advantages(values, **kwargs):
    credit = credit_groups([group(values)], mean_baseline, Normaliser(**kwargs))
    return [credit.advantage.get(Key("t").of_branch("r", i)) for i in range(len(values))]


def test_at_grpo_by_hand():
    # values 0, 1, 2, 5: mean 2, squared deviations 4 + 1 + 0 + 9 = 14, ddof 1: sqrt(14/3) = 2.1602469
    assert advantages([0, 1, 2, 5]) == pytest.approx([-0.925820, -0.462910, 0.0, 1.388730], abs=1e-5)


def test_the_normaliser_can_be_trls_comlrls_or_none():
    assert advantages([0, 2], eps=1e-4) == pytest.approx(
        [-1 / (math.sqrt(2) + 1e-4), 1 / (math.sqrt(2) + 1e-4)]
    )
    assert advantages([0, 2], ddof=0, eps_mode="clamp") == pytest.approx([-1.0, 1.0])
    assert advantages([0, 1e-9], ddof=0, eps=1.0, eps_mode="clamp") == pytest.approx([-5e-10, 5e-10])
    assert advantages([0, 2], type="none") == [-1.0, 1.0]


def test_equal_rewards_give_exactly_zero():
    assert advantages([0.1] * 7) == [0.0] * 7


def test_missing_is_out_of_the_baseline_and_of_the_loss():
    assert advantages([0, None, 2], type="none") == [-1.0, None, 1.0]
    credit = credit_groups([group([None, 1.0])], mean_baseline, Normaliser())
    assert credit.advantage == {} and credit.metrics["groups/r/too_small"] == 1.0
    assert credit.metrics["groups/r/missing_rows"] == 1.0


def test_zero_variance_is_counted_and_dropped_on_request():
    groups = [group([1, 1]), group([0, 1])]
    kept = credit_groups(groups[:1], mean_baseline, Normaliser())
    assert list(kept.advantage.values()) == [0.0, 0.0]
    dropped = credit_groups(groups[:1], mean_baseline, Normaliser(), drop_zero_variance=True)
    assert dropped.advantage == {} and dropped.metrics["groups/r/zero_variance"] == 1.0


@given(st.lists(st.floats(-10, 10), min_size=2, max_size=9), st.floats(-5, 5))
def test_advantages_sum_to_zero_and_forget_a_shift(values, shift):
    base = mean_baseline(np.array(values))
    assert abs(base.sum()) < 1e-9
    assert np.allclose(mean_baseline(np.array(values) + shift), base, atol=1e-9)
    n = len(values)
    assert np.allclose(BASELINES["loo"](np.array(values)), base * n / (n - 1))


@given(
    st.lists(st.floats(-10, 10), min_size=2, max_size=6).flatmap(
        lambda values: st.tuples(st.just(values), st.permutations(range(len(values))))
    )
)
def test_advantages_follow_a_permutation_of_the_siblings(drawn):
    values, order = drawn
    plain = advantages(values)
    shuffled = advantages([values[i] for i in order])
    assert shuffled == pytest.approx([plain[i] for i in order], abs=1e-9)


# ------------------------------------------------------------------------------------- returns of paths


def chain(levels, increments, role="r"):
    """A path of nodes with a level and an increment each."""
    scores, path, key = Scores(), [], Key("t")
    decision = Decision(
        role=role,
        policy="p",
        observation=None,
        messages=(),
        prompt_ids=(),
        prompt_sha256="",
        branches=(Action(calls=(), text=""),),
    )
    for turn, (level, increment) in enumerate(zip(levels, increments, strict=True)):
        node = Node(
            key=key,
            turn=turn,
            stage=0,
            decisions={role: decision},
            joints=(Joint(pick={role: 0}, state_digest=""),),
            expanded=(0,),
        )
        scores.add(key.of_joint(0), TEAM, "level", Score(level))
        scores.add(key.of_joint(0), TEAM, "gain", Score(increment))
        path.append((node, 0))
        key = key.child(0)
    return path, scores


MIX = Mix(weights={"level": 1.0, "gain": 1.0}, kinds={"level": "level", "gain": "increment"})


def test_increments_add_up_and_levels_telescope():
    path, scores = chain([0.2, 0.5, 0.5], [1.0, 0.0, 2.0])
    assert episode_return(path, "r", scores, MIX) == pytest.approx(3.0 + 0.5)


@given(st.lists(st.floats(0, 1), min_size=1, max_size=8))
def test_staying_unsolved_never_pays_and_early_success_is_never_punished(levels):
    path, scores = chain([*levels, 1.0], [0.0] * (len(levels) + 1))
    early, early_scores = chain([1.0], [0.0])
    unsolved, unsolved_scores = chain([0.5] * 9, [0.0] * 9)
    assert episode_return(path, "r", scores, MIX) == pytest.approx(1.0, abs=1e-12)
    assert episode_return(early, "r", early_scores, MIX) == 1.0
    assert episode_return(unsolved, "r", unsolved_scores, MIX) == 0.5


def test_a_counterfactual_is_in_no_sum():
    path, scores = chain([0.0], [1.0])
    scores.add(path[0][0].key.of_joint(0), TEAM, "if_followed", Score(9.0))
    mix = Mix(kinds={**MIX.kinds, "if_followed": "counterfactual"})
    assert episode_return(path, "r", scores, mix) == 1.0
    assert mix.reward(scores.at(path[0][0].key.of_joint(0)), "r") == 10.0


def test_a_missing_part_makes_the_return_missing_unless_it_weighs_nothing():
    path, scores = chain([None], [1.0])
    assert episode_return(path, "r", scores, MIX) is None
    assert episode_return(path, "r", scores, Mix(weights={"level": 0.0}, kinds=MIX.kinds)) == 1.0


# ----------------------------------------------------------------------------------- whole estimators


def credit_of(run, tasks=1):
    trees, scores = play(run, tasks)
    return trees, run.estimator(Batch(trees=trees, scores=scores, notes={}, mix=run.mix), None)[0]


def test_at_grpo_groups_the_branches_of_one_decision():
    trees, credit = credit_of(run_of(algorithm={"type": "at_grpo", "normalise": {"type": "none"}}), tasks=2)
    for tree in trees:  # rewards 0, 1.1, 2.2 for each role: mean 1.1
        for node in tree.nodes():
            for role in node.decisions:
                assert [credit.advantage[node.key.of_branch(role, b)] for b in range(3)] == pytest.approx(
                    [-1.1, 0, 1.1]
                )


def test_alpha_scales_the_teams_part_only():
    trees, credit = credit_of(
        run_of(algorithm={"type": "at_grpo", "alpha": 0.5, "normalise": {"type": "none"}})
    )
    key = trees[0].root.key
    assert credit.advantage[key.of_branch("one", 2)] == pytest.approx(0.5 * 1.0 + 0.1)


def test_grpo_compares_the_chains_of_a_task_role_by_role():
    run = run_of(
        play="tests.core.test_credit:by_chain",
        sampler={"chains": 3, "branches": 1},
        algorithm={"type": "grpo", "normalise": {"type": "none"}},
        max_turns=2,
    )
    trees, credit = credit_of(run)
    # each chain c writes c four times: team 4c; own 2 * c / 10 per role
    for tree in trees:
        for node in tree.nodes():
            for role in node.decisions:
                assert credit.advantage[node.key.of_branch(role, 0)] == pytest.approx(4.2 * (tree.chain - 1))


def by_chain(request, text):
    return str(request.key.chain)


def test_groups_of_one_are_refused_by_name():
    with pytest.raises(ConfigError, match="one member") as error:
        run_of(sampler={"branches": 1})
    assert error.value.path == "sampler.branches"
    with pytest.raises(ConfigError, match="one member") as error:
        run_of(sampler={"branches": 1, "chains": 1}, algorithm={"type": "grpo"})
    assert error.value.path == "sampler.chains"
    with pytest.raises(ConfigError, match="whole chains"):
        run_of(sampler={"branches": 2, "chains": 2}, algorithm={"type": "grpo"})


def test_a_branch_that_the_engine_lost_is_not_credited():
    run = run_of(
        play="tests.core.test_credit:loses_one",
        algorithm={"type": "at_grpo", "normalise": {"type": "none"}},
        order=["one"],
        schedule={"max_missing": 0.9},
    )
    trees, credit = credit_of(run)
    key = trees[0].root.key
    assert key.of_branch("one", 1) not in credit.advantage
    assert credit.advantage[key.of_branch("one", 0)] == pytest.approx(-1.1)  # 0 and 2.2: the mean is 1.1


def loses_one(request, text):
    from coterie import SystemFault

    if request.key.branch == 1:
        raise SystemFault("connection reset")
    return str(request.key.branch)
