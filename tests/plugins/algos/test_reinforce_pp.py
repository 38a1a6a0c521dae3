"""REINFORCE++: per-token rewards with the KL in them, normalised over the batch."""

from __future__ import annotations

import logging
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from coterie.core.errors import ConfigError
from coterie.testing.support.trees import Forest, J, chain, places
from tests.plugins.algos.support import BRANCHES, advantages, credit, estimator

PLAIN = {"normalise": {"type": "none"}}
numbers = st.floats(-3, 3).map(lambda value: round(value, 3))


def one_action() -> tuple[Forest, dict[str, list[float]]]:
    """Three tokens, log pi - log ref = .5, -1, 0; the action's score is 2."""
    return Forest(logprobs={"0:one0": (-1.0, -2.0, -3.0)}).grow(chain(2)), {"0:one0": [-1.5, -1.0, -3.0]}


@pytest.mark.parametrize(
    ("gamma", "wanted"),
    [
        # rewards -.05, .1, 2, summed from the end
        (1.0, [2.05, 2.1, 2.0]),
        # 2; .1 + 2/2; -.05 + 1.1/2
        (0.5, [0.5, 1.1, 2.0]),
    ],
)
def test_every_token_pays_the_kl_from_itself_to_the_end(gamma, wanted):
    forest, reference = one_action()
    annotations = forest.annotations("ref_logprobs", reference)
    advantage = advantages("reinforce_pp", forest, annotations=annotations, beta=0.1, gamma=gamma, **PLAIN)
    assert advantage["0:one0"] == pytest.approx(np.array(wanted))


@given(
    st.lists(st.tuples(numbers, numbers), min_size=1, max_size=8),
    numbers,
    st.sampled_from([0.0, 0.01, 0.5]),
    st.sampled_from([1.0, 0.9, 0.0]),
)
@settings(max_examples=40, deadline=None)
def test_a_loop_over_tokens_says_the_same(tokens, score, beta, gamma):
    policy, reference = zip(*tokens, strict=True)
    forest = Forest(logprobs={"0:one0": policy}).grow(chain(score))
    annotations = forest.annotations("ref_logprobs", {"0:one0": reference})
    advantage = advantages("reinforce_pp", forest, annotations=annotations, beta=beta, gamma=gamma, **PLAIN)[
        "0:one0"
    ]
    count = len(tokens)
    for t in range(count):
        kl = sum(gamma ** (k - t) * (policy[k] - reference[k]) for k in range(t, count))
        assert advantage[t] == pytest.approx(gamma ** (count - 1 - t) * score - beta * kl, abs=1e-9)


def two_actions() -> Forest:
    return Forest(logprobs={"0:one0": (-1.0, -1.0), "0.0:one0": (-1.0, -1.0, -1.0)}).grow(chain(1, 5))


def test_the_kl_stays_inside_its_action():
    forest = two_actions()
    far = forest.annotations("ref_logprobs", {"0:one0": [-1.0, -1.0], "0.0:one0": [-9.0, -9.0, -9.0]})
    advantage = advantages("reinforce_pp", forest, annotations=far, beta=1.0, **PLAIN)
    assert advantage["0:one0"].tolist() == [1.0, 1.0]
    assert advantage["0.0:one0"].tolist() == [5 - 24, 5 - 16, 5 - 8]


def test_an_actions_score_is_its_own_or_what_came_after_it_too():
    forest = two_actions()
    advantage = advantages("reinforce_pp", forest, beta=0.0, **PLAIN)
    after = advantages("reinforce_pp", forest, beta=0.0, **{"return": "to_go"}, **PLAIN)
    assert [advantage["0:one0"][0], advantage["0.0:one0"][0]] == [1, 5]
    assert [after["0:one0"][0], after["0.0:one0"][0]] == [6, 5]


def test_no_reference_is_asked_for_without_a_coefficient():
    assert estimator("reinforce_pp").needs == ("ref_logprobs",)
    assert estimator("reinforce_pp", beta=0.0).needs == ()


def test_a_policy_that_is_not_trained_has_no_reference_and_needs_none():
    forest = Forest(order=(("one",), ("two",)), untrained=("two",)).grow(chain(1, 3))
    assert set(advantages("reinforce_pp", forest, beta=0.5, **PLAIN)) == {"0:one0"}


# ----------------------------------------------------------------------------------------- statistics


