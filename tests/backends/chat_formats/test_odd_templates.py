"""Templates and tokenizers with habits that a run has to survive: dates, numbers, marks that are missing."""

from __future__ import annotations

import datetime
import itertools
import json
import logging
import pickle

import pytest

pytest.importorskip("transformers")

from hypothesis import given, settings, strategies as st

from coterie.backends.chat_formats.formats import (
    AutoChat,
    PlainChat,
    TemplateChat,
    TemplateLimits,
    fitted,
    say_once,
)
from coterie.backends.engines.requests import stop_ids
from coterie.backends.models.loading import folder_tokenizer
from coterie.core.errors import ConfigError, UserError
from coterie.core.types import Call, Key, Request, Sampling
from tests.backends.chat_formats.families import FAMILIES
from tests.backends.chat_formats.tokenizers import KEEPS, bpe

pytestmark = pytest.mark.torch

QUESTION = {"role": "user", "content": "what is 2 + 2?"}
TURN = "{{- '<|im_start|>' ~ m.role ~ '\n' ~ m.content ~ '<|im_end|>\n' -}}"
LOOP = "{%- for m in messages -%}" + TURN + "{%- endfor -%}"
ASK = "{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\n' -}}{%- endif -%}"


@pytest.fixture
def warned(caplog):
    """Warnings of templates, which are told again for each test."""
    say_once.cache_clear()
    caplog.set_level(logging.WARNING, "coterie")
    return lambda: [record.message for record in caplog.records if record.name == "coterie"]


def following(codec, answer="hello", finish="stop", end=None):
    """(call, the prompt after its answer)."""
    prompt = codec.encode([QUESTION])
    ids = codec.encode_completion(answer)[:-1]
    ids += (codec.encode_completion("") if end is None else (end,)) if finish == "stop" else ()
    call = Call(
        prompt_ids=prompt.ids, token_ids=ids, logprobs=(0.0,) * len(ids), version=0, finish=finish
    )  # fmt: skip
    messages = [QUESTION, {"role": "assistant", "content": codec.decode(call)}, QUESTION]
    return call, codec.encode(messages, call, [QUESTION]), codec.encode(messages)


def test_a_date_is_fixed_so_that_a_run_repeats(warned):
    tokenizer = bpe("{{- strftime_now('%d %b %Y') -}}" + LOOP + ASK)
    codec = AutoChat().codec(tokenizer, None)
    assert codec.render([QUESTION]).startswith("01 Jan 2025<|im_start|>user")
    (warning,) = warned()
    assert "writes the date: every prompt has 2025-01-01" in warning and "date: YYYY-MM-DD" in warning
    other = TemplateChat(TemplateChat.Config(date="2026-02-03")).codec(tokenizer, None)
    assert other.render([QUESTION]).startswith("03 Feb 2026<")
    assert pickle.loads(pickle.dumps(other)).render([QUESTION]) == other.render([QUESTION])
    today = tokenizer.apply_chat_template([QUESTION], tokenize=False)
    assert today.startswith(datetime.date.today().strftime("%d %b"))  # what transformers alone would send
    assert following(codec)[1].continues


def test_a_date_that_the_configuration_names_in_the_templates_way_is_its(warned):
    family = FAMILIES["headers"]
    chat = TemplateChat(TemplateChat.Config(template_kwargs={"date_string": "3 Feb 2026"}))
    assert "Today: 3 Feb 2026\n" in chat.codec(family.tokenizer(), None).render([QUESTION])
    clock = TemplateChat(TemplateChat.Config(template_kwargs={"use_clock": True}, date="2026-02-03"))
    assert "Today: 03 Feb 2026\n" in clock.codec(family.tokenizer(), None).render([QUESTION])


