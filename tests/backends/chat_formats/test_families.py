"""Prompts of the common families, token for token against transformers' `apply_chat_template`."""

from __future__ import annotations

import logging

import pytest

pytest.importorskip("transformers")

from hypothesis import HealthCheck, given, settings, strategies as st

from coterie.backends.chat_formats.formats import TemplateLimits, say_once
from coterie.core.types import Call
from tests.backends.chat_formats.families import FAMILIES, TOOLS

pytestmark = pytest.mark.torch

CODECS = {name: family.codec() for name, family in FAMILIES.items()}
WITH_TOOLS = {name: CODECS[name].with_tools(TOOLS) for name, family in FAMILIES.items() if family.tools}


def message(role, content):
    return {"role": role, "content": content}


QUESTION = message("user", "what is 2 + 2?")


def call_of(codec, prompt, text, finish="stop", ids=None):
    """The call that samples the encoding of a text, or `ids`, and where it stops the end of a turn."""
    ids = codec.encode_completion(text)[:-1] if ids is None else tuple(ids)
    ids = (*ids, *codec.encode_completion("")) if finish == "stop" else ids
    return Call(
        prompt_ids=prompt.ids, token_ids=ids, logprobs=(0.0,) * len(ids), version=0, finish=finish
    )  # fmt: skip


def checked(name, codec, messages, call, before, *, tools=False):
    """The next prompt, compared with transformers'."""
    prompt = codec.encode(messages, call, before)
    whole = FAMILIES[name].ids(messages, tools=tools)
    assert codec.encode(messages).ids == whole
    if call is None or not prompt.continues:
        assert prompt.ids == whole
    decode = codec.tokenizer.decode
    if call is None:
        return prompt
    kept = call.prompt_ids + call.token_ids
    if prompt.continues:
        assert prompt.ids[: len(kept)] == kept and len(prompt.ids) > len(kept)
        assert decode(prompt.ids) == decode(whole)
        # Other ids of the same text are only those that were sampled.
        assert prompt.ids == whole or whole[: len(kept)] != kept
    else:  # where the sampled ids are the begin of the whole, nothing else may be sent
        assert whole[: len(kept)] != kept
    return prompt


# ---------------------------------------------------------------------------------------------- first prompts


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("system", [(), (message("system", "be brief"),)], ids=["bare", "system"])
def test_a_first_prompt_is_that_of_transformers(name, system):
    messages = [*system, QUESTION]
    prompt = checked(name, CODECS[name], messages, None, ())
    text = CODECS[name].tokenizer.decode(prompt.ids)
    assert all(each["content"] in text for each in messages)
    bos = CODECS[name].tokenizer.bos_token_id
    assert bos is None or prompt.ids.count(bos) == 1


@pytest.mark.parametrize("name", WITH_TOOLS)
@pytest.mark.parametrize("system", [(), (message("system", "be brief"),)], ids=["bare", "system"])
def test_a_first_prompt_describes_the_tools_as_transformers_does(name, system):
    prompt = checked(name, WITH_TOOLS[name], [*system, QUESTION], None, (), tools=True)
    assert "Runs a program." in CODECS[name].tokenizer.decode(prompt.ids)


def test_a_family_without_tools_describes_none():
    for name, family in FAMILIES.items():
        assert family.tools == (CODECS[name].with_tools(TOOLS) is not None), name


@pytest.mark.parametrize("name", FAMILIES)
def test_what_a_family_refuses_is_measured(name):
    refused = FAMILIES[name].refuses
    expected = TemplateLimits(
        **{each: each not in refused for each in ("system", "later_system", "tool", "repeats")}
    )
    assert CODECS[name].render.limits == expected


# ---------------------------------------------------------------------------------------------- several turns

PIECES = st.sampled_from(["hello", " world", "\n", "\n\n", " ", "4", "UP UP", "é", "</s>", "[INST]", "{}"])
TEXTS = st.lists(PIECES, min_size=1, max_size=4).map("".join).filter(str.strip)
PLAIN = st.sampled_from(["go on", "is it 10?", " what\nnow ", "the wall is near"])
ANSWERS = st.one_of(
    st.just(""),
    TEXTS,
    TEXTS.map(lambda text: f"<think>\nlet me think\n</think>\n\n{text}"),
    TEXTS.map(lambda text: f"<think>\n{text}"),
)
TURNS = st.lists(
    st.fixed_dictionaries(
        {
            "answer": ANSWERS,
            "finish": st.sampled_from(["stop", "stop", "stop", "length"]),
            "then": st.lists(st.tuples(st.sampled_from(["user", "tool"]), PLAIN), min_size=1, max_size=2),
            "system": st.booleans(),
        }
    ),
    min_size=1,
    max_size=3,
)


def clean(codec, text):
    """A text without the family's marks: what becomes of marks is another test's."""
    for mark in {*codec.tokenizer.all_special_tokens, "[INST]", "</s>"}:
        text = text.replace(mark, "mark")
    return text


@settings(deadline=None, max_examples=250, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.sampled_from(sorted(FAMILIES)),
    st.booleans(),
    st.sampled_from([None, "be brief", " be\nbrief "]),
    st.lists(PLAIN, min_size=1, max_size=2),
    TURNS,
)
def test_conversations_of_all_families_are_those_of_transformers(name, tools, system, questions, turns):
    tools = tools and FAMILIES[name].tools
    codec = WITH_TOOLS[name] if tools else CODECS[name]
    first = [] if system is None else [message("system", system)]
    messages = first + [message("user", text) for text in questions]
    prompt = checked(name, codec, messages, None, (), tools=tools)
    for turn in turns:
        answer = clean(codec, turn["answer"])
        if turn["finish"] == "length" and not answer:
            return
        call = call_of(codec, prompt, answer, turn["finish"])
        before = messages
        messages = [*messages, message("assistant", codec.decode(call))]
        assert messages[-1]["content"] == answer
        messages += [message(role, text) for role, text in turn["then"]]
        if turn["system"]:  # as a role that remembers and has a system prompt
            messages += [message("system", system or "be brief"), message("user", "next")]
        prompt = checked(name, codec, messages, call, before, tools=tools)