@pytest.mark.parametrize("scope", ["global", "role"])
def test_equal_scores_are_no_signal_and_rounding_noise_is_not_scaled_up(scope):
    """The policy is its own reference, up to fp32: whitened, the noise had a deviation of .31."""
    rng = np.random.default_rng(0)
    logprobs = {f"{chain}:one0": tuple(rng.normal(-1, 0.3, 20)) for chain in range(8)}
    forest = Forest(logprobs=logprobs).grow(*(chain(0.7) for _ in range(8)))
    reference = {at: np.float32(values) + rng.normal(0, 1e-6, 20) for at, values in logprobs.items()}
    annotations = forest.annotations("ref_logprobs", reference)
    result = credit(estimator("reinforce_pp", normalise={"scope": scope}), forest, annotations)
    every = np.concatenate(list(result.advantage.values()))
    assert 0 < every.std() <= 0.02 and abs(every.mean()) < 1e-12
    assert result.metrics["normaliser/unscaled"] == 1.0


def test_with_equal_scores_a_real_kl_is_still_paid_as_it_is():
    forest = Forest(logprobs={"0:one0": (-1.0,), "1:one0": (-2.0,)}).grow(chain(1), chain(1))
    annotations = forest.annotations("ref_logprobs", {"0:one0": [-3.0], "1:one0": [-2.0]})
    advantage = places(credit(estimator("reinforce_pp", beta=0.5), forest, annotations).advantage)
    assert [advantage["0:one0"].tolist(), advantage["1:one0"].tolist()] == [[-0.5], [0.5]]


def test_one_role_of_equal_scores_is_centred_and_the_other_scaled():
    order = (("one",), ("two",))
    forest = Forest(order=order).grow(chain(J(role_gain={"one": 1}), J(role_gain={"two": 5})),
                                      chain(J(role_gain={"one": 3}), J(role_gain={"two": 5})))  # fmt: skip
    result = credit(estimator("reinforce_pp", beta=0.0, normalise={"scope": "role"}), forest)
    advantage = {at: float(value[0]) for at, value in places(result.advantage).items()}
    assert advantage == {"0:one0": -1.0, "0.0:two0": 0.0, "1:one0": 1.0, "1.0:two0": 0.0}
    assert result.metrics["normaliser/unscaled"] == 1.0


def test_the_deviation_is_at_least_a_ten_thousandth_as_openrlhf_clamps_the_variance():
    forest = Forest().grow(chain(0.0), chain(1e-5))
    advantage = advantages("reinforce_pp", forest, beta=0.0)
    assert [float(value[0]) for value in advantage.values()] == pytest.approx([-0.05, 0.05])


def test_frozen_partners_are_in_no_statistic():
    """With the partner's scores of 9 and 7 in the mean, all of `one` would be below it."""
    order = (("one",), ("two",))
    paths = [chain(J(role_gain={"one": one}), J(role_gain={"two": two})) for one, two in ((1, 9), (3, 7))]
    frozen = credit(estimator("reinforce_pp", beta=0.0), Forest(order=order, untrained=("two",)).grow(*paths))
    assert {at: float(value[0]) for at, value in places(frozen.advantage).items()} == {
        "0:one0": -1.0,
        "1:one0": 1.0,
    }
    assert not any("two" in name for name in frozen.metrics)


def unequal() -> Forest:
    """Scores 1, 4 and 10 of `one` (1, 2 and 3 tokens) and 7 of `two` (1 token)."""
    lengths = {"0:one0": (-1.0,), "1:one0": (-1.0,) * 2, "2:one0": (-1.0,) * 3}
    return Forest(order=(("one",), ("two",)), logprobs=lengths).grow(chain(1), chain(4), chain(10, 7))


@pytest.mark.parametrize(
    ("scope", "per", "of_one", "of_two"),
    [
        ("global", "token", [1, 4, 4, 10, 10, 10, 7], [1, 4, 4, 10, 10, 10, 7]),
        ("global", "action", [1, 4, 10, 7], [1, 4, 10, 7]),
        ("role", "token", [1, 4, 4, 10, 10, 10], [7]),
        ("role", "action", [1, 4, 10], [7]),
    ],
)
def test_whose_mean_and_deviation_and_what_counts_once(scope, per, of_one, of_two):
    advantage = advantages("reinforce_pp", unequal(), beta=0.0, normalise={"scope": scope, "per": per})
    for index, score in enumerate((1, 4, 10)):
        wanted = (score - np.mean(of_one)) / np.std(of_one)
        assert advantage[f"{index}:one0"] == pytest.approx(np.full(index + 1, wanted), abs=1e-6)
    alone = len(of_two) == 1  # a role of one action has nothing to be compared with
    assert advantage["2.0:two0"] == pytest.approx(
        [0.0 if alone else (7 - np.mean(of_two)) / np.std(of_two)], abs=1e-6
    )


