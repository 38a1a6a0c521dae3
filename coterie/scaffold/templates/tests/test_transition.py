"""The transition mode: what every one promises, and what the second prompt shows."""

from coterie.testing import coterie_run, play_episode


def test_it_keeps_the_promises_of_a_transition(coterie_check):
    coterie_check("example_name", kind="transition")


def test_the_second_prompt_repeats_the_first_answer():
    roles, mode = {"solver": {"type": "example_game:Counter"}}, {"type": "example_name"}
    run = coterie_run("7", roles=roles, max_turns=2, transition=mode)
    (tree, *_), _ = play_episode(run)
    _, second = [node.decisions["solver"].messages[-1]["content"] for node in tree.nodes()]
    assert second.endswith("You wrote: 7")
