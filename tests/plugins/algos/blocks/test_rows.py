"""The row estimator: `advantages(rows) -> values`, and the bookkeeping that the base does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest

from coterie.core.errors import ConfigError, PluginError
from coterie.plugins.algos.blocks.groups import Normaliser
from coterie.plugins.algos.blocks.rows import Advantage, RowConfig, RowEstimator, Rows
from coterie.testing import build, check_estimator
from coterie.testing.support.trees import Forest, J, chain, places
from tests.plugins.algos.support import ALL, BRANCHES, CHAINS, step, team

SEQUENTIAL = (("one",), ("two",))


class Plain(RowEstimator):
    """Each row's own value."""

    returns = "episode"

    def advantages(self, rows: Rows) -> list[Advantage]:
        return [row.value for row in rows]


class Grouped(Plain):
    group = "role"


class Given(RowEstimator):
    """Whatever a test gives."""

    def __init__(self, values: Sequence[Any], config: Any = None) -> None:
        super().__init__(config)
        self.values = values

    def advantages(self, rows: Rows) -> Sequence[Any]:
        return self.values


class Counting(Plain):
    """Its state is the number of rows that it has seen."""

    def advantages(self, rows: Rows) -> list[Advantage]:
        return [row.value + (rows.state or 0) for row in rows]

    def next_state(self, rows: Rows) -> int:
        return (rows.state or 0) + len(rows)

    def metrics(self, rows: Rows, values: Sequence[Advantage]) -> Mapping[str, float]:
        return {"rows/all": float(len(rows.all)), "rows/values": float(len(values))}

    def targets(self, rows: Rows, values: Sequence[Advantage]) -> list[np.ndarray]:
        return [rows.logprobs(row) for row in rows]


def two_tokens_then_one() -> Forest:
    return Forest(logprobs={"0:one0": (-1.0, -2.0)}).grow(chain(1, 2))


@pytest.mark.parametrize("estimator", [Plain(), Grouped(), Counting()], ids=lambda e: type(e).__name__)
def test_it_passes_the_kit(estimator):
    check_estimator(estimator, seeds=1)


def test_a_number_credits_every_branch_of_its_row():
    credit, state = step(Plain(), Forest(order=SEQUENTIAL).grow(chain(1, 2), chain(5)))
    assert places(credit.advantage) == {"0:one0": 3.0, "0.0:two0": 3.0, "1:one0": 5.0}
    assert credit.returns == credit.advantage and credit.target == {} and state is None


def test_an_array_is_split_over_the_branches_of_its_row():
    class PerToken(Plain):
        def advantages(self, rows: Rows) -> list[Advantage]:
            return [rows.logprobs(row) for row in rows]

    credit, _ = step(PerToken(), two_tokens_then_one())
    assert {at: list(value) for at, value in places(credit.advantage).items()} == {
        "0:one0": [-1.0, -2.0], "0.0:one0": [-0.5]
    }  # fmt: skip


def test_a_branch_of_several_rows_gets_the_mean():
    tree = [J(1, [J(2), J(4)]), J(0)]  # two paths share the first branch
    credit, _ = step(Plain(), Forest().grow(tree))
    assert places(credit.advantage) == {"0:one0": 4.0, "0:one1": 0.0, "0.0:one0": 3.0, "0.0:one1": 5.0}
    assert credit.returns == credit.advantage


def test_missing_rows_never_reach_advantages_and_are_counted():
    credit, _ = step(Counting(), Forest().grow(chain(1), chain(None), chain(J(lost=True))))
    assert places(credit.advantage) == {"0:one0": 1.0}
    assert credit.metrics["groups/one/missing_rows"] == 2.0
    assert credit.metrics["rows/all"] == 3.0 and credit.metrics["rows/values"] == 1.0


def test_none_leaves_a_row_out_and_is_not_missing():
    credit, _ = step(Given([None, 2.0]), Forest().grow(chain(1), chain(3)))
    assert places(credit.advantage) == {"1:one0": 2.0} and places(credit.returns) == {"1:one0": 3.0}
    assert credit.metrics["groups/one/missing_rows"] == 0.0


def test_the_state_goes_on():
    forest = Forest().grow(chain(1), chain(3))
    first, state = step(Counting(), forest)
    second, after = step(Counting(), forest, state=state)
    assert (state, after) == (2, 4)
    assert places(first.advantage)["0:one0"] == 1.0 and places(second.advantage)["0:one0"] == 3.0


def test_without_a_next_state_the_state_is_passed_on():
    assert step(Plain(), Forest().grow(chain(1)), state={"kept": 1})[1] == {"kept": 1}


