"""The files that a configuration names are a part of a run: recorded, compared, accepted by name, said."""

from __future__ import annotations

import json
import re
import shutil
import sys
from pathlib import Path

import pytest
from ruamel.yaml import YAML

import coterie
from coterie.api.checkpoints import find_checkpoint
from coterie.api.export import model_card
from coterie.api.run_record import RunRecord, load_run, read_record
from coterie.core.errors import ConfigError, RunFolderError
from tests.api.test_resume import record, started
from tests.cli.support import coterie as command

RECIPE = """
env: {type: team_task, path: records.jsonl, fields: [question], id_field: id}
team:
  order: [solver]
  roles: {solver: {type: template, policy: shared, prompt: "{{ question }}"}}
policies:
  shared:
    model: {init: qwen3, hidden_size: 8, layers: 1, heads: 1, head_dim: 8, mlp_size: 8, tokenizer: bytes}
    train: full
sampler: {chains: 2, branches: 1, sampling: {max_new_tokens: 2}}
algorithm: grpo
schedule: {steps: 1, tasks_per_step: 1, evaluate_every: 1, evaluate_tasks: 1}
"""
SHA = re.compile(r"[0-9a-f]{64}")


def records(file: Path, more: int = 0) -> Path:
    rows = [{"id": f"q{n}", "question": f"{n} + 1?", "answer": n + 1 + more} for n in range(30)]
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """The folder of a project whose recipe names its records by a relative path."""
    place = tmp_path_factory.mktemp("place")
    records(place / "project" / "records.jsonl")
    (place / "project" / "recipe.yaml").write_text(RECIPE)
    return place


