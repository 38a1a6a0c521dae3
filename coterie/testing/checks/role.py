"""`check_role`: rendering repeats, and the parser reads any text or raises PolicyFault."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from coterie.core.errors import PolicyFault
from coterie.core.protocols.role import Remembers
from coterie.core.types import Action, HistoryEntry, RoleInput
from coterie.testing.support.failure import (
    ConformanceError,
    check_vocabulary,
    guarded,
    require,
    require_kind,
    warn,
)
from coterie.testing.support.kept_state import twice
from coterie.testing.support.promises import promise
from coterie.testing.support.values import copied, fingerprint, pickled, unchanged

MESSAGE_ROLES = ("system", "user", "assistant", "tool")
NASTY: tuple[str, ...] = (
    "", " ", "\n\n", "\t", "None", "null", "nan", "-inf", "True", "0", "-0", "1e999", "9" * 5000, "1.2.3",
    "²", "٣", "½", "①", "é\u0301", "\u200b", "🙂" * 40, "\ud800", "\x00", "\r\n", "שלום", "İ",
    "{", "}", "[", "]", "(", "\\", "\\boxed{", "```", "```python\n", "<think>", "{{ x }}", "%s %(a)s {0} {a}",
    "[1, null]", '{"answer": NaN}', '{"a": {"b": [', "[" * 5000, '{"a":' * 2000, "(" * 3000 + ")" * 3000,
    "a" * 50_000, "1," * 20_000, "[ " * 10_000, "plan: " * 5000, " " * 50_000, "\n" * 20_000,
)  # fmt: skip
"""Malformed texts of the kind that models write, and worse."""
PARSE_SECONDS = 5.0
"""Time limit of `parse`: a slower parser lets one answer stop the run."""
_FAULT = object()
"""Stands for a PolicyFault that `parse` raised."""


def check_role(
    role: Any,
    *,
    observations: Sequence[Any] = ("",),
    name: str = "",
    good: Sequence[str] = (),
    feedback: Sequence[str] = (),
    texts: Sequence[str] = (),
    keeps: Sequence[str] = (),
) -> None:
    """Check a role on observations and texts.

    - `render` returns at least one {"role": "system" | "user" | "assistant" | "tool", "content": text}; equal
      role inputs give equal messages; the role input stays unchanged. The inputs are a first turn, and a
      second one with a history.
    - `parse` returns a value, the same each time, or raises `PolicyFault` and nothing else, for any text:
      empty, huge, unbalanced, in another script; no exception, and not None for all texts,
      `good` ones among them. Pickle can write the value, the observation stays unchanged,
      and no text takes longer than 5 s.
    - Optional members are `vocabulary` and `remembers`. It warns of attributes that change each time.

    Args:
        observations: observations of this role.
        name: the role's key in `team.roles`.
        good: texts that `parse` must be able to read.
        feedback: sentences of a transition mode that the prompt must contain; by default none.
        texts: more texts for the parser.
        keeps: attributes that may change while it works, on purpose.

    Raises:
        ConformanceError: what is wrong, where, and how to fix it.
    """
    kind = require_kind(role, "role")
    reads: list[Any] = []
    for observation in observations:
        promise("a prompt is messages, and repeats")
        _check_render(role, kind, RoleInput(role=name, turn=0, observation=observation), ())
        entry = HistoryEntry(
            turn=0,
            observation=observation,
            messages=({"role": "user", "content": "?"},),
            action=Action(calls=(), text="?", parsed=None),
            info={},
        )
        second = RoleInput(
            role=name, turn=1, observation=observation, feedback=tuple(feedback), history=(entry,)
        )
        _check_render(role, kind, second, feedback)
        promise("any text is read, or raises PolicyFault, in time")
        reads += [_check_parse(role, kind, text, observation) for text in (*NASTY, *texts)]
        reads += [_check_good(role, kind, text, observation) for text in good]
    _check_reads(reads, good, f"{kind}.parse")
    promise("its optional members have their types")
    _check_optional(role, kind)
    for _ in twice(role, keeps, "check_role"):
        for observation in observations:
            _check_render(role, kind, RoleInput(role=name, turn=0, observation=observation), ())
            for text in (*good, "?"):
                _check_parse(role, kind, text, observation)


def _check_good(role: Any, kind: str, text: str, observation: Any) -> Any:
    """What a text is read as that the parser must be able to read."""
    promise("a good text is read")
    result = _check_parse(role, kind, text, observation)
    what, fix = (
        f"can't read {text!r}, which is among the `good` texts",
        "make the parser accept it, or remove it from `good`",
    )
    require(result is not _FAULT, what, f"{kind}.parse", fix=fix)
    return result


def _check_reads(results: Sequence[Any], good: Sequence[str], where: str) -> None:
    """Require that not all that was read is None; without good texts, which it may read, warn."""
    promise("what it reads is something")
    read = [result for result in results if result is not _FAULT]
    if read and all(result is None for result in read):
        what = f"returned None for each of {len(read)} texts that it read"
        fix = "return what was read (`return` is missing?): `action.parsed` None means that nothing could be"
        require(not good, what, where, fix=fix)
        warn(what, where, fix=f"{fix}; where it reads others: check_role(..., good=[...])")


def _check_render(role: Any, kind: str, role_input: RoleInput, feedback: Sequence[str]) -> None:
    where = f"{kind}.render"
    equal_input = copied(role_input, where)
    with unchanged(role_input, "the role input", where), guarded(where):
        messages, again = role.render(role_input), role.render(equal_input)
    require(isinstance(messages, (list, tuple)) and messages, f"returned {messages!r}", where, fix="a list")
    for message in messages:
        keys = sorted(message) if isinstance(message, dict) else []
        require(
            keys == ["content", "role"],
            f"{message!r} is no message",
            where,
            fix='{"role": "user", "content": text}',
        )
        require(
            message["role"] in MESSAGE_ROLES,
            f"a message of '{message['role']}'",
            where,
            fix=f"one of: {', '.join(MESSAGE_ROLES)}",
        )
        is_text = isinstance(message["content"], str)
        require(is_text, f"the content {message['content']!r} is no text", where, fix="a str")
    require(
        list(messages) == list(again),
        "an equal role input gave other messages",
        where,
        fix="no draws, no memory between calls",
    )
    prompt = " ".join(message["content"] for message in messages)
    for sentence in feedback:
        require(
            sentence in prompt,
            f"the feedback {sentence!r} is not in the prompt",
            where,
            fix="write role_input.feedback",
        )


def _check_parse(role: Any, kind: str, text: str, observation: Any) -> Any:
    """Check `parse` on one text; return what it read, or _FAULT."""
    where = f"{kind}.parse"
    shown = text if len(text) < 60 else f"{text[:30]}... ({len(text)} characters)"
    mark, begin = fingerprint(observation), time.perf_counter()
    results: list[Any] = []
    for _ in range(2):
        with guarded(where):
            try:
                results.append(role.parse(text, observation))
            except PolicyFault:
                results.append(_FAULT)
            except (Exception, SystemExit) as error:
                raise ConformanceError(
                    f"{shown!r} raised {type(error).__name__}: {error}",
                    where=where,
                    fix="raise coterie.PolicyFault: the output caused it, and is scored",
                ) from error
    spent = (time.perf_counter() - begin) / 2
    require(
        spent < PARSE_SECONDS,
        f"took {spent:.0f} s for {shown!r}",
        where,
        fix="limit the length of what is parsed",
    )
    require(fingerprint(observation) == mark, "changed the observation", where, fix="copy what it changes")
    for result in results:
        fault = isinstance(result, BaseException) or (
            isinstance(result, type) and issubclass(result, BaseException)
        )
        require(not fault, f"returned {result!r} for {shown!r}", where, fix="raise it")
    readable = [result is not _FAULT for result in results]
    if all(readable):
        pickled(results[0], where)
    same = all(readable) and fingerprint(results[0]) == fingerprint(results[1]) if any(readable) else True
    require(
        same,
        f"reads {shown!r} as {results[0]!r}, then as {results[1]!r}",
        where,
        fix="no draws, no memory between calls",
    )
    return results[0]


def _check_optional(role: Any, kind: str) -> None:
    check_vocabulary(role, kind)
    if isinstance(role, Remembers):
        sound = isinstance(role.remembers, bool)
        require(sound, f"is {role.remembers!r}", f"{kind}.remembers", fix="True or False")
