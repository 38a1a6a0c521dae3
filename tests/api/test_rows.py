"""Tokens on the axis of curves."""

from __future__ import annotations

from coterie.api.rows import tokens_so_far


def test_tokens_so_far_survive_lost_rows():
    rows = [{"step": step, "tokens/generated": 10, "tokens/total": 10 * step} for step in (1, 2, 5)]
    assert tokens_so_far(rows) == [10.0, 20.0, 50.0]
    assert tokens_so_far([{"step": 1, "tokens/generated": 10}, {"step": 2}, {"tokens/generated": 5.0}]) == [
        10.0, 10.0, 15.0
    ]  # fmt: skip
    assert tokens_so_far([]) == []
