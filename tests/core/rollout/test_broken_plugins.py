"""A plugin's mistake ends a run, or is told once, by the name of the plugin and its method."""

from __future__ import annotations

import logging
import sys
from dataclasses import replace
from typing import ClassVar

import pytest

from coterie import TEAM, Plugin, PolicyFault, Step, SystemFault, TreeSampler
from coterie.core.errors import PluginError, TooManyMissing
from coterie.core.plugins.origin import origin_of
from coterie.core.protocols import RolloutJob
from coterie.core.types import Task
from coterie.testing import coterie_run, play_episode
from coterie.testing.support.toys import EchoRole, NumberGame

HERE = __name__


async def later():
    """What nothing awaits."""


class Parser(EchoRole):
    """Its parser breaks on texts that say how."""

    def parse(self, text, observation):
        if text == "name":
            return numbr(text)  # noqa: F821
        if text == "number":
            return int(text)
        if text == "exit":
            sys.exit(3)
        if text in ("bad", "system"):
            raise PolicyFault("said bad") if text == "bad" else SystemFault("the service is down")
        return text


class WithoutObservation(EchoRole):
    def parse(self, text):
        return text


class Asynchronous(EchoRole):
    def parse(self, text, observation):
        return later()


def one(*texts, role="Parser", chains=1, **tables):
    """A run of one role that writes these texts, one a branch."""
    return coterie_run(
        {"one": list(texts)},
        order=["one"],
        roles={"one": {"type": f"{HERE}:{role}"}},
        sampler={"branches": len(texts), "chains": chains},
        **tables,
    )


def faults(run):
    trees, _ = play_episode(run)
    return [action.fault for action in trees[0].root.decisions["one"].branches]


def test_an_exception_of_a_parser_is_told_once_a_kind_however_many_rollouts_have_it(caplog):
    run = one("1", "name", "name", "number", "bad", chains=3)
    with caplog.at_level(logging.WARNING, "coterie"):
        found = faults(run)
    assert [fault and fault.kind for fault in found] == [None, "policy", "policy", "policy", "policy"]
    messages = [record.message for record in caplog.records]
    assert len(messages) == 2, messages
    for message, kind in zip(sorted(messages), ("NameError", "ValueError"), strict=True):
        assert f"role '{HERE}:Parser' of tests: parse raised {kind}: " in message
        assert "fault of the policy" in message and "raise PolicyFault" in message


def test_an_exit_of_a_parser_is_a_fault_of_the_output_by_the_role_s_name():
    exited, fine = faults(one("exit", "fine"))
    assert exited.kind == "policy" and "Parser' of tests: parse raised SystemExit: 3" in exited.reason
    assert fine is None


def test_a_parser_that_breaks_on_every_action_ends_the_run():
    for texts, role, kind in [
        (("name", "name"), "Parser", "NameError"),
        (("1", "2"), "WithoutObservation", "TypeError"),
    ]:
        with pytest.raises(PluginError, match=f"parse raised {kind}") as caught:
            play_episode(one(*texts, role=role))
        assert f"role '{HERE}:{role}' of tests" in str(caught.value)
        assert caught.value.path == "team.roles.one" and caught.value.fix


def test_texts_that_a_parser_refuses_end_no_run(caplog):
    assert [fault.reason for fault in faults(one("bad", "bad"))] == ["said bad"] * 2
    assert caplog.text == ""
    assert len(faults(one("bad", "name"))) == 2  # one of them is the text's fault


def test_a_parser_that_reads_no_text_of_a_weak_model_ends_no_run(caplog):
    assert [fault.kind for fault in faults(one("number", "number"))] == ["policy"] * 2
    assert "parse raised ValueError" in caplog.text


def test_a_system_fault_of_a_parser_is_one():
    found = faults(one("1", "system", schedule={"max_missing": 1.0}))
    assert found[0] is None and found[1].kind == "system"
    assert f"role '{HERE}:Parser' of tests: parse" in found[1].reason


