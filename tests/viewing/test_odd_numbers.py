"""Rows that are valid JSON with numbers and shapes that no run writes."""

from __future__ import annotations

import json
import math
import shutil

import numpy as np
import pytest
from rich.console import Console

from coterie.api.rows import interval_of, number_of, read_metrics, tokens_so_far
from coterie.core.errors import RunFolderError
from coterie.viewing import frame
from coterie.viewing.follow import FollowedRun
from coterie.viewing.plot import draw
from coterie.viewing.report import report
from coterie.viewing.series import curve, read_run
from tests.viewing.runs import made, rows_of

HUGE = 10**400
ODD = (1e308, -1e308, HUGE, -HUGE, math.inf, "a", [1], {"a": 1}, True, None)


def test_what_can_not_be_drawn_is_no_number():
    assert [number_of(value) for value in (3, 0.5, -1e150)] == [3.0, 0.5, -1e150]
    assert all(math.isnan(number_of(value)) for value in ODD if value is not True)
    assert interval_of([0.1, 0.2]) == (0.1, 0.2)
    for value in (3, None, "ab", [1], [1, 2, 3], {"a": 1, "b": 2}):
        assert all(map(math.isnan, interval_of(value)))
    rows = [{"tokens/total": HUGE}, {"tokens/generated": 5}, {"tokens/generated": "a"}, {"tokens/total": 9}]
    assert tokens_so_far(rows) == [0.0, 5.0, 5.0, 9.0]


def test_a_step_far_away_is_one_gap_and_one_beyond_all_is_damage(tmp_path, caplog):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 2}\n{"step": 5}\n{"step": 1000000000000}\n')
    assert len(read_metrics(path)) == 3
    assert "1, 3-4, 6-999999999999. They" in caplog.text and "of 999999999997 of 1000000000000" in caplog.text
    path.write_text(f'{{"step": 1}}\n{{"step": {HUGE}}}\n')
    with pytest.raises(RunFolderError, match="is damaged"):
        read_metrics(path)


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    every = ("schedule.steps=4", "schedule.evaluate_every=1", "schedule.evaluate_tasks=4")
    return made(tmp_path_factory.mktemp("odd") / "run", *every)


def odd_runs(plain, folder):
    """Copies of a run with an odd value in every metric of its last rows, in each another one."""
    values = (*ODD, 3)
    for number in (0, 4):
        path = shutil.copytree(plain, folder / str(number))
        rows = rows_of(path)
        for at, row in enumerate(rows[1:], number):
            names = [name for name in row if name != "step"]
            row |= {name: values[(at + place) % len(values)] for place, name in enumerate(names)}
            row["eval/success"], row["eval/success_ci95"] = 0.5, values[at]
        rows[-1]["success"], rows[-2]["success"] = 1e308, -1e308
        (path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        yield path


def test_no_command_ends_at_them(plain, tmp_path):
    pytest.importorskip("matplotlib")
    for path in odd_runs(plain, tmp_path):
        run = read_run(path)
        names = [name for name in run.names if not name.endswith("_ci95")]
        values = curve([run, read_run(plain)], "eval/success").values
        assert not np.isinf(values).any()
        draw(path / "a.svg", [run], ["success", "eval/success"])
        for of in (curve([run], name) for name in names):
            assert not np.isinf(of.values).any() and not np.isinf(of.low).any()
        report(path, path / "report.html")
        followed = FollowedRun(path)
        followed.read()
        frame.line(followed, 0.0)
        Console(quiet=True).print(frame.frame([followed], frame.Look(80), 0.0))
        Console(quiet=True).print(frame.frame([followed, followed], frame.Look(100), 0.0))


def test_an_evaluation_of_another_shape_is_left_out(plain, tmp_path):
    path = shutil.copytree(plain, tmp_path / "run")
    file = sorted((path / "eval").glob("*.json"))[0]
    whole = json.loads(file.read_text())
    for success, is_left_out in (({**whole["success"], "ci95": 3}, False), (3, True), ({}, True)):
        file.write_text(json.dumps({**whole, "success": success}))
        text = report(path, tmp_path / "out.html").read_text(encoding="utf-8")
        assert (f"{file.name} is damaged and left out" in text) == is_left_out
