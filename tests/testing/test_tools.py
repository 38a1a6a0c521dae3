"""What `check_tool` catches."""

from __future__ import annotations

from typing import Any

import pytest

from coterie.core.errors import PolicyFault, SystemFault
from coterie.testing import check_tool
from tests.testing.support import caught


class Adder:
    """`add 1 2` -> 3."""

    name = "adder"

    def find(self, text: str) -> Any:
        return text[4:] if text.startswith("add ") else None

    async def run(self, call: Any) -> Any:
        try:
            return str(sum(int(number) for number in call.split()))
        except ValueError:
            return "numbers, please"


CALLS = ["add 1 2", "add one"]


def broken(**parts: Any) -> Adder:
    return type("Broken", (Adder,), parts)()


def blames(error: BaseException) -> Any:
    async def run(self: Any, call: Any) -> str:
        if call == "one":
            raise error
        return "3"

    return run


def counts() -> Any:
    seen: list[str] = []

    def find(self: Any, text: str) -> Any:
        seen.append(text)
        return len(seen) if text.startswith("add ") else None

    return find


def strict(self: Any, text: str) -> Any:
    text.encode()
    return Adder().find(text)


async def number(self: Any, call: Any) -> Any:
    return 3


@pytest.mark.parametrize("error", [None, SystemFault("x"), PolicyFault("x")])
def test_a_sound_tool_passes(error):
    check_tool(Adder() if error is None else broken(run=blames(error)), calls=CALLS)


@pytest.mark.parametrize(("parts", "message"), [
    ({"name": "an adder"}, "'an adder'"),
    ({"find": lambda self, text: None}, "found no call in 'add 1 2'"),
    ({"find": lambda self, text: text}, "None where the text has no call"),
    ({"find": strict}, "raised UnicodeEncodeError"),
    ({"find": counts()}, "then"),
    ({"run": lambda self, call: "3"}, "is not asynchronous"),
    ({"run": number}, "returned an int"),
    ({"run": blames(KeyError("x"))}, "raised KeyError"),
    ({"schemas": ({"name": "adder"},)}, "'name': 'adder'"),
    ({"schemas": ({"type": {1}},)}, "raised TypeError"),
])  # fmt: skip
def test_a_broken_tool_is_caught(parts, message):
    caught(message, check_tool, broken(**parts), calls=CALLS)


def test_a_tool_that_answers_nothing_is_caught():
    caught("answered none", check_tool, broken(run=blames(SystemFault("x"))), calls=["add one"])
    caught("no call to check", check_tool, Adder(), calls=[])


def test_what_it_needs_is_opened_before_it_and_closed_after_it():
    log: list[str] = []

    def part(name: str, base: type) -> Any:
        async def opened(self: Any) -> None:
            log.append(f"open {name}")

        async def closed(self: Any) -> None:
            log.append(f"close {name}")

        return type(name, (base,), {"open": opened, "close": closed})()

    check_tool(part("tool", Adder), calls=CALLS, needs=[part("sandbox", object)])
    assert log == ["open sandbox", "open tool", "close tool", "close sandbox"]
