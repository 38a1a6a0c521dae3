"""The package as a whole: its hooks, and the run of its recipe."""

import example_module

from coterie import train
from coterie.testing import check_plugin


def test_the_hooks_register_sound_plugins():
    check_plugin(example_module)


def test_the_smoke_recipe_runs(tmp_path):
    result = train("example-name-smoke", overrides=["schedule.steps=2"], out=tmp_path / "run")
    assert result.finished and result.step == 2
