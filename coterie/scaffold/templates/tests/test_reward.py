"""The reward: what every source promises, and what it pays."""

from coterie.testing import coterie_run, play_episode

REWARD = {"type": "example_name", "most": 1}


def test_it_keeps_the_promises_of_a_reward(coterie_check):
    coterie_check("example_name", kind="reward", act=["R", "R D", ""])


def test_a_brief_answer_earns_one():
    answers = ["one", "two words", ""]  # of branches 0, 1 and 2
    run = coterie_run(answers, order=["solver"], rewards={"brevity": REWARD})
    (tree, *_), scores = play_episode(run)
    values = [scores.at(tree.root.key.of_branch("solver", b))["solver", "brief"].value for b in range(3)]
    assert values == [1.0, 0.0, 0.0]
