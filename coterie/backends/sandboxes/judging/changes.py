"""What a call changes in its arguments, so that the tests see it. Sent into the sandbox: stdlib only.

The candidate has copies of the arguments. Both sides number the containers in them, in the same order. The
candidate's side remembers what each holds, and sends the new contents of those that a call has changed: a
list of parts, and which of them are other containers of the arguments. The tests' side puts these contents
into the very objects that were passed.
"""

from __future__ import annotations

import collections
import operator
from collections.abc import Iterable, Sequence
from typing import Any

from .plain_types import NotPlain

_TABLES = (dict, collections.Counter, collections.OrderedDict, collections.defaultdict)
_MUTABLE = frozenset([list, set, bytearray, collections.deque, *_TABLES])


def containers(arguments: Iterable[Any]) -> list[Any]:
    """All containers of plain data, outer ones before what they hold; a key or an item of a set is none."""
    every: list[Any] = []
    pending = [*arguments]
    pending.reverse()
    while pending:
        value = pending.pop()
        kind = type(value)
        if kind in _TABLES:
            inner = [*value.values()]
        elif kind is list or kind is collections.deque or isinstance(value, tuple):
            inner = [*value]
        elif kind in _MUTABLE:
            inner = []
        else:
            continue
        every.append(value)
        inner.reverse()
        pending += inner
    return every


class Received:
    """The arguments of a call on the candidate's side."""

    def __init__(self, arguments: Iterable[Any]) -> None:
        self.all = containers(arguments)
        self._before = [_contents(value) for value in self.all]

    def index(self, value: Any) -> int | None:
        """The number of a container that was received."""
        return next((index for index, other in enumerate(self.all) if other is value), None)

    def changes(self) -> list[tuple[int, Any, dict[int, int]]]:
        """(number, parts, {position in the parts: number of the container there}) of what has changed."""
        changed = [
            (index, contents)
            for index, (value, before) in enumerate(zip(self.all, self._before))  # noqa: B905 (Python 3.9)
            if _differs(contents := _contents(value), before)
        ]
        numbers = {id(value): index for index, value in enumerate(self.all)} if changed else {}
        out: list[tuple[int, Any, dict[int, int]]] = []
        for index, contents in changed:
            if type(contents) is bytes:
                out.append((index, contents, {}))
                continue
            places = {at: numbers[id(part)] for at, part in enumerate(contents) if id(part) in numbers}
            for at in places:
                contents[at] = None
            out.append((index, contents, places))
        return out


def apply(changes: Any, originals: Sequence[Any]) -> None:
    """Put the new contents into the arguments. Raises NotPlain, before anything is changed."""
    if type(changes) is not list:
        raise NotPlain("changes that are no list")
    new = []
    try:
        for index, parts, places in changes:
            target = numbered(index, originals)
            for at, number in places.items():
                numbered(at, parts)
                parts[at] = numbered(number, originals)
            new.append((target, _built(target, parts)))
    except NotPlain:
        raise
    except Exception as error:  # other types than our writer's
        raise NotPlain(f"changes of another form: {error}"[:200]) from None
    for target, contents in new:
        if type(target) in (list, bytearray):
            target[:] = contents
            continue
        target.clear()
        if type(target) is collections.deque:
            target.extend(contents)
        elif type(target) is set:
            target.update(contents)
        else:
            for key, value in contents.items():  # a Counter's `update` would add
                target[key] = value


def _built(target: Any, parts: Any) -> Any:
    kind = type(target)
    if kind not in _MUTABLE or type(parts) is not (bytes if kind is bytearray else list):
        raise NotPlain(f"new contents for an object of type {kind.__name__}")
    if kind is collections.deque and target.maxlen is not None and len(parts) > target.maxlen:
        raise NotPlain("more items than the deque can have")
    if kind is set:
        built: Any = set(parts)
        distinct = len(built) == len(parts)
    elif kind in _TABLES:
        built = dict(zip(parts[::2], parts[1::2]))  # noqa: B905 (Python 3.9)
        distinct = 2 * len(built) == len(parts)
    else:
        return parts
    if not distinct:
        raise NotPlain("a key that comes twice")
    return built


def numbered(number: Any, among: Sequence[Any]) -> Any:
    """The item of this number. Raises NotPlain."""
    if type(number) is not int or not 0 <= number < len(among):
        raise NotPlain("a number that no argument has")
    return among[number]


def _contents(value: Any) -> Any:
    """The parts of one container; None for a tuple, which can't change."""
    kind = type(value)
    if kind is bytearray:
        return bytes(value)
    if kind in _TABLES:
        return [part for pair in value.items() for part in pair]
    return [*value] if kind in _MUTABLE else None


def _differs(now: Any, before: Any) -> bool:
    """Whether the parts are other objects."""
    if type(now) is not list:
        return bool(now != before)
    return len(now) != len(before) or any(map(operator.is_not, now, before))
