"""The environment: what every environment promises, and the rules of this game."""

from coterie.testing import coterie_run, play_episode

GAME = {"type": "example_name", "start": 5}
ROLES = {"solver": {"type": "example_name"}}


def test_it_keeps_the_promises_of_an_environment(coterie_check):
    coterie_check(
        "example_name", kind="environment", act=["4", "3", "2", "1", "0", "three"], disjoint="content"
    )


def test_a_team_that_counts_right_succeeds():
    def counts(request, prompt):
        return str(int(prompt) - 1)

    trees, _ = play_episode(coterie_run(counts, env=GAME, roles=ROLES, max_turns=5), tasks=3)
    assert all(leaf.outcome == {"success": 1.0} for tree in trees for _, leaf in tree.leaves())


def test_a_wrong_number_earns_nothing():
    trees, scores = play_episode(coterie_run("7", env=GAME, roles=ROLES))
    key = trees[0].root.key.of_joint(0)
    assert [score.value for score in scores.at(key).values()] == [0.0]
