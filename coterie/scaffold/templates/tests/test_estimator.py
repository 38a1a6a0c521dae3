"""The estimator: what every one promises, and advantages by hand."""

from math import tanh

from coterie import Batch, RewardWeights
from coterie.testing import J, build, tree_literals


def test_it_keeps_the_promises_of_an_estimator(coterie_check):
    coterie_check("example_name", kind="estimator")


def test_an_advantage_is_the_squashed_difference_from_the_siblings():
    # A root with four joint actions, which gained 0, 2, nothing known, and 1.
    step = tree_literals([J(0), J(2), J(None), J(1)])
    batch = Batch(trees=step.trees, scores=step.scores, annotations={}, reward_weights=RewardWeights())
    credit, _ = build("estimator", {"type": "example_name", "scale": 2.0})(batch, None)
    root = step.trees[0].root.key
    expected = {0: tanh(-0.5), 1: tanh(0.5), 3: 0.0}
    assert credit.advantage == {root.of_branch("one", branch): value for branch, value in expected.items()}
