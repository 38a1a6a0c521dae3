"""`coterie.train` as a script calls it."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from pathlib import Path
from typing import ClassVar

import pytest

import coterie
from coterie.api.open_run import to_its_end

RECIPE = Path(__file__).parents[1] / "recipes" / "tabular.yaml"


def test_a_script_needs_neither_progress_nor_interrupt(tmp_path):
    result = coterie.train(RECIPE, overrides=["schedule.steps=1"], out=tmp_path / "run")
    assert (result.step, result.steps, result.finished) == (1, 1, True)
    assert result.tokens > 0 and result.metrics["tokens/total"] == result.tokens


def test_a_notebook_whose_loop_runs_trains_and_evaluates_too(tmp_path):
    async def cell():
        coterie.train(RECIPE, overrides=["schedule.steps=1"], out=tmp_path / "run")
        return coterie.evaluate(tmp_path / "run", tasks=2)

    assert asyncio.run(cell()).success is not None


def interrupted_cell():
    """Run endless work in a cell, which is interrupted: the work is closed, and its thread has ended."""
    closed = threading.Event()

    async def work():
        BEGAN.set()
        try:
            await asyncio.sleep(3600)
        finally:
            closed.set()

    async def cell():
        with pytest.raises(KeyboardInterrupt):
            to_its_end(work())

    asyncio.run(cell())
    assert closed.is_set() and not any(thread.name == "coterie-run" for thread in threading.enumerate())


BEGAN = threading.Event()
"""Set by the work of a cell; a test clears it."""


def test_a_cell_that_is_interrupted_ends_what_it_runs():
    def interrupt():
        BEGAN.wait(60)
        os.kill(os.getpid(), signal.SIGINT)

    def handle(*_):
        raise KeyboardInterrupt

    BEGAN.clear()
    before = signal.signal(signal.SIGINT, handle)
    try:
        threading.Thread(target=interrupt).start()
        interrupted_cell()
    finally:
        signal.signal(signal.SIGINT, before)


def test_a_cell_that_is_interrupted_while_its_thread_starts_leaves_none(monkeypatch):
    class Interrupted(threading.Thread):
        def start(self):
            super().start()
            BEGAN.wait(60)
            raise KeyboardInterrupt

    BEGAN.clear()
    monkeypatch.setattr(threading, "Thread", Interrupted)
    interrupted_cell()


class Silent(coterie.Plugin):
    """A reward source that scores nothing."""

    scope = "joint"
    components: ClassVar[dict] = {"quiet": "increment", "free": "increment"}
    weights: ClassVar[dict] = {"free": 0.0}
    policy_fault = 0.0

    async def score(self, view):
        return {}


def test_a_component_that_nothing_scored_is_named_at_the_end(tmp_path, caplog):
    source = f"rewards={{environment: {{type: environment}}, mine: {{type: '{__name__}:Silent'}}}}"
    coterie.train(RECIPE, overrides=["schedule.steps=1", source], out=tmp_path / "run")
    assert caplog.text.count("no step of this run has a score of: quiet. Their sources gave none") == 1
    caplog.clear()
    coterie.train(RECIPE, overrides=["schedule.steps=1"], out=tmp_path / "sound")
    assert "has a score of" not in caplog.text
