"""`metrics.jsonl` is the run's own; trackers add to it and never end a run."""

from __future__ import annotations

import asyncio
import sys
import threading
import time

import pytest

import coterie
from coterie.api.rows import read_metrics
from coterie.compose import run as compose_run
from coterie.core.storage.run_folder import RunFolder
from coterie.core.training import metrics_writer
from coterie.core.training.metrics_writer import MetricsWriter
from tests.test_resume import MATRIX, rows


class Unprintable(Exception):
    """An exception whose text raises."""

    def __str__(self):
        raise ValueError("no text")


RAISED = (OSError("no route to the server"), SystemExit(0), coterie.PluginError("no key", fix="give one"))
RAISED = (*RAISED, KeyboardInterrupt(), asyncio.CancelledError("gone"), Unprintable())


class Rows(coterie.Plugin):
    """A tracker that remembers what it is called with."""

    calls: list[object]

    def open(self, folder):
        type(self).calls = [*getattr(type(self), "calls", ()), "open"]

    def track(self, step, metrics):
        self.calls.append(step)

    def truncate(self, step):
        self.calls.append(("truncate", step))

    def close(self):
        self.calls.append("close")


class Broken(Rows):
    """Raises in the method that `at` names."""

    at = ""
    error: BaseException = RAISED[0]

    def open(self, folder):
        super().open(folder)
        self._fail("open")

    def track(self, step, metrics):
        super().track(step, metrics)
        self._fail("track")

    def truncate(self, step):
        super().truncate(step)
        self._fail("truncate")

    def close(self):
        super().close()
        self._fail("close")

    def _fail(self, method):
        if method == self.at:
            raise self.error


class Writes(Rows):
    """Changes the row that it receives."""

    def track(self, step, metrics):
        super().track(step, metrics)
        metrics["tokens/total"] = -1
        for value in metrics.values():
            if isinstance(value, list):
                value.clear()
        metrics.pop("success")


@pytest.fixture
def tracked(tmp_path):
    """Train the matrix game with trackers by name, each of a class of its own; returns these."""

    def train(resume=False, steps=2, **trackers):
        classes = {}
        for name, (base, members) in trackers.items():
            classes[name] = type(name, (base,), {"calls": [], **members})
            setattr(sys.modules[__name__], name, classes[name])
        settings = [f"trackers.{name}={{type: '{__name__}:{name}'}}" for name in trackers]
        out = {"resume": tmp_path / "run"} if resume else {"out": tmp_path / "run"}
        settings = [f"schedule.steps={steps}"] if resume else [*settings, f"schedule.steps={steps}"]
        result = coterie.train(None if resume else MATRIX, overrides=settings, **out)
        assert result.finished and result.step == steps
        assert [row["step"] for row in read_metrics(tmp_path / "run" / "metrics.jsonl")] == [
            *range(1, steps + 1)
        ]
        return result, classes

    return train


def test_a_run_with_any_tracker_has_its_metrics_and_the_default_one_adds_nothing(tracked, tmp_path):
    _, classes = tracked(mine=(Rows, {}))
    assert classes["mine"].calls == ["open", 1, 2, "close"]
    for name, trackers in {"none": "{}", "old": "{jsonl: {type: jsonl}, again: {type: jsonl}}"}.items():
        overrides = ["schedule.steps=2", f"trackers={trackers}"]
        coterie.train(MATRIX, overrides=overrides, out=tmp_path / name)
        assert rows(tmp_path / name) == rows(tmp_path / "run")


