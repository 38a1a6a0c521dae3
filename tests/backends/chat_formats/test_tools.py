"""Tools and thoughts in real templates: prompts, replies and trained ids."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import numpy as np
import pytest

from coterie.testing.support.toys import EchoRole

pytest.importorskip("transformers")

from coterie.backends.chat_formats.formats import AutoChat, PlainChat, TemplateChat
from coterie.backends.tools.python import PythonTool
from coterie.core.errors import ConfigError
from coterie.core.protocols import Member, RolloutJob, Team
from coterie.core.rollout.context import JobContext
from coterie.core.rollout.engine_client import LocalEngineClient
from coterie.core.training.samples import action_samples, merge_annotations, samples_of
from coterie.core.types import Call, Credit, Key, Node, RewardWeights, Sampling, Task, Tree
from tests.backends.chat_formats.qwen3 import FORGETS, QWEN3, QWEN3_THINKING
from tests.backends.chat_formats.tokenizers import KEEPS, bpe
from tests.backends.tools.support import Subprocess, native

pytestmark = pytest.mark.torch

KEY = Key("t").of_branch("one", 0)
CODE = native("python", code="print(40 + 2)")


class Recited:
    """An engine that generates given texts, one after the other, letter by letter where it can."""

    def __init__(self, chat, *texts, truncate_last=False):
        self._codec, self.texts, self.truncate_last, self.calls = chat, list(texts), truncate_last, []

    def codec(self, policy):
        return self._codec

    async def generate(self, request):
        tokenizer, text = self._codec.tokenizer, self.texts[len(self.calls)]
        ids = [index for piece in pieces(text) for index in tokenizer.encode(piece, add_special_tokens=False)]
        last = self.truncate_last and len(self.calls) == len(self.texts) - 1
        ids += [] if last else [tokenizer.eos_token_id]
        number = len(self.calls)
        call = Call(
            prompt_ids=request.prompt_ids, token_ids=tuple(ids), version=0,
            logprobs=tuple(-(number + 1) - index / 1000 for index in range(len(ids))),
            finish="length" if last else "stop", continues=request.continues,
        )  # fmt: skip
        self.calls.append(call)
        return call


def pieces(text):
    """Marks whole, all else letter by letter: other ids than encoding the text would choose."""
    for mark in ("<think>", "</think>"):
        head, marker, tail = text.partition(mark)
        if marker:
            return [*pieces(head), mark, *pieces(tail)]
    return list(text)


def played(
    template, *texts, native=True, truncate_last=False, turns=4, shows=False, chat=AutoChat, context=4000
):
    """(play, engine, decision, action) of one branch."""
    settings = PythonTool.Config(sandbox=Subprocess(), calls="native" if native else "fenced")
    tool = PythonTool(settings, SimpleNamespace(name="python"))
    engine = Recited(chat().codec(bpe(template), context), *texts, truncate_last=truncate_last)
    one = Member(role=EchoRole(), policy="p", tools=(tool,), max_tool_turns=turns, show_thoughts=shows)
    transition = SimpleNamespace(tell=nothing)
    team = Team(members={"one": one}, order=(("one",),), max_turns=1, transition=transition)
    game = SimpleNamespace(observe=lambda state, role: "go")
    ctx = JobContext(
        environment=game,
        team=team,
        engine=LocalEngineClient(engine),
        reward_sources=(),
        reward_weights=RewardWeights(),
        run_seed=0,
        job=RolloutJob(task=Task(id="t")),
    )

    async def go():
        await tool.config.sandbox.open()
        request = await ctx.ask("one", None, 0, (), Sampling(max_new_tokens=99))
        action = await ctx.act(KEY, request)
        return request.decision((action,), True), action

    decision, action = asyncio.run(go())
    return ctx, engine, decision, action


async def nothing(*_):
    return ()


def exact(engine, decision, action, annotations=None):
    """The samples, after a look at every id: all calls, one after the other, and nothing else unmasked."""
    count = sum(len(call.token_ids) for call in engine.calls)
    samples = action_samples(KEY, decision, action, np.arange(count) + 1.0, 1.0, annotations or {})
    left = list(engine.calls)
    for sample in samples:
        mine = [left.pop(0)]
        while left and left[0].continues:
            mine.append(left.pop(0))
        assert sample.token_ids.tolist() == [*mine[-1].prompt_ids, *mine[-1].token_ids]
        trained = [index for call in mine for index in call.token_ids]
        assert sample.token_ids[sample.loss_mask].tolist() == trained
        drawn = [value for call in mine for value in call.logprobs]
        assert np.allclose(sample.logprobs[sample.loss_mask], drawn)
    assert not left
    values = np.concatenate([sample.advantages[sample.loss_mask] for sample in samples])
    assert values.tolist() == (np.arange(count) + 1.0).tolist()
    return samples


def text_of(engine, ids):
    return engine._codec.tokenizer.decode(ids)


BLOCK = "```python\nprint(1)\n```"
THOUGHT = "<think>\nI compute it.\n</think>\n\n"


@pytest.mark.parametrize(("template", "opening"), [(QWEN3, "<think>\n"), (QWEN3_THINKING, "")])
def test_qwen3_keeps_thoughts_in_a_tool_loop_so_it_is_one_sample(template, opening):
    thought = opening + "I compute it.\n</think>\n\n"
    ctx, engine, decision, action = played(template, thought + CODE, thought + "It is 42.")
    (sample,) = exact(engine, decision, action)
    assert action.text == "It is 42." and action.thought == "I compute it."
    assert action.tool_results == ("exit code 0\nstdout:\n42",)
    masked = text_of(
        engine, sample.token_ids[decision_tokens(decision) :][~sample.loss_mask[decision_tokens(decision) :]]
    )
    assert masked == (
        "\n<|im_start|>user\n<tool_response>\nexit code 0\nstdout:\n42\n</tool_response><|im_end|>\n"
        "<|im_start|>assistant\n" + ("" if opening else "<think>\n")
    )  # fmt: skip
    # The extended ids decode to the template's text of the whole conversation.
    codec = ctx.codec("p", "one")
    assert text_of(engine, action.calls[-1].prompt_ids) == codec.render(action.dialogue)


def decision_tokens(decision):
    return len(decision.prompt_ids)


def test_a_template_that_drops_earlier_thoughts_makes_two_samples():
    _, engine, decision, action = played(
        FORGETS, THOUGHT + "```python\nprint(42)\n```", THOUGHT + "It is 42.", native=False
    )
    first, second = exact(engine, decision, action)
    assert "I compute it." in text_of(engine, first.token_ids)
    assert text_of(engine, second.token_ids).count("I compute it.") == 1  # its own; the earlier one is gone
    assert first.key == KEY and second.key == KEY.of_call(1)
    assert first.prompt_tokens == len(decision.prompt_ids) < second.prompt_tokens
    # The same text without thoughts goes on.
    _, engine, decision, action = played(FORGETS, "```python\nprint(42)\n```", "It is 42.", native=False)
    assert len(exact(engine, decision, action)) == 1


def test_three_calls_of_which_the_second_breaks_the_prefix():
    _, engine, decision, action = played(FORGETS, BLOCK, THOUGHT + BLOCK, "done", native=False)
    first, second = exact(engine, decision, action)
    assert first.loss_mask.sum() == sum(len(call.token_ids) for call in engine.calls[:2])
    assert [call.continues for call in engine.calls] == [False, True, False]
    assert second.key == KEY.of_call(1)


def test_annotations_over_several_calls_and_samples_stay_aligned():
    _, engine, decision, _ = played(
        FORGETS, THOUGHT + "```python\nprint(42)\n```", THOUGHT + "It is 42.", native=False
    )
    root = Node(key=KEY.node, turn=0, stage=0, decisions={"one": decision}, joints=())
    tree = Tree(task=Task(id="t"), chain=0, epoch=0, root=root)
    rows = samples_of([tree], Credit(advantage={KEY: 0.0}))
    # What a trainer would answer of each sample: its own tokens' log-probs.
    answers = {sample.key: sample.logprobs[sample.loss_mask] for sample in rows["p"]}
    annotations = merge_annotations(rows, "old_logprobs", answers)
    drawn = [value for call in engine.calls for value in call.logprobs]
    assert np.allclose(annotations["old_logprobs"][KEY], drawn)
    for sample in samples_of([tree], Credit(advantage={KEY: np.array(drawn)}), annotations)["p"]:
        assert np.array_equal(sample.extras["old_logprobs"], sample.logprobs)
        assert np.array_equal(sample.advantages, sample.logprobs)
        assert not sample.extras["old_logprobs"][~sample.loss_mask].any()


def test_odd_spaces_around_a_thought_break_the_prefix_and_nothing_else():
    """Qwen3's template writes the empty lines around a thought itself."""
    _, engine, decision, action = played(QWEN3, "<think>hm</think>" + CODE, "42")
    assert action.tool_results and len(exact(engine, decision, action)) == 2


