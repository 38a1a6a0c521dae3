"""The format that a tokenizer gets, and the text of its conversations."""

import pytest

pytest.importorskip("transformers")

from coterie.backends.chat_formats.formats import AutoChat, PlainChat, TemplateChat
from coterie.backends.models.tokenizers import words_tokenizer
from coterie.core.errors import ConfigError, UserError
from coterie.core.types import Call
from tests.backends.chat_formats.tokenizers import DROPS, KEEPS, TRIMS, bpe

pytestmark = pytest.mark.torch


def message(role, content):
    return {"role": role, "content": content}


def read(codec, *messages):
    return codec.tokenizer.decode(codec.encode(list(messages)).ids)


def ids(tokenizer, *tokens):
    return frozenset(tokenizer.convert_tokens_to_ids(list(tokens)))


def test_auto_follows_the_tokenizer():
    user = message("user", "hello world")
    assert read(AutoChat().codec(bpe(KEEPS), 9), user) == (
        "<|im_start|>user\nhello world<|im_end|>\n<|im_start|>assistant\n"
    )
    assert read(AutoChat().codec(bpe(), 9), user) == "hello world"


def test_template_is_refused_without_one():
    with pytest.raises(ConfigError, match="chat template") as caught:
        TemplateChat().codec(bpe(), 9)
    assert caught.value.path == "chat.type"


def test_plain_ignores_the_template():
    codec = PlainChat().codec(bpe(KEEPS), 9)
    assert (
        read(codec, message("system", "be brief"), message("user", "hi"))
        == "System: be brief\nUser: hi\nAssistant:"
    )
    assert read(codec, message("user", "hi"), message("assistant", " hello"), message("tool", "found")) == (
        "hi hello<|im_end|>\nTool: found\nAssistant:"
    )


def test_word_tokenizers_get_no_markers_that_they_do_not_know():
    codec = PlainChat().codec(words_tokenizer(["go", "up", "ok"]), 9)
    assert read(codec, message("user", "go up")) == "go up"
    assert read(
        codec,
        message("system", "go"),
        message("user", "up"),
        message("assistant", "ok"),
        message("tool", "go"),
    ) == ("go up ok <eos> go")
    assert codec.stop_ids == {1} and codec.encode_completion("up") == (5, 1)
    assert codec.context == 9


def test_plain_text_starts_as_the_tokenizer_wants():
    from tokenizers.processors import TemplateProcessing

    tokenizer = bpe(bos_token="<bos>")
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
        single="<bos> $A", special_tokens=[("<bos>", tokenizer.bos_token_id)]
    )
    assert read(PlainChat().codec(tokenizer, 9), message("user", "hi")) == "<bos>hi"


@pytest.mark.parametrize(
    ("template", "eos", "stops"),
    [
        (KEEPS, "<|im_end|>", ["<|im_end|>"]),
        (KEEPS, "<|endoftext|>", ["<|endoftext|>", "<|im_end|>"]),
        (DROPS, "<|endoftext|>", ["<|endoftext|>", "<|im_end|>"]),
        (TRIMS, "<|endoftext|>", ["<|endoftext|>", "<end>"]),
    ],
)
def test_turns_end_with_eos_and_with_what_the_template_ends_them_with(template, eos, stops):
    tokenizer = bpe(template, eos=eos, bos_token="<bos>")
    codec = AutoChat().codec(tokenizer, 9)
    assert codec.stop_ids == ids(tokenizer, *stops)
    assert codec.encode_completion("hello")[-1] in ids(tokenizer, stops[-1])
    end = codec.encode_completion("hello")
    call = Call(prompt_ids=(1,), token_ids=end, logprobs=(0.0,) * len(end), version=0, finish="stop")
    assert codec.decode(call) == "hello"


def test_a_refusal_of_the_template_names_the_conversation():
    strict = TRIMS.replace("{%- if m.role == 'system' %}", "{%- if m.content == 'odd' %}")
    codec = AutoChat().codec(bpe(strict, bos_token="<bos>"), 9)
    with pytest.raises(UserError, match=r"rejects a conversation of \[system, user\]") as caught:
        codec.encode([message("system", "s"), message("user", "odd")])
    assert "System role not supported" in str(caught.value)


def test_thoughts_are_part_of_the_text():
    codec = AutoChat().codec(bpe(KEEPS), 9)
    whole = codec.encode_completion("<think>a</think>b")
    call = Call(prompt_ids=(1,), token_ids=whole, logprobs=(0.0,) * len(whole), version=0, finish="stop")
    assert codec.decode(call) == "<think>a</think>b"
