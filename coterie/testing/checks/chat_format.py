"""`check_chat`: texts come back as they were, and sampled ids are never encoded again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from coterie.core.protocols import Codec
from coterie.core.types import Call, Message, Prompt
from coterie.testing.support.failure import guarded, lacking, require, require_kind
from coterie.testing.support.toys import LetterTokenizer

_CONTEXT = 512


def check_chat_format(
    chat: Any,
    *,
    tokenizer: Any = None,
    texts: Sequence[str] = ("go left", "turn right", "stop"),
    continues: bool = True,
) -> None:
    """Check a chat format with a tokenizer.

    - `encode` repeats, in a fresh codec too, and tells conversations apart; ids are a tuple of ints.
    - `decode` gives back the text that `encode_completion` wrote, with and without the stop token.
    - A conversation that goes on after an answer begins with the previous prompt's and the sampled ids,
      verbatim, where it says `continues`; where it doesn't, it is encoded as if nothing had come before. The
      same holds for ids that encoding would not have chosen.
    - A history that is not the one that was played is never continued.

    Args:
        tokenizer: a Hugging Face tokenizer; by default a small one with a chat template, one id a letter.
        texts: three different texts of words that the tokenizer knows.
        continues: whether an answer of such words must be continued. False for templates that
            rewrite earlier turns.

    Raises:
        ConformanceError: what is wrong, where, and how to fix it.
    """
    name = require_kind(chat, "chat_format")
    tokenizer = tokenizer if tokenizer is not None else LetterTokenizer()
    with guarded(f"{name}.codec"):
        codec, fresh = chat.codec(tokenizer, _CONTEXT), chat.codec(tokenizer, _CONTEXT)
    missing = lacking(Codec, codec)
    fix = "see coterie.core.protocols.chat_format.Codec"
    require(not missing, f"its codec lacks {', '.join(missing)}", where=f"{name}.codec", fix=fix)
    asks = [_user(text) for text in texts]
    _check_encoding(codec, fresh, asks, name)
    for text in texts:
        _check_round_trip(codec, text, name)
    for finish in ("stop", "length"):
        _check_continuing(codec, fresh, texts, finish, continues, name)
    _check_other_history(codec, texts, name)


def _user(text: str) -> Message:
    return {"role": "user", "content": text}


def _said(text: str) -> Message:
    return {"role": "assistant", "content": text}


def _encode(codec: Any, messages: Sequence[Message], name: str, *previous: Any) -> Prompt:
    where = f"{name}: encode"
    with guarded(where):
        prompt = codec.encode(messages, *previous)
    sound = isinstance(prompt, Prompt) and isinstance(prompt.ids, tuple) and bool(prompt.ids)
    require(sound, f"returned {prompt!r}", where=where, fix="a Prompt with a tuple of ids")
    require(all(type(index) is int for index in prompt.ids), "ids are no ints", where=where)
    return prompt


def _check_encoding(codec: Any, fresh: Any, asks: Sequence[Message], name: str) -> None:
    where = f"{name}: encode"
    context = codec.context
    require(
        context is None or context > 0, f"is {context!r}", where=f"{name}: context", fix="tokens, or None"
    )
    prompts = [_encode(codec, [ask], name) for ask in asks]
    for ask, prompt in zip(asks, prompts, strict=True):
        again = {_encode(codec, [ask], name), _encode(fresh, [dict(ask)], name)}
        require(again == {prompt}, f"gave other ids for the same message {ask['content']!r}", where=where)
        require(not prompt.continues, "says that a first prompt continues something", where=where)
    distinct = len({prompt.ids for prompt in prompts}) == len(prompts)
    require(distinct, "gave different messages the same ids", where=where, fix="texts the tokenizer knows?")


def _sampled(codec: Any, prompt: Prompt, text: str, finish: Any) -> Call:
    """A call whose text is `text`; cut off by its length it has no stop token."""
    ids = tuple(codec.encode_completion(text))
    if finish == "length":
        ids = ids[: len(ids) - (len(ids) > 1 and codec.encode_completion("") == ids[-1:])]
    return Call(prompt_ids=prompt.ids, token_ids=ids, logprobs=(0.0,) * len(ids), version=0, finish=finish)


def _check_round_trip(codec: Any, text: str, name: str) -> None:
    fix = "warm starts need `encode_completion(text)`: the ids of an answer, with the stop token"
    require(hasattr(codec, "encode_completion"), "has no encode_completion", where=f"{name}: codec", fix=fix)
    prompt = _encode(codec, [_user(text)], name)
    for finish in ("stop", "length"):
        with guarded(f"{name}: decode"):
            found = codec.decode(_sampled(codec, prompt, text, finish))
        require(found == text, f"gave {found!r} for {text!r} ({finish})", where=f"{name}: decode")


def _check_continuing(
    codec: Any, fresh: Any, texts: Sequence[str], finish: Any, must: bool, name: str
) -> None:
    before = [_user(texts[0])]
    prompt = _encode(codec, before, name)
    call = _sampled(codec, prompt, texts[1], finish)
    after = [*before, _said(codec.decode(call)), _user(texts[2])]
    following = _encode(codec, after, name, call, before)
    _check_one_continued(codec, fresh, following, call, after, must and finish == "stop", name)
    second = _sampled(codec, following, texts[0], finish)
    longer = [*after, _said(codec.decode(second)), _user(texts[1])]
    last = _encode(codec, longer, name, second, after)
    _check_one_continued(codec, fresh, last, second, longer, must and finish == "stop", name)


def _check_one_continued(
    codec: Any, fresh: Any, prompt: Prompt, call: Call, messages: Sequence[Message], must: bool, name: str
) -> None:
    where = f"{name}: encode"
    ids = call.prompt_ids + call.token_ids
    if prompt.continues:
        require(
            prompt.ids[: len(ids)] == ids,
            "says that it continues, and doesn't begin with the prompt and the sampled ids",
            where=where,
            fix="reuse the ids verbatim, encode only what is new",
        )
        require(len(prompt.ids) > len(ids), "continues without what is new", where=where)
    else:
        require(
            not must,
            "encodes a conversation afresh that only went on",
            where=where,
            fix="compare texts and reuse the previous ids; or say continues=False if turns are rewritten",
        )
        alone = _encode(fresh, messages, name)
        require(prompt.ids == alone.ids, "continues nothing, and is no fresh prompt either", where=where)


def _check_other_history(codec: Any, texts: Sequence[str], name: str) -> None:
    before = [_user(texts[0])]
    call = _sampled(codec, _encode(codec, before, name), texts[1], "stop")
    changed = {
        "another answer": ([*before, _said(texts[2]), _user(texts[0])], before),
        "another question": ([_user(texts[2]), _said(texts[1]), _user(texts[0])], [_user(texts[2])]),
    }
    for what, (messages, told) in changed.items():
        prompt = _encode(codec, messages, name, call, told)
        require(
            not prompt.continues,
            f"continues a call although the history holds {what}",
            where=f"{name}: encode",
            fix="prove that the previous ids stand for the previous messages and their answer",
        )