@pytest.mark.filterwarnings("error")
def test_a_parser_gives_nothing_to_await():
    with pytest.raises(PluginError, match="`parse` must not be `async def`") as caught:
        play_episode(one("1", "2", role="Asynchronous"))
    assert f"role '{HERE}:Asynchronous' of tests: parse returned" in str(caught.value)


# ------------------------------------------------------------------------------- who is to blame


class Thing:
    """No plain value."""


class Undigestible(NumberGame):
    def reset(self, task, seed):
        return Thing()

    def acting_roles(self, state):
        return None

    def observe(self, state, role):
        return ""


class BrokenDigest(NumberGame):
    def digest(self, state):
        return state.nothing


class AsyncDigest(NumberGame):
    def digest(self, state):
        return later()


class Over(NumberGame):
    def acting_roles(self, state):
        return ()


class AsyncObserve(NumberGame):
    def observe(self, state, role):
        return later()


class AsyncReset(NumberGame):
    def reset(self, task, seed):
        return later()


class SyncStep(NumberGame):
    def step(self, state, actions, ctx):
        return Step(state=state)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    ("game", "texts"),
    [
        ("Undigestible", ("step returned", "Thing", "states are plain values", "digest(state)")),
        ("AsyncDigest", ("digest returned", "must not be `async def`")),
        ("Over", ("acting_roles returned ()", "task train-", "before any role acts")),
        ("AsyncObserve", ("observe returned", "`observe` must not be `async def`")),
        ("AsyncReset", ("reset returned", "`reset` must not be `async def`")),
        ("SyncStep", ("step returned", "`step` must be `async def`")),
    ],
)
def test_an_environment_that_breaks_its_contract_is_named(game, texts):
    with pytest.raises(PluginError) as caught:
        play_episode(coterie_run(env={"type": f"{HERE}:{game}"}, order=["one"]))
    message = str(caught.value)
    assert all(text in message for text in (f"env: environment '{HERE}:{game}' of tests", *texts)), message


def test_the_environment_is_to_blame_for_its_digest():
    with pytest.raises(AttributeError, match="nothing") as caught:
        play_episode(coterie_run(env={"type": f"{HERE}:BrokenDigest"}, order=["one"]))
    assert caught.value.__notes__[0].startswith(f"in environment '{HERE}:BrokenDigest' of tests: digest (")


class Nothing(TreeSampler):
    async def play(self, task, epoch, chain, ctx):
        await super().play(task, epoch, chain, ctx)


class Another(TreeSampler):
    async def play(self, task, epoch, chain, ctx):
        return replace(await super().play(task, epoch, chain, ctx), epoch=7)


class Immediate(TreeSampler):
    def play(self, task, epoch, chain, ctx):
        return None


class TableOfSampling(TreeSampler):
    def sampling(self, role):
        return {"temperature": 1.0}


@pytest.mark.parametrize(
    ("sampler", "texts"),
    [
        ("Nothing", ("play returned None", "the task, epoch and chain")),
        ("Another", ("play returned ('train-", ", 7, 0)", "the task, epoch and chain")),
        ("Immediate", ("play returned None", "`play` must be `async def`")),
        ("TableOfSampling", ("sampling returned {'temperature': 1.0}", "coterie.Sampling")),
    ],
)
def test_a_sampler_that_breaks_its_contract_is_named(sampler, texts):
    with pytest.raises(PluginError) as caught:
        play_episode(coterie_run(sampler={"type": f"{HERE}:{sampler}", "branches": 2}, order=["one"]))
    message = str(caught.value)
    assert all(text in message for text in (f"sampler: sampler '{HERE}:{sampler}' of tests", *texts)), message


def test_an_evaluations_sampler_has_the_name_of_the_runs():
    run = coterie_run(sampler={"type": f"{HERE}:Nothing", "branches": 2}, order=["one"])
    made = run.rollout_side.sampler_of(RolloutJob(task=Task(id="t"), greedy=True))
    assert origin_of(made) == origin_of(run.sampler) and made is not run.sampler


