"""Resolved recipes and the jobs of studies have the digests that are recorded.

A run's digest is in its checkpoints, and a job's id names its folder: another digest would refuse a resume,
or run again what is done. A change of a recipe on purpose changes its line in digests.json.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

from coterie.recipes import load
from coterie.studies.reproduce import prepare

RECORDED = json.loads((Path(__file__).parent / "digests.json").read_text())


def test_every_recipe_at_every_scale_has_its_digest() -> None:
    now = {}
    for name in RECORDED["recipes"]:
        words, _, scale = name.partition(" --scale ")
        recipe, _, overlays = words.partition(" --with ")
        now[name] = load(recipe, scale=scale or None, overlays=[overlays] if overlays else ()).digest()
    assert now == RECORDED["recipes"]


@pytest.mark.parametrize(
    "name", ["at-grpo-table1 --scale gpu", "cooperation --scale cpu", "sampling --scale cpu"]
)
def test_the_jobs_of_a_study_have_their_ids(name: str) -> None:
    study, _, scale = name.partition(" --scale ")
    ids = " ".join(sorted(prepare(study, scale=scale, seeds=1).jobs))
    assert hashlib.sha256(ids.encode()).hexdigest()[:16] == RECORDED["jobs"][name]
