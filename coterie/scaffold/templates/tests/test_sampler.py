"""The sampler: what every one promises, and which branch goes on."""

from coterie.testing import coterie_run, play_episode


def test_it_keeps_the_promises_of_a_sampler(coterie_check):
    coterie_check("example_name", kind="sampler", settings={"branches": 2})


def test_the_worst_branch_goes_on():
    # The kit's game: a role earns the number that it writes.
    run = coterie_run(["3", "1", "2"], order=["solver"], sampler={"type": "example_name", "branches": 3})
    trees, _ = play_episode(run, tasks=2)
    assert [tree.root.expanded for tree in trees] == [(1,), (1,)]
    assert trees[0].root.rule == "worst"
