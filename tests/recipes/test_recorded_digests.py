"""Every recorded recipe, with overlays and at scales, resolves to the same configuration.

A key of `tests/golden/recipes.json` reads like the words of a command:
`sudoku_split --with per_role,l1 --scale cpu`.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from coterie.recipes import load, recipes

RECORDED = json.loads((Path(__file__).parents[1] / "golden" / "recipes.json").read_text(encoding="utf-8"))
NAMES = sorted({key.partition(" --scale ")[0] for key in RECORDED})


@pytest.mark.parametrize("name", NAMES)
def test_the_recorded_configuration_is_the_same(name):
    recipe, _, overlays = name.partition(" --with ")
    for key in [key for key in RECORDED if key.partition(" --scale ")[0] == name]:
        resolved = load(recipe, overlays=overlays.split(",") if overlays else (),
                        scale=key.partition(" --scale ")[2] or None)  # fmt: skip
        found = {
            "digest": resolved.digest(),
            "policies": list(resolved.table["policies"]),
            "roles": list(resolved.table["team"]["roles"]),
        }
        assert found == RECORDED[key], key


def test_the_record_has_every_combination():
    assert len(NAMES) == 32 and len(RECORDED) == 110
    registered = {info.name for info in recipes()}
    assert {name.partition(" --with ")[0] for name in NAMES} <= registered
    assert sum(" --with " in name for name in NAMES) == 19
