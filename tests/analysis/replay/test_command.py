"""`coterie replay`: what it prints, its exit codes, its errors, and credit by other rules."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

import coterie as package
from coterie.analysis.records import check_rows
from coterie.api.rollouts import read_rollouts, write_rollouts
from tests.analysis.replay.support import SCRIPTED, TABULAR, table, trained
from tests.cli.support import anew, coterie


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trained(tmp_path_factory.mktemp("command") / "run", table(engine=SCRIPTED))


def test_an_equal_replay(run: Path) -> None:
    done = coterie("replay", run, "--all")
    assert done.exit_code == 0, done.output
    assert "the replay of 3 steps equals the record, bit for bit" in done.stdout
    assert "taken from the record, not compared" in done.stdout and "sampled tokens" in done.stdout
    told = json.loads(coterie("replay", run, "--json").stdout)
    assert told["same"] and told["steps"] == [3] and told["first"] is None and told["equal"]["trees"] == 2


def test_a_difference_is_printed_and_the_exit_code_is_1(run: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(run, folder)
    file = folder / "rollouts" / "step-000002.jsonl.gz"
    rows = read_rollouts(file)
    row = next(row for row in rows if row["kind"] == "joint")
    row["scores"]["team.team"] += 0.5
    write_rollouts(file, rows)
    done = coterie("replay", folder, "--all")
    assert done.exit_code == 1, done.output
    assert "the replay differs from the record" in done.stdout
    assert f"first at step 2, task {row['task_id']} (epoch 0, chain 0), node n, turn 1" in done.stdout
    assert "scores.team.team" in done.stdout and f"recorded  {row['scores']['team.team']}" in done.stdout
    told = json.loads(coterie("replay", folder, "--step", "2", "--json").stdout)
    assert (
        not told["same"]
        and told["first"]["field"] == "scores.team.team"
        and told["first"]["joint"] == row["joint"]
    )
    assert coterie("replay", folder, "--step", "3").exit_code == 0


def test_mistakes(run: Path, tmp_path: Path) -> None:
    for arguments, text in (
        (("--step", "9"), "step 9 of"),
        (("--step", "1", "--all"), "--step and --all"),
        (("--again", "judge"), "nothing that can be asked again is called 'judge'"),
        (("--estimator", "gropo"), "did you mean 'grpo'"),
        (("--estimator", "gae"), "gae needs whole chains"),
        (("--estimator", "gae"), "what was played doesn't change"),
        (("--reward", "judg.floor=1"), "no reward source 'judg'"),
        (("--reward", "judge"), "write NAME.key=value"),
        (("--weights", "judge"), "'judge' is no weight"),
        (("--weights", "jud=1"), "no reward source scores a component 'jud'"),
        (("-o", tmp_path / "x.parquet"), "there is nothing to write"),
        (("-o", tmp_path / "x.csv", "--weights", "judge=1"), "neither Parquet nor JSON lines"),
        (
            ("-o", tmp_path / "no" / "x.jsonl", "--weights", "judge=1"),
            f"there is no folder {tmp_path / 'no'}",
        ),
    ):
        done = coterie("replay", run, *arguments)
        assert done.exit_code == 2 and text in done.output.replace("\n", " "), (arguments, done.output)
        assert "fix" in done.output and "Traceback" not in done.output
    assert "is not a run folder" in coterie("replay", tmp_path / "none").output


def test_a_warning_of_every_step_is_told_once(run: Path, caplog: pytest.LogCaptureFixture) -> None:
    estimator = "tests.analysis.replay.support:Counting"
    result = package.replay(run, every=True, estimator=estimator)
    assert result.other is not None and result.other.actions
    assert caplog.text.count("the estimator has 2 trees") == 1
    assert "keeps the loss" not in caplog.text, "a replay has no loss"


def test_files_that_are_gone_or_damaged(run: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(run, folder)
    file = folder / "rollouts" / "step-000003.jsonl.gz"
    file.write_bytes(file.read_bytes()[:-40])
    done = coterie("replay", folder)
    assert done.exit_code == 2 and "is damaged" in done.output
    rows = read_rollouts(run / "rollouts" / "step-000003.jsonl.gz")
    del rows[4]["node"]
    write_rollouts(file, rows)
    done = coterie("replay", folder)
    assert done.exit_code == 2 and "line 5 has no field 'node'" in done.output
    file.unlink()
    done = coterie("replay", folder, "--all", "--json")
    assert done.exit_code == 0 and json.loads(done.stdout)["lacking"] == [3]
    assert package.replay(folder).lacking == [3]
    shutil.rmtree(folder / "rollouts")
    assert "has no rollout files" in coterie("replay", folder).output
    config = folder / "config.yaml"
    config.write_text(config.read_text().replace("record_every: 1\n", "record_every: 10\n"))
    assert "schedule.record_every is 10" in coterie("replay", folder).output


def test_a_run_that_recorded_nothing(tmp_path: Path) -> None:
    source = table(
        engine=SCRIPTED, schedule={"steps": 1, "tasks_per_step": 1, "max_missing": 1, "record_every": 0}
    )
    done = coterie("replay", trained(tmp_path / "run", source))
    assert done.exit_code == 2 and "schedule.record_every is 0" in done.output


PLUGIN = """
import coterie


@coterie.hookimpl
def register_rewards(register):
    register("mine", "my_reward:Mine")


class Mine:
    scope, components, weights, policy_fault = "joint", {"mine": "increment"}, {}, 0.0

    def __init__(self, config, build):
        pass

    async def score(self, view):
        if view.turn:
            raise ValueError("no score")
        return {(coterie.TEAM, "mine"): 1.0}
