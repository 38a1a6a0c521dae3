"""`check_role`: a prompt repeats, and no text brings the parser down."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from coterie.core.errors import PolicyFault
from coterie.core.types import Action, HistoryEntry, RoleInput
from coterie.testing.support.failure import ConformanceError, guarded, require, require_kind
from coterie.testing.support.values import copied, fingerprint, pickled

SPEAKERS = ("system", "user", "assistant", "tool")
NASTY: tuple[str, ...] = (
    "", " ", "\n\n", "\t", "None", "null", "nan", "-inf", "True", "0", "-0", "1e999", "9" * 5000, "1.2.3",
    "²", "٣", "½", "①", "é\u0301", "\u200b", "🙂" * 40, "\ud800", "\x00", "\r\n", "שלום", "İ",
    "{", "}", "[", "]", "(", "\\", "\\boxed{", "```", "```python\n", "<think>", "{{ x }}", "%s %(a)s {0} {a}",
    "[1, null]", '{"answer": NaN}', '{"a": {"b": [', "[" * 5000, '{"a":' * 2000, "(" * 3000 + ")" * 3000,
    "a" * 50_000, "1," * 20_000, "[ " * 10_000, "plan: " * 5000, " " * 50_000, "\n" * 20_000,
)  # fmt: skip
"""What models write when they go wrong, and worse."""
_SECONDS = 5.0
"""A parser that needs longer for one of those lets an answer stop the run."""


def check_role(
    role: Any,
    *,
    observations: Sequence[Any] = ("",),
    name: str = "",
    good: Sequence[str] = (),
    notes: Sequence[str] = (),
    texts: Sequence[str] = (),
) -> None:
    """Check a role on observations and texts.

    - `render` returns at least one {"role": "system" | "user" | "assistant" | "tool", "content": text}; the
      same briefing gives the same messages; the briefing stays as it was. It is asked in the first turn, and
      in a second one with a history.
    - `parse` returns a value, the same each time, or raises `PolicyFault`; nothing else, whatever the text:
      empty, huge, unbalanced, in another script. The value can be pickled, the observation stays as it was,
      and no text takes longer than 5 s.
    - What it has of the optional part is right: `vocabulary`, `remembers`.

    Args:
        observations: what the environment shows this role.
        name: the role's seat, as in `team.roles`.
        good: texts that `parse` must be able to read.
        notes: sentences of a transition mode that must come up in the prompt; by default none are told.
        texts: more texts for the parser.

    Raises:
        ConformanceError: what is wrong, where, and how to fix it.
    """
    kind = require_kind(role, "role")
    for observation in observations:
        _renders(role, kind, RoleInput(role=name, turn=0, observation=observation), ())
        past = HistoryEntry(
            turn=0,
            observation=observation,
            messages=({"role": "user", "content": "?"},),
            action=Action(calls=(), text="?", parsed=None),
            info={},
        )
        told = RoleInput(role=name, turn=1, observation=observation, feedback=tuple(notes), history=(past,))
        _renders(role, kind, told, notes)
        for text in (*NASTY, *texts):
            _parses(role, kind, text, observation)
        for text in good:
            require(
                _parses(role, kind, text, observation),
                f"can't read {text!r}, which is meant to be a good answer",
                where=f"{kind}.parse",
            )
    _optional(role, kind)


def _renders(role: Any, kind: str, role_input: RoleInput, notes: Sequence[str]) -> None:
    where = f"{kind}.render"
    mark, there = fingerprint(role_input), copied(role_input, where)
    with guarded(where):
        messages, again = role.render(role_input), role.render(there)
    require(
        fingerprint(role_input) == mark, "changed the role input", where=where, fix="copy what it changes"
    )
    require(
        isinstance(messages, (list, tuple)) and messages, f"returned {messages!r}", where=where, fix="a list"
    )
    for message in messages:
        keys = sorted(message) if isinstance(message, dict) else []
        require(
            keys == ["content", "role"],
            f"{message!r} is no message",
            where=where,
            fix='{"role": "user", "content": text}',
        )
        require(
            message["role"] in SPEAKERS,
            f"a message of '{message['role']}'",
            where=where,
            fix=f"one of: {', '.join(SPEAKERS)}",
        )
        text = isinstance(message["content"], str)
        require(text, f"the content {message['content']!r} is no text", where=where)
    same = list(messages) == list(again)
    require(
        same, "an equal briefing gave other messages", where=where, fix="no draws, no memory between calls"
    )
    prompt = " ".join(message["content"] for message in messages)
    for note in notes:
        require(
            note in prompt,
            f"the note {note!r} is not in the prompt",
            where=where,
            fix="write briefing.notes",
        )


def _parses(role: Any, kind: str, text: str, observation: Any) -> bool:
    """Whether the text could be read."""
    where = f"{kind}.parse"
    shown = text if len(text) < 60 else f"{text[:30]}... ({len(text)} characters)"
    mark, begin = fingerprint(observation), time.perf_counter()
    found: list[Any] = []
    for _ in range(2):
        try:
            found.append(role.parse(text, observation))
        except PolicyFault as fault:
            found.append(fault)
        except Exception as error:
            raise ConformanceError(
                f"{shown!r} raised {type(error).__name__}: {error}",
                where=where,
                fix="raise coterie.PolicyFault: the output is to blame, and is scored",
            ) from error
    spent = (time.perf_counter() - begin) / 2
    require(spent < _SECONDS, f"took {spent:.0f} s for {shown!r}", where=where, fix="bound what is read")
    require(fingerprint(observation) == mark, "changed the observation", where=where)
    readable = [not isinstance(one, PolicyFault) for one in found]
    if all(readable):
        pickled(found[0], where)
    same = all(readable) and fingerprint(found[0]) == fingerprint(found[1]) if any(readable) else True
    require(same, f"reads {shown!r} as {found[0]!r}, then as {found[1]!r}", where=where)
    return readable[0]


def _optional(role: Any, kind: str) -> None:
    own = getattr(role, "vocabulary", None)
    if own is not None:
        with guarded(f"{kind}.vocabulary"):
            words = list(own())
        wrong = [word for word in words if not isinstance(word, str) or word.split() != [word]]
        require(not wrong, f"{wrong[:1]!r} is no word", where=f"{kind}.vocabulary")
    remembers = getattr(role, "remembers", False)
    require(isinstance(remembers, bool), f"is {remembers!r}", where=f"{kind}.remembers", fix="True or False")
