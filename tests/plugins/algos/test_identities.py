"""Identities between estimators and of each with itself, on random trees; and returns by brute force."""

from __future__ import annotations

import logging
import math

import numpy as np
import pytest
from hypothesis import assume, given, settings, strategies as st

from coterie.testing.support.trees import Forest, J, chain, places
from tests.plugins.algos.support import ALL, BRANCHES, CHAINS, PLANS, TREES, advantages, credit, estimator

NONE = {"type": "none"}
GROUPED = ("at_grpo", "grpo", "dr_grpo", "rloo", *TREES)
"""Estimators that compare siblings; at one turn of one role they all see the same group."""

pays = st.floats(-10, 10).map(lambda value: round(value, 3))
groups = st.lists(pays, min_size=2, max_size=8)
quick = settings(max_examples=10, deadline=None)


def once(name: str, values: list[float], **more: object) -> list[float]:
    """Advantages of one role's one turn: the siblings, or the chains, that paid these values."""
    siblings = PLANS.get(name, ALL).chains == 1
    forest = Forest().grow([J(v) for v in values]) if siblings else Forest().grow(*(chain(v) for v in values))
    return list(advantages(name, forest, **more).values())


def close(first: list[float], other: list[float], scale: float = 1.0) -> bool:
    return bool(np.allclose(first, other, rtol=1e-9, atol=1e-9 * scale))


# -------------------------------------------------------------------------------- between estimators


@given(groups, st.sampled_from(["none", "scale", "whiten"]), st.sampled_from(["add", "clamp"]))
@quick
def test_with_one_agent_and_one_turn_magrpo_at_grpo_and_grpo_are_one(values, kind, mode):
    normalise = NONE if kind == "none" else {"type": kind, "eps": 1e-4, "eps_mode": mode, "ddof": 0}
    by_algorithm = [once(name, values, normalise=normalise) for name in ("magrpo", "at_grpo", "grpo")]
    assert close(by_algorithm[0], by_algorithm[1]) and close(by_algorithm[0], by_algorithm[2])


@given(groups)
@quick
def test_dr_grpo_is_grpo_without_the_deviation(values):
    plain = once("dr_grpo", values)
    assert close(plain, once("grpo", values, normalise=NONE), 10)
    assert close(plain, [a * (np.std(values, ddof=1) + 1e-4) for a in once("grpo", values)], 10)


@given(groups)
@quick
def test_leave_one_out_is_k_over_k_minus_1_times_the_mean(values):
    k = len(values)
    assert close(once("marloo", values), [k / (k - 1) * a for a in once("magrpo", values)], 10)
    assert close(once("rloo", values), [k / (k - 1) * a for a in once("dr_grpo", values)], 10)
    assert close(once("marloo", values), [v - (sum(values) - v) / (k - 1) for v in values], 10)


@given(groups)
@quick
def test_no_baseline_and_the_best_as_baseline_differ_by_a_shift(values):
    assume(np.ptp(values) > 0.1 and abs(np.mean(values)) > 0.1)
    mean, none, best = (once(name, values) for name in ("magrpo", "mareinforce", "maremax"))
    assert close(none, values) and close(best, [v - max(values) for v in values])
    for left, other in ((mean, none), (mean, best)):
        shift = np.subtract(left, other)
        assert np.ptp(shift) < 1e-9 and abs(shift[0]) > 0.01


@given(groups)
@quick
def test_whitened_they_are_all_the_same(values):
    assume(np.ptp(values) > 0.1)
    whiten = {"type": "whiten", "eps": 0.0}  # added to a deviation, it would weigh more where that is smaller
    wanted = once("at_grpo", values, normalise={"type": "scale", "eps": 0.0})
    for name in ("magrpo", "marloo", "mareinforce", "maremax"):
        assert close(wanted, once(name, values, normalise=whiten))


@pytest.mark.parametrize("name", ["marloo", "mareinforce", "maremax", "rloo"])
def test_and_a_configuration_that_makes_them_so_warns(name, caplog):
    with caplog.at_level(logging.WARNING, "coterie"):
        estimator(name, normalise={"type": "whiten"})
    assert "makes no difference" in caplog.text and "normalise.type" in caplog.text


@pytest.mark.parametrize(
    ("name", "normalise"),
    [
        *((name, NONE) for name in GROUPED),
        ("magrpo", {"type": "whiten"}),
        ("marloo", {"type": "scale"}),
        ("maremax", {"type": "scale"}),
        ("mareinforce", {"type": "whiten", "scope": "global"}),
        ("reinforce", {"type": "whiten", "scope": "global"}),
    ],
)
def test_others_do_not(name, normalise, caplog):
    with caplog.at_level(logging.WARNING, "coterie"):
        estimator(name, normalise=normalise)
    assert caplog.text == ""


@given(groups)
@quick
def test_reinforce_pp_without_kl_is_reinforce_with_the_batchs_mean(values):
    normalise = {"type": "whiten", "scope": "global", "ddof": 0, "eps": 1e-4, "eps_mode": "clamp"}
    reinforce = once("reinforce", values, normalise=normalise)
    other = [float(a[0]) for a in once("reinforce_pp", values, beta=0.0)]
    assert close(reinforce, other)


