"""Credit against numbers worked out by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from coterie.core.errors import ConfigError
from coterie.core.protocols import Batch
from coterie.core.types import Key
from coterie.plugins.algos.blocks.groups import (
    BASELINES,
    GROUPINGS,
    Group,
    Normaliser,
    credit_groups,
    grouped,
    mean_baseline,
    normalise_batch,
)
from coterie.plugins.algos.blocks.returns import Row
from coterie.testing import coterie_run, play_episode


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


# ------------------------------------------------------------------------- a role's or the batch's scale


@st.composite
def batches(draw):
    """(advantages, tokens) of branches of two roles: numbers, or one a token."""
    per_token = draw(st.booleans())
    advantage, tokens = {}, {}
    for index in range(draw(st.integers(2, 6))):
        key = Key("t", chain=index).of_branch(draw(st.sampled_from(["one", "two"])), 0)
        tokens[key] = draw(st.integers(1, 4))
        numbers = draw(st.lists(st.floats(-5, 5), min_size=tokens[key], max_size=tokens[key]))
        advantage[key] = np.array(numbers) if per_token else numbers[0]
    return advantage, tokens


@given(
    batches(),
    st.sampled_from(["scale", "whiten"]),
    st.sampled_from(["role", "global"]),
    st.sampled_from(["action", "token"]),
    st.integers(0, 1),
    st.sampled_from(["add", "clamp"]),
)
@settings(max_examples=100, deadline=None)
def test_the_batchs_scale_is_that_of_a_plain_array_of_repeated_values(batch, kind, scope, per, ddof, mode):
    advantage, tokens = batch
    normaliser = Normaliser(type=kind, scope=scope, per=per, ddof=ddof, eps=0.1, eps_mode=mode)
    normalised = normalise_batch(advantage, tokens, normaliser)
    assert normalised.keys() == advantage.keys()
    for role in ("one", "two"):
        keys = [key for key in advantage if scope == "global" or key.role == role]
        # 12 is divided by every number of tokens: a token of n stands 12 / n times where actions count once.
        repeats = [12 // np.size(advantage[key]) * (tokens[key] if per == "token" else 1) for key in keys]
        values = np.concatenate(
            [np.repeat(advantage[key], times) for key, times in zip(keys, repeats, strict=True)]
            or [np.zeros(0)]
        )
        count = len(values) / 12  # what the degrees of freedom are taken from
        if not count:
            continue
        squares = ((values - values.mean()) ** 2).sum() / 12
        deviation = math.sqrt(squares / (count - ddof)) if count > ddof else 0.0
        divisor = deviation + 0.1 if mode == "add" else max(deviation, 0.1)
        shift = values.mean() if kind == "whiten" else 0.0
        for key in (key for key in keys if key.role == role):
            assert normalised[key] == pytest.approx((advantage[key] - shift) / divisor, abs=1e-9)


def test_by_hand_a_long_action_counts_once_or_by_its_tokens():
    short, two = (Key("t", chain=c).of_branch("r", 0) for c in range(2))
    table, tokens = {short: 1.0, two: 5.0}, {short: 1, two: 3}
    by_action = normalise_batch(table, tokens, Normaliser(type="whiten", scope="global", ddof=0, eps=0))
    assert list(by_action.values()) == [-1.0, 1.0]  # mean 3, deviation 2
    by_token = normalise_batch(
        table, tokens, Normaliser(type="whiten", scope="global", per="token", ddof=0, eps=0)
    )
    # 1, 5, 5, 5: mean 4, squares 9 + 3 over 4
    assert list(by_token.values()) == pytest.approx([-3 / math.sqrt(3), 1 / math.sqrt(3)])


def test_equal_numbers_of_a_batch_are_whitened_to_exactly_zero():
    table = {Key("t", chain=c).of_branch("r", 0): 0.1 for c in range(7)}
    normalised = normalise_batch(
        table, dict.fromkeys(table, 1), Normaliser(type="whiten", scope="global", eps=0)
    )
    assert list(normalised.values()) == [0.0] * 7


def test_no_deviation_and_no_eps_is_zero_and_not_an_error():
    assert Normaliser(eps=0)(np.zeros(3), np.ones(3)).tolist() == [0.0] * 3


def test_a_group_of_one_has_no_deviation_with_bessels_correction():
    advantages = Normaliser(ddof=1, eps=0.5)(np.array([2.0]), np.array([3.0]))
    assert advantages.tolist() == [2.0 / 0.5]


def test_a_group_of_other_scope_is_scaled_by_what_is_left_after_its_baseline():
    # Centred by group: -1, 1 and -3, 3; squares 20 over 3
    groups = [
        Group("r", tuple(Row("r", v, (Key(task).of_branch("r", i),)) for i, v in enumerate(values)))
        for task, values in (("t", (10, 12)), ("u", (0, 6)))
    ]
    credit = credit_groups(groups, mean_baseline, Normaliser(scope="global", eps=0), tokens={})
    wanted = np.array([-1, 1, -3, 3]) / math.sqrt(20 / 3)
    assert list(credit.advantage.values()) == pytest.approx(wanted)


@pytest.mark.parametrize(
    "table",
    [{"type": "none", "eps": 0.1}, {"type": "none", "scope": "global"}, {"scope": "group", "per": "token"}],
)
def test_what_a_normaliser_would_not_read_is_refused(table):
    with pytest.raises(ValueError, match=r"reads no|needs scope"):
        Normaliser(**table)


# ----------------------------------------------------------------------------------- whole estimators


def credit_of(run, tasks=1):
    trees, scores = play_episode(run, tasks)
    return trees, run.estimator(
        Batch(trees=trees, scores=scores, annotations={}, reward_weights=run.reward_weights), None
    )[0]


def test_at_grpo_groups_the_branches_of_one_decision():
    trees, credit = credit_of(
        coterie_run(algorithm={"type": "at_grpo", "normalise": {"type": "none"}}), tasks=2
    )
    for tree in trees:  # rewards 0, 1.1, 2.2 for each role: mean 1.1
        for node in tree.nodes():
            for role in node.decisions:
                assert [credit.advantage[node.key.of_branch(role, b)] for b in range(3)] == pytest.approx(
                    [-1.1, 0, 1.1]
                )


def test_alpha_scales_the_teams_part_only():
    trees, credit = credit_of(
        coterie_run(algorithm={"type": "at_grpo", "alpha": 0.5, "normalise": {"type": "none"}})
    )
    key = trees[0].root.key
    assert credit.advantage[key.of_branch("one", 2)] == pytest.approx(0.5 * 1.0 + 0.1)


def test_grpo_compares_the_chains_of_a_task_role_by_role():
    run = coterie_run(
        answers=by_chain,
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


@pytest.mark.parametrize("name", ["task", "turn"])
def test_two_visits_of_a_task_are_two_groups(name):
    """In one step, where it plays more tasks than there are: the resets of two epochs differ."""
    rows = [
        Row("r", float(10 * epoch + chain), (Key("t", epoch, chain).of_branch("r", 0),))
        for epoch in range(2)
        for chain in range(2)
    ]
    groups = grouped(rows, GROUPINGS[name])
    assert [[row.value for row in group.rows] for group in groups] == [[0.0, 1.0], [10.0, 11.0]]
    (other,) = grouped(rows, GROUPINGS["role"])
    assert len(other.rows) == 4


@pytest.mark.parametrize("algorithm", ["grpo", "reinforce_pp_baseline"])
def test_a_step_of_two_epochs_compares_chains_of_one_epoch(algorithm):
    run = coterie_run(
        answers=by_epoch,
        order=["one"],
        env={"tasks": 2},
        sampler={"chains": 2, "branches": 1},
        algorithm={"type": algorithm, "normalise": {"type": "none"}},
    )
    trees, credit = credit_of(run, tasks=4)
    assert sorted({(tree.task.id, tree.epoch) for tree in trees}) == [
        ("train-0", 0), ("train-0", 1), ("train-1", 0), ("train-1", 1)
    ]  # fmt: skip
    for tree in trees:  # chain c of epoch e writes 5 e + c: 1.1 a number, of which half a 1 is above the mean
        advantage = credit.advantage[tree.root.key.of_branch("one", 0)]
        assert advantage == pytest.approx(1.1 * (tree.chain - 0.5))


def by_epoch(request, text):
    return str(5 * request.key.epoch + request.key.chain)


def by_chain(request, text):
    return str(request.key.chain)


def test_groups_of_one_are_refused_by_name():
    with pytest.raises(ConfigError, match="one member") as error:
        coterie_run(sampler={"branches": 1})
    assert error.value.path == "sampler.branches"
    with pytest.raises(ConfigError, match="one member") as error:
        coterie_run(sampler={"branches": 1, "chains": 1}, algorithm={"type": "grpo"})
    assert error.value.path == "sampler.chains"
    with pytest.raises(ConfigError, match="whole chains"):
        coterie_run(sampler={"branches": 2, "chains": 2}, algorithm={"type": "grpo"})


def test_a_branch_that_the_engine_lost_is_not_credited():
    run = coterie_run(
        answers=loses_one,
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
