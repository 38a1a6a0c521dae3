"""Spans of episodes that processes of a Ray cluster play come back with them."""

from __future__ import annotations

import pytest

import coterie
from coterie.core.plugins import Plugin

pytestmark = pytest.mark.ray
pytest.importorskip("ray")
HERE = "tests.backends.executors.ray.test_spans"
KEPT: dict[str, list] = {}


class Keeps(Plugin):
    """Keeps the spans of this process's runs by the folder of the run."""

    share = 0.5

    def open(self, folder):
        self.spans = KEPT.setdefault(folder.name, [])

    def truncate(self, step): ...

    def track(self, step, metrics): ...

    def track_spans(self, step, spans):
        self.spans.append(spans)

    def close(self): ...


def named(spans) -> list[tuple[str, str, str]]:
    """Each span with its parent, without times: in which order they began depends on speed."""
    place = [f"{each.kind} {each.place}" for each in spans]
    return sorted((each.kind, each.place, place[each.parent] if each.parent >= 0 else "") for each in spans)


def test_hosts_record_the_spans_of_one_process(tmp_path):
    settings = ["schedule.steps=2", f"trackers.kept={{type: '{HERE}:Keeps'}}"]
    coterie.train("tests/recipes/tabular.yaml", overrides=settings, out=tmp_path / "here")
    coterie.train(
        "tests/recipes/tabular.yaml",
        overlays=["ray"],
        overrides=[*settings, "cluster.workers=2"],
        out=tmp_path / "ray",
    )
    assert len(KEPT["here"]) == len(KEPT["ray"]) == 2
    for here, there in zip(KEPT["here"], KEPT["ray"], strict=True):
        assert named(here) == named(there)
        kinds = {each.kind for each in there}
        assert kinds >= {"step", "play", "episode", "decision", "call", "judge", "update", "sync"}
        for each in there:  # one machine, one clock
            if each.parent >= 0:
                assert there[each.parent].start <= each.start <= each.end <= there[each.parent].end, each