def test_the_template_tells_the_model_of_its_tools():
    _, engine, decision, _ = played(QWEN3, "no")
    prompt = text_of(engine, decision.prompt_ids)
    assert '<tools>\n{"type": "function", "function": {"name": "python"' in prompt
    assert "</tools>" in prompt and prompt.endswith("one turn0 go<|im_end|>\n<|im_start|>assistant\n")
    _, engine, decision, _ = played(QWEN3, "no", native=False)
    assert "<tools>" not in text_of(engine, decision.prompt_ids)


@pytest.mark.parametrize(("template", "chat"), [(KEEPS, AutoChat), (None, AutoChat), (QWEN3, PlainChat)])
def test_a_format_that_has_no_place_for_tools_is_refused(template, chat):
    with pytest.raises(ConfigError, match="can't describe the tools of role 'one'") as caught:
        played(template, "no", chat=chat)
    assert caught.value.path == "team.roles.one.tools"


def test_two_calls_in_one_reply_are_answered_in_one_message():
    _, engine, decision, action = played(QWEN3, THOUGHT + CODE + "\n" + native("python", code="1/0"), "42")
    (result,) = action.tool_results
    assert result.startswith("result 1 of 2:\nexit code 0") and "ZeroDivisionError" in result
    assert len(exact(engine, decision, action)) == 1


