"""What of a rendered prompt comes from where: a role's render is repeated with one input changed at a time.

A text is put between two private characters, which stay around all that the role shows of it; a number is
changed by one, and the words that differ depend on it. So no role has to say where its words come from. What
no input changes is the role's text.
"""

from __future__ import annotations

import copy
import dataclasses
import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import SequenceMatcher
from functools import partial
from typing import Any, Literal

from pydantic import BaseModel

from coterie.core.types import Message, RoleInput

Kind = Literal[
    "observation", "feedback", "comment", "history", "setting", "role", "earlier", "answer", "tools", "format"
]
Render = Callable[[RoleInput], Sequence[Message]]
Put = Callable[[Any], Any]
"""What a whole is with another value at one place."""

BEGIN, END = "\ue000", "\ue001"
"""Characters of Unicode's private area, which no tokenizer's text and no template has."""
DEEPEST = 8
"""Containers in each other that are gone into."""
MOST_CHANGES = 1000
"""Renders of one prompt; more fields than that are left out, and the explanation says so."""
_WORDS = re.compile(r"\d+\.\d+|\w+|\s|[^\w\s]")
_SHORT = 2
"""Characters of a part that joins the part beside it, as the cells of a map do."""


@dataclass(frozen=True, slots=True)
class PromptPart:
    """A piece of a prompt and where it comes from."""

    text: str
    kind: Kind
    names: tuple[str, ...] = ()
    """The inputs that decide it: fields of the observation, or dotted paths of settings."""
    writer: str = ""
    """The component that wrote it, such as `environment 'plan_path' of coterie`."""
    replaced_by: str = ""
    """Dotted path of a setting that is not set and would stand in its place."""


@dataclass(frozen=True, slots=True)
class InputChange:
    """A render with one input changed."""

    kind: Kind
    name: str
    tries: Sequence[Callable[[], Sequence[Message]]]
    """Renders of changed inputs, the most exact one first; each may raise what a role raises."""
    writer: str = ""
    by_words: bool = False
    """Whether the words that differ depend on it, as on a number; else what it shows is between marks."""
    unset: bool = False
    """Of a setting: whether it has no value, so that a built-in text stands in its place."""


@dataclass(slots=True)
class Attribution:
    """The parts of a rendering, and what decides its form without being shown."""

    messages: list[tuple[str, list[PromptPart]]]
    """(role of the message, its parts), whose texts joined are the message."""
    decides: list[str] = field(default_factory=list)
    """Inputs that change the prompt and are not shown in it: a rendering, a switch."""


def attribute(
    messages: Sequence[Message], changes: Sequence[InputChange], writers: Mapping[Kind, str]
) -> Attribution:
    """The parts of rendered messages.

    Args:
        messages: as rendered from the unchanged input.
        changes: what to try, in any order.
        writers: by kind, who writes it where a change names nobody.
    """
    texts = [message["content"] for message in messages]
    marks: list[list[list[InputChange]]] = [[[] for _ in text] for text in texts]
    decides: list[str] = []
    for change in changes:
        spans = _shown(change, messages)
        if spans is None:
            if change.name not in decides:
                decides.append(change.name)
            continue
        for index, start, stop in spans:
            for at in range(start, stop):
                marks[index][at].append(change)
    parts = [_parts(text, at, writers) for text, at in zip(texts, marks, strict=True)]
    return Attribution(
        [(message["role"], each) for message, each in zip(messages, parts, strict=True)], decides
    )


def _shown(change: InputChange, messages: Sequence[Message]) -> list[tuple[int, int, int]] | None:
    """(message, begin, end) of what a change shows or alters; None: it decides the form alone."""
    decides = False
    for attempt in change.tries:
        try:
            rendered = [dict(message) for message in attempt()]
        except Exception:  # the changed input means nothing to the role
            continue
        alike = [m.get("role") for m in rendered] == [message["role"] for message in messages]
        if not alike or not all(isinstance(m.get("content"), str) for m in rendered):
            decides = True
            continue
        pairs = [(m["content"], r["content"]) for m, r in zip(messages, rendered, strict=True)]
        marked = any(BEGIN in text for _, text in pairs)
        bare = [(old, text.replace(BEGIN, "").replace(END, "")) for old, text in pairs]
        if all(old == text for old, text in bare):
            return [(index, *span) for index, (_, text) in enumerate(pairs) for span in marked_spans(text)]
        if marked and any(END in text for _, text in pairs):
            continue  # the marks broke the text; the next try is the text replaced
        if marked or change.by_words:
            return [(i, *span) for i, (old, text) in enumerate(pairs) for span in _different(old, text)]
        decides = True
    return None if decides else []


