"""Tool loops inside one action: calls with results between them, token-exact, in the role's history."""

from __future__ import annotations

import pytest

from coterie import Plugin, PolicyFault, SystemFault
from coterie.api.rollouts import rollout_rows
from coterie.core.errors import ConfigError
from coterie.core.training.samples import samples_of
from coterie.core.types import Credit
from coterie.estimate.cost import calls_of, count
from coterie.plugins.algos.blocks.groups import by_decision
from coterie.testing import coterie_run, play_episode
from coterie.testing.support.toys import EchoRole


class Adder(Plugin):
    """`add 1 2` -> 3."""

    name = "adder"

    def find(self, text):
        return text.split()[1:] if text.startswith("add ") else None

    async def run(self, call):
        return str(sum(int(number) for number in call))


def uses_the_tool(request, text):
    return f"add {request.key.branch} 2" if request.key.call == 0 else text.split()[-2]


def run(**settings):
    return coterie_run(
        answers=uses_the_tool,
        order=["one"],
        tools={"adder": {"type": "tests.core.rollout.test_tools:Adder"}},
        max_turns=2,
        roles={"one": {"tools": ["adder"], **settings}},
    )


def test_a_tools_result_is_in_the_next_call_and_the_ids_extend():
    trees, _ = play_episode(run())
    for branch, action in enumerate(trees[0].root.decisions["one"].branches):
        first, second = action.calls
        assert (
            second.continues
            and second.prompt_ids[: len(first.prompt_ids + first.token_ids)]
            == first.prompt_ids + first.token_ids
        )
        assert action.tool_results == (str(branch + 2),) and action.text == str(branch + 2)


def test_the_sample_is_the_concatenated_calls_and_masks_the_tools_tokens():
    trees, scores = play_episode(run())
    decisions = {**trees[0].root.decisions}
    action = decisions["one"].branches[1]
    from coterie.core.training.samples import action_samples

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
    from coterie.core.types import RewardWeights

    return by_decision(Batch(trees=trees, scores=scores, annotations={}, reward_weights=RewardWeights()))


def test_a_role_that_remembers_keeps_the_tools_results_in_its_ids():
    trees, _ = play_episode(run(remembers=True))
    first, second = list(trees[0].nodes())
    last_call = first.decisions["one"].branches[first.expanded[0]].calls[-1]
    assert (
        second.decisions["one"].prompt_ids[: len(last_call.prompt_ids + last_call.token_ids)]
        == last_call.prompt_ids + last_call.token_ids
    )


# ------------------------------------------------------------------------------------------------- the limit


def test_max_tool_turns_bounds_the_loop():
    endless = coterie_run(
        answers=never_stops,
        tools={"adder": {"type": "tests.core.rollout.test_tools:Adder"}},
        team={"max_tool_turns": 3},
        roles={"one": {"tools": ["adder"]}},
    )
    action = play_episode(endless)[0][0].root.decisions["one"].branches[0]
    assert len(action.calls) == 4 and len(action.tool_results) == 3


def never_stops(request, text):
    return "add 1 1"


def team_of(script, *names, tools=("adder",), team=None, **role_settings):
    """A run whose roles act at once, one turn."""
    roles = {
        name: {"type": "tests.core.rollout.test_tools:ParsingRole", "tools": list(tools)} for name in names
    }
    for name, table in role_settings.items():
        roles[name] |= table
    return coterie_run(
        answers=globals()[script],
        order=[list(names)],
        tools={name: {"type": f"tests.core.rollout.test_tools:{name.capitalize()}"} for name in tools},
        roles=roles,
        team=team or {},
        schedule={"max_missing": 1},
    )


def recorded_rows(run):
    """(trees, the record's rows of branches)."""
    trees, scores = play_episode(run)
    return trees, [
        row for row in rollout_rows(trees, scores, None, run.reward_weights) if row["kind"] == "branch"
    ]


class ParsingRole(EchoRole):
    """A role whose parser marks what it read."""

    def parse(self, text, observation):
        return f"parsed {text}"


def test_a_role_may_have_its_own_limit_and_the_record_names_actions_that_reached_it():
    run = team_of("never_stops", "one", "two", two={"max_tool_turns": 1}, team={"max_tool_turns": 2})
    trees, rows = recorded_rows(run)
    decisions = trees[0].root.decisions
    for role, turns in (("one", 2), ("two", 1)):
        for action in decisions[role].branches:
            assert len(action.calls) == turns + 1 == calls_of(run.team, role)
            assert action.tool_limit and action.text == "add 1 1"  # the last call's text is the action's
            assert action.parsed == "parsed add 1 1" and action.fault is None
    assert rows and all(row["tool_limit"] for row in rows)
    assert count(run).generations == 2 * 3 * (3 + 2)  # tasks, branches, calls of both roles
    assert any("'two' is counted with 1 tool results" in note for note in count(run).notes)


