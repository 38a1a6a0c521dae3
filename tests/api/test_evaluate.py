"""`coterie.evaluate`: arguments that would be taken for something else."""

from __future__ import annotations

import json

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


@pytest.fixture(scope="module")
def two_steps(tmp_path_factory):
    """A run with checkpoints of the steps 0, 2 and 4."""
    folder = tmp_path_factory.mktemp("runs") / "a"
    train("tests/recipes/matrix.yaml", overrides=["schedule.keep_checkpoints=9"], out=folder)
    return folder


@pytest.mark.parametrize(("named", "step"), [("@0", 0), ("@2", 2), ("@latest", 4), ("", None)])
def test_a_run_is_evaluated_at_the_step_that_its_address_names(two_steps, named, step):
    done = coterie("eval", f"{two_steps}{named}", "--tasks", "2", "--json")
    assert done.exit_code == 0, done.stderr
    best = json.loads((two_steps / "checkpoints" / "best.json").read_text())["step"]
    assert json.loads(done.stdout)["checkpoint"] == (best if step is None else step)
    assert evaluate(f"{two_steps}@best", tasks=2).facts["checkpoint"] == best


@pytest.mark.parametrize(
    ("named", "options", "told"),
    [
        ("@3", (), "no checkpoint of step 3"),
        ("@3", (), "0, 2, 4"),
        ("@bset", (), "'bset' is no checkpoint of"),
        ("@2:row", (), "names one policy, and a whole team is evaluated"),
        ("@2", ("--checkpoint", "4"), "RUN_DIR says @2"),
    ],
)
def test_an_address_that_names_no_checkpoint_is_told(two_steps, named, options, told):
    done = coterie("eval", f"{two_steps}{named}", "--tasks", "1", *options)
    assert done.exit_code == 2 and told in done.stderr
