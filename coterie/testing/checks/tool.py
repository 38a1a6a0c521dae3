"""`check_tool`: a tool finds calls in any text, answers them with text, and raises the right fault."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from contextlib import AsyncExitStack
from typing import Any

from coterie.core.errors import PolicyFault, SystemFault, type_text
from coterie.core.protocols.tool import Closes, HasSchemas, Opens
from coterie.core.types.seeding import generator
from coterie.testing.support.failure import ConformanceError, awaited, guarded, require, require_kind
from coterie.testing.support.opening import used
from coterie.testing.support.promises import promise
from coterie.testing.support.time_limit import in_time

PROSE = (
    "",
    "The answer is 42.",
    "I think that we should go left, since the wall is on the right.\n\nThen up.",
    "She said: 'what is 2 + 2?' (and meant it) - 100 % of the time; {braces} [brackets] <b>tags</b>",
)
"""Texts without a call."""
PIECES = (
    "```", "````", "~~~", "python", "json", "\n", "\r\n", "\t", " ", "print(1)", "<tool_call>",
    "</tool_call>", "<think>", "</think>", "{", "}", "[", "]", '"', "\\", '"name"', '"arguments"', ":", ",",
    "null", "1e999", "\x00", "\u2028", "\ud800", "é", "🙂", "%s", "{0}", "<|im_end|>",
)  # fmt: skip


def check_tool(
    tool: Any,
    *,
    calls: Sequence[str],
    plain: Sequence[str] = PROSE,
    needs: Sequence[Any] = (),
    texts: int = 400,
    seed: int = 0,
) -> None:
    """Check a tool on texts with and without calls; the check opens and closes it.

    - `name` is a text without white space; `schemas`, where it has them, are function schemas in JSON.
    - `find` finds a call in each of `calls`, the same one a second time, and none in `plain`. No text makes
      it raise, however broken.
    - `run` is asynchronous and returns text for each call; it may raise `SystemFault` for a failure of the
      system and `PolicyFault` for one that the call caused, and nothing else. Two calls may run at once.

    Args:
        calls: replies that call the tool; at least one must be answered with text.
        plain: replies without a call.
        needs: components that it uses beside those that its Config holds: opened before it and closed after.
        texts: number of random texts, made of pieces of `calls`, of code fences and of native calls.
        seed: seed of the random texts.

    Raises:
        ConformanceError: what is wrong, where, and how to fix it.
    """
    kind = require_kind(tool, "tool")
    require(calls, "no call to check", kind, fix="give check_tool replies that call the tool")

    async def check() -> None:
        async with AsyncExitStack() as stack:
            for part in (*used(tool, needs), *needs, tool):
                with guarded(f"{type(part).__name__}.open", factor=10.0):
                    if isinstance(part, Opens):
                        await in_time(part.open(), 10.0)
                if isinstance(part, Closes):
                    stack.push_async_callback(_closed, part)
            promise("its name and schemas are declared")
            _check_name(tool, kind)
            promise("it finds calls in any text, and none in prose")
            _check_find(tool, kind, calls, plain, texts, seed)
            promise("a call is answered with text, or the right fault")
            await _check_run(tool, kind, calls)

    asyncio.run(check())


async def _closed(part: Any) -> None:
    with guarded(f"{type(part).__name__}.close"):
        await in_time(part.close())


def _check_name(tool: Any, kind: str) -> None:
    sound = isinstance(tool.name, str) and tool.name and not any(c.isspace() for c in tool.name)
    require(sound, f"is {tool.name!r}", f"{kind}.name", fix="a text without white space")
    where = f"{kind}.schemas"
    for schema in tool.schemas if isinstance(tool, HasSchemas) else ():
        with guarded(where, fix="plain JSON"):
            json.dumps(schema)
        typed = isinstance(schema, dict) and schema.get("type") == "function"
        function = schema.get("function") if typed else None
        sound = isinstance(function, dict) and {"name", "description", "parameters"} <= set(function)
        fix = '{"type": "function", "function": {"name", "description", "parameters"}}'
        require(sound, f"has {schema!r}", where, fix=fix)


def _call(tool: Any, text: str, kind: str) -> Any:
    with guarded(f"{kind}.find", fix=f"return None; the text is {text[:200]!r}"):
        return tool.find(text)


def _check_find(
    tool: Any, kind: str, calls: Sequence[str], plain: Sequence[str], texts: int, seed: int
) -> None:
    where = f"{kind}.find"
    for text in calls:
        call = _call(tool, text, kind)
        require(
            call is not None, f"found no call in {text!r}", where, fix="find a call in every one of `calls`"
        )
        again = repr(_call(tool, text, kind))
        require(repr(call) == again, f"found {call!r} in {text!r}, then {again}", where, fix="no draws")
    for text in plain:
        call = _call(tool, text, kind)
        require(
            call is None, f"found {call!r} in {text!r}", where, fix="return None where the text has no call"
        )
    rng = generator(seed, "texts", "check_tool")
    for _ in range(texts):
        pieces = [*PIECES, *(_excerpt(rng, text) for text in calls)]
        _call(tool, "".join(str(rng.choice(pieces)) for _ in range(rng.integers(1, 30))), kind)


def _excerpt(rng: Any, text: str) -> str:
    start, stop = sorted(rng.integers(0, len(text) + 1, 2))
    return text[start:stop]


async def _check_run(tool: Any, kind: str, calls: Sequence[str]) -> None:
    answers = await asyncio.gather(*[_answer(tool, kind, text) for text in (*calls, calls[0])])
    texts = [answer for answer in answers if answer is not None]
    require(texts, "answered none of the calls", f"{kind}.run", fix="check that what it needs is available")


async def _answer(tool: Any, kind: str, text: str) -> str | None:
    """The result; None where it raised SystemFault or PolicyFault."""
    where = f"{kind}.run"
    try:
        fix = "raise SystemFault or PolicyFault, or return a result that names what is wrong"
        result = await awaited(where, tool.run, _call(tool, text, kind), fix=fix)
    except ConformanceError as error:
        if isinstance(error.__cause__, (SystemFault, PolicyFault)):
            return None
        raise
    require(isinstance(result, str), f"returned {type_text(result)}", where, fix="text")
    return str(result)