# ------------------------------------------------------------------------------- of each with itself


@pytest.mark.parametrize("name", sorted(PLANS))
@given(data=st.data())
@quick
def test_siblings_may_be_permuted(name, data):
    values = data.draw(groups)
    order = data.draw(st.permutations(range(len(values))))
    plain, shuffled = once(name, values), once(name, [values[i] for i in order])
    assert close([plain[i] for i in order], shuffled, 10)


@pytest.mark.parametrize("name", [*GROUPED, "reinforce_pp_baseline"])
@given(groups, st.floats(-5, 5))
@quick
def test_a_shift_of_all_pays_changes_nothing(name, values, shift):
    plain, moved = once(name, values), once(name, [value + shift for value in values])
    if name == "mareinforce":  # nothing is taken off
        assert close(moved, [a + shift for a in plain], 10)
    elif np.ptp(values) == 0:
        assert set(plain) == set(moved) == {0.0}
    else:
        assume(np.ptp(values) > 0.05)
        assert close(plain, moved, 1e3)


@pytest.mark.parametrize("name", ["at_grpo", "grpo", "reinforce_pp_baseline"])
@given(groups, st.floats(0.1, 10))
@quick
def test_scale_goes_up_to_eps_where_the_normaliser_says_so(name, values, factor):
    assume(np.std(values) > 0.05)
    normalise = {"eps": 1e-3}
    plain = once(name, values, normalise=normalise)
    scaled = once(name, [value * factor for value in values], normalise=normalise)
    smallest = min(1.0, factor) * np.std(values)
    assert np.allclose(plain, scaled, rtol=1e-3 / smallest, atol=1e-9)
    exact = once(name, [value * factor for value in values], normalise={"eps": 0.0})
    assert close(exact, once(name, values, normalise={"eps": 0.0}), 10)


@pytest.mark.parametrize("name", ["dr_grpo", "rloo", *TREES, "reinforce", "rae"])
@given(groups, st.floats(0.1, 10))
@quick
def test_scale_stays_where_there_is_no_normaliser(name, values, factor):
    scaled = once(name, [value * factor for value in values])
    assert close(scaled, [a * factor for a in once(name, values)], 100)


@pytest.mark.parametrize(
    "name", ["at_grpo", "grpo", "dr_grpo", "rloo", "magrpo", "marloo", "reinforce_pp_baseline"]
)
@given(groups)
@quick
def test_advantages_of_a_group_sum_to_zero(name, values):
    assert abs(sum(once(name, values))) < 1e-6


@given(groups)
@quick
def test_where_they_should_not_they_do_not(values):
    assert sum(once("mareinforce", values)) == pytest.approx(sum(values))
    best = once("maremax", values)
    assert max(best) == 0.0 and min(best) == min(values) - max(values)


# ------------------------------------------------------------------------------------------- trees


def joints(depth: int) -> st.SearchStrategy[list[J]]:
    """Nodes of 1 to 3 joints that end at any depth."""
    then = st.just([]) if depth == 0 else st.one_of(st.just([]), joints(depth - 1))
    joint = st.builds(J, gain=pays, then=then, potential=st.one_of(st.just(...), pays))
    return st.lists(joint, min_size=1, max_size=3)


def futures(node: list[J], potential: float, chance: float = 1.0) -> list[tuple[float, list[float]]]:
    """Every way of going on from a node: (its probability under uniform choices, the pay of each turn)."""
    chances = []
    for joint in node:
        after = potential if joint.potential is ... else joint.potential
        paid, share = joint.gain + after - potential, chance / len(node)
        rest = futures(list(joint.then), after, share) if joint.then else [(share, [])]
        chances += [(chance_, [paid, *later]) for chance_, later in rest]
    return chances


def worths(node: list[J], gamma: float, potential: float = 0.0, at: str = "0") -> dict[str, float]:
    """Of every branch: the mean over all its leaves of what was paid on the way, discounted."""
    by_branch = {}
    for index, joint in enumerate(node):
        ways = futures([joint], potential)
        by_branch[f"{at}:one{index}"] = math.fsum(
            chance * sum(gamma**turn * paid for turn, paid in enumerate(paid_)) for chance, paid_ in ways
        )
        after = potential if joint.potential is ... else joint.potential
        by_branch |= worths(list(joint.then), gamma, after, f"{at}.{index}")
    return by_branch


@given(joints(3), st.sampled_from([1.0, 0.9, 0.5, 0.0]))
@settings(max_examples=30, deadline=None)
def test_the_tree_return_is_the_mean_over_leaves(root, gamma):
    forest = Forest().grow(root)
    result = credit(estimator("mareinforce", forest=forest, gamma=gamma), forest)
    wanted = worths(root, gamma)
    assert places(result.returns) == pytest.approx(wanted, abs=1e-9)
    assert places(result.advantage) == pytest.approx(wanted, abs=1e-9)