@pytest.mark.parametrize(
    ("method", "error"),
    [*((method, RAISED[0]) for method in ("open", "close")), *(("track", error) for error in RAISED)],
)
def test_a_tracker_that_raises_is_told_once_and_its_rows_are_counted(tracked, caplog, method, error):
    broken, sound = (Broken, {"at": method, "error": error}), (Rows, {})
    _, classes = tracked(first=broken, last=sound)
    told = [record.getMessage() for record in caplog.records if "raised" in record.getMessage()]
    assert len(told) == 1, told
    lost = {"open": "lost: 2", "track": "lost: 2"}.get(method, "")
    assert lost in caplog.text and ("has lost" in caplog.text) == bool(lost)
    step = {"open": 0, "track": 1, "close": 2}[method]
    assert (
        f"step {step}: tracker '{__name__}:first' of tests: {method} raised {type(error).__name__}" in told[0]
    )
    text = "its text raised" if isinstance(error, Unprintable) else str(error)
    assert text in told[0] and "metrics.jsonl has all rows" in told[0]
    expected = {"open": ["open"], "track": ["open", 1, 2], "close": ["open", 1, 2]}[method]
    assert classes["first"].calls == [*expected, "close"]
    assert classes["last"].calls == ["open", 1, 2, "close"]


def test_a_tracker_that_raises_when_a_run_resumes_gets_no_more_rows(tracked, caplog):
    tracked(first=(Broken, {"at": "truncate"}), last=(Rows, {}), third=(Broken, {"at": "truncate"}))
    classes = [getattr(sys.modules[__name__], name) for name in ("first", "last", "third")]
    for tracker in classes:
        tracker.calls.clear()
    tracked(resume=True, steps=3)
    assert [tracker.calls for tracker in classes] == [
        ["open", ("truncate", 2), "close"],
        ["open", ("truncate", 2), 3, "close"],
        ["open", ("truncate", 2), "close"],
    ]
    assert [f":{name}'" in caplog.text for name in ("first", "last", "third")] == [True, False, True]
    assert caplog.text.count("truncate raised") == 2


class Odd(Rows):
    """Fails at the steps that `bad` names."""

    bad: tuple[int, ...] = ()

    def track(self, step, metrics):
        super().track(step, metrics)
        if step in self.bad:
            raise OSError("status 500")


def test_three_failures_in_a_row_end_a_tracker_and_fewer_do_not(tracked, caplog):
    _, classes = tracked(steps=8, seldom=(Odd, {"bad": (1, 2, 4, 6, 7)}), often=(Odd, {"bad": (2, 4, 5, 6)}))
    assert classes["seldom"].calls == ["open", *range(1, 9), "close"]
    assert classes["often"].calls == ["open", *range(1, 7), "close"], "rows 7 and 8 are lost too"
    assert caplog.text.count("status 500") == 2, "told once each"
    assert "(trackers.seldom) has lost: 5" in caplog.text and "(trackers.often) has lost: 6" in caplog.text


class Slow(Rows):
    """Waits until it may go on."""

    def __init__(self):
        type(self).calls = []
        self.began, self.gate = threading.Event(), threading.Event()

    def track(self, step, metrics):
        self.began.set()
        assert self.gate.wait(60)
        super().track(step, metrics)


def test_no_step_waits_for_a_tracker_and_what_is_too_much_is_dropped(tmp_path, caplog, monkeypatch):
    monkeypatch.setattr(metrics_writer, "WAITING", {"track": 3})
    slow, quick = (
        Slow(),
        type("Quick", (Rows,), {"calls": []})(),
    )
    writer = MetricsWriter({"slow": slow, "quick": quick})
    writer.open(RunFolder(tmp_path), 0)
    for step in range(1, 7):
        writer.write(step, {"loss": float(step)})
        while quick.calls[-1:] != [step]:
            time.sleep(0.001)
    assert writer.lost == {"machine/trackers/slow/lost": 3}
    slow.gate.set()
    writer.close(6)
    assert slow.calls == ["open", 1, 2, 3, "close"] and quick.calls == ["open", *range(1, 7), "close"]
    assert caplog.text.count("slower than the run, and rows are dropped") == 1
    assert [row["step"] for row in read_metrics(tmp_path / "metrics.jsonl")] == [*range(1, 7)]


