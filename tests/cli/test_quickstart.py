"""`coterie quickstart`, with stand-ins for training and evaluation."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest

from coterie.cli.commands.quickstart import draw
from coterie.core.errors import WriteError
from coterie.stats import Interval
from tests.cli.support import coterie


@pytest.fixture
def api(monkeypatch, tmp_path):
    """Stand-ins for training and evaluation; `calls` holds their arguments."""
    calls = []
    folder = tmp_path / "run"

    def train(source, *, overrides=(), out=None, resume=None, progress=None, interrupt=None, **_):
        calls.append(("train", source, tuple(overrides), resume))
        folder.mkdir(exist_ok=True)
        if resume is None:
            assert interrupt.is_set(), "the run is made, and measured before its first step"
            return SimpleNamespace(folder=folder, step=0, steps=3, finished=False)
        rows = [
            {"step": 1, "tokens/generated": 1000.0, "reward/planner": 0.1, "reward/executor": 0.3},
            {
                "step": 2,
                "tokens/generated": 1000.0,
                "reward/planner": 0.3,
                "reward/executor": None,
                "eval/success": 0.4,
                "eval/success_ci95": [0.3, 0.5],
            },
            {"step": 3, "tokens/generated": 1000.0, "eval/success": 0.8, "eval/success_ci95": [0.7, 0.9]},
        ]
        (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        progress(3, 3, {})
        return SimpleNamespace(folder=folder, step=3, steps=3, finished=api.finishes, signals={})

    def evaluate(source, *, split, tasks, greedy=False, checkpoint="best", show=0):
        calls.append(("evaluate", source, split, tasks, greedy, checkpoint))
        mean = 0.2 if checkpoint == "latest" else 0.8
        return SimpleNamespace(
            success=Interval(mean, mean - 0.03, mean + 0.03, tasks),
            episodes=["one", "two\x1b]52;c;x\x07"][:show],
        )

    monkeypatch.setattr("coterie.api.train.train", train)
    monkeypatch.setattr("coterie.api.evaluate.evaluate", evaluate)
    api = SimpleNamespace(calls=calls, folder=folder, finishes=True)
    return api


def test_measures_before_and_after_on_unseen_tasks_and_ends_in_json(api):
    pytest.importorskip("matplotlib")
    done = coterie("quickstart", "--seed", 3)
    assert done.exit_code == 0, done.output
    result = json.loads(done.stdout.splitlines()[-1])
    assert result["before"]["success"] == {"mean": 0.2, "ci95": pytest.approx([0.17, 0.23]), "n": 1000}
    assert result["after"]["success_greedy"]["mean"] == 0.8
    assert result["seconds"] >= 0 and result["run"] == str(api.folder)
    assert (api.folder / "curve.png").read_bytes().startswith(b"\x89PNG")
    assert result["curve"] == str(api.folder / "curve.png")
    assert "\none\n" in done.stdout and "\ntwo\\x1b]52;c;x\\x07\n" in done.stdout
    assert api.calls == [
        ("train", "quickstart", ("seed=3",), None),
        ("evaluate", api.folder, "test", 1000, False, "latest"),
        ("evaluate", api.folder, "test", 1000, True, "latest"),
        ("train", None, (), api.folder),
        ("evaluate", api.folder, "test", 1000, False, "best"),
        ("evaluate", api.folder, "test", 1000, True, "best"),
        ("evaluate", api.folder, "test", 3, False, "best"),
    ]


def test_an_interrupted_quickstart_says_how_to_go_on(api):
    api.finishes = False
    done = coterie("quickstart")
    assert done.exit_code == 130
    assert f"coterie run --resume {api.folder}" in done.stderr


def test_without_matplotlib_nothing_is_started(api, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "matplotlib", None)
    done = coterie("quickstart")
    assert done.exit_code == 2 and "coterie[torch]" in done.stderr
    assert api.calls == []


def test_a_curve_that_cannot_be_written_is_told(tmp_path):
    pytest.importorskip("matplotlib")
    (tmp_path / "file").touch()
    interval = Interval(0.5, 0.4, 0.6, 10).as_dict()
    results = {"success": interval, "success_greedy": interval}
    with pytest.raises(WriteError, match=r"curve\.png can't be written"):
        draw(tmp_path / "file" / "curve.png", [{"step": 1}], results, results, "title")
