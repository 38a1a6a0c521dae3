"""`coterie.train` as a script calls it."""

from __future__ import annotations

from pathlib import Path

import coterie

RECIPE = Path(__file__).parents[1] / "recipes" / "tabular.yaml"


def test_a_script_needs_neither_progress_nor_interrupt(tmp_path):
    result = coterie.train(RECIPE, overrides=["schedule.steps=1"], out=tmp_path / "run")
    assert (result.step, result.steps, result.finished) == (1, 1, True)
    assert result.tokens > 0 and result.metrics["tokens/total"] == result.tokens
