"""C3's credit by hand, its properties, and its behaviour where nothing can be compared."""

from statistics import fmean

import coterie_c3
import pytest

import coterie
from coterie import Batch, ConfigError, RewardWeights
from coterie.testing import (
    J,
    build,
    check_environment,
    check_estimator,
    check_plugin,
    check_role,
    tree_literals,
)

ORDER = ("reasoner", "actor")
LEAVES = [[1.0, 0.0], [1.0, 1.0], [0.0, 0.0]]
"""Three messages of the reasoner, and the rewards of the actor's two answers to each."""


def credit(*roots, type="coterie_c3.estimator:C3", **settings):
    """Advantages by (path, role, branch)."""
    forest = tree_literals(*roots, order=ORDER)
    batch = Batch(trees=forest.trees, scores=forest.scores, annotations={}, reward_weights=RewardWeights())
    given, _ = build("estimator", {"type": type, **settings})(batch, None)
    return {(key.path, key.role, key.branch): value for key, value in given.advantage.items()}


def replay(leaves):
    """A tree of messages, whose answers alone are rewarded."""
    return [J(0.0, [J(reward) for reward in answers]) for answers in leaves]


def by_hand(values):
    """Each value less the mean of the others, from the definition."""
    return [value - fmean(values[:i] + values[i + 1 :]) for i, value in enumerate(values)]


def test_a_message_is_credited_with_the_mean_of_what_followed_less_its_alternatives():
    given = credit(replay(LEAVES))
    # The messages are worth .5, 1 and 0: less the mean of the other two, 0, .75 and -.75.
    assert [given[(), "reasoner", branch] for branch in range(3)] == pytest.approx([0.0, 0.75, -0.75])
    assert given[(0,), "actor", 0] == pytest.approx(1.0)  # 1 - 0: the only alternative to it
    assert given[(0,), "actor", 1] == pytest.approx(-1.0)
    assert given[(1,), "actor", 0] == given[(1,), "actor", 1] == 0.0  # equal rewards


def test_every_context_is_the_formula_on_its_own():
    leaves = [[3.0, 1.0, 0.5], [0.0, 2.0, -1.0], [7.0, 7.0, 1.0]]
    given = credit(replay(leaves))
    messages = by_hand([fmean(answers) for answers in leaves])
    assert [given[(), "reasoner", branch] for branch in range(3)] == pytest.approx(messages)
    for message, answers in enumerate(leaves):
        got = [given[(message,), "actor", branch] for branch in range(3)]
        assert got == pytest.approx(by_hand(answers)) and sum(got) == pytest.approx(0.0)


def test_what_came_before_doesnt_change_the_credit_of_an_answer():
    """The difficulty of a context cancels out: all its rewards may shift."""
    shifted = [[reward + 10.0 * message for reward in answers] for message, answers in enumerate(LEAVES)]
    before, after = credit(replay(LEAVES)), credit(replay(shifted))
    answers = [place for place in before if place[1] == "actor"]
    assert [after[place] for place in answers] == pytest.approx([before[place] for place in answers])


def test_the_full_mean_is_a_smaller_advantage_of_the_same_sign():
    others, every = credit(replay(LEAVES)), credit(replay(LEAVES), baseline="mean")
    size = {"reasoner": 3, "actor": 2}
    for place, advantage in others.items():
        n = size[place[1]]
        assert every[place] == pytest.approx(advantage * (n - 1) / n)


def test_without_replay_the_answers_to_all_messages_are_compared():
    given = credit(replay(LEAVES), replay=False)
    places = [((message,), "actor", answer) for message in range(3) for answer in range(2)]
    assert [given[place] for place in places] == pytest.approx(by_hand([1.0, 0.0, 1.0, 1.0, 0.0, 0.0]))


def test_its_pieces_are_those_of_marloo():
    assert credit(replay(LEAVES)) == credit(replay(LEAVES), type="marloo")


def test_a_missing_reward_leaves_its_alternative_out():
    given = credit([J(0.0, [J(1.0), J(None), J(0.0)]), J(0.0, [J(None), J(None), J(4.0)]), J(None)])
    assert ((0,), "actor", 1) not in given
    assert given[(0,), "actor", 0] == pytest.approx(1.0) and given[(0,), "actor", 2] == pytest.approx(-1.0)
    assert not [place for place in given if place[0] == (1,)]  # one alternative remains: nothing to compare
    assert given[(), "reasoner", 0] == pytest.approx(0.5 - 4.0)  # means of the known rewards
    assert ((), "reasoner", 2) not in given


def test_one_alternative_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="groups would have one member"):
        coterie.train("c3-smoke", overrides=["sampler.branches=1"], out=tmp_path / "run")


def test_the_kit():
    check_estimator(build("estimator", "coterie_c3.estimator:C3"))
    game = {"type": "coterie_c3.relay:Relay", "numbers": 3}
    environment = build("environment", game, order=ORDER)
    roles = {role: build("role", "coterie_c3.relay:Writer", name=role, env=game) for role in ORDER}
    check_environment(environment, roles=ORDER, act=["ash", "birch", "oak"], role_plugins=roles)
    check_role(roles["actor"], observations=["message ash"], good=["elm"])
    check_plugin(coterie_c3)


def test_the_smoke_recipe_learns_a_code(tmp_path):
    result = coterie.train("c3-smoke", out=tmp_path / "run")
    assert result.metrics["eval/success"] > 0.9
