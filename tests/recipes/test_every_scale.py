"""`every_scale` of a recipe: a block that applies on top of every scale."""

from __future__ import annotations

import pytest

from coterie.core.errors import ConfigError
from coterie.recipes import load

BASE = """
env: {type: plan_path, size: 5}
team: {order: [solver], roles: {solver: {type: plan_path_solver, policy: p}}}
policies: {p: {model: {init: none}, train: none}}
algorithm: at_grpo
schedule: {steps: 3}
scales:
  smoke: {schedule: {steps: 1, tasks_per_step: 2}}
every_scale: {schedule: {tasks_per_step: 5}}
"""


@pytest.fixture
def files(tmp_path):
    (tmp_path / "base.yaml").write_text(BASE)
    (tmp_path / "child.yaml").write_text(
        "extends: base.yaml\nevery_scale: {policies: {p: null, q: {model: {init: tabular}}},\n"
        "  team: {roles: {solver: {policy: q}}}}\n"
    )
    return tmp_path


def test_every_scale_takes_precedence_over_scales_and_is_inherited(files):
    for scale, steps in ((None, 3), ("smoke", 1)):
        schedule = load(files / "base.yaml", scale=scale).config.schedule
        assert (schedule.steps, schedule.tasks_per_step) == (steps, 5)
        child = load(files / "child.yaml", scale=scale)
        assert (child.config.schedule.steps, child.config.schedule.tasks_per_step) == (steps, 5)
        assert list(child.config.policies) == ["q"], "null removes an entry in a scale too"


def test_the_configuration_that_a_run_writes_is_complete_without_it(files):
    resolved = load(files / "child.yaml", scale="smoke")
    (files / "again.yaml").write_text(resolved.text())
    assert "every_scale" not in resolved.text()
    assert load(files / "again.yaml").digest() == resolved.digest()


@pytest.mark.parametrize(
    ("block", "path"),
    [("3", "every_scale"), ("[a]", "every_scale"), ("{schedul: {steps: 1}}", "schedul"),
     ("{scales: {cpu: {}}}", "scales")],
)  # fmt: skip
def test_a_wrong_every_scale_is_refused_with_its_path(files, block, path):
    (files / "wrong.yaml").write_text(f"extends: base.yaml\nevery_scale: {block}\n")
    with pytest.raises(ConfigError) as refused:
        load(files / "wrong.yaml")
    assert refused.value.path == path
