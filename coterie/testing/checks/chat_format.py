"""`check_chat_format`: texts survive encoding and decoding, and sampled ids are reused verbatim."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from coterie.core.errors import UserError
from coterie.core.protocols import Codec
from coterie.core.types import Call, Message, Prompt
from coterie.testing.support.failure import guarded, lacking, require, require_kind
from coterie.testing.support.promises import promise
from coterie.testing.support.toys import LetterTokenizer

_CONTEXT = 512


def check_chat_format(
    chat_format: Any,
    *,
    tokenizer: Any = None,
    texts: Sequence[str] = ("go left", "turn right", "stop"),
    continues: bool = True,
) -> None:
    """Check a chat format with a tokenizer.

    - `encode` repeats, in a fresh codec too, and gives different conversations different ids; ids are a tuple
      of ints.
    - `decode` gives back the text that `encode_completion` encoded, with and without the stop token.
    - A prompt with `continues` begins with the previous prompt's ids and the sampled ids, verbatim. Without
      `continues` it equals a fresh encoding of the whole conversation. The same holds for sampled ids that
      encoding would not have chosen.
    - A call is continued only where the history is the one that was played.
    - No message is left out, whatever its role; a format may refuse a role with a UserError.
    - A demonstrated answer ends with a stop token, an empty one too.

    Args:
        tokenizer: a Hugging Face tokenizer; by default a small one with a chat template and one id a letter.
        texts: three different texts of words that the tokenizer knows.
        continues: whether a prompt after an answer of such words must continue it. False for templates that
            rewrite earlier turns.

    Raises:
        ConformanceError: what is wrong, where, and how to fix it.
    """
    name = require_kind(chat_format, "chat_format")
    tokenizer = tokenizer if tokenizer is not None else LetterTokenizer()
    with guarded(f"{name}.codec"):
        codec, fresh = (chat_format.codec(tokenizer, _CONTEXT) for _ in range(2))
    missing = lacking(Codec, codec)
    fix = "see coterie.Codec"
    require(not missing, f"its codec lacks {', '.join(missing)}", f"{name}.codec", fix=fix)
    promise("encoding repeats, and tells conversations apart")
    questions = [_user(text) for text in texts]
    _check_encoding(codec, fresh, questions, name)
    promise("a text survives encoding and decoding")
    for text in texts:
        _check_round_trip(codec, text, name)
    promise("sampled ids are reused verbatim")
    for finish in ("stop", "length"):
        _check_continuing(codec, fresh, texts, finish, continues, name)
    promise("a call is continued only where the history is its own")
    _check_other_history(codec, texts, name)
    promise("no message is left out")
    _check_messages(codec, texts, name)
    promise("an answer ends with a stop token")
    _check_ends(codec, texts, name)


def _user(text: str) -> Message:
    return {"role": "user", "content": text}


def _assistant(text: str) -> Message:
    return {"role": "assistant", "content": text}


def _encode(codec: Any, messages: Sequence[Message], name: str, *previous: Any) -> Prompt:
    where = f"{name}: encode"
    with guarded(where):
        prompt = codec.encode(messages, *previous)
    sound = isinstance(prompt, Prompt) and isinstance(prompt.ids, tuple) and bool(prompt.ids)
    require(sound, f"returned {prompt!r}", where, fix="a Prompt with a tuple of ids")
    require(all(type(index) is int for index in prompt.ids), "ids are no ints", where, fix="a tuple of int")
    return prompt


def _check_encoding(codec: Any, fresh: Any, questions: Sequence[Message], name: str) -> None:
    where = f"{name}: encode"
    context = codec.context
    require(context is None or context > 0, f"is {context!r}", f"{name}: context", fix="tokens, or None")
    prompts = [_encode(codec, [question], name) for question in questions]
    for question, prompt in zip(questions, prompts, strict=True):
        again = {_encode(codec, [question], name), _encode(fresh, [dict(question)], name)}
        require(
            again == {prompt},
            f"gave other ids for the same message {question['content']!r}",
            where,
            fix="no draws, no memory between calls",
        )
        require(
            not prompt.continues,
            "sets `continues` on a first prompt",
            where,
            fix="continue only where a previous call is given",
        )
    distinct = len({prompt.ids for prompt in prompts}) == len(prompts)
    require(distinct, "gave different messages the same ids", where, fix="use texts that the tokenizer knows")


def _sampled(codec: Any, prompt: Prompt, text: str, finish: Any) -> Call:
    """A call whose text is `text`; without a stop token where `finish` is "length"."""
    ids = tuple(codec.encode_completion(text))
    if finish == "length":
        ids = ids[: len(ids) - (len(ids) > 1 and codec.encode_completion("") == ids[-1:])]
    return Call(prompt_ids=prompt.ids, token_ids=ids, logprobs=(0.0,) * len(ids), version=0, finish=finish)


def _check_round_trip(codec: Any, text: str, name: str) -> None:
    fix = "warm starts need `encode_completion(text)`: the ids of an answer, with the stop token"
    require(hasattr(codec, "encode_completion"), "has no encode_completion", f"{name}: codec", fix=fix)
    prompt = _encode(codec, [_user(text)], name)
    for finish in ("stop", "length"):
        with guarded(f"{name}: decode"):
            decoded = codec.decode(_sampled(codec, prompt, text, finish))
        require(
            decoded == text,
            f"gave {decoded!r} for {text!r} ({finish})",
            f"{name}: decode",
            fix="drop the stop token, keep everything else",
        )


def _check_continuing(
    codec: Any, fresh: Any, texts: Sequence[str], finish: Any, must: bool, name: str
) -> None:
    before = [_user(texts[0])]
    prompt = _encode(codec, before, name)
    call = _sampled(codec, prompt, texts[1], finish)
    after = [*before, _assistant(codec.decode(call)), _user(texts[2])]
    following = _encode(codec, after, name, call, before)
    _check_continued(codec, fresh, following, call, after, must and finish == "stop", name)
    second = _sampled(codec, following, texts[0], finish)
    longer = [*after, _assistant(codec.decode(second)), _user(texts[1])]
    last = _encode(codec, longer, name, second, after)
    _check_continued(codec, fresh, last, second, longer, must and finish == "stop", name)


def _check_continued(
    codec: Any, fresh: Any, prompt: Prompt, call: Call, messages: Sequence[Message], must: bool, name: str
) -> None:
    where = f"{name}: encode"
    ids = call.prompt_ids + call.token_ids
    if prompt.continues:
        require(
            prompt.ids[: len(ids)] == ids,
            "sets `continues` and doesn't begin with the prompt and the sampled ids",
            where,
            fix="reuse the ids verbatim, encode only what is new",
        )
        require(
            len(prompt.ids) > len(ids),
            "continues without the new messages",
            where,
            fix="append the ids of the new messages",
        )
    else:
        require(
            not must,
            "encodes a conversation afresh although it only went on",
            where,
            fix="compare texts and reuse the previous ids; continues=False where turns are rewritten",
        )
        encoded_afresh = _encode(fresh, messages, name)
        require(
            prompt.ids == encoded_afresh.ids,
            "continues nothing, and differs from a fresh encoding",
            where,
            fix="without `continues`, ignore the previous call",
        )


def _check_other_history(codec: Any, texts: Sequence[str], name: str) -> None:
    before = [_user(texts[0])]
    call = _sampled(codec, _encode(codec, before, name), texts[1], "stop")
    changed = {
        "another answer": ([*before, _assistant(texts[2]), _user(texts[0])], before),
        "another question": ([_user(texts[2]), _assistant(texts[1]), _user(texts[0])], [_user(texts[2])]),
    }
    for difference, (messages, previous_messages) in changed.items():
        prompt = _encode(codec, messages, name, call, previous_messages)
        require(
            not prompt.continues,
            f"continues a call although the history holds {difference}",
            f"{name}: encode",
            fix="continue only where the history begins with the previous messages and the call's text",
        )


def _refuses(codec: Any, messages: Sequence[Message]) -> bool:
    """Whether the format says by a UserError that it has no place for a conversation."""
    try:
        codec.encode(messages)
    except UserError:
        return True
    except Exception:  # the plugin's mistake: `_encode` raises it again, with its place
        return False
    return False


def _check_messages(codec: Any, texts: Sequence[str], name: str) -> None:
    """Two conversations that differ in one message have different ids."""
    played = [_user(texts[0]), _assistant(texts[1])]
    places = {
        "a system message": ("system", [], [_user(texts[0])]),
        "a later system message": ("system", played, [_user(texts[2])]),
        "a tool's result": ("tool", played, []),
        "a second message of the user": ("user", [_user(texts[0])], []),
    }
    for what, (role, before, after) in places.items():
        conversations = [[*before, {"role": role, "content": text}, *after] for text in texts[:2]]
        if any(_refuses(codec, messages) for messages in conversations):
            continue
        first, second = (_encode(codec, messages, name) for messages in conversations)
        require(
            first.ids != second.ids,
            f"leaves out {what}",
            f"{name}: encode",
            fix="put its text into the prompt, or raise a UserError: the format has no place for it",
        )


def _check_ends(codec: Any, texts: Sequence[str], name: str) -> None:
    for text in (texts[0], ""):
        with guarded(f"{name}: encode_completion"):
            ids = tuple(codec.encode_completion(text))
        require(
            not codec.stop_ids or set(ids[-1:]) & codec.stop_ids,
            f"gives {text!r} the last id {ids[-1:]}, which is none of stop_ids",
            f"{name}: encode_completion",
            fix="end it with the token that ends a turn, so that a warm start teaches the policy to stop",
        )