def test_a_template_that_ignores_the_generation_prompt_is_warned_of(warned):
    AutoChat().codec(bpe(LOOP), None)
    (warning,) = warned()
    assert "ignores add_generation_prompt" in warning
    say_once.cache_clear()
    for family in FAMILIES.values():  # `inst` needs no mark before an answer
        family.codec()
    assert len(warned()) == 1


def test_a_tokenizer_that_adds_bos_adds_no_second_one():
    from tokenizers.processors import TemplateProcessing

    tokenizer = bpe("{{- bos_token -}}" + LOOP + ASK, bos_token="<bos>")
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
        single="<bos> $A", special_tokens=[("<bos>", tokenizer.bos_token_id)]
    )
    assert tokenizer.encode("a")[0] == tokenizer.bos_token_id
    call, prompt, fresh = following(AutoChat().codec(tokenizer, None))
    assert prompt.continues and prompt == fresh.__class__(ids=fresh.ids, continues=True)
    assert prompt.ids.count(tokenizer.bos_token_id) == 1 == call.prompt_ids.count(tokenizer.bos_token_id)
    with_bos = tokenizer.apply_chat_template([QUESTION], add_generation_prompt=True, return_dict=False)
    assert tuple(with_bos) == call.prompt_ids


def test_a_template_that_trims_answers_continues_where_there_is_nothing_to_trim():
    codec = AutoChat().codec(bpe(LOOP.replace("m.content", "m.content | trim") + ASK), None)
    assert following(codec)[1].continues
    assert not following(codec, "hello\n")[1].continues
    assert following(codec, "hello\n")[1].ids == following(codec, "hello\n")[2].ids


def test_a_template_that_adds_an_empty_thought_to_answers_without_one_never_continues_them(warned):
    odd = LOOP.replace(
        "~ m.content", "~ ('<think>\n\n</think>\n\n' if m.role == 'assistant' else '') ~ m.content"
    )
    _, prompt, fresh = following(AutoChat().codec(bpe(odd + ASK), None))
    assert prompt == fresh and not prompt.continues
    assert not warned()  # the prompt has the marks of an answer, and the thought is the template's


def test_spaces_before_the_end_of_a_turn_hide_it_from_nobody():
    spaced = LOOP.replace("'<|im_end|>", "' <|im_end|>") + ASK
    codec = AutoChat().codec(bpe(spaced, eos="<|endoftext|>"), None)
    assert codec.stop_ids == set(codec.tokenizer.convert_tokens_to_ids(["<|im_end|>", "<|endoftext|>"]))


def test_a_template_that_shows_one_of_two_questions_gets_them_as_one():
    repeated = "loop.first or m.role != 'user' or messages[loop.index0 - 1].role != 'user'"
    first_only = "{%- for m in messages -%}{%- if " + repeated + " -%}" + TURN + "{%- endif -%}{%- endfor -%}"
    codec = AutoChat().codec(bpe(first_only + ASK), None)
    assert codec.render([QUESTION, {"role": "user", "content": "and 3?"}]).count("2 + 2?\n\nand 3?") == 1


def test_only_the_message_beside_a_moved_one_joins_it():
    limits = TemplateLimits(system=False, tool=False)
    rest = [QUESTION, {"role": "user", "content": "b"}]
    assert fitted([{"role": "system", "content": "s"}, *rest], limits) == (
        [{"role": "user", "content": "s\n\nwhat is 2 + 2?"}, rest[1]],
        {"system"},
    )
    assert fitted([*rest, {"role": "tool", "content": "r"}], limits) == (
        [rest[0], {"role": "user", "content": "b\n\nr"}],
        {"tool"},
    )
    assert fitted(rest, limits) == (rest, set())


@pytest.mark.parametrize(("number", "last"), [("loop.index", "messages|length + 1"), ("loop.revindex", "0")])
def test_a_template_that_numbers_turns_continues_if_numbers_stay(number, last):
    template = LOOP.replace("m.role ~", f"m.role ~ {number} ~") + ASK.replace("\n", f"' ~ ({last}) ~ '\n")
    _, prompt, fresh = following(AutoChat().codec(bpe(template), None))
    assert prompt.ids == fresh.ids and prompt.continues == (number == "loop.index")