"""


def test_a_plugin_file_that_changed_is_named_and_what_follows_is_located(tmp_path: Path) -> None:
    plugin, file = tmp_path / "my_reward.py", tmp_path / "run.yaml"
    plugin.write_text(PLUGIN)
    source = yaml.safe_load(TABULAR.read_text())
    source["rewards"] = {"environment": {"type": "environment"}, "mine": {"type": "mine"}}
    source["schedule"] = {"steps": 1, "tasks_per_step": 1, "max_missing": 1}
    file.write_text(yaml.safe_dump(source))
    ran = anew("run", file, "-p", plugin, "-o", tmp_path / "run")
    assert ran.exit_code == 0, ran.stderr
    plugin.write_text(PLUGIN.replace("1.0", "2.0"))
    done = anew("replay", tmp_path / "run")
    assert done.exit_code == 1, done.output
    assert done.stderr.count("my_reward.py") == 1 and "scores.team.mine" in done.stdout
    assert "recorded  1.0" in done.stdout and "replayed  2.0" in done.stdout
    checked = anew("credit", tmp_path / "run", "--check")
    assert "the check plays with other files or packages than the run: " in checked.stderr
    moved = tmp_path / "elsewhere" / "my_reward.py"  # the reasons of missing scores name the file
    moved.parent.mkdir()
    moved.write_text(PLUGIN)
    plugin.unlink()
    done = anew("replay", tmp_path / "run", "-p", moved)
    assert done.exit_code == 0, done.output


def test_other_weights_change_credit_as_the_formula_says(run: Path, tmp_path: Path) -> None:
    """AT-GRPO's advantage is linear in the weights before it is divided by the deviation."""
    out = tmp_path / "credit.parquet"
    done = coterie("replay", run, "--all", "--weights", "judge=-1.5", "-o", out, "--json")
    assert done.exit_code == 0, done.output
    other = json.loads(done.stdout)["other"]
    rows = pytest.importorskip("pyarrow.parquet").read_table(out).to_pylist()
    assert other["changes"] == ["weight judge=-1.5"] and other["start"] == "none"
    assert sum(row["actions"] for row in other["table"]) == len(
        [r for r in rows if r["advantage"] is not None]
    )
    signs = [
        row for row in rows if row["advantage"] is not None and row["advantage"] * row["other_advantage"] < 0
    ]
    assert len(signs) == sum(row["flipped"] for row in other["table"]) > 3
    groups: dict[tuple[object, ...], list[dict[str, float]]] = {}
    for row in rows:
        groups.setdefault((row["step"], row["node"], row["role"]), []).append(row)
    for group in groups.values():  # the whole rule again, by hand
        rewards = np.array([row["other_reward"] for row in group])
        wanted = rewards - rewards.mean()
        deviation = rewards.std(ddof=1) if len(rewards) > 1 else 0.0
        for row, value in zip(group, wanted / deviation if deviation > 1e-9 else wanted * 0, strict=True):
            assert row["other_advantage"] == pytest.approx(value, rel=1e-3, abs=1e-6)
    same = package.replay(run, every=True, weights={"judge": 1.5})
    assert same.other is not None and all(
        row["advantage"] == row["other_advantage"] for row in same.other.actions
    )


def test_another_estimator_and_another_setting_of_a_reward(run: Path) -> None:
    result = package.replay(run, every=True, estimator="at_grpo,alpha=0.5")
    assert result.same and result.other is not None and result.other.table[0].mean_change > 0
    floor = package.replay(run, every=True, rewards=["judge.floor=-9"])
    assert floor.same and floor.other is not None
    before = {row["node"]: row["reward"] for row in floor.other.actions}
    after = {row["node"]: row["other_reward"] for row in floor.other.actions}
    assert before != after and min(value for value in after.values() if value is not None) < -9


def test_a_checkpoint_whose_state_was_changed(run: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(run, folder)
    manifest = folder / "checkpoints" / "step-000003" / "manifest.json"
    manifest.write_text(manifest.read_text().replace('"credit_state": null', '"credit_state": 3'))
    first = package.replay(folder).first
    assert first is not None and (first.step, first.field) == (3, "checkpoint")
    assert "checksum" in first.recorded


@pytest.mark.parametrize(("path", "value", "text"), [
    (("calls", 0, "logprobs"), [], "tokens and 0 log-probs"),
    (("calls", 0, "token_ids", 0), None, "an entry of 'token_ids' is no token id"),
    (("calls", 0, "finish"), None, "the field 'finish' is None"),
    (("version",), "new", "the field 'version' is 'new'"),
    (("policy",), ..., "has no field 'policy'"),
    (("tool_results",), ..., "has no field 'tool_results'"),
    (("advantage",), ..., "has no field 'advantage'"),
])  # fmt: skip
def test_a_row_of_another_shape(path: tuple[Any, ...], value: Any, text: str, run: Path) -> None:
    rows = read_rollouts(run / "rollouts" / "step-000001.jsonl.gz")
    at = next(index for index, row in enumerate(rows) if row["kind"] == "branch")
    inner: Any = rows[at]
    for name in path[:-1]:
        inner = inner[name]
    if value is ...:
        del inner[path[-1]]
    else:
        inner[path[-1]] = value
    with pytest.raises(package.RunFolderError, match="is damaged") as raised:
        check_rows(rows, Path("file"))
    assert text in str(raised.value) and f"line {at + 1}" in str(raised.value)


def test_a_second_first_row(run: Path) -> None:
    rows = read_rollouts(run / "rollouts" / "step-000001.jsonl.gz")
    check_rows(rows, Path("file"))
    with pytest.raises(package.RunFolderError, match="is damaged") as raised:
        check_rows([*rows, rows[0]], Path("file"))
    assert "is a second row of kind 'step'" in str(raised.value)