def marked_spans(text: str) -> Iterator[tuple[int, int]]:
    """(begin, end) of what stands between marks, counted without the marks."""
    at, start = 0, None
    for character in text:
        if character == BEGIN:
            start = at
        elif character == END:
            if start is not None:
                yield start, at
            start = None
        else:
            at += 1


def common_ends(first: Sequence[str], second: Sequence[str]) -> tuple[int, int]:
    """Numbers of items that two lists (or characters that two texts) share at the begin, then at the end."""
    head = _alike(first, second)
    return head, _alike(first[head:][::-1], second[head:][::-1])


def _alike(first: Sequence[str], second: Sequence[str]) -> int:
    return sum(
        1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], zip(first, second, strict=False))
    )


def _different(old: str, new: str) -> Iterator[tuple[int, int]]:
    """(begin, end) of the words of `old` that `new` has otherwise."""
    before, after = _WORDS.findall(old), _WORDS.findall(new)
    head, tail = common_ends(before, after)
    begins = [0]
    for word in before:
        begins.append(begins[-1] + len(word))
    middle = SequenceMatcher(
        a=before[head : len(before) - tail], b=after[head : len(after) - tail], autojunk=False
    )
    for tag, start, stop, _, _ in middle.get_opcodes():
        if tag in ("replace", "delete"):
            yield begins[head + start], begins[head + stop]


# ------------------------------------------------------------------------------------------------ the changes


def changes_of(
    render: Render, role_input: RoleInput, writers: Sequence[tuple[Kind, str]]
) -> list[InputChange]:
    """The changes of a role's input: sentences of the feedback, earlier actions, fields of the observation.

    Args:
        writers: of each sentence of the feedback, its kind and who wrote it.
    """
    changes: list[InputChange] = []

    def with_sentence(at: int, text: str) -> Sequence[Message]:
        return render(replace(role_input, feedback=_put(role_input.feedback, at, text)))

    def with_action(at: int, text: str) -> Sequence[Message]:
        entry = role_input.history[at]
        changed = replace(entry, action=replace(entry.action, text=text))
        return render(replace(role_input, history=_put(role_input.history, at, changed)))

    def with_value(put: Put, value: Any) -> Sequence[Message]:
        return render(replace(role_input, observation=put(value)))

    for at, (sentence, (kind, writer)) in enumerate(zip(role_input.feedback, writers, strict=True)):
        rendered = partial(with_sentence, at)
        changes.append(_text_change(rendered, kind, f"sentence {at + 1}", sentence, writer))
    for at, entry in enumerate(role_input.history):
        name = f"its action in turn {entry.turn + 1}"
        changes.append(_text_change(partial(with_action, at), "history", name, entry.action.text, ""))
    every = leaves(role_input.observation)
    for name, value, put in itertools.islice(every, MOST_CHANGES):
        rendered = partial(with_value, put)
        if isinstance(value, str):
            changes.append(_text_change(rendered, "observation", name, value, ""))
        elif isinstance(value, bool):
            changes.append(InputChange("observation", name, [partial(rendered, not value)]))
        else:
            tries = [partial(rendered, value + 1), partial(rendered, value - 1)]
            changes.append(InputChange("observation", name, tries, by_words=True))
    if next(every, None) is not None:
        left_out = f"inputs beyond the first {MOST_CHANGES:,}, which are not tried"
        changes.append(InputChange("observation", left_out, [list]))
    return changes


def _text_change(
    rendered: Callable[[str], Sequence[Message]], kind: Kind, name: str, text: str, writer: str
) -> InputChange:
    """The change of a text: between marks, without the space around it, replaced by a mark."""
    tries = [BEGIN + text + END, BEGIN + text.strip() + END, BEGIN]
    return InputChange(kind, name, [partial(rendered, each) for each in tries], writer)


def setting_change(
    rendered: Callable[[str], Sequence[Message]], path: str, value: str | None, writer: str
) -> InputChange:
    """The change of a role's setting that holds text; None: it is not set."""
    if value is not None:
        return _text_change(rendered, "setting", path, value, writer)
    return InputChange("role", path, [partial(rendered, BEGIN)], writer, unset=True)


def _put(values: tuple[Any, ...], at: int, value: Any) -> tuple[Any, ...]:
    return (*values[:at], value, *values[at + 1 :])


