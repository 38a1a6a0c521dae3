"""The overlay: what a recipe under it becomes."""

from coterie import load


def test_it_goes_over_a_recipe():
    config = load("example-name-smoke", overlays=["example_name"]).config
    assert config.sampler["sampling"]["temperature"] == 1.2
    assert config.schedule.checkpoint_every == 2