def test_eos_and_the_end_of_a_turn_both_stop_and_only_the_templates_is_continued():
    tokenizer = bpe(KEEPS, eos="<|endoftext|>")
    codec = AutoChat().codec(tokenizer, None)
    assert codec.stop_ids == {tokenizer.eos_token_id, tokenizer.convert_tokens_to_ids("<|im_end|>")}
    assert following(codec)[1].continues
    call, prompt, fresh = following(codec, end=tokenizer.eos_token_id)
    assert codec.decode(call) == "hello" and prompt == fresh and not prompt.continues


def test_a_template_of_models_that_see_images_gets_its_texts_as_parts():
    parts = "{%- for p in m.content -%}{%- if p.type == 'text' -%}{{- p.text -}}{%- endif -%}{%- endfor -%}"
    template = "{%- for m in messages -%}{{- '<|im_start|>' ~ m.role ~ '\n' -}}" + parts
    template += "{{- '<|im_end|>\n' -}}{%- endfor -%}" + ASK
    codec = AutoChat().codec(bpe(template), None)
    assert not codec.render.limits.texts
    assert codec.render([QUESTION]) == AutoChat().codec(bpe(LOOP + ASK), None).render([QUESTION])
    assert following(codec)[1].continues and codec.stop_ids == {codec.tokenizer.eos_token_id}


def test_a_template_that_leaves_out_the_question_is_refused():
    with pytest.raises(ConfigError, match="leaves out the text of messages") as caught:
        AutoChat().codec(bpe("{%- for m in messages -%}{{- m.role -}}{%- endfor -%}"), None)
    assert caught.value.path == "chat"


def test_a_template_that_leaves_out_system_messages_gets_them_as_text_of_the_user(warned):
    silent = "{%- for m in messages if m.role != 'system' -%}" + TURN + "{%- endfor -%}" + ASK
    codec = AutoChat().codec(bpe(silent), None)
    text = codec.render([{"role": "system", "content": "be brief"}, QUESTION])
    assert text.startswith("<|im_start|>user\nbe brief\n\nwhat is 2 + 2?<|im_end|>")
    assert "the system message begins" in warned()[0]


@pytest.mark.parametrize("fails", ["{{ raise_exception('no') }}", "{{ 1 + none }}", "{{ messages[7].x }}"])
def test_a_template_that_fails_is_an_error_of_the_conversation(fails):
    codec = AutoChat().codec(bpe(fails), None)
    assert codec.render.limits == TemplateLimits()  # nothing is known of it, so nothing is changed
    with pytest.raises(UserError, match=r"rejects a conversation of \[user\]"):
        codec.encode([QUESTION])


@settings(max_examples=150, deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from(["system", "user", "assistant", "tool"]), st.integers(0, 3)), max_size=8
    ),
    st.builds(TemplateLimits, *[st.booleans()] * 4),
)
def test_no_text_is_lost_and_nothing_that_a_template_refuses_is_left(turns, limits):
    messages = [{"role": role, "content": f"<{number}>"} for role, number in turns]
    taken, changed = fitted(messages, limits)
    repeats = [m for m in messages[1:] if messages[0]["role"] == "system" and m == messages[0]]
    left_out = [] if limits.later_system else repeats
    shown = "".join(m["content"] for m in taken).replace("\n", "")
    kept = [m for index, m in enumerate(messages) if not index or m not in left_out]
    assert shown == "".join(m["content"] for m in kept)
    roles = [m["role"] for m in taken]
    assert limits.tool or "tool" not in roles
    assert limits.system or roles[:1] != ["system"]
    assert limits.later_system or "system" not in roles[1:]
    assert limits.repeats or all(pair != ("user", "user") for pair in itertools.pairwise(roles))
    assert (taken == messages) == (not changed)
    assert fitted(messages, TemplateLimits()) == (messages, set())