def test_it_is_normalised_once_over_all_roles():
    advantage = advantages("reinforce_pp", unequal(), beta=0.0)
    flat = np.concatenate(list(advantage.values()))
    assert [flat.mean(), flat.std()] == pytest.approx([0, 1], abs=1e-7)
    assert abs(np.concatenate([advantage[f"{c}:one0"] for c in range(3)]).mean()) > 0.01


def test_actions_that_the_limit_cut_leave_the_statistics_and_the_loss():
    forest = Forest(truncated=["2:one0"]).grow(chain(0), chain(2), chain(90))
    algorithm = estimator("reinforce_pp", beta=0.0)
    result = credit(algorithm, forest)
    assert {at: float(value[0]) for at, value in places(result.advantage).items()} == pytest.approx(
        {"0:one0": -1, "1:one0": 1}, abs=1e-6
    )
    assert result.metrics["groups/one/truncated"] == 1.0
    kept = credit(estimator("reinforce_pp", beta=0.0, truncated="keep"), forest)
    assert set(places(kept.advantage)) == {"0:one0", "1:one0", "2:one0"}
    assert kept.metrics["groups/one/truncated"] == 1.0


@pytest.mark.parametrize(("finishes", "dropped"), [
    (("stop", "length"), True),  # a tool call, then an answer that the limit cut
    (("length", "stop"), False),
])  # fmt: skip
def test_the_last_call_decides_whether_an_action_was_cut(finishes, dropped):
    forest = Forest().grow(chain(0), chain(2), chain(4))
    root = forest.trees[0].root
    (call,) = root.decisions["one"].branches[0].calls
    action = replace(
        root.decisions["one"].branches[0], calls=tuple(replace(call, finish=finish) for finish in finishes)
    )
    decisions = {"one": replace(root.decisions["one"], branches=(action,))}
    forest.trees[0] = replace(forest.trees[0], root=replace(root, decisions=decisions))
    result = credit(estimator("reinforce_pp", beta=0.0, **PLAIN), forest)
    assert set(places(result.advantage)) == {"1:one0", "2:one0"} | (set() if dropped else {"0:one0"})
    assert result.metrics["groups/one/truncated"] == float(dropped)


def test_when_all_were_cut_it_says_why_nothing_is_trained(caplog):
    forest = Forest(truncated=["0:one0", "1:one0"]).grow(chain(0), chain(2))
    with caplog.at_level(logging.WARNING, "coterie"):
        assert advantages("reinforce_pp", forest, beta=0.0) == {}
    assert "all 2 actions reached the token limit" in caplog.text and "max_new_tokens" in caplog.text


def test_every_branch_is_an_action_of_its_own():
    forest = Forest().grow([J(1), J(3), J(5)])
    advantage = advantages("reinforce_pp", forest, plan=BRANCHES, beta=0.0, **PLAIN)
    assert {at: float(value[0]) for at, value in advantage.items()} == {"0:one0": 1, "0:one1": 3, "0:one2": 5}


def test_there_are_no_groups_to_normalise_over():
    with pytest.raises(ConfigError) as error:
        estimator("reinforce_pp", normalise={"scope": "group"})
    assert error.value.path == "algorithm.normalise.scope"


# ------------------------------------------------------------------------------------------- baseline


def test_the_baseline_variant_pays_no_kl():
    algorithm = estimator("reinforce_pp_baseline")
    assert algorithm.needs == ()
    with pytest.raises(ConfigError, match="unknown key 'beta'"):
        estimator("reinforce_pp_baseline", beta=0.01)


@given(st.lists(st.tuples(numbers, numbers, numbers), min_size=1, max_size=4), st.booleans())
@settings(max_examples=30, deadline=None)
def test_the_baseline_variant_is_the_groups_centring_on_the_batchs_scale(tasks, by_token):
    forest = Forest(logprobs={f"t{i}/1:one0": (-1.0,) * (i + 2) for i in range(len(tasks))})
    for index, scores in enumerate(tasks):
        forest.grow(*(chain(score) for score in scores), task=f"t{index}")
    advantage = advantages(
        "reinforce_pp_baseline",
        forest,
        normalise={"per": "token" if by_token else "action", "eps": 0.1, "eps_mode": "add"},
    )
    centred = {
        f"t{i}/{c}:one0": score - sum(scores) / 3
        for i, scores in enumerate(tasks)
        for c, score in enumerate(scores)
    }
    repeats = [len(forest.logprobs.get(at, (0,))) if by_token else 1 for at in centred]
    sample = np.repeat(list(centred.values()), repeats)
    for at, value in centred.items():
        assert advantage[at] == pytest.approx(value / (sample.std() + 0.1), abs=1e-9)
