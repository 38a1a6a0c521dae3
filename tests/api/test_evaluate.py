"""`coterie.evaluate`: arguments that would be taken for something else."""

from __future__ import annotations

import pytest

from coterie import evaluate, train
from coterie.core.errors import ConfigError
from tests.cli.support import TABULAR, coterie


@pytest.mark.parametrize(
    ("arguments", "fix"),
    [
        ({"null": "planner"}, "null=['planner']"),
        ({"swap": "planner"}, "swap=('planner', 'executor')"),
        ({"policies": "runs/a"}, "policies={'planner'"),
        ({"policies": ["planner"]}, "policies={'planner'"),
        ({"overrides": "seed=1"}, "overrides=['seed=1']"),
    ],
)
def test_one_text_in_place_of_a_list_is_told(arguments, fix):
    with pytest.raises(ConfigError) as error:
        evaluate(TABULAR, tasks=1, **arguments)
    assert error.value.path == next(iter(arguments)) and fix in error.value.fix


def test_overlays_that_change_a_runs_policies_are_told(tmp_path):
    train(TABULAR, overrides=["schedule.steps=0"], out=tmp_path / "a")
    done = coterie("eval", tmp_path / "a", "--with", "per_role", "--tasks", "2")
    assert done.exit_code == 2
    assert "--with: the checkpoint of" in done.stderr and "has other policies" in done.stderr
    assert "trained with shared, and the settings here make executor, planner" in done.stderr


def test_a_shorter_schedule_of_a_finished_run_is_no_fraction(tmp_path):
    train(TABULAR, overrides=["schedule.steps=2"], out=tmp_path / "a")
    done = coterie("run", "--resume", tmp_path / "a", "schedule.steps=1")
    assert "2/1" not in done.stdout and "step 2, more than schedule.steps=1" in done.stdout


def test_settings_of_tensors_on_a_table_are_said(tmp_path, caplog):
    overrides = ["schedule.steps=0", "policies.shared.dtype=bfloat16"]
    train(TABULAR, overrides=overrides, out=tmp_path / "a")
    assert "policies.shared.dtype has no effect" in caplog.text


def test_a_reward_of_the_team_is_the_teams_and_no_roles():
    """Also where the last stage's role is the one that is there when it is paid."""
    result = evaluate(TABULAR, tasks=4)
    assert "score/team/goal" in result.metrics
    assert {"score/legal", "faults/policy", "reward"} <= result.roles["executor"].keys()
    for role in ("planner", "executor"):
        assert not {"score/goal", "score/team/goal"} & result.roles[role].keys()
        assert not [name for name in result.metrics if f"/{role}" in name], "a role's are with the role"
    assert "faults/policy" in result.metrics, "the count of all roles"