@pytest.fixture(scope="module")
def trained(place):
    """A run of these records that was started from another folder."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(place)
        coterie.train(place / "project" / "recipe.yaml", out=place / "run")
    return place / "run"


@pytest.fixture
def data(place):
    """The records, as they were at first."""
    return records(place / "project" / "records.jsonl")


@pytest.fixture
def folder(trained, data, tmp_path, monkeypatch):
    """A copy of the run; the working folder is that in which it was started."""
    monkeypatch.chdir(trained.parent)
    return Path(shutil.copytree(trained, tmp_path / "run"))


def resumed(folder: Path, *accepted, steps: int = 2, **options):
    return coterie.train(
        resume=folder, overrides=[f"schedule.steps={steps}"], accept_changes=accepted, **options
    )


# -------------------------------------------------------------------------------------------------- resume


def test_a_resume_on_replaced_answers_is_refused_with_setting_file_and_digests(folder, data):
    before = record(folder)["files"]["env.path"]
    assert before["path"] == str(data) and SHA.fullmatch(before["sha256"])
    records(data, more=1)
    with pytest.raises(RunFolderError, match="a file has changed since the run began") as error:
        resumed(folder)
    assert error.value.path == "env.path" and "--accept-changes env.path" in error.value.fix
    assert re.search(rf"env.path: {data} \({before['sha256'][:12]} -> [0-9a-f]{{12}}\)", error.value.why)
    assert record(folder)["files"]["env.path"] == before, "a refused resume changes nothing"
    records(data)
    assert resumed(folder).step == 2, "the old content is back"


@pytest.mark.parametrize("name", ["env.path", "records.jsonl", "the whole path", "project/records.jsonl"])
def test_a_change_is_accepted_by_its_setting_or_its_file_and_recorded_with_the_step(folder, data, name):
    before, digest = record(folder)["files"]["env.path"]["sha256"], coterie.load(folder).digest()
    records(data, more=1)
    assert resumed(folder, str(data) if name == "the whole path" else name).step == 2
    after = record(folder)["files"]["env.path"]["sha256"]
    assert after != before and coterie.load(folder).digest() != digest
    (change,) = record(folder)["changes"]
    assert change["step"] == 2
    assert change["settings"]["env.path"] == [f"{data} ({before[:12]})", f"{data} ({after[:12]})"]
    assert resumed(folder, steps=3).step == 3, "accepted once"


def test_several_changes_are_accepted_one_by_one(folder, data):
    for split in ("train", "val"):
        records(data.parent / f"{split}.jsonl", more={"train": 0, "val": 100}[split])
    table = YAML(typ="safe").load(RECIPE)
    del table["env"]["path"]
    table["env"] |= {split: str(data.parent / f"{split}.jsonl") for split in ("train", "val")}
    table["env"]["fields"] = ["question", "answer"]
    table["env"]["answer_field"] = None
    table["env"]["success"] = "tests.api.test_changed_files:never"
    two = folder.parent / "two"
    coterie.train(table, out=two)
    for split in ("train", "val"):
        records(data.parent / f"{split}.jsonl", more={"train": 200, "val": 300}[split])
    with pytest.raises(RunFolderError, match="2 files have changed"):
        resumed(two)
    with pytest.raises(RunFolderError, match="a file has changed") as error:
        resumed(two, "train.jsonl")
    assert error.value.path == "env.val" and "env.train" not in error.value.why
    assert resumed(two, "train.jsonl", "env.val").step == 2


def never(record, transcript):
    return 0.0


def test_a_name_that_is_none_of_the_run_is_told(folder):
    with pytest.raises(ConfigError, match=r"'record\.jsonl' is no file of this run") as error:
        resumed(folder, "record.jsonl")
    assert error.value.path == "--accept-changes" and "records.jsonl" in error.value.fix


def test_a_new_run_has_no_changes_to_accept(data, tmp_path):
    done = command(
        "run", data.parent / "recipe.yaml", "--accept-changes", "env.path", "--out", tmp_path / "a"
    )
    assert done.exit_code == 2 and "--accept-changes is for a resumed run" in done.stderr


def test_a_moved_file_with_equal_content_is_no_change(folder, data):
    moved = data.parents[1] / "elsewhere" / "tasks.jsonl"
    moved.parent.mkdir()
    digest = coterie.load(folder).digest()
    shutil.move(data, moved)
    overrides = ["schedule.steps=2", f"env.path={moved}"]
    assert coterie.train(resume=folder, overrides=overrides).step == 2
    assert "env.path" not in str(record(folder)["changes"])
    assert record(folder)["files"]["env.path"]["path"] == str(moved)
    assert resumed(folder, steps=3).step == 3, "the folder knows the new place"
    assert coterie.load(folder, overrides=["schedule.steps=1"]).digest() == digest


def test_another_file_with_another_content_is_the_change_of_a_setting(folder, data):
    other = records(data.parent / "other.jsonl", more=1)
    overrides = ["schedule.steps=2", f"env.path={other}"]
    with pytest.raises(RunFolderError, match="can't change its configuration") as error:
        coterie.train(resume=folder, overrides=overrides, accept_changes=["env.path"])
    assert error.value.path == "env.path" and "--allow-change" in error.value.fix
    assert coterie.train(resume=folder, overrides=overrides, allow_change=True).step == 2


def test_a_run_without_digests_is_told_once(folder, data, caplog):
    path = folder / "resolved.yaml"
    table = YAML(typ="safe").load(path.read_text())
    table["files"] = {}
    with path.open("w") as file:
        YAML(typ="safe").dump(table, file)
    records(data, more=1)
    assert resumed(folder).step == 2
    assert "doesn't say what the run read (env.path)" in caplog.text
    caplog.clear()
    assert resumed(folder, steps=3).step == 3
    assert "doesn't say" not in caplog.text
    records(data, more=2)
    with pytest.raises(RunFolderError, match="has changed"):
        resumed(folder, steps=4)


@pytest.fixture
def judged(tmp_path, monkeypatch):
    """A run with a reward of a function beside its recipe, and the function's file."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.delitem(sys.modules, "my_length", raising=False)
    file = tmp_path / "code" / "my_length.py"
    file.parent.mkdir()
    file.write_text("def short(view):\n    return 0.5\n\n\nlong = short\n")
    (file.parent / "overlay.yaml").write_text(
        "rewards: {environment: {}, short: {type: function, function: 'my_length:short'}}\n"
    )
    coterie.train(
        "tests/recipes/matrix.yaml",
        overlays=[str(file.parent / "overlay.yaml")],
        overrides=["schedule.steps=2"],
        out=tmp_path / "run",
    )
    yield tmp_path / "run", file
    sys.modules.pop("my_length", None)


