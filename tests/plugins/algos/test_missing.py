"""Missing scores, groups that are too small, and groups that are all equal: in every estimator."""

from __future__ import annotations

import numpy as np
import pytest

from coterie.core.errors import ConfigError
from coterie.testing.support.trees import Forest, J, chain, places
from tests.plugins.algos.support import ALL, PLANS, TREES, advantages, credit, estimator

COMPARING = ("at_grpo", "grpo", "dr_grpo", "rloo", "magrpo", "marloo", "maremax", "reinforce_pp_baseline")
"""A group of one says nothing to them."""
WITH_GROUPS = (*COMPARING, "mareinforce", "reinforce", "rae")
SETTINGS = {"reinforce_pp": {"beta": 0.0}, "gae": {"normalise": {"type": "none"}}}

every_estimator = pytest.mark.parametrize("name", sorted(PLANS))


def forest_of(name: str, joints: list[J]) -> Forest:
    """These as the siblings of a decision, or as the chains of a task."""
    return Forest().grow(joints) if PLANS[name].chains == 1 else Forest().grow(*([joint] for joint in joints))


def numbers(result: object) -> list[float]:
    return [float(np.atleast_1d(value)[0]) for value in result.advantage.values()]  # type: ignore[attr-defined]


@every_estimator
def test_what_is_missing_is_out_of_everything_and_counted(name):
    algorithm = estimator(name, **SETTINGS.get(name, {}))
    result = credit(algorithm, forest_of(name, [J(1), J(None), J(4), J(lost=True), J(10)]))
    alone = credit(algorithm, forest_of(name, [J(1), J(4), J(10)]))
    kept = ["0:one0", "0:one2", "0:one4"] if PLANS[name].chains == 1 else ["0:one0", "2:one0", "4:one0"]
    assert list(places(result.advantage)) == kept
    assert numbers(result) == numbers(alone)
    assert list(result.weight.values()) == list(alone.weight.values())
    (missing,) = [value for metric, value in result.metrics.items() if metric.endswith("missing_rows")]
    assert missing == 2.0


@every_estimator
def test_a_part_that_is_missing_makes_the_whole_missing(name):
    joints = [J(1, role_gain={"one": None}), J(1, role_gain={"one": 2.0}), J(5, role_gain={"one": 0.5}), J(2)]
    result = credit(estimator(name, **SETTINGS.get(name, {})), forest_of(name, joints))
    first = "0:one0"
    assert first not in places(result.advantage) and len(result.advantage) == 3


@every_estimator
def test_a_group_with_one_member_left_is_not_trained_where_it_is_compared(name):
    result = credit(estimator(name, **SETTINGS.get(name, {})), forest_of(name, [J(None), J(3)]))
    if name in COMPARING:
        assert result.advantage == {} and result.weight == {}
        assert result.metrics["groups/one/too_small"] == 1.0
    else:
        assert len(result.advantage) == 1


@every_estimator
def test_a_step_without_a_single_score_trains_nothing(name):
    result = credit(estimator(name, **SETTINGS.get(name, {})), forest_of(name, [J(None), J(lost=True)]))
    assert result.advantage == {} and result.target == {}
    assert all(np.isfinite(value) for value in result.metrics.values())


@every_estimator
def test_equal_rewards_are_kept_at_exactly_zero_and_counted(name):
    result = credit(estimator(name, **SETTINGS.get(name, {})), forest_of(name, [J(0.1)] * 7))
    if name in COMPARING:
        assert numbers(result) == [0.0] * 7
        assert result.metrics["groups/one/zero_variance"] == 1.0
    elif name == "reinforce_pp":
        assert numbers(result) == [0.0] * 7
    else:  # nothing is compared
        assert numbers(result) == [0.1] * 7


@every_estimator
def test_equal_rewards_are_dropped_on_request(name):
    joints = [J(0.1)] * 3
    if name not in WITH_GROUPS:
        with pytest.raises(ConfigError, match="unknown key 'zero_variance'"):
            estimator(name, zero_variance="drop")
        return
    result = credit(estimator(name, zero_variance="drop"), forest_of(name, joints))
    assert result.advantage == {} and result.weight == {}
    assert [v for metric, v in result.metrics.items() if metric.endswith("zero_variance")] == [1.0]
    mixed = credit(estimator(name, zero_variance="drop"), forest_of(name, [*joints, J(1)]))
    assert len(mixed.advantage) == 4


@every_estimator
def test_a_chain_that_was_lost_on_the_way_is_out_and_counted(name):
    """Chain 1 was lost in its second turn; what it had earned by then is no return of a chain."""
    if name in TREES or name == "at_grpo":
        forest = Forest().grow([J(1, [J(2), J(5)]), J(2, [J(lost=True), J(lost=True)]), J(4, [J(1), J(2)])])
        lost, kept = ["0:one1", "0.1:one0", "0.1:one1"], {"0:one0", "0:one2"}
    else:
        forest = Forest().grow(chain(1, 2), chain(2, J(lost=True)), chain(4, 1))
        lost, kept = ["1:one0", "1.0:one0"], {"0:one0", "0.0:one0", "2:one0", "2.0:one0"}
    if name in ("at_grpo", "reinforce_pp", "reinforce_pp_baseline"):  # looks at the action's own pay only
        lost = lost[1:]
    result = credit(estimator(name, **SETTINGS.get(name, {})), forest)
    credited = set(places(result.advantage))
    assert not credited & set(lost) and kept <= credited
    rows = 1 if name in ("grpo", "dr_grpo", "rloo", "rae", "gae") else len(lost)
    assert [v for metric, v in result.metrics.items() if metric.endswith("missing_rows")] == [rows]


@every_estimator
def test_an_early_end_is_as_good_as_any(name):
    """Two episodes that earned the same, in one turn and in three, and one that earned more."""
    later = [J(0, [J(0)])]
    forest = forest_of(name, [J(1), J(1, later), J(3)])
    advantage = advantages(name, forest, **SETTINGS.get(name, {}))
    first = [f"0:one{b}" for b in range(3)] if PLANS[name].chains == 1 else [f"{c}:one0" for c in range(3)]
    early, late, best = (float(np.atleast_1d(advantage[at])[0]) for at in first)
    assert early == pytest.approx(late) and best > early


@pytest.mark.parametrize("name", ["grpo", "dr_grpo", "rloo", "rae"])
def test_lost_joints_of_a_tree_are_counted_for_its_paths(name):
    forest = Forest().grow([J(1, [J(2), J(lost=True)]), J(lost=True), J(5)])
    result = credit(estimator(name, plan=ALL), forest)
    assert set(places(result.advantage)) == {"0:one0", "0.0:one0", "0:one2"}
    assert result.metrics["groups/one/missing_rows"] == 2.0