def test_a_call_inside_a_thought_is_no_call():
    _, engine, _, action = played(QWEN3, f"<think>\nshall I {CODE}?\n</think>\n\nNo.")
    assert action.text == "No." and not action.tool_results and len(engine.calls) == 1
    _, engine, _, action = played(QWEN3_THINKING, f"shall I {CODE}?\n</think>\n\nNo.", shows=True)
    assert not action.tool_results and action.text == f"shall I {CODE}?\n</think>\n\nNo."
    assert action.thought == f"shall I {CODE}?"


@pytest.mark.parametrize(("template", "text"), [(QWEN3, "<think>\n" + CODE), (QWEN3_THINKING, CODE)])
def test_a_thought_that_the_limit_truncates_gives_an_empty_text(template, text):
    _, engine, decision, action = played(template, text, truncate_last=True)
    assert action.text == "" and action.thought == CODE and not action.tool_results
    (sample,) = exact(engine, decision, action)
    assert sample.loss_mask.sum() == len(engine.calls[0].token_ids)


def test_results_that_leave_no_room_in_the_context_end_the_action():
    _, engine, decision, whole = played(KEEPS, BLOCK, BLOCK, "done", native=False)
    room = len(engine.calls[1].prompt_ids) + 1
    _, engine, decision, action = played(KEEPS, BLOCK, BLOCK, "done", native=False, context=room)
    assert len(action.calls) == 2 and len(action.tool_results) == 2 and action.tool_limit
    assert not whole.tool_limit and action.text == BLOCK and action.parsed == BLOCK
    assert action.dialogue == whole.dialogue[:3]  # of the last call's prompt, for a role that remembers
    assert len(exact(engine, decision, action)) == 1


def test_an_empty_thought_of_the_template_is_not_the_answers():
    chat = TemplateChat(TemplateChat.Config(template_kwargs={"enable_thinking": False}))
    assert not chat.codec(bpe(QWEN3), 4000).encode([{"role": "user", "content": "a"}]).thinking
    assert AutoChat().codec(bpe(QWEN3_THINKING), 4000).encode([{"role": "user", "content": "a"}]).thinking
