"""Where a component comes from, and notes on what it raises."""

from __future__ import annotations

import asyncio
import os
import sys
import traceback
from itertools import pairwise

import numpy as np
import pytest

from coterie.core.concurrency.active_rollouts import together
from coterie.core.errors import ConfigError, PluginError, SystemFault, UserError
from coterie.core.plugins.origin import Origin, failure, origin_of, plugin_call, plugin_open, record_origin
from coterie.testing import coterie_run
from tests.games import Matrix

TOY = Origin("environment", "toy", "coterie-toys", "env")


class Slotted:
    __slots__ = ()


def test_a_built_component_knows_its_origin():
    run = coterie_run(env={"type": "tests.games:Matrix"}, order=[["row", "column"]])
    assert origin_of(run.environment) == ("environment", "tests.games:Matrix", "tests", "env")
    assert origin_of(run.team.members["row"].role).path == "team.roles.row"
    assert str(origin_of(run.sampler)) == "sampler 'tree' of coterie"


def test_an_object_that_no_builder_made_is_named_by_its_class():
    assert str(origin_of(Matrix())) == "plugin 'Matrix' of tests"
    slotted = Slotted()
    record_origin(slotted, TOY)
    assert str(origin_of(slotted)) == f"plugin 'Slotted' of {__name__.partition('.')[0]}"


def test_two_objects_of_a_class_have_their_own_origins():
    first, second = Matrix(), Matrix()
    record_origin(first, TOY)
    record_origin(second, TOY._replace(path="level"))
    assert (origin_of(first).path, origin_of(second).path) == ("env", "level")


def test_an_exception_names_the_plugin_and_the_method_once():
    game = Matrix()
    record_origin(game, TOY)
    with pytest.raises(KeyError) as caught:
        with plugin_call(game, "reset"), plugin_call(game, "reset"):
            raise KeyError("n")
    (note,) = caught.value.__notes__
    assert note.startswith("in environment 'toy' of coterie-toys: reset (")
    assert note in "".join(traceback.format_exception(caught.value))
    assert failure(game, "reset", caught.value).startswith(
        "environment 'toy' of coterie-toys: reset raised KeyError: 'n' ("
    )


def test_a_bug_names_the_last_line_of_the_plugins_own_code_that_it_passed(tmp_path):
    def own():
        np.stack([])  # raises in a function of numpy

    with pytest.raises(ValueError, match="stack") as caught, plugin_call(TOY, "step"):
        own()
    line = own.__code__.co_firstlineno + 1
    place = f" ({__file__.removeprefix(os.getcwd() + os.sep)}, line {line})"
    assert caught.value.__notes__ == [f"in environment 'toy' of coterie-toys: step{place}"]
    assert failure(TOY, "step", caught.value).endswith(place)
    with pytest.raises(UserError) as unopened, plugin_open(TOY):
        (tmp_path / "nowhere").read_text()
    assert ", line " in unopened.value.why


def test_a_bug_that_is_not_in_a_plugins_code_and_a_fault_name_no_line():
    assert failure(TOY, "step", TypeError("not raised")).endswith("raised TypeError: not raised")
    with pytest.raises(SystemFault) as fault, plugin_call(TOY, "run"):
        raise SystemFault("no answer")
    assert failure(TOY, "run", fault.value).endswith("raised SystemFault: no answer")


def test_a_coroutine_is_named_too():
    async def step():
        with plugin_call(TOY, "step"):
            await asyncio.sleep(0)
            raise SystemFault("gone")

    with pytest.raises(SystemFault) as caught:
        asyncio.run(step())
    assert caught.value.__notes__ == ["in environment 'toy' of coterie-toys: step"]


@pytest.mark.parametrize("error", [ConfigError("a setting"), KeyboardInterrupt(), GeneratorExit()])
def test_what_no_plugin_causes_gets_no_note(error):
    with pytest.raises(type(error)):
        with plugin_call(TOY, "step"):
            raise error
    assert not hasattr(error, "__notes__")


async def cancelled_inside():
    """What a plugin does that awaits a task of its own which was cancelled."""
    task = asyncio.ensure_future(asyncio.sleep(1))
    await asyncio.sleep(0)
    task.cancel()
    with plugin_call(TOY, "play"), plugin_call(TOY, "step"):
        await task


def test_a_cancellation_that_is_the_plugins_own_names_it():
    match = r"^env: environment 'toy' of coterie-toys: step raised CancelledError, though nobody cancelled it"
    with pytest.raises(PluginError, match=match) as caught:
        asyncio.run(cancelled_inside())
    assert "test_origin.py, line" in caught.value.what and "catch it" in caught.value.fix
    with pytest.raises(PluginError, match=match), plugin_call(TOY, "step"):
        raise asyncio.CancelledError  # where no event loop runs


@pytest.mark.parametrize("end", ["cancel", "wait_for", "gather"])
def test_a_cancellation_from_outside_passes_unchanged(end):
    seen = []

    async def play():
        try:
            with plugin_call(TOY, "step"):
                await asyncio.sleep(10)
        except BaseException as error:
            seen.append(error)
            raise

    async def fails():
        await asyncio.sleep(0.01)
        raise OSError("another one failed")

    async def go():
        if end == "wait_for":
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(play(), 0.01)
        elif end == "gather":
            with pytest.raises(OSError, match="another"):
                await together([play(), fails()])
        else:
            task = asyncio.ensure_future(play())
            await asyncio.sleep(0.01)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

    asyncio.run(go())
    (error,) = seen
    assert type(error) is asyncio.CancelledError and not hasattr(error, "__notes__")


def test_a_plugin_that_exits_is_an_error_that_names_it():
    with pytest.raises(PluginError, match=r"^env: environment 'toy' .*: step called sys.exit\(3\)$"):
        with plugin_call(Matrix(), "play"), plugin_call(TOY, "step"):
            sys.exit(3)


def chained(*errors):
    for error, cause in pairwise(errors):
        error.__cause__ = cause
    return errors[0]


@pytest.mark.parametrize("error", [
    ConnectionRefusedError(111, "Connection refused"), FileNotFoundError("model.json"), SystemFault("503"),
    chained(RuntimeError("no connection"), ValueError("mapped"), TimeoutError("10 s")),
])  # fmt: skip
def test_what_a_plugin_cannot_reach_when_it_opens_is_no_bug(error):
    with pytest.raises(
        UserError, match=r"^level: environment 'toy' of coterie-toys could not open"
    ) as caught:
        with plugin_open(TOY._replace(path="level")):
            raise error
    assert f"{type(error).__name__}: {error}" in caught.value.why and caught.value.fix


@pytest.mark.parametrize("error", [KeyError("n"), chained(ValueError("a"), KeyError("b")), ConfigError("c")])
def test_other_errors_of_open_pass(error):
    with pytest.raises(type(error)) as caught, plugin_open(TOY):
        raise error
    assert caught.value is error
