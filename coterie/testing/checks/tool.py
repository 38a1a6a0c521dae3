"""`check_tool`: a tool reads any text, runs what it found, and blames the right one."""

from __future__ import annotations

import asyncio
import inspect
import json
from collections.abc import Sequence
from contextlib import AsyncExitStack
from typing import Any

from coterie.core.errors import PolicyFault, SystemFault
from coterie.core.types.seeding import generator
from coterie.testing.support.failure import ConformanceError, guarded, require, require_kind

PROSE = (
    "",
    "The answer is 42.",
    "I think that we should go left, since the wall is on the right.\n\nThen up.",
    "She said: 'what is 2 + 2?' (and meant it) - 100 % of the time; {braces} [brackets] <b>tags</b>",
)
"""Texts that ask for nothing."""
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
    """Check a tool on texts that ask for it and on texts that don't; it is opened and closed.

    - `name` is a word; `schemas`, where it has them, are function schemas in JSON.
    - `find` finds a call in each of `calls`, the same one when asked again, and nothing in `plain`. It is
      total: no text makes it raise, however broken.
    - `run` is asynchronous and returns text for each call; it may raise `SystemFault` for what is not the
      call's doing and `PolicyFault` for what is, and nothing else. Two calls may run at the same time.

    Args:
        calls: replies that ask for the tool; at least one must be answered with text.
        needs: components that it uses, such as its sandbox: opened before it and closed after it.
        texts: how many random texts are read, made of pieces of `calls` and of what fences and native
            calls are made of.

    Raises:
        ConformanceError: what is wrong, where, and how to fix it.
    """
    kind = require_kind(tool, "tool")
    require(calls, "no call to check", where=kind, fix="give check_tool replies that ask for the tool")

    async def go() -> None:
        async with AsyncExitStack() as stack:
            for part in (*needs, tool):
                with guarded(f"{type(part).__name__}.open"):
                    if hasattr(part, "open"):
                        await part.open()
                if hasattr(part, "close"):
                    stack.push_async_callback(_closed, part)
            _check_words(tool, kind)
            _check_find(tool, kind, calls, plain, texts, seed)
            await _check_run(tool, kind, calls)

    asyncio.run(go())


async def _closed(part: Any) -> None:
    with guarded(f"{type(part).__name__}.close"):
        await part.close()


def _check_words(tool: Any, kind: str) -> None:
    named = isinstance(tool.name, str) and tool.name and not any(c.isspace() for c in tool.name)
    require(named, f"is {tool.name!r}", where=f"{kind}.name", fix="a word")
    where = f"{kind}.schemas"
    for one in getattr(tool, "schemas", ()):
        with guarded(where, fix="plain JSON"):
            json.dumps(one)
        function = one.get("function") if isinstance(one, dict) and one.get("type") == "function" else None
        sound = isinstance(function, dict) and {"name", "description", "parameters"} <= set(function)
        fix = '{"type": "function", "function": {"name", "description", "parameters"}}'
        require(sound, f"has {one!r}", where=where, fix=fix)


def _found(tool: Any, text: str, kind: str) -> Any:
    with guarded(f"{kind}.find", fix=f"return None; the text is {text[:200]!r}"):
        return tool.find(text)


def _check_find(
    tool: Any, kind: str, calls: Sequence[str], plain: Sequence[str], texts: int, seed: int
) -> None:
    where = f"{kind}.find"
    for text in calls:
        use = _found(tool, text, kind)
        require(use is not None, f"found no call in {text!r}", where=where)
        again = repr(_found(tool, text, kind))
        require(repr(use) == again, f"found {use!r} in {text!r}, then {again}", where=where)
    for text in plain:
        use = _found(tool, text, kind)
        require(use is None, f"found {use!r} in {text!r}", where=where, fix="None where nothing is asked")
    rng = generator(seed, "texts", "check_tool")
    for _ in range(texts):
        pieces = [*PIECES, *(_part(rng, text) for text in calls)]
        _found(tool, "".join(str(rng.choice(pieces)) for _ in range(rng.integers(1, 30))), kind)


def _part(rng: Any, text: str) -> str:
    start, stop = sorted(rng.integers(0, len(text) + 1, 2))
    return text[start:stop]


async def _check_run(tool: Any, kind: str, calls: Sequence[str]) -> None:
    answers = await asyncio.gather(*[_answer(tool, kind, text) for text in (*calls, calls[0])])
    said = [answer for answer in answers if answer is not None]
    require(said, "answered none of the calls", where=f"{kind}.run", fix="is what it needs there?")


async def _answer(tool: Any, kind: str, text: str) -> str | None:
    """The result; None where it blames the system or the call."""
    where = f"{kind}.run"
    try:
        with guarded(where, "SystemFault or PolicyFault, or a result that says what is wrong"):
            answer = tool.run(_found(tool, text, kind))
            if not inspect.isawaitable(answer):
                raise ConformanceError("is not asynchronous", where=where, fix="write it as `async def run`")
            result = await answer
    except ConformanceError as error:
        if isinstance(error.__cause__, (SystemFault, PolicyFault)):
            return None
        raise
    require(isinstance(result, str), f"returned a {type(result).__name__}", where=where, fix="text")
    return str(result)
