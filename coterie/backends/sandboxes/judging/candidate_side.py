"""The candidate's side of the judge, which answers calls. Sent into the sandbox: stdlib only.

Nothing in this module is protected from the candidate, which may patch all of it. The candidate can only send
bytes; the tests' side decodes them as plain data or drops the candidate. This side receives names and
arguments, never a test.
"""

from __future__ import annotations

import builtins
import linecache
import os
import sys
import traceback
import types
from collections.abc import Iterator
from itertools import islice
from typing import Any

from .changes import Received  # relative: in the sandbox, the package is `judging`
from .plain import MAX_ITEMS, NotPlain, pack, receive, send

CHANNEL = 3


def main(source: str, channel: int = CHANNEL) -> None:
    """Execute the candidate as module `solution`, send `ready`, answer calls until the channel closes.

    A call is (nonce, name, arguments, keyword arguments). An answer is (nonce, kind, value, changes), where
    kind is `value`, `argument` (value: its number), `iterator` (value: its items), `raised` (value: name and
    arguments of the exception) or `refused` (value: why the result can't cross); changes.py has the changes.
    """
    if os.path.exists("judging.py") or os.path.exists("judging"):
        for name in [name for name in sys.modules if name.partition(".")[0] == "judging"]:
            del sys.modules[name]  # the candidate has a module of this name
    module = types.ModuleType("solution")
    module.__file__ = "solution.py"
    sys.modules["solution"] = module
    try:
        exec(compile(source, "solution.py", "exec", dont_inherit=True), module.__dict__)
    except Exception as error:
        _show(error, source)
        sys.exit(1)
    try:
        _serve(module, channel)
    except (EOFError, OSError):
        return  # the tests have ended


def _serve(module: types.ModuleType, channel: int) -> None:
    _flush()
    send(channel, "ready")
    while True:
        nonce, name, args, kwargs = receive(channel)
        received = Received([*args, *kwargs.values()])
        kind, value = _answer(module, name, args, kwargs)
        _flush()  # output up to here is kept, whatever ends the process
        number = received.index(value) if kind == "value" else None
        try:
            answer = (kind, value) if number is None else ("argument", number)
            send(channel, (nonce, *answer, received.changes()))
        except NotPlain as error:
            send(channel, (nonce, "refused", f"{name}: {error}", []))


def _show(error: Exception, source: str) -> None:
    """Print the traceback as if the candidate had been run from a file: its own frames, with their lines."""
    linecache.cache["solution.py"] = (len(source), None, source.splitlines(keepends=True), "solution.py")
    traceback.print_exception(type(error), error, error.__traceback__ and error.__traceback__.tb_next)


def _answer(module: types.ModuleType, name: str, args: Any, kwargs: Any) -> tuple[str, Any]:
    try:
        if not hasattr(module, name):
            raise NameError(f"name '{name}' is not defined")
        value = getattr(module, name)(*args, **kwargs)
        if not isinstance(value, Iterator):
            return "value", value
        items = list(islice(value, MAX_ITEMS + 1))  # one more than allowed: an endless one is refused
        return "iterator", items
    except BaseException as error:
        return "raised", _exception(error)


def _exception(error: BaseException) -> tuple[str, Any]:
    """Name of the nearest builtin type, and the arguments; the message alone if they aren't plain data."""
    names = (kind.__name__ for kind in type(error).__mro__ if vars(builtins).get(kind.__name__) is kind)
    name = next(names, "Exception")
    try:
        pack(error.args)
        return name, error.args
    except Exception:
        return name, (_text(error),)


def _text(error: BaseException) -> str:
    try:
        return str(error)[:1000]
    except Exception:
        return type(error).__name__


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except Exception:  # closed, or replaced by something else
            continue
