"""`check_chat_model`: a chat model answers requests in text, and in JSON where it is asked for that."""

from __future__ import annotations

import asyncio
import copy
import json
from collections.abc import Mapping, Sequence
from typing import Any

from coterie.core.errors import SystemFault, UserError, type_text
from coterie.core.protocols import ChatAnswer, ChatRequest
from coterie.testing.support.failure import ConformanceError, awaited, require, require_kind
from coterie.testing.support.opening import opened
from coterie.testing.support.promises import promise

SCHEMA = {
    "type": "object",
    "properties": {"score": {"type": "number"}, "reason": {"type": "string"}},
    "required": ["score", "reason"],
}
"""The form of an answer that a coach asks for."""
PROMPT = (
    "<instruction>Add the numbers.</instruction>\n<wrote>12 + 7 = 19</wrote>\n\n"
    "Score what was written from 0 to 10. Answer with PROCESS_SCORE: and REASONING:"
)
REQUESTS = (
    ChatRequest(messages=({"role": "user", "content": PROMPT},), max_tokens=64),
    ChatRequest(
        messages=(
            {"role": "system", "content": "You are a strict judge."},
            {"role": "user", "content": PROMPT},
            {"role": "assistant", "content": "Well done! \U0001f600"},
            {"role": "user", "content": "Answer in the form that was asked for: é <wrote> {} %s"},
        ),
        max_tokens=64,
        temperature=1.0,
        sample=3,
    ),
    ChatRequest(messages=({"role": "user", "content": PROMPT},), max_tokens=64, schema=SCHEMA),
)


def check_chat_model(
    model: Any,
    *,
    requests: Sequence[ChatRequest] = REQUESTS,
    engine: Any = None,
    repeats: bool = True,
) -> None:
    """Check a chat model on requests; the check opens and closes it.

    - `structured` is a boolean. Where it is true, the answer to a request with a schema is JSON with the
      properties that the schema requires.
    - `answer` is asynchronous, may be called for many requests at once, and returns a `ChatAnswer` with text;
      it may raise `SystemFault` where there is none, `UserError` where no request can be answered, and
      nothing else. It leaves its request as it is.
    - Equal requests at temperature 0 have equal answers.

    Args:
        requests: at least one must be answered. A sandboxed provider or a loopback server stands for the
            real one: the check asks each request twice.
        engine: the `EngineClient` of a model with `use_engine`.
        repeats: False for a model whose greedy answers differ.

    Raises:
        ConformanceError: what is wrong, where, and how to fix it.
    """
    kind = require_kind(model, "chat_model")
    require(
        isinstance(model.structured, bool),
        f"is {model.structured!r}",
        f"{kind}.structured",
        fix="True or False",
    )

    async def check() -> None:
        promise("a request is answered with text, or the right fault")
        async with opened(model, engine):
            asked = copy.deepcopy([*requests])  # a model may change what it is given
            answers = await asyncio.gather(*[_answer(model, kind, request) for request in asked * 2])
            where = f"{kind}.answer"
            require(asked == list(requests), "changed its request", where, fix="copy it")
            promise("equal requests at temperature 0 have equal answers, in the form that was asked for")
            _check_answers(model, requests, answers, repeats, where)

    asyncio.run(check())


def _check_answers(
    model: Any,
    requests: Sequence[ChatRequest],
    answers: Sequence[ChatAnswer | SystemFault | UserError],
    repeats: bool,
    where: str,
) -> None:
    """Check the answers to the requests, each asked twice."""
    faults = [answer for answer in answers if isinstance(answer, Exception)]
    fix = "check that what it needs is available"
    what = f"answered none of the requests: {faults[0] if faults else 'there are none'}"
    require(len(faults) < len(answers), what, where, fix=fix)
    first, again = answers[: len(requests)], answers[len(requests) :]
    for request, answer, other in zip(requests, first, again, strict=True):
        if isinstance(answer, Exception) or isinstance(other, Exception):
            continue
        if repeats and request.temperature == 0:
            shown = f"answered {answer.text!r}, then {other.text!r}, at temperature 0"
            require(answer.text == other.text, shown, where, fix="draw nothing, or set repeats=False")
        if model.structured and request.schema is not None:
            _check_form(answer.text, request.schema, where)


async def _answer(model: Any, kind: str, request: ChatRequest) -> ChatAnswer | SystemFault | UserError:
    """The answer, or the error that the Protocol allows in its place."""
    where = f"{kind}.answer"
    try:
        result = await awaited(where, model.answer, request, fix="raise SystemFault where there is no answer")
    except ConformanceError as error:
        if isinstance(error.__cause__, (SystemFault, UserError)):
            return error.__cause__
        raise
    sound = isinstance(result, ChatAnswer)
    require(sound, f"returned {type_text(result)}", where, fix="coterie.ChatAnswer(text=...)")
    for name in ("text", "version"):
        value = getattr(result, name)
        require(isinstance(value, str), f"returned {value!r} as {name}", where, fix="text")
    fix = "raise SystemFault where there is no text: an empty answer can't be scored"
    require(result.text.strip(), "answered without text", where, fix=fix)
    return result


def _check_form(text: str, schema: Mapping[str, Any], where: str) -> None:
    """Raise unless a text is JSON with what a schema requires."""
    fix = "answer in JSON by the request's schema, or set structured = False"
    try:
        table = json.loads(text)
    except ValueError:
        raise ConformanceError(f"answered {text[:200]!r}, which is no JSON", where=where, fix=fix) from None
    missing = [
        name for name in schema.get("required", ()) if not isinstance(table, dict) or name not in table
    ]
    require(not missing, f"answered {text[:200]!r} without {', '.join(missing)}", where, fix=fix)
