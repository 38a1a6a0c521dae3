"""The end of a run says what it cancels: steps that were in play, and the tokens drawn for them."""

from __future__ import annotations

import json
from pathlib import Path
from threading import Event

import pytest

import coterie
from coterie.api.discarded import Cancelled
from coterie.backends.engines.tabular import TabularEngine
from coterie.cli.commands.run import report

MATRIX = str(Path(__file__).parents[1] / "recipes" / "matrix.yaml")
PLAIN = ["schedule.steps=9", "schedule.evaluate_every=0"]


@pytest.fixture
def returned(monkeypatch):
    """The tokens of each call that came back."""
    tokens, plain = [], TabularEngine.generate

    async def counted(self, request):
        call = await plain(self, request)
        tokens.append(len(call.token_ids))
        return call

    monkeypatch.setattr(TabularEngine, "generate", counted)
    return tokens


@pytest.mark.parametrize("play", ["pinned", "in_flight"])
@pytest.mark.parametrize("how", ["tokens", "interrupt"])
def test_the_end_says_what_it_cancels(tmp_path, capsys, returned, how, play):
    out, interrupt, ahead = tmp_path / "run", Event(), [f"schedule.play={play}", "schedule.max_staleness=3"]
    budget = ["schedule.tokens=170"] if how == "tokens" else []
    stop = (lambda step, *_: step == 6 and interrupt.set()) if how == "interrupt" else None
    ended = coterie.train(
        MATRIX, overrides=[*PLAIN, *ahead, *budget], out=out, progress=stop, interrupt=interrupt
    )
    assert ended.step == 6 and ended.finished == (how == "tokens")
    assert ended.cancelled.steps == 3
    assert ended.cancelled.tokens == sum(returned) - ended.tokens > 0
    rows = [json.loads(line) for line in (out / "discarded" / "cancelled.jsonl").read_text().splitlines()]
    assert [(row["step"], row["steps"], row["tokens"]) for row in rows] == [(6, 3, ended.cancelled.tokens)]
    report(ended)
    line = f"3 steps in play were cancelled: {ended.cancelled.tokens:,} tokens that had been drawn for them"
    assert capsys.readouterr().err.count(line) == 1
    if how == "interrupt":
        later = coterie.train(resume=out)
        assert later.finished and later.cancelled == Cancelled()
        assert len((out / "discarded" / "cancelled.jsonl").read_text().splitlines()) == 1


def test_steps_that_were_handed_out_just_now_have_drawn_nothing(tmp_path):
    """Their coroutines haven't begun; Python's warning of that would fail this test."""
    settings = [*PLAIN, "schedule.max_staleness=3", "schedule.tokens=100", "schedule.play=pinned"]
    assert coterie.train(MATRIX, overrides=settings, out=tmp_path / "run").cancelled == Cancelled(3, 0)


@pytest.mark.parametrize("ahead", [0, 2])
def test_a_run_that_ends_with_its_last_step_cancels_nothing(tmp_path, capsys, ahead):
    settings = [*PLAIN, "schedule.steps=3", f"schedule.max_staleness={ahead}"]
    ended = coterie.train(MATRIX, overrides=settings, out=tmp_path / "run")
    report(ended)
    assert not ended.cancelled and "cancelled" not in capsys.readouterr().err
    assert not (tmp_path / "run" / "discarded").exists()


def test_one_step_is_one():
    assert Cancelled(1, 1234).text().startswith("1 step in play was cancelled: 1,234 tokens")
