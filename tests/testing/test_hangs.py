"""A method that never returns is named by the kit with its place: every method of every kind's Protocol."""

from __future__ import annotations

import asyncio
import inspect
import re
import time
from pathlib import Path
from typing import Any

import pytest

from coterie.compose.kinds import PROTOCOL
from tests.testing.teeth.originals import CHECKS, complaint, load

FILE = Path(__file__)
UNTRIED = {"trainer.export"}
"""What the checks don't call."""


def stays(self: Any, *arguments: Any, **named: Any) -> None:
    time.sleep(60)  # SLEEPS


async def waits(self: Any, *arguments: Any, **named: Any) -> None:
    await asyncio.get_running_loop().create_future()  # WAITS


def line(mark: str) -> int:
    lines = FILE.read_text().splitlines()
    return next(number for number, text in enumerate(lines, 1) if text.endswith(f"# {mark}"))


def methods(kind: str) -> list[str]:
    """Of a kind's Protocol."""
    members = vars(PROTOCOL[kind]).items()
    return [
        name
        for name, value in members
        if inspect.isfunction(value) and (not name.startswith("_") or name == "__call__")
        if f"{kind}.{name}" not in UNTRIED
    ]


CASES = [(kind, name) for kind in PROTOCOL if kind in CHECKS for name in methods(kind)]


@pytest.mark.parametrize(("kind", "method"), CASES, ids=[".".join(case) for case in CASES])
def test_every_method_of_every_kind_is_named_with_its_place(kind, method, tmp_path, monkeypatch):
    module = load(kind, tmp_path)
    name = "ExampleName" + "".join(word.title() for word in kind.split("_"))
    member = getattr(PROTOCOL[kind], method)
    hanging = waits if inspect.iscoroutinefunction(member) else stays
    monkeypatch.setattr(hanging, "__signature__", inspect.signature(member), raising=False)
    setattr(getattr(module, name), method, hanging)
    place = rf"\(.*test_hangs.py, line {line('WAITS' if hanging is waits else 'SLEEPS')}\)"
    where = name if method == "__call__" else f"{name}.{method}"
    expected = rf"{where}: has not (returned|ended) after [\d.]+ s {place}\n  fix: bound "
    for seconds in (0.1, 2.0, 20.0):  # on a busy machine another method may take a tenth of a second
        text = complaint(module, kind, tmp_path, seconds)
        if f"{where}: " in text:
            break
    assert re.match(expected, text), text