def test_the_end_waits_for_a_tracker_no_longer_than_a_deadline(tmp_path, caplog, monkeypatch):
    monkeypatch.setattr(metrics_writer, "CLOSE_SECONDS", 0.2)
    monkeypatch.setattr(metrics_writer, "SLOW_SECONDS", 0.0)
    slow = Slow()
    writer = MetricsWriter({"slow": slow})
    writer.open(RunFolder(tmp_path), 0)
    writer.write(1, {})
    assert slow.began.wait(60)
    time.sleep(0.01)  # more than the 0 s that it may take
    writer.write(2, {})
    begin = time.monotonic()
    writer.close(2)
    assert time.monotonic() - begin < 30, "it would be 60"
    assert "track takes more than 0 s; later rows wait" in caplog.text, (
        "a call that hangs is told while it does"
    )
    assert "has lost: 2" in caplog.text
    slow.gate.set()


class Episodes(Rows):
    """Stores episodes too."""

    log_episodes = 2

    def track_episodes(self, step, actions):
        self.calls.append((step, [action["episode"] for action in actions]))


def test_a_tracker_gets_as_many_episodes_as_it_asks_for(tmp_path):
    of = {"two": 2, "three": 3, "none": 0}
    trackers = {name: type(name, (Episodes,), {"calls": [], "log_episodes": n})() for name, n in of.items()}
    writer = MetricsWriter({**trackers, "plain": type("Plain", (Rows,), {"calls": []})()})
    writer.open(RunFolder(tmp_path), 6)
    asked = []

    def rows(number):
        asked.append(number)
        return [{"episode": index} for index in range(number)]

    writer.episodes(7, rows)
    writer.close(7)
    assert asked == [2, 3], "rows are made for those that want some"
    assert [tracker.calls[1:-1] for tracker in trackers.values()] == [[(7, [0, 1])], [(7, [0, 1, 2])], []]


class Spans(Rows):
    """Stores spans too."""

    share = 0.5

    def track_spans(self, step, spans):
        self.calls.append((step, "spans"))


def raises(error):
    def read(self):
        type(self).reads = getattr(type(self), "reads", 0) + 1
        raise error("of the plugin")

    return property(read)


WRONG = (raises(RuntimeError), raises(AttributeError), raises(SystemExit), -1, "many", float("nan"), None, [])


@pytest.mark.parametrize(
    ("base", "member", "wrong"),
    [
        *((Spans, "share", wrong) for wrong in WRONG),
        *((Episodes, "log_episodes", wrong) for wrong in WRONG[-4:]),
    ],
    ids=lambda part: "property" if isinstance(part, property) else repr(part),
)
def test_a_member_that_is_no_number_costs_what_it_is_for_alone(tracked, caplog, base, member, wrong):
    _, classes = tracked(odd=(base, {member: wrong}), sound=(base, {}))
    told = [record.getMessage() for record in caplog.records if member in record.getMessage()]
    assert len(told) == 1 and f"tracker '{__name__}:odd' of tests" in told[0], told
    assert "is never called (trackers.odd)" in told[0]
    assert classes["odd"].calls == ["open", 1, 2, "close"] and len(classes["sound"].calls) == 6
    assert getattr(classes["odd"], "reads", 1) == 1


@pytest.mark.parametrize("wrong", [1.01, float("inf")])
def test_a_share_above_one_is_told(tracked, caplog, wrong):
    _, classes = tracked(odd=(Spans, {"share": wrong}))
    assert f"share is {wrong}" in caplog.text and classes["odd"].calls == ["open", 1, 2, "close"]


class Clears:
    """Observers that clear whatever they are told."""

    @staticmethod
    def notify(hook, **arguments):
        if "metrics" in arguments:
            arguments["metrics"].clear()


def test_what_trackers_and_observers_do_to_a_row_reaches_nothing_else(tracked, tmp_path, monkeypatch):
    plain, _ = tracked(plain=(Rows, {}))
    (tmp_path / "run").rename(tmp_path / "plain")
    monkeypatch.setattr(compose_run, "plugins", lambda: Clears)
    changed, _ = tracked(first=(Writes, {}), last=(Rows, {}))
    assert rows(tmp_path / "run") == rows(tmp_path / "plain")
    kept = {name for name in plain.metrics if not name.startswith("time/")}
    assert {name: changed.metrics[name] for name in kept} == {name: plain.metrics[name] for name in kept}
    assert "eval/success_ci95" in kept and len(changed.metrics["eval/success_ci95"]) == 2