# -------------------------------------------------------------------------------------------- ends of answers


def saved(folder, name, **files):
    FAMILIES[name].tokenizer().save_pretrained(folder)
    for file, content in files.items():
        (folder / f"{file}.json").write_text(json.dumps(content))
    return folder_tokenizer(folder, "policies.p")


@pytest.mark.parametrize("file", ["generation_config", "config"])
def test_tokens_that_end_answers_in_plain_transformers_stop_them_here(tmp_path, file):
    """As Llama 3.1's three: of a text, of a message and of a turn."""
    marks = ["<|end_of_text|>", "<|eom_id|>", "<|eot_id|>"]
    ids = FAMILIES["headers"].tokenizer().convert_tokens_to_ids(marks)
    tokenizer = saved(tmp_path, "headers", **{file: {"eos_token_id": ids, "model_type": "llama"}})
    codec = AutoChat().codec(tokenizer, None)
    assert codec.stop_ids == set(ids)
    # Both engines ask `stop_ids`: `hf` for its rows, `vllm` for its `stop_token_ids`.
    asked = Request(key=Key("t"), policy="p", prompt_ids=(1,), sampling=Sampling(stop=("?",)), seed=0)
    assert stop_ids(asked, codec, tokenizer) == tuple(sorted({*ids, *tokenizer.encode("?")}))
    plain = PlainChat().codec(tokenizer, None)
    assert pickle.loads(pickle.dumps(plain)).stop_ids == set(ids)


def test_one_id_and_none_and_ids_of_words(tmp_path):
    tokenizer = FAMILIES["user_and_model"].tokenizer()
    end, word = tokenizer.convert_tokens_to_ids("<start>"), tokenizer.encode("hello")[0]
    usual = FAMILIES["user_and_model"].codec().stop_ids
    files = ({}, {"generation_config": {"temperature": 0.6}}, {"generation_config": {"eos_token_id": word}})
    for number, more in enumerate(files):  # no file; a file without ids; an id of a text, which answers have
        (tmp_path / str(number)).mkdir()
        read = saved(tmp_path / str(number), "user_and_model", **more)
        assert AutoChat().codec(read, None).stop_ids == usual
    other = tokenizer.convert_tokens_to_ids("<|im_start|>")  # config.json counts where the first has none
    both = {"generation_config": {"eos_token_id": end}, "config": {"eos_token_id": other}}
    read = saved(tmp_path, "user_and_model", **both)
    assert AutoChat().codec(read, None).stop_ids == usual | {end}


def test_an_adapters_answers_end_as_those_of_its_base(tmp_path):
    base, adapter = tmp_path / "base", tmp_path / "adapter"
    base.mkdir()
    adapter.mkdir()
    end = FAMILIES["user_and_model"].tokenizer().convert_tokens_to_ids("<start>")
    (base / "config.json").write_text(json.dumps({"eos_token_id": [end]}))
    read = saved(adapter, "user_and_model", adapter_config={"base_model_name_or_path": str(base)})
    assert end in AutoChat().codec(read, None).stop_ids
    for odd in (str(adapter), str(tmp_path / "gone"), None):
        read = saved(adapter, "user_and_model", adapter_config={"base_model_name_or_path": odd})
        assert end not in AutoChat().codec(read, None).stop_ids


def test_a_template_without_any_end_is_warned_of(warned):
    from transformers import PreTrainedTokenizerFast

    backend = bpe().backend_tokenizer
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, pad_token="<|endoftext|>")
    tokenizer.chat_template = (
        "{%- for m in messages -%}{{- m.role ~ ': ' ~ m.content ~ '\n' -}}{%- endfor -%}"
    )
    assert not AutoChat().codec(tokenizer, None).stop_ids
    assert any("every answer goes on to max_new_tokens" in warning for warning in warned())
