"""What the peers of step_time.py and real_size.py share: clocks, and operators sorted into parts."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "benchmarks" / "peers"))

import common
import profiling


def event(name: str, seconds: float, shapes: list[list[int]] | None = None, above: Any = None) -> Any:
    return SimpleNamespace(
        name=name,
        self_cpu_time_total=seconds * 1e6,
        input_shapes=shapes or [],
        cpu_parent=above,
        is_user_annotation=name in ("sampling", "optimiser"),
    )


def test_each_operator_counts_in_one_part_and_the_rest_is_orchestration():
    drawing, stepping, scoring = (
        event("sampling", 9.0),
        event("optimiser", 9.0),
        event("HeadScoresBackward", 0.0),
    )
    deep = event("aten::div", 0.5, [[8, 100]], event("aten::softmax", 0.25, [[8, 100]], drawing))
    events = [
        event("aten::mm", 1.0, [[8, 4], [4, 6]]),
        event("aten::addmm", 1.0, [[8, 4], [4, 6]]),
        event("aten::mm", 2.0, [[8, 4], [4, 100]]),
        event("aten::log_softmax", 0.125, [[8, 100]]),
        event("aten::bmm", 4.0, [[2, 8, 4], [2, 4, 8]]),
        event("aten::_scaled_dot_product_flash_attention_for_cpu", 0.5, [[1, 2, 8, 4]]),
        event("aten::_softmax", 0.5, [[2, 8, 8]]),
        event("aten::embedding", 0.25, [[100, 4], [8]]),
        event("aten::mul", 0.75, [[8, 4], [4]]),
        event("aten::mm", 3.0, [[8, 4], [4, 16]], scoring),
        event("aten::_fused_adamw_", 2.0, [], stepping),
        deep,
        deep.cpu_parent,
        drawing,
        stepping,
    ]
    parts = profiling.by_part(events, 100, 20.0)
    assert parts == {
        "products": 2.0,
        "attention": 5.0,
        "norms, elementwise, copies": 1.0,
        "head": 5.125,
        "sampling": 0.75,
        "optimiser": 2.0,
        "orchestration": 20.0 - 15.875,
    }
    assert set(parts) == set(profiling.PARTS)


def test_a_stopwatch_has_the_parts_of_each_step(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(common.time, "perf_counter", lambda: now[0])
    monkeypatch.setattr(common.time, "process_time", lambda: now[0] / 2)
    watch = common.Stopwatch()

    def work(seconds: float) -> str:
        now[0] += seconds
        return "done"

    for scale in (1.0, 2.0):
        watch.begin()
        assert watch.timed("generation", work)(scale * 1.0) == "done"
        work(0.5)
        watch.timed("generation", work)(scale * 2.0)
        with pytest.raises(TypeError):
            watch.timed("update", work)(None)
        watch.end()
    assert watch.seconds == [3.5, 6.5]
    assert [step["wall"]["generation"] for step in watch.steps] == [3.0, 6.0]
    assert watch.steps[1]["processor"] == {"generation": 3.0, "update": 0.0, "step": 3.25}