def test_targets_are_by_branch():
    credit, _ = step(Counting(), two_tokens_then_one())
    assert {at: list(value) for at, value in places(credit.target).items()} == {
        "0:one0": [-1.0, -2.0], "0.0:one0": [-0.5]
    }  # fmt: skip


def test_the_configuration_normalises_over_the_batch():
    config = RowConfig(normalise=Normaliser(type="whiten", scope="global", ddof=0, eps=0.0))
    credit, _ = step(Plain(config), Forest().grow(chain(1), chain(3)))
    assert places(credit.advantage) == {"0:one0": -1.0, "1:one0": 1.0}
    assert places(credit.returns) == {"0:one0": 1.0, "1:one0": 3.0}


def test_with_a_group_equal_rewards_are_counted_and_dropped():
    forest = Forest().grow(chain(2), chain(2))
    kept, _ = step(Grouped(), forest)
    assert kept.metrics["groups/one/zero_variance"] == 1.0 and len(kept.advantage) == 2
    dropped, _ = step(Grouped(RowConfig(zero_variance="drop")), forest)
    assert dropped.advantage == {}
    assert step(Plain(), forest)[0].metrics["groups/one/zero_variance"] == 0.0


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ([1.0], "advantages returned 1 values for 2 rows"),
        ([1.0, np.zeros(3)], "returned an array of shape (3,) for a row of 1 tokens"),
        ([1.0, np.zeros((1, 1))], "returned an array of shape (1, 1) for a row of 1 tokens"),
    ],
)
def test_values_that_fit_no_row_are_told(values, said):
    with pytest.raises(PluginError) as error:
        step(Given(values), Forest().grow(chain(1), chain(3)))
    assert said in str(error.value) and "return" in error.value.fix


def test_rows_in_groups_have_numbers():
    class Wrong(Grouped):
        def advantages(self, rows: Rows) -> list[Advantage]:
            return [rows.logprobs(row) for row in rows]

    with pytest.raises(PluginError) as error:
        step(Wrong(), Forest().grow(chain(1)))
    assert error.value.fix == "return a number"


def test_a_normaliser_over_groups_needs_a_group():
    config = RowConfig(normalise=Normaliser(type="whiten"))
    with pytest.raises(ConfigError) as error:
        Plain(config).check(CHAINS, team())
    assert error.value.path == "algorithm.normalise.scope" and error.value.fix
    Grouped(config).check(CHAINS, team())


def test_the_rules_of_returns_hold():
    with pytest.raises(ConfigError, match="whole chains"):
        Plain().check(BRANCHES, team())
    Plain().check(ALL, team())


class Unwritten(RowEstimator):
    """Lacks `advantages`."""


def test_a_subclass_without_advantages_is_told():
    with pytest.raises(PluginError, match=r"estimator '.*:Unwritten' of tests can't be made") as caught:
        build("estimator", f"{__name__}:Unwritten")
    assert "abstract method advantages" in caught.value.why


def test_rows_are_a_sequence_with_what_was_sampled():
    seen: list[Rows] = []

    class Looks(Plain):
        def advantages(self, rows: Rows) -> list[Advantage]:
            seen.append(rows)
            return [row.value for row in rows]

    step(Looks(), Forest(logprobs={"0:one0": (-1.0, -2.0)}, untrained=("one",)).grow(chain(1, 2), chain(4)))
    (rows,) = seen
    assert len(rows) == 2 and rows[0].value == 3.0 and [row.value for row in rows[1:]] == [4.0]
    assert [len(action.calls[0].token_ids) for action in rows.actions(rows[0])] == [2, 1]
    assert [decision.trainable for decision in rows.decisions(rows[0])] == [False, False]
    assert list(rows.logprobs(rows[0])) == [-1.0, -2.0, -0.5]
    with pytest.raises(KeyError):
        rows.annotation(rows[0], "values")


@pytest.mark.parametrize(("values", "message"), [
    ({0: 1.0}, "returned {0: 1.0}"), (None, "returned None"), ("1", "returned '1'"),
    ({1.0}, "returned {1.0}"),
    ([float("nan")], "finite numbers"), ([float("inf")], "finite numbers"), (["1"], "finite numbers"),
])  # fmt: skip
def test_values_that_can_not_be_trained_on_are_refused(values, message):
    with pytest.raises(PluginError, match=message):
        step(Given(values), Forest().grow(chain(1)))


@pytest.mark.parametrize("piece", ["returns", "group"])
def test_a_piece_that_does_not_exist_is_told(piece):
    estimator = type("Wrong", (Plain,), {piece: "imediate"})()
    with pytest.raises(PluginError, match=f"unknown `{piece}` 'imediate'"):
        estimator.check(CHAINS, team())