def test_an_action_without_further_tool_calls_did_not_reach_the_limit():
    trees, rows = recorded_rows(run())
    assert not any(action.tool_limit for action in trees[0].root.decisions["one"].branches)
    assert rows and not any(row["tool_limit"] for row in rows)


def test_the_record_has_the_prompt_of_every_call():
    """With the node's `prompt_ids` of the first call, the trained sequence follows from the rows."""
    trees, rows = recorded_rows(run())
    actions = [
        action
        for tree in trees
        for node in tree.nodes()
        for decision in node.decisions.values()
        for action in decision.branches
    ]
    assert len(rows) == len(actions) > 0
    for row, action in zip(rows, actions, strict=True):
        first, second = row["calls"]
        assert second["prompt_ids"] == list(action.calls[1].prompt_ids) and second["continues"] is True
        assert second["version"] == action.calls[1].version and "prompt_ids" not in first


def test_without_tool_turns_there_is_no_result():
    (action, *_) = (
        play_episode(team_of("never_stops", "one", one={"max_tool_turns": 0}))[0][0]
        .root.decisions["one"]
        .branches
    )
    assert len(action.calls) == 1 and not action.tool_results and action.tool_limit


@pytest.mark.parametrize(("settings", "path"), [
    ({"max_tool_turns": -1}, "team.roles.one.max_tool_turns"),
    ({"max_tool_turns": "many"}, "team.roles.one.max_tool_turns"),
    ({"show_thoughts": "perhaps"}, "team.roles.one.show_thoughts"),
    ({"show_thought": True}, "team.roles.one.show_thought"),
])  # fmt: skip
def test_a_wrong_key_of_a_role_is_refused(settings, path):
    with pytest.raises(ConfigError) as caught:
        team_of("never_stops", "one", one=settings)
    assert caught.value.path == path


def test_a_limit_without_tools_is_read_by_nothing():
    with pytest.raises(ConfigError, match="nothing reads this") as caught:
        team_of("never_stops", "one", tools=(), one={"max_tool_turns": 1})
    assert caught.value.path == "team.roles.one.max_tool_turns"


def test_branches_are_drawn_once_and_each_has_its_own_loop():
    REQUESTED.clear()
    (tree,) = play_episode(team_of("recorded", "one"))[0]
    branches = tree.root.decisions["one"].branches
    assert len(branches) == 3
    # Branch b has b + 1 calls, numbered from 0: nothing is drawn K times inside a loop.
    assert sorted((key.branch, key.call) for key in REQUESTED) == [
        (b, k) for b in range(3) for k in range(b + 1)
    ]
    assert [len(action.calls) for action in branches] == [1, 2, 3]
    assert len({action.calls[0].prompt_ids for action in branches}) == 1


REQUESTED = []


def recorded(request, text):
    REQUESTED.append(request.key)
    return "done" if request.key.call == request.key.branch else "add 1 1"


# ------------------------------------------------------------------------------------ what tools do and break


class Doubler(Plugin):
    """`... twice 3` -> 6."""

    name = "doubler"

    def find(self, text):
        return int(text.split()[-1]) if "twice" in text else None

    async def run(self, call):
        return str(2 * call)


def both(request, text):
    return "add 1 twice 2" if request.key.call == 0 else "done"


class Adds(Adder):
    def find(self, text):
        return ["1", "2"] if text.startswith("add ") else None


def test_every_tool_that_a_reply_calls_answers_in_the_order_of_the_roles_tools():
    (action, *_) = (
        play_episode(team_of("both", "one", tools=("doubler", "adds")))[0][0].root.decisions["one"].branches
    )
    assert action.tool_results == ("4", "3") and len(action.calls) == 2
    assert [message["role"] for message in action.dialogue] == ["user", "assistant", "tool", "tool"]
    assert [message["content"] for message in action.dialogue[1:]] == ["add 1 twice 2", "4", "3"]


class Breaks(Plugin):
    """Raises the fault that the text names: `system`, `policy` or `bug`; `find` raises on `unreadable`."""

    name = "breaks"

    def find(self, text):
        if text == "unreadable":
            raise KeyError("find")
        return text if text in ("system", "policy", "bug") else None

    async def run(self, call):
        raise {"system": SystemFault("lost"), "policy": PolicyFault("killed twice"), "bug": KeyError("run")}[
            call
        ]


def breaks(request, text):
    return ("system", "policy", "bug")[request.key.branch] if request.key.call == 0 else "never"


