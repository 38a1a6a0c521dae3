"""Tool loops inside one action: calls with results between them, token-exact, remembered."""

from __future__ import annotations

from coterie import Plugin
from coterie.core.batching import samples_of
from coterie.core.credit import by_decision
from coterie.core.types import Credit
from tests.games import play, run_of


class Adder(Plugin):
    """`add 1 2` -> 3."""

    name = "adder"

    def find(self, text):
        return text.split()[1:] if text.startswith("add ") else None

    async def run(self, call):
        return str(sum(int(number) for number in call))


def uses_the_tool(request, text):
    return f"add {request.key.branch} 2" if request.key.call == 0 else text.split()[-2]


def run(**team):
    return run_of(
        play="tests.core.test_tools:uses_the_tool",
        order=["one"],
        tools={"adder": {"type": "tests.core.test_tools:Adder"}},
        team={
            "order": ["one"],
            "max_turns": 2,
            "roles": {"one": {"type": "tests.games:Seat", "policy": "p", "tools": ["adder"], **team}},
        },
    )


def test_a_tools_result_comes_back_in_the_next_call_and_the_ids_extend():
    trees, _ = play(run())
    for branch, action in enumerate(trees[0].root.decisions["one"].branches):
        first, second = action.calls
        assert (
            second.continues
            and second.prompt_ids[: len(first.prompt_ids + first.token_ids)]
            == first.prompt_ids + first.token_ids
        )
        assert action.tool_results == (str(branch + 2),) and action.text == str(branch + 2)


def test_the_sample_is_the_concatenated_calls_and_masks_the_tools_tokens():
    trees, scores = play(run())
    decisions = {**trees[0].root.decisions}
    action = decisions["one"].branches[1]
    from coterie.core.batching import action_samples

    (sample,) = action_samples(trees[0].root.key.of_branch("one", 1), decisions["one"], action, 1.0, 1.0, {})
    trained = [token for call in action.calls for token in call.token_ids]
    assert sample.token_ids[sample.loss_mask].tolist() == trained
    assert sample.token_ids.tolist() == list(action.calls[-1].prompt_ids + action.calls[-1].token_ids)
    assert (
        samples_of(
            trees,
            Credit(
                advantage={
                    row.branches[0]: 1.0 for group in by_decision_of(trees, scores) for row in group.rows
                }
            ),
        )
        == {}
    )  # the policy is not trained


def by_decision_of(trees, scores):
    from coterie.core.protocols import Batch
    from coterie.core.scoring import Mix

    return by_decision(Batch(trees=trees, scores=scores, notes={}, mix=Mix()))


def test_a_role_that_remembers_keeps_the_tools_results_in_its_ids():
    trees, _ = play(run(remembers=True))
    first, second = list(trees[0].nodes())
    taken = first.decisions["one"].branches[first.expanded[0]].calls[-1]
    assert (
        second.decisions["one"].prompt_ids[: len(taken.prompt_ids + taken.token_ids)]
        == taken.prompt_ids + taken.token_ids
    )


def test_max_tool_turns_bounds_the_loop():
    endless = run_of(
        play="tests.core.test_tools:never_stops",
        order=["one"],
        tools={"adder": {"type": "tests.core.test_tools:Adder"}},
        team={
            "order": ["one"],
            "max_turns": 1,
            "max_tool_turns": 3,
            "roles": {"one": {"type": "tests.games:Seat", "policy": "p", "tools": ["adder"]}},
        },
    )
    action = play(endless)[0][0].root.decisions["one"].branches[0]
    assert len(action.calls) == 4 and len(action.tool_results) == 3


def never_stops(request, text):
    return "add 1 1"
