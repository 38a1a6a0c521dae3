"""Plugins that hang on a rollout host: they are named, and their episodes are lost, or played again."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import coterie
from tests.backends.executors.ray import hanging
from tests.ray_cluster import local_cluster
from tests.test_resume import MATRIX, rows

FILE = Path(hanging.__file__)
STEPS = ["schedule.checkpoint_every=1", "schedule.steps=2", "schedule.max_missing=0.5"]


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    with local_cluster(8) as ray:
        yield ray


def game(how: str, flag: Path | None = None) -> list[str]:
    settings = {"type": f"{hanging.__name__}:Hanging", "task": "train-1", "how": how, "flag": flag or "never"}
    return [f"env.{key}={value}" for key, value in settings.items()]


def line(how: str) -> int:
    lines = FILE.read_text().splitlines()
    return next(number for number, text in enumerate(lines, 1) if text.endswith(f"# {how.upper()}"))


def on_ray(folder: Path, *settings: str) -> None:
    short = ["cluster.workers=2", "cluster.timeout=4", "schedule.patience=2"]
    coterie.train(MATRIX, overlays=["ray"], overrides=[*STEPS, *short, *settings], out=folder)


@pytest.mark.ray
@pytest.mark.xdist_group("ray")
@pytest.mark.parametrize(
    ("how", "always"),
    [
        ("block", True),
        ("await", False),
        pytest.param("block", False, marks=pytest.mark.long),
        pytest.param("await", True, marks=pytest.mark.long),
    ],
)
def test_an_episode_that_hangs_is_played_again_then_lost(cluster, tmp_path, caplog, how, always):
    caplog.set_level(logging.WARNING)
    on_ray(tmp_path / "ray", *game(how, None if always else tmp_path / "flag"))
    text = caplog.text
    name = f"environment '{hanging.__name__}:Hanging' of tests: step has not returned for "
    assert name in text and f"hanging.py, line {line(how)}, in step), in episode train-1/e" in text
    lost = [row.get("cluster/episodes_lost", 0) for row in rows(tmp_path / "ray")]
    assert any(lost) is always and ("the episode of task train-1 is lost" in text) is always
    if not always:
        settings = [*game(how, tmp_path / "no such folder" / "flag"), "env.task=none"]
        coterie.train(MATRIX, overrides=[*STEPS, *settings], out=tmp_path / "local")
        ours = [
            {k: v for k, v in row.items() if not k.startswith("cluster/")} for row in rows(tmp_path / "ray")
        ]
        assert ours == rows(tmp_path / "local")
