"""Several turns and roles in every family: what is sampled is trained on, and once."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import numpy as np
import pytest

from coterie.testing.support.toys import EchoRole

pytest.importorskip("transformers")

from coterie.backends.tools.python import PythonTool
from coterie.core.protocols import Member, RolloutJob, Team
from coterie.core.rollout.context import JobContext
from coterie.core.rollout.engine_client import LocalEngineClient
from coterie.core.training.samples import action_samples
from coterie.core.types import Call, HistoryEntry, Key, RewardWeights, Sampling, Task
from tests.backends.chat_formats.families import FAMILIES
from tests.backends.tools.support import Subprocess, native

pytestmark = pytest.mark.torch

THOUGHT = "<think>\nwhere is the wall?\n</think>\n\nUP"


class SystemRole(EchoRole):
    """A role that remembers, with a system message in every prompt, as the role `template` writes it."""

    remembers = True

    def render(self, role_input):
        return [{"role": "system", "content": f"you are {role_input.role}"}, *super().render(role_input)]


class Recites:
    """An engine that samples given texts, in turn; a text that ends with `...` is cut by the limit."""

    def __init__(self, codec, texts):
        self._codec, self._texts, self.calls = codec, iter(texts), []

    def codec(self, policy):
        return self._codec

    async def generate(self, request):
        text = next(self._texts)
        ids = self._codec.encode_completion(text)[: -1 if text.endswith("...") else None]
        number = len(self.calls)
        call = Call(
            prompt_ids=request.prompt_ids, token_ids=ids, version=0,
            logprobs=tuple(-1.0 - number - place / 1000 for place in range(len(ids))),
            finish="length" if text.endswith("...") else "stop", continues=request.continues,
        )  # fmt: skip
        self.calls.append(call)
        return call


def context_of(codec, texts, roles=("one",), tools=()):
    engine = Recites(codec, texts)

    async def tell(role, state, history, environment):
        return (f"score {len(history)}",)

    members = {
        role: Member(role=SystemRole(), policy="p", tools=tools, max_tool_turns=3) for role in roles
    }  # fmt: skip
    team = Team(
        members=members, order=tuple((role,) for role in roles), max_turns=3,
        transition=SimpleNamespace(tell=tell),
    )  # fmt: skip
    context = JobContext(
        environment=SimpleNamespace(observe=lambda state, role: "go"),
        team=team,
        engine=LocalEngineClient(engine),
        reward_sources=(),
        reward_weights=RewardWeights(),
        run_seed=0,
        job=RolloutJob(task=Task(id="t")),
    )
    return context, engine


def played(context, turns):
    """By turn and role: (key, decision, action)."""
    history, rows = {}, []

    async def go():
        for turn in range(turns):
            for role in context.team.members:
                past = history.get(role, ())
                request = await context.ask(role, None, turn, past, Sampling(max_new_tokens=99))
                key = Key("t", path=(0,) * turn).of_branch(role, 0)
                action = await context.act(key, request)
                entry = HistoryEntry(
                    turn=turn, observation="go", messages=tuple(request.messages), action=action, info={}
                )
                history[role] = (*past, entry)
                rows.append((key, request.decision((action,), True), action))

    asyncio.run(go())
    return rows


def samples(rows):
    return [
        sample
        for key, decision, action in rows
        for sample in action_samples(
            key, decision, action, np.arange(sum(len(call.token_ids) for call in action.calls)) + 1.0, 1.0, {}
        )
    ]


def check_trained_once(made, calls):
    """Every sampled token is trained on once, with its log-prob and its advantage, and nothing else is."""
    trained = [index for sample in made for index in sample.token_ids[sample.loss_mask]]
    assert trained == [index for call in calls for index in call.token_ids]
    drawn = [value for sample in made for value in sample.logprobs[sample.loss_mask]]
    assert np.allclose(drawn, [value for call in calls for value in call.logprobs])
    assert all(not sample.advantages[~sample.loss_mask].any() for sample in made)


@pytest.mark.parametrize("name", FAMILIES)
def test_three_turns_of_two_roles_with_feedback(name):
    texts = ["UP", "DOWN", THOUGHT, "", "LEFT...", "RIGHT"]
    codec = FAMILIES[name].codec()
    context, engine = context_of(codec, texts, ("planner", "executor"))
    rows = played(context, 3)
    check_trained_once(samples(rows), engine.calls)
    end = codec.encode_completion("")[0]
    for key, decision, _ in rows:
        prompt = codec.tokenizer.decode(decision.prompt_ids)
        whole = codec.tokenizer.decode(FAMILIES[name].ids(decision.messages))
        assert prompt == whole  # the sampled ids, which may be others, stand for the same text
        assert ("score" in prompt) == bool(key.path) and f"you are {key.role}" in prompt
    for sample, text in zip(samples(rows), texts, strict=True):
        assert (sample.token_ids[-1] == end) == (not text.endswith("..."))
        assert sample.loss_mask[-1] and sample.loss_mask.sum() == len(sample.token_ids) - sample.prompt_tokens


def test_a_thought_that_the_template_drops_is_trained_in_its_turn_and_in_no_later_prompt():
    context, engine = context_of(FAMILIES["thoughts"].codec(), [THOUGHT] * 3)
    rows = played(context, 3)
    made = samples(rows)
    check_trained_once(made, engine.calls)
    assert [call.continues for call in engine.calls] == [False] * 3
    decode = engine.codec("p").tokenizer.decode
    for sample in made:
        assert decode(sample.token_ids).count("where is the wall?") == 1
        assert "where is the wall?" in decode(sample.token_ids[sample.loss_mask])
    context, engine = context_of(FAMILIES["thoughts"].codec(), ["UP"] * 3)
    played(context, 3)
    assert [call.continues for call in engine.calls] == [False, True, True]


USE = native("python", code="print(6 * 7)")


@pytest.mark.parametrize(
    ("name", "answers", "continues"),
    [
        (
            "thoughts",
            [THOUGHT + USE, THOUGHT + USE, "42"],
            [False, True, True],
        ),  # kept until the next question
        (
            "thoughts_off",
            [USE, USE, "42"],
            [False, False, False],
        ),  # the empty thought of a prompt isn't in the next one
        ("chatml_default", [THOUGHT + USE, USE + "\n", "42"], [False, True, True]),
        ("headers", [USE, USE + "\n", "42"], [False, True, False]),  # the second is trimmed
        ("inst", [USE, USE, "42"], [False, False, False]),  # the tools move to the last question: the result
    ],
)
def test_a_loop_with_tools_is_one_sample_until_the_template_rewrites_it(name, answers, continues):
    tool = PythonTool(PythonTool.Config(sandbox=Subprocess(), calls="native"), SimpleNamespace(name="python"))
    asyncio.run(tool.config.sandbox.open())
    context, engine = context_of(FAMILIES[name].codec(), answers, tools=(tool,))
    rows = played(context, 1)
    made = samples(rows)
    check_trained_once(made, engine.calls)
    assert len(rows[0][2].tool_results) == 2
    assert [call.continues for call in engine.calls] == continues
    assert len(made) == continues.count(False)
    assert len({sample.key for sample in made}) == len(made)


@pytest.mark.parametrize("name", ["user_and_model", "inst", "headers"])
def test_a_judge_of_a_family_without_system_messages_reads_them(name):
    """A judge or coach that is a policy: its messages are a system message and a question."""
    from coterie.backends.chat_models.policy import PolicyModel
    from coterie.core.protocols import ChatRequest

    codec = FAMILIES[name].codec()
    engine = Recites(codec, ["Score: 7"])
    frozen = SimpleNamespace(train="none")
    run = SimpleNamespace(policies={"judge": frozen}, seed=0)
    judge = PolicyModel(
        PolicyModel.Config(policy="judge"), SimpleNamespace(run=run, name="judge", path="chat_models.judge")
    )
    judge.use_engine(LocalEngineClient(engine))
    messages = [{"role": "system", "content": "judge strictly"}, {"role": "user", "content": "4 is right"}]
    request = ChatRequest(messages=messages, max_tokens=9, temperature=0.0)
    assert asyncio.run(judge.answer(request)).text == "Score: 7"
    (call,) = engine.calls
    assert call.prompt_ids == FAMILIES[name].ids(messages)