def leaves(
    value: Any, name: str = "", put: Put = lambda new: new, depth: int = 0
) -> Iterator[tuple[str, Any, Put]]:
    """(field, value, what the whole is with another value there) of each text, number and switch in a value.

    It goes into mappings, sequences, sets, dataclasses, named tuples and pydantic models, and names the
    outermost field. Other objects have no leaves.
    """
    if isinstance(value, (str, bool, int, float)):
        yield name or "observation", value, put
        return
    for key, inner, put_inner in _children(value) if depth < DEEPEST else ():
        path = name or ("observation" if isinstance(key, int) else str(key))
        yield from leaves(inner, path, partial(_put_in, put, put_inner), depth + 1)


def _put_in(put: Put, put_inner: Put, new: Any) -> Any:
    return put(put_inner(new))


def _children(value: Any) -> list[tuple[Any, Any, Put]]:
    """(name, value, the container with another value there) of what a container holds."""
    if isinstance(value, Mapping):
        return [(key, inner, partial(_with_item, value, key)) for key, inner in value.items()]
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return [(key, getattr(value, key), partial(_with_field, value, key)) for key in value._fields]
    if isinstance(value, (list, tuple, set, frozenset)):
        return [(at, inner, partial(_with_element, value, at)) for at, inner in enumerate(value)]
    names: Iterable[str] = ()
    if isinstance(value, BaseModel):
        names = type(value).model_fields
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        names = [each.name for each in dataclasses.fields(value)]
    return [(key, getattr(value, key), partial(_with_attribute, value, key)) for key in names]


def _with_item(value: Mapping[Any, Any], key: Any, new: Any) -> Any:
    return {**value, key: new}


def _with_field(value: Any, key: str, new: Any) -> Any:
    return value._replace(**{key: new})


def _with_element(value: Any, at: int, new: Any) -> Any:
    return type(value)(_put(tuple(value), at, new))


def _with_attribute(value: Any, key: str, new: Any) -> Any:
    """A copy of an object with another value in a field, also in one that its constructor doesn't take."""
    changed = copy.copy(value)
    object.__setattr__(changed, key, new)
    return changed


# -------------------------------------------------------------------------------------------------- the parts

_FIRST: tuple[Kind, ...] = ("feedback", "comment", "history", "observation", "setting")
"""Kinds in the order in which they own a character that several inputs change: what varies most first."""


def _parts(
    text: str, marks: Sequence[Sequence[InputChange]], writers: Mapping[Kind, str]
) -> list[PromptPart]:
    """The parts of one message."""
    parts: list[PromptPart] = []
    for character, changes in zip(text, marks, strict=True):
        part = _owned(character, changes, writers)
        if parts and replace(parts[-1], text="") == replace(part, text=""):
            parts[-1] = replace(part, text=parts[-1].text + character)
        else:
            parts.append(part)
    return _joined(parts)


def _owned(character: str, changes: Sequence[InputChange], writers: Mapping[Kind, str]) -> PromptPart:
    for kind in _FIRST:
        owners = [change for change in changes if change.kind == kind]
        if owners:
            writer = owners[0].writer or writers.get(kind, "")
            return PromptPart(character, kind, tuple(sorted({owner.name for owner in owners})), writer)
    unset = next((change.name for change in changes if change.unset), "")
    return PromptPart(character, "role", (), writers.get("role", ""), unset)


def _joined(parts: list[PromptPart]) -> list[PromptPart]:
    """The parts, with the space and commas between pieces of one origin in them, and short pieces beside each
    other as one: the cells of a map depend on a wall here and on the goal there."""
    joined: list[PromptPart] = []
    for part in parts:
        # Space and punctuation of the role's, with no word in it, separates two parts.
        separates = len(joined) > 1 and joined[-1].kind == "role" and not re.search(r"\w", joined[-1].text)
        between = joined.pop() if separates else None
        before = joined[-1] if joined else None
        if before is not None and _belongs(before, part):
            gap = between.text if between is not None else ""
            names = tuple(sorted({*before.names, *part.names}))
            joined[-1] = replace(before, text=before.text + gap + part.text, names=names)
            continue
        joined += [part] if between is None else [between, part]
    return joined


def _belongs(before: PromptPart, part: PromptPart) -> bool:
    """Whether two parts, beside each other or with space between them, are shown as one."""
    alike = replace(before, text="", names=()) == replace(part, text="", names=())
    short = part.kind == "observation" and len(part.text) <= _SHORT
    return alike and (before.names == part.names or short)