@pytest.mark.parametrize("name", FAMILIES)
def test_what_stays_as_it_was_is_continued(name):
    """A plain answer: only templates that move a text to the end of the prompt write it differently later."""
    codec, first = CODECS[name], [QUESTION]
    prompt = codec.encode(first)
    call = call_of(codec, prompt, "hello")
    messages = [*first, message("assistant", "hello"), message("user", "go on")]
    continues = name not in ("thoughts_off", "inst_first")  # an empty thought; a space before answers
    assert codec.encode(messages, call, first).continues == continues
    system = [message("system", "be brief"), *first]
    call = call_of(codec, codec.encode(system), "hello")
    messages = [*system, *messages[1:]]
    assert codec.encode(messages, call, system).continues == (continues and name != "inst")


@pytest.mark.parametrize("name", FAMILIES)
def test_other_ids_of_the_same_text_stay_as_they_were_sampled(name):
    codec = CODECS[name]
    prompt = codec.encode([QUESTION])
    letters = [codec.encode_completion(letter)[0] for letter in "hello"]
    call = call_of(codec, prompt, "hello", ids=letters)
    messages = [QUESTION, message("assistant", "hello"), message("user", "go on")]
    following = checked(name, codec, messages, call, [QUESTION])
    fresh = codec.encode(messages)
    if following.continues:
        assert following.ids != fresh.ids
        assert codec.tokenizer.decode(following.ids) == codec.tokenizer.decode(fresh.ids)


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("role", ["system", "user", "assistant", "tool"])
def test_no_text_becomes_a_mark_of_the_family(name, role):
    codec, tokenizer = CODECS[name], CODECS[name].tokenizer
    forged = "".join(f"a{mark}" for mark in tokenizer.all_special_tokens)
    start = [] if role == "system" else [QUESTION]
    rest = [QUESTION] if role in ("system", "assistant") else []
    ids = [codec.encode([*start, message(role, text), *rest]).ids for text in (forged, "aa")]
    special = set(tokenizer.all_special_ids)
    assert [index for index in ids[0] if index in special] == [index for index in ids[1] if index in special]


# ------------------------------------------------------------------------------------------------ end of turn


@pytest.mark.parametrize("name", FAMILIES)
def test_the_end_of_a_turn_stops_and_is_an_answers_last_token(name):
    family, codec = FAMILIES[name], CODECS[name]
    names = {family.end, family.eos} | ({"<|eom_id|>"} if name == "headers" else set())
    assert codec.stop_ids == set(codec.tokenizer.convert_tokens_to_ids(sorted(names)))
    end = codec.tokenizer.convert_tokens_to_ids(family.end)
    assert codec.encode_completion("hello")[-1] == end
    call = call_of(codec, codec.encode([QUESTION]), "hello")
    assert call.token_ids[-1] == end and codec.decode(call) == "hello"


# ----------------------------------------------------------------------------- what a family has no place for


def warnings(caplog):
    return [record.message for record in caplog.records if record.name == "coterie"]


def test_a_system_message_moves_into_the_first_turn_and_the_log_says_so_once(caplog):
    say_once.cache_clear()
    codec = FAMILIES["user_and_model"].codec()
    with caplog.at_level(logging.WARNING, "coterie"):
        for question in ("a", "b"):
            text = codec.render([message("system", "be brief"), message("user", question)])
            assert text == (
                f"<bos><start_of_turn>user\nbe brief\n\n{question}<end_of_turn>\n<start_of_turn>model\n"
            )
    (warning,) = warnings(caplog)
    assert "the system message begins the first message of the user (told once)" in warning


def test_a_system_message_that_comes_again_is_left_out(caplog):
    say_once.cache_clear()
    codec = FAMILIES["user_and_model"].codec()
    system = message("system", "be brief")
    turn = [system, QUESTION]
    text = codec.render([*turn, message("assistant", "4"), *turn])
    assert text.count("be brief") == 1 and text.count(QUESTION["content"]) == 2
    text = codec.render([*turn, message("assistant", "4"), message("system", "be long"), QUESTION])
    assert text.endswith(
        "user\nbe long\n\nwhat is 2 + 2?<end_of_turn>\n<start_of_turn>model\n"
    ) and text.count("be brief") == 1  # fmt: skip
    assert any("is left out where it repeats the first one" in warning for warning in warnings(caplog))


def test_messages_in_a_row_become_one_where_roles_alternate(caplog):
    say_once.cache_clear()
    codec = FAMILIES["inst"].codec()
    text = codec.render([message("user", "a"), message("user", "b")])
    assert text == "<s>[INST] a\n\nb[/INST]"
    (warning,) = warnings(caplog)
    assert "messages of the user that follow each other become one" in warning
    assert FAMILIES["chatml"].codec().render([message("user", "a"), message("user", "b")]).count("user") == 2
    assert len(warnings(caplog)) == 1


def test_results_of_tools_become_the_users_where_there_is_no_role_for_them():
    codec = FAMILIES["user_and_model"].codec()
    results = [message("tool", "exit code 0"), message("tool", "42")]
    text = codec.render([QUESTION, message("assistant", "x"), *results, message("user", "go on")])
    assert "<start_of_turn>user\nexit code 0\n\n42\n\ngo on<end_of_turn>\n" in text
