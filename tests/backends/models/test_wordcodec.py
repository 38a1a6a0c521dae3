"""The codec of engines without a tokenizer: lossless, stable, and token-exact in continuations."""

import subprocess
import sys

import pytest
from hypothesis import given, strategies as st

from coterie.backends.models.wordcodec import EOS_ID, WordCodec, word_id
from coterie.core.types import Call

ROLES = st.sampled_from(["system", "user", "tool"])
TEXT = st.text(alphabet="ab \n\té:", max_size=12)


def call(prompt, ids, finish="stop"):
    return Call(
        prompt_ids=prompt.ids, token_ids=tuple(ids), logprobs=(0.0,) * len(ids), version=0, finish=finish
    )


@given(st.text())
def test_every_text_comes_back_as_it_was(text):
    codec = WordCodec()
    assert codec.text(codec.ids(text)) == text


def test_ids_are_stable_between_processes_and_distinct():
    words = [f"{first}{second}" for first in range(300) for second in "abcdefghij"]
    ids = [word_id(word) for word in words]
    assert len(set(ids)) == len(words) and EOS_ID not in ids and all(0 < index < 2**62 for index in ids)
    code = "from coterie.backends.models.wordcodec import word_id; print(word_id(' r1c2'))"
    out = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    assert int(out) == word_id(" r1c2")


@given(st.lists(st.tuples(ROLES, TEXT), min_size=1, max_size=3), st.data())
def test_a_conversation_continues_token_exactly(opening, data):
    codec = WordCodec()
    messages = [{"role": role, "content": content} for role, content in opening]
    prompt = codec.encode(messages)
    assert not prompt.continues
    for _ in range(3):
        ids = codec.encode_completion(data.draw(TEXT))
        finish = data.draw(st.sampled_from(["stop", "length"]))
        previous = call(prompt, ids if finish == "stop" else ids[:-1] or codec.ids("a"), finish)
        extended = [
            *messages,
            {"role": "assistant", "content": codec.decode(previous)},
            {"role": data.draw(ROLES), "content": data.draw(TEXT)},
        ]
        following = codec.encode(extended, previous, messages)
        assert following.continues
        assert (
            following.ids[: len(previous.prompt_ids) + len(previous.token_ids)]
            == previous.prompt_ids + previous.token_ids
        )
        assert codec.text(following.ids) == codec.text(codec.encode(extended).ids)
        messages, prompt = extended, following


@pytest.mark.parametrize(
    "change",
    [
        lambda messages: [{"role": "user", "content": "other"}, *messages[1:]],
        lambda messages: [messages[0], {"role": "assistant", "content": "edited"}, messages[2]],
        lambda messages: messages[:1],
        lambda messages: [messages[0], messages[2]],
    ],
)
def test_another_conversation_starts_afresh(change):
    codec = WordCodec()
    start = [{"role": "user", "content": "a b"}]
    previous = call(codec.encode(start), codec.encode_completion("c d"))
    messages = [*start, {"role": "assistant", "content": "c d"}, {"role": "tool", "content": "e"}]
    assert codec.encode(messages, previous, start).continues
    changed = codec.encode(change(messages), previous, start)
    assert not changed.continues and changed.ids == codec.encode(change(messages)).ids


def test_a_prompt_that_says_something_else_is_not_continued():
    codec = WordCodec()
    start = [{"role": "user", "content": "a b"}]
    previous = call(
        codec.encode([*start, {"role": "tool", "content": "hidden"}]), codec.encode_completion("c")
    )
    messages = [*start, {"role": "assistant", "content": "c"}, {"role": "user", "content": "d"}]
    assert not codec.encode(messages, previous, start).continues


def test_words_alone_lose_their_white_space_only():
    codec = WordCodec(exact=False, markers=False)
    assert codec.text(codec.ids(" U\n R ")) == "U R"
    assert codec.ids("U R") == codec.ids("\nU\tR ")
    messages = [{"role": "system", "content": "s"}, {"role": "user", "content": "u"}]
    assert codec.text(codec.encode(messages).ids) == "s u"
