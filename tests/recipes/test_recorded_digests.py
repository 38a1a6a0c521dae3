"""Every recipe and scale of the time before overlays resolves to the same configuration, by both spellings.

`tests/golden/recipes.json` was recorded when each combination had a file of its own.
"""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest

from coterie.discovery import plugins
from coterie.recipes import load, recipes
from coterie.recipes.overlays import WITH

RECORDED = json.loads((Path(__file__).parents[1] / "golden" / "recipes.json").read_text(encoding="utf-8"))
NAMES = sorted({key.partition(" --scale ")[0] for key in RECORDED})
CURRENT = {info.name for info in recipes()}


def spellings(name):
    """(recipe, overlays) by the name, and by the new spelling where the name is an old one."""
    yield name, []
    target = str(plugins().registry.find("recipe", name).target)
    if WITH in target:
        recipe, _, overlays = target.partition(WITH)
        yield recipe, overlays.split(",")


@pytest.mark.parametrize("name", NAMES)
def test_the_recorded_configuration_is_the_same(name):
    for recipe, overlays in spellings(name):
        for key in [key for key in RECORDED if key.partition(" --scale ")[0] == name]:
            resolved = load(recipe, overlays=overlays, scale=key.partition(" --scale ")[2] or None)
            found = {
                "digest": resolved.digest(),
                "policies": list(resolved.table["policies"]),
                "roles": list(resolved.table["team"]["roles"]),
            }
            assert found == RECORDED[key], f"{key} as {recipe} with {overlays}"


def test_the_record_has_every_old_file_and_the_old_names_are_listed_no_longer(caplog):
    assert len(NAMES) == 32 and len(RECORDED) == 110
    old = set(NAMES) - CURRENT
    assert len(old) == 19 and all(len(list(spellings(name))) == 2 for name in old)
    assert all(len(list(spellings(name))) == 1 for name in CURRENT)
    with caplog.at_level(logging.WARNING, "coterie"):
        assert load("sudoku_one_gpu").name == "sudoku_split_per_role_l1_one_gpu"
    assert [record.getMessage() for record in caplog.records] == [
        "recipe 'sudoku_one_gpu' is now `sudoku_split --with per_role,l1,one_gpu`; "
        "the old name works until version 0.3"
    ]
    caplog.clear()
    load("sudoku_split", overlays=["per_role"])
    assert not caplog.records