@given(joints(3))
@settings(max_examples=30, deadline=None)
def test_advantages_along_a_path_sum_to_its_return_less_the_roots_mean(root):
    forest = Forest().grow(root)
    advantage = credit(estimator("magrpo", forest=forest), forest).advantage
    # A node of one candidate has no group: it teaches nothing, and its mean is its own return.
    mean = sum(worths(root, 1.0)[f"0:one{index}"] for index in range(len(root))) / len(root)
    for path in forest.trees[0].chains():
        credited = [advantage.get(node.key.of_branch("one", index), 0.0) for node, index in path]
        potential, returned, node_ = 0.0, 0.0, root
        for _, index in path:
            joint = node_[index]
            after = potential if joint.potential is ... else joint.potential
            returned, potential, node_ = returned + joint.gain + after - potential, after, list(joint.then)
        assert sum(credited) == pytest.approx(returned - mean, abs=1e-9)


def full(depth: int, width: int) -> st.SearchStrategy[list[J]]:
    then = st.just([]) if depth == 0 else full(depth - 1, width)
    return st.lists(st.builds(J, gain=pays, then=then), min_size=width, max_size=width)


def shifted(node: list[J], by: float) -> list[J]:
    return [J(joint.gain + by, shifted(list(joint.then), by)) for joint in node]


@pytest.mark.parametrize("name", TREES)
@given(full(2, 2), st.floats(-5, 5), st.sampled_from([1.0, 0.5]))
@quick
def test_a_shift_is_forgotten_where_all_paths_are_equally_long(name, root, shift, gamma):
    plain = advantages(name, Forest().grow(root), gamma=gamma)
    moved = advantages(name, Forest().grow(shifted(root, shift)), gamma=gamma)
    if name == "mareinforce":
        left = {depth: shift * sum(gamma**k for k in range(3 - depth)) for depth in range(3)}
        plain = {at: value + left[at.count(".")] for at, value in plain.items()}
    assert moved == pytest.approx(plain, abs=1e-9)


def test_and_not_where_they_are_not():
    # A pay of 1 a turn is worth more to the branch that has two turns: that is what increments say.
    assert advantages("magrpo", Forest().grow(shifted([J(0, [J(0)]), J(0)], 1.0)))["0:one0"] == 0.5


@given(joints(2), joints(2))
@quick
def test_what_happens_in_one_tree_is_nothing_to_another(one, other):
    both = advantages("magrpo", Forest().grow(one, other))
    alone = advantages("magrpo", Forest().grow(one))
    assert {at: both[at] for at in alone} == alone


# ------------------------------------------------------------------------------------------- chains


histories = st.lists(st.lists(pays, min_size=1, max_size=4), min_size=2, max_size=5)


@given(histories, st.sampled_from([1.0, 0.9, 0.5]))
@quick
def test_an_episodes_return_is_the_discounted_sum_of_its_chain(chains, gamma):
    forest = Forest().grow(*(chain(*paid) for paid in chains))
    advantage = advantages("rloo", forest, gamma=gamma)
    sums = [sum(gamma**turn * pay for turn, pay in enumerate(paid)) for paid in chains]
    assert len(advantage) == sum(len(paid) for paid in chains)  # of whatever length: none is dropped
    for at, value in advantage.items():
        mine = int(at[0])
        others = [total for index, total in enumerate(sums) if index != mine]
        assert value == pytest.approx(sums[mine] - sum(others) / len(others), abs=1e-9)


@given(histories, st.sampled_from([1.0, 0.9, 0.5]))
@quick
def test_rewards_to_go_are_the_tail_of_the_chain(chains, gamma):
    forest = Forest().grow(*(chain(*paid) for paid in chains))
    advantage = advantages("reinforce", forest, gamma=gamma)
    for index, paid in enumerate(chains):
        for turn in range(len(paid)):
            at = f"{'.'.join([str(index), *['0'] * turn])}:one0"
            tail = sum(gamma**ahead * pay for ahead, pay in enumerate(paid[turn:]))
            assert advantage[at] == pytest.approx(tail, abs=1e-9)


@given(histories)
@quick
def test_a_chain_is_a_tree_of_one_branch(chains):
    forest = Forest().grow(*(chain(*paid) for paid in chains))
    pieces = {"group": "batch", "baseline": "none", "normalise": NONE}
    tree = advantages("compose", forest, plan=ALL, **{"return": "tree"}, **pieces)
    to_go = advantages("compose", forest, plan=CHAINS, **{"return": "to_go"}, **pieces)
    assert tree == to_go == advantages("reinforce", forest)


@given(groups)
@quick
def test_a_composed_one_is_the_named_one(values):
    forest = Forest().grow([J(value) for value in values])
    named = {
        "at_grpo": {"return": "immediate"},
        "marloo": {"return": "tree", "baseline": "loo", "normalise": NONE},
        "maremax": {"return": "tree", "baseline": "max", "normalise": NONE},
    }
    for name, pieces in named.items():
        plan = BRANCHES if name == "at_grpo" else ALL
        assert advantages("compose", forest, plan=plan, group="decision", **pieces) == advantages(
            name, forest
        )