def test_the_file_of_a_function_is_compared(judged):
    folder, file = judged
    assert record(folder)["files"]["rewards.short.function"]["path"] == str(file)
    digest = coterie.load(folder).digest()
    file.write_text("def short(view):\n    return 0.25\n")
    assert coterie.load(folder).digest() == digest, "a configuration's digest is of no code"
    with pytest.raises(RunFolderError, match="has changed") as error:
        resumed(folder, steps=3)
    assert error.value.path == "rewards.short.function" and str(file) in error.value.why
    assert resumed(folder, "my_length.py", steps=3).step == 3


def test_another_function_of_the_same_file_is_the_change_of_a_setting(judged):
    folder, _ = judged
    with pytest.raises(RunFolderError, match="can't change its configuration") as error:
        coterie.train(resume=folder, overrides=["rewards.short.function=my_length:long", "schedule.steps=3"])
    assert error.value.path == "rewards.short.function"


def test_a_function_beside_its_recipe_is_found_from_any_folder(judged, tmp_path, monkeypatch):
    folder, file = judged
    sys.path[:] = [place for place in sys.path if place != str(file.parent)]
    del sys.modules["my_length"]
    monkeypatch.chdir("/")
    assert resumed(folder, steps=3).step == 3
    assert Path(sys.modules["my_length"].__file__) == file


# ---------------------------------------------------------------------------------------------- evaluation


def test_an_evaluation_says_that_it_reads_other_contents_and_holds_all_digests(folder, data):
    before, now = record(folder)["files"]["env.path"]["sha256"], coterie.load(folder).digest()
    same = command("eval", folder, "--split", "val", "--tasks", "1", "--samples", "2", "--greedy", "--json")
    assert "reads other contents" not in same.stderr
    result = json.loads(same.stdout)
    assert [result[key] for key in ("checkpoint", "split", "samples", "greedy", "seed")] == [
        1,
        "val",
        2,
        True,
        0,
    ]
    assert result["versions"]["coterie"] and result["versions"]["torch"]
    assert result["files"]["env.path"] == {"path": str(data), "sha256": before}
    assert result["config_digest"] == now and "changed_files" not in result
    records(data, more=1)
    other = command("eval", folder, "--split", "val", "--tasks", "1", "--json")
    assert other.stderr.count("reads other contents than the run: env.path:") == 1
    result = json.loads(other.stdout)
    after = result["files"]["env.path"]["sha256"]
    assert result["changed_files"] == {"env.path": [before, after]} and after != before
    assert result["config_digest"] != now


def test_an_earlier_checkpoint_has_the_digests_of_its_step(folder, data, tmp_path):
    before = record(folder)["files"]["env.path"]
    records(data, more=1)
    resumed(folder, "env.path")
    after = record(folder)["files"]["env.path"]
    kept = read_record(folder)
    assert kept.at(1).files["env.path"] == before and not kept.at(1).changes
    assert kept.at(2) == kept and kept.files["env.path"] == after
    for step, changed in ((1, {"env.path": [before["sha256"], after["sha256"]]}), (2, None)):
        result = json.loads(command("eval", f"{folder}@{step}", "--tasks", "1", "--json").stdout)
        assert result["checkpoint"] == step and result.get("changed_files") == changed
    for checkpoint in find_checkpoint(folder, 1), find_checkpoint(folder, 2):
        card = model_card(load_run(folder), kept, folder, checkpoint, "shared")
        assert (before["sha256"] in card) == (checkpoint.step == 1) == ("changed at step" not in card)