def test_a_tools_faults_belong_to_the_system_or_to_the_output():
    run = team_of("breaks", "one", tools=("breaks",))
    trees, scores = play_episode(run)
    root = trees[0].root
    system, policy, bug = root.decisions["one"].branches
    assert (system.fault.kind, system.fault.reason) == (
        "system",
        f"tool '{__name__}:Breaks' of tests: run raised SystemFault: lost",
    )
    assert bug.fault.kind == "system"
    assert bug.fault.reason.startswith(f"tool '{__name__}:Breaks' of tests: run raised KeyError: 'run' (")
    assert (policy.fault.kind, policy.fault.reason) == ("policy", "tool breaks: killed twice")
    assert policy.trainable and not system.trainable and not bug.trainable
    assert policy.text == "policy" and policy.parsed is None and len(policy.calls) == 1
    # A fault of the output is played and scored; after a fault of the system scores are missing.
    assert [joint.fault is None for joint in root.joints] == [False, True, False]
    assert scores.at(root.key.of_joint(0))["team", "sum"].value is None
    assert scores.at(root.key.of_joint(1))["team", "sum"].value is not None


def unreadable(request, text):
    return "unreadable"


def test_a_tool_that_cannot_read_a_text_is_a_fault_of_the_system():
    (action, *_) = (
        play_episode(team_of("unreadable", "one", tools=("breaks",)))[0][0].root.decisions["one"].branches
    )
    assert action.fault.kind == "system" and "KeyError: 'find'" in action.fault.reason


class Announced(Adder):
    name = "announced"
    schemas = ({"type": "function", "function": {"name": "announced", "parameters": {}}},)


def test_a_tool_that_the_chat_format_cannot_announce_is_refused():
    with pytest.raises(ConfigError, match="can't describe the tools of role 'one'") as caught:
        play_episode(team_of("never_stops", "one", tools=("announced",)))
    assert "announce: false" in caught.value.fix


# --------------------------------------------------------------------------------------------------- thoughts


def thinks(request, text):
    if request.key.role == "two":
        return text
    return f"<think>add 5 5</think>\n\n{request.key.branch}" if request.key.call == 0 else "again"


def thoughts(**settings):
    run = coterie_run(
        answers=thinks,
        order=["one", "two"],
        max_turns=2,
        roles={"one": {"type": "tests.core.rollout.test_tools:ParsingRole", **settings}},
    )
    return play_episode(run)[0][0]


def test_a_thought_is_trained_and_neither_shown_nor_parsed():
    first, second, third, *_ = thoughts().nodes()
    action = first.decisions["one"].branches[2]
    assert (action.text, action.thought, action.parsed) == ("2", "add 5 5", "parsed 2")
    assert len(action.calls[0].token_ids) == 5  # <think>add, 5, 5</think>, the number, <eos>
    assert second.decisions["two"].observation in ("one=0", "one=1", "one=2")
    assert third.decisions["one"].observation.startswith("one=2 two=")


def test_a_thought_is_shown_and_parsed_with_show_thoughts():
    first, second, *_ = thoughts(show_thoughts=True).nodes()
    completion = "<think>add 5 5</think>\n\n2"
    action = first.decisions["one"].branches[2]
    assert (action.text, action.thought, action.parsed) == (completion, "add 5 5", f"parsed {completion}")
    assert second.decisions["two"].observation.startswith("one=<think>add 5 5</think>")


def test_a_role_that_remembers_gives_the_template_its_whole_completion():
    nodes = list(thoughts(remembers=True).nodes())
    first, third = nodes[0], nodes[2]
    last_call = first.decisions["one"].branches[first.joints[first.expanded[0]].branches["one"]].calls[-1]
    decision = third.decisions["one"]
    ids = last_call.prompt_ids + last_call.token_ids
    assert decision.prompt_ids[: len(ids)] == ids
    assert decision.messages[1]["content"].startswith("<think>add 5 5</think>")


def test_the_record_holds_thoughts():
    _, rows = recorded_rows(team_of("thinks", "one"))
    assert [(row["thought"], row["completion"]) for row in rows[:3]] == [
        ("add 5 5", str(n)) for n in range(3)
    ]


MARKED = '{"answer": "its <think> has no </think>"}'


@pytest.mark.parametrize("thought", ["", f"<think>maybe {MARKED}</think>\n\n"])
def test_an_answer_in_json_may_name_the_marks_of_a_thought(thought):
    run = coterie_run(
        answers=lambda request, text: f"{thought}{MARKED}",
        order=["one"],
        roles={"one": {"type": "template", "prompt": "ask", "parser": "json"}},
    )
    action = play_episode(run)[0][0].root.decisions["one"].branches[0]
    assert action.parsed == {"answer": "its <think> has no </think>"}
    assert action.thought == (f"maybe {MARKED}" if thought else "")
