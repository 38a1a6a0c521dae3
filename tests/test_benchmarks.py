"""The benchmark of framework time runs at a tiny size."""

from __future__ import annotations

import asyncio

from benchmarks.orchestration import measure


def test_the_clocks_of_the_parts_add_up_to_the_whole():
    result = asyncio.run(measure(live=2, branches=2, turns=1))
    parts = ("", "environment_", "template_", "tokenizer_", "engine_")
    assert result["actions"] == 8 and result["environment_microseconds"] > 0 and result["microseconds"] > 0
    assert abs(sum(result[f"{part}microseconds"] for part in parts) - result["whole_microseconds"]) < 1e-6