def test_a_change_whose_steps_were_discarded_is_no_part_of_an_earlier_checkpoint():
    """Steps 21 on read b; then the run went on from step 10 with c."""
    a, b, c = ({"path": "x", "sha256": letter} for letter in "abc")
    changes = [
        {"step": step, "settings": {}, "versions": {"lib": versions}, "files": {"env.path": files}}
        for step, versions, files in ((21, ["1", "2"], [a, b]), (11, ["2", "3"], [b, c]))
    ]
    record = RunRecord({}, {}, {"lib": "3"}, {}, {"env.path": c}, changes)
    for step, files, version in ((30, c, "3"), (15, c, "3"), (10, a, "1")):
        assert (record.at(step).files["env.path"], record.at(step).versions["lib"]) == (files, version)


def test_an_evaluation_of_a_run_without_digests_says_so(folder, caplog):
    (folder / "resolved.yaml").unlink()
    coterie.evaluate(folder, split="val", tasks=1)
    assert "the run has no digests of what it read (env.path)" in caplog.text


def test_the_evaluations_of_a_run_hold_the_facts(folder):
    result = json.loads((folder / "eval" / "step-000001.json").read_text())
    assert [result[key] for key in ("checkpoint", "split", "samples", "greedy", "seed")] == [
        1,
        "val",
        1,
        False,
        0,
    ]
    assert result["files"] == record(folder)["files"] and result["versions"] == record(folder)["versions"]


@pytest.mark.parametrize("content", ["", "a,b\n1,2\n", "[]"])
@pytest.mark.parametrize("name", ["plan", "config", "run"])
def test_a_file_that_holds_no_records_is_refused_by_every_command(data, name, content):
    data.write_text(content)
    done = command(
        name, data.parent / "recipe.yaml", *(("--out", data.parent / "run") if name == "run" else ())
    )
    assert done.exit_code == 2 and "records.jsonl" in done.stderr and "fix:" in done.stderr


@pytest.mark.parametrize("content", ["", "a,b\n1,2\n", "{}\n"])
@pytest.mark.parametrize("name", ["plan", "config"])
@pytest.mark.parametrize("recipe", ["math_single", "grpo_mbpp"])
def test_so_is_one_of_mathematics_and_of_code(tmp_path, recipe, name, content):
    (wrong := tmp_path / "records.jsonl").write_text(content)
    file = f"{{file: '{wrong}'}}"
    named = [f"env.{split}={file}" for split in ("train", "val", "test")]
    if recipe == "grpo_mbpp":
        named = [f"data={{type: jsonl, train: '{wrong}', val: '{wrong}', test: '{wrong}'}}"]
    done = command(name, recipe, *named)
    assert done.exit_code == 2 and "records.jsonl" in done.stderr, done.stderr


@pytest.mark.parametrize("name", ["plan", "config"])
def test_records_that_are_not_here_are_no_fault_of_a_configuration(tmp_path, name):
    """It may be of a run on another machine; what a plan counts must be here."""
    file = f"{{file: '{tmp_path / 'elsewhere.jsonl'}'}}"
    done = command(name, "math_single", *(f"env.{split}={file}" for split in ("train", "val", "test")))
    if name == "config":
        assert done.exit_code == 0, done.stderr
    else:
        assert done.exit_code == 2 and "no such file" in done.stderr and "elsewhere" in done.stderr


def test_an_untrained_team_has_no_checkpoint():
    result = coterie.evaluate("tests/recipes/matrix.yaml", tasks=1).as_dict()
    assert result["checkpoint"] is None and result["versions"]["coterie"]


def test_a_finished_run_evaluates_and_resumes_from_any_folder(folder, monkeypatch):
    monkeypatch.chdir("/")
    assert coterie.evaluate(folder, split="val", tasks=1).success.n == 1
    assert resumed(folder).step == 2


def test_a_run_that_names_no_file_has_no_digests_of_data(tmp_path):
    files = record(started(tmp_path / "run"))["files"]
    assert list(files) == ["env.type"], "the module of the tests' own environment"