# ------------------------------------------------------------------------------------------- tools, tell


class Tool(Plugin):
    """A tool that is called by the text `use`."""

    name = "tool"

    def find(self, text):
        return "call" if text == "use" else None

    async def run(self, call):
        return "result"


class NumberTool(Tool):
    async def run(self, call):
        return 3


class SyncTool(Tool):
    def run(self, call):
        return "result"


class FalseTool(Tool):
    def find(self, text):
        return text == "use"


class AsyncFind(Tool):
    def find(self, text):
        return later()


class SyncTell(Plugin):
    def tell(self, role, state, history, environment):
        return []


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    ("tool", "texts"),
    [
        ("NumberTool", ("run returned 3", "is a text")),
        ("SyncTool", ("run returned 'result'", "`run` must be `async def`")),
        ("FalseTool", ("find returned False", "return None where")),
        ("AsyncFind", ("find returned", "`find` must not be `async def`")),
    ],
)
def test_a_tool_that_breaks_its_contract_is_named(tool, texts):
    run = coterie_run(
        {"one": ["use", "1", "2"]},
        order=["one"],
        roles={"one": {"tools": ["tool"]}},
        tools={"tool": {"type": f"{HERE}:{tool}"}},
    )
    with pytest.raises(PluginError) as caught:
        play_episode(run)
    message = str(caught.value)
    assert all(text in message for text in (f"tools.tool: tool '{HERE}:{tool}' of tests", *texts)), message


def test_tell_and_score_are_asynchronous():
    with pytest.raises(PluginError, match="`tell` must be `async def`"):
        play_episode(coterie_run(order=["one"], max_turns=2, transition={"type": f"{HERE}:SyncTell"}))
    with pytest.raises(PluginError, match="`score` must be `async def`") as caught:
        play_episode(coterie_run(order=["one"], rewards={"judge": {"type": f"{HERE}:SyncScore"}}))
    assert f"rewards.judge: reward '{HERE}:SyncScore' of tests: score returned" in str(caught.value)


# ------------------------------------------------------------------------------------------- missing scores


class Judge(Plugin):
    scope = "action"
    components: ClassVar = {"judge": "increment"}
    weights: ClassVar = {}
    policy_fault = 0.0
    score_of = float("nan")

    async def score(self, view):
        return {(view.role, "judge"): self.score_of}


class SyncScore(Judge):
    def score(self, view):
        return {(view.role, "judge"): 1.0}


class NoNumber(NumberGame):
    async def step(self, state, actions, ctx):
        step = await super().step(state, actions, ctx)
        return replace(step, scores={**step.scores, (TEAM, "sum"): float("nan")})


class Stranger(NumberGame):
    async def step(self, state, actions, ctx):
        step = await super().step(state, actions, ctx)
        return replace(step, scores={("boss", "sum"): 1.0})


def test_a_missing_score_names_the_plugin(caplog):
    with pytest.raises(TooManyMissing, match=f"reward '{HERE}:Judge' of tests"):
        play_episode(coterie_run(order=["one"], rewards={"judge": {"type": f"{HERE}:Judge"}}))
    assert (
        f"rewards.judge: a score is missing: reward '{HERE}:Judge' of tests: score: nan is no" in caplog.text
    )


@pytest.mark.parametrize(
    ("game", "text"), [("NoNumber", "('team', 'sum') with nan"), ("Stranger", "('boss', 'sum') with 1.0")]
)
def test_a_score_of_a_step_that_counts_as_missing_names_the_environment_once(game, text, caplog):
    play_episode(coterie_run(order=["one"], env={"type": f"{HERE}:{game}"}, schedule={"max_missing": 1.0}))
    assert caplog.text.count(f"environment '{HERE}:{game}' of tests: step scored {text}") == 1
