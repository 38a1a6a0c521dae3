"""What a resumed run may change: said, recorded, and bit-equal where that is promised."""

from __future__ import annotations

import shutil
import tempfile
import textwrap
from functools import cache
from pathlib import Path

import pytest
from ruamel.yaml import YAML

import coterie
from coterie.api.checkpoints import CheckpointStore
from coterie.api.run_record import RunRecord
from coterie.core.errors import ConfigError, RunFolderError
from tests.cli.support import anew
from tests.test_resume import rows, same, weights

MATRIX = str(Path(__file__).parents[1] / "recipes" / "matrix.yaml")


@cache
def first_steps(steps: int, *overrides: str) -> tempfile.TemporaryDirectory[str]:
    """The folder of a run, made once."""
    kept = tempfile.TemporaryDirectory()
    coterie.train(MATRIX, overrides=[f"schedule.steps={steps}", *overrides], out=Path(kept.name, "run"))
    return kept


def started(folder: Path, *overrides: str, steps: int = 2) -> Path:
    """A copy of a run of so many steps."""
    shutil.copytree(Path(first_steps(steps, *overrides).name, "run"), folder)
    return folder


def record(folder: Path) -> dict:
    return YAML(typ="safe").load((folder / "resolved.yaml").read_text())


# ---------------------------------------------------------------------------------------------- the record


def test_the_record_has_every_default_and_the_versions(tmp_path):
    resolved = record(started(tmp_path / "run"))
    config = YAML(typ="safe").load((tmp_path / "run" / "config.yaml").read_text())
    assert "chains" not in config["sampler"] and resolved["settings"]["sampler"]["chains"] == 1
    assert resolved["settings"]["sampler"]["sampling"]["max_new_tokens"] == 1
    assert resolved["settings"]["trainer"]["learning_rate"] == 2.0
    assert resolved["settings"]["rewards"]["environment"]["weights"]
    assert resolved["versions"]["coterie"] and resolved["versions"]["python"]
    assert resolved["components"]["sampler"] == "sampler 'tree' of coterie"
    assert resolved["changes"] == []


def test_the_record_is_no_part_of_the_digest(tmp_path):
    folder = started(tmp_path / "run")
    checkpoint = CheckpointStore(folder / "checkpoints", keep=9).latest()
    assert checkpoint.meta["config_digest"] == coterie.load(folder).digest()
    assert coterie.load(folder).digest() == coterie.load(MATRIX, overrides=["schedule.steps=2"]).digest()


def test_a_folder_without_a_record_resumes_and_gets_one(tmp_path):
    whole, folder = started(tmp_path / "whole", steps=3), started(tmp_path / "run")
    (folder / "resolved.yaml").unlink()
    coterie.train(resume=folder, overrides=["schedule.steps=3"])
    same(whole, folder)
    assert record(folder)["settings"]["sampler"]["chains"] == 1


def test_a_damaged_record_is_told_and_the_run_resumes(tmp_path, caplog):
    folder = started(tmp_path / "run")
    (folder / "resolved.yaml").write_text("settings: [")
    assert coterie.train(resume=folder, overrides=["schedule.steps=3"]).step == 3
    assert "resolved.yaml is damaged" in caplog.text


@pytest.mark.parametrize(
    "restated",
    ["sampler.sampling.temperature=null", "trainer.epochs=1", "team.max_turns=1"],
)
def test_a_restated_default_is_no_change(tmp_path, restated, caplog):
    folder = started(tmp_path / "run")
    assert coterie.train(resume=folder, overrides=["schedule.steps=3", restated]).step == 3
    assert restated.partition("=")[0] not in caplog.text


@pytest.mark.parametrize("deterministic", ["true", "false"])
def test_whether_results_must_repeat_cannot_change(tmp_path, deterministic):
    folder = started(tmp_path / "run")
    with pytest.raises(RunFolderError, match="can't change") as error:
        coterie.train(resume=folder, overrides=[f"deterministic={deterministic}"])
    assert error.value.path == "deterministic"


def test_a_default_that_is_restated_as_another_value_is_refused(tmp_path):
    folder = started(tmp_path / "run")
    with pytest.raises(RunFolderError, match="can't change") as error:
        coterie.train(resume=folder, overrides=["sampler.chains=2"])
    assert error.value.path == "sampler.chains" and "1 -> 2" in error.value.why


# ------------------------------------------------------------------------------------------- what may change


@pytest.mark.parametrize(
    "change",
    ["schedule.evaluate_every=1", "schedule.checkpoint_every=1", "schedule.record_every=2"],
)
def test_reports_may_change_and_the_steps_stay_bit_equal(tmp_path, change, caplog):
    whole, folder = started(tmp_path / "whole", steps=4), started(tmp_path / "run")
    coterie.train(resume=folder, overrides=["schedule.steps=4", change])
    assert weights(whole) == weights(folder)

    def trained(path):
        return [{key: row[key] for key in row if not key.startswith("eval/")} for row in rows(path)]

    assert trained(whole) == trained(folder)
    path, _, after = change.partition("=")
    assert f"from step 3 on, {path}: " in caplog.text and f"-> {after}" in caplog.text
    assert "bit-equal" not in caplog.text
    (entry,) = record(folder)["changes"]
    assert entry["step"] == 3 and entry["settings"][path][1] == int(after)
    assert str(after) in (folder / "config.yaml").read_text()
    caplog.clear()
    coterie.train(resume=folder, overrides=["schedule.steps=5"])
    assert path not in caplog.text, "the change is the configuration now"


def test_the_place_of_a_run_may_change_and_it_says_what_that_costs(tmp_path, caplog):
    folder = started(tmp_path / "run")
    coterie.train(resume=folder, overrides=["schedule.steps=3", "executor.max_live=2"])
    assert "from step 3 on, executor.max_live: 4096 -> 2" in caplog.text
    assert "from here on the run is not bit-equal to the uninterrupted one" in caplog.text


@pytest.mark.parametrize("change", ["trainer.learning_rate=0.5", "algorithm.alpha=0.5", "sampler.branches=2"])
def test_what_a_run_does_changes_only_where_that_is_asked_for(tmp_path, change, caplog):
    folder = started(tmp_path / "run")
    with pytest.raises(RunFolderError, match="can't change") as error:
        coterie.train(resume=folder, overrides=["schedule.steps=3", change])
    assert "--allow-change" in error.value.fix
    coterie.train(resume=folder, overrides=["schedule.steps=3", change], allow_change=True)
    assert "not bit-equal" in caplog.text and change.partition("=")[0] in caplog.text
    assert list(record(folder)["changes"][0]["settings"]) == [
        name for name in sorted([change.partition("=")[0], "schedule.steps"])
    ]
    assert coterie.train(resume=folder, overrides=["schedule.steps=4"]).step == 4


def test_a_resume_without_a_change_leaves_the_record_alone(tmp_path):
    folder = started(tmp_path / "run", "schedule.stop_after=1e-9", steps=3)
    before = (folder / "resolved.yaml").stat().st_mtime_ns
    coterie.train(resume=folder)
    assert (folder / "resolved.yaml").stat().st_mtime_ns == before


def test_a_changed_learning_rate_is_the_one_that_trains(tmp_path):
    still, folder = started(tmp_path / "still"), tmp_path / "run"
    shutil.copytree(still, folder)
    before = weights(folder)
    coterie.train(
        resume=folder, overrides=["schedule.steps=3", "trainer.learning_rate=1e-19"], allow_change=True
    )
    after = weights(folder)
    coterie.train(resume=still, overrides=["schedule.steps=3"])
    assert after != weights(still)
    assert {name: after[name] for name in ("row", "column")} == {
        name: before[name] for name in ("row", "column")
    }, "a rate this small rounds to no step"


@pytest.mark.parametrize(
    "change", ["policies.row.train=none", "seed=5", "loss.type=reinforce", "team.order=[row]"]
)
def test_what_the_checkpoint_is_made_for_never_changes(tmp_path, change):
    folder = started(tmp_path / "run")
    with pytest.raises(RunFolderError, match="can't change") as error:
        coterie.train(resume=folder, overrides=[change], allow_change=True)
    assert error.value.path == change.partition("=")[0] and "--allow-change" not in error.value.fix


def test_a_refused_change_leaves_the_folder_as_it_was(tmp_path):
    folder = started(tmp_path / "run")
    before = {path: path.read_bytes() for path in folder.glob("*.*")}
    for changes in (["sampler.branches=3"], ["schedule.steps=9", "sampler.branchs=3"]):
        with pytest.raises(coterie.UserError):
            coterie.train(resume=folder, overrides=changes, allow_change="branchs" in str(changes))
    assert before == {path: path.read_bytes() for path in folder.glob("*.*")}


def test_a_resume_that_fails_while_it_loads_changes_nothing(tmp_path, monkeypatch):
    from coterie.backends.trainers.tabular import TabularTrainer

    folder = started(tmp_path / "run")
    before = {path: path.read_bytes() for path in folder.glob("*.*")}

    async def broken(self, ctx):
        raise ConnectionError("no such device")

    with monkeypatch.context() as patch, pytest.raises(coterie.UserError, match="could not open"):
        patch.setattr(TabularTrainer, "open", broken)
        coterie.train(
            resume=folder, overrides=["schedule.steps=3", "executor.max_live=2", "trackers.jsonl=jsonl"]
        )
    assert before == {path: path.read_bytes() for path in folder.glob("*.*")}
    assert coterie.train(resume=folder, overrides=["schedule.steps=3"]).step == 3
    assert list(record(folder)["changes"][0]["settings"]) == ["schedule.steps"]


def test_an_unknown_key_is_told_as_one(tmp_path):
    folder = started(tmp_path / "run")
    with pytest.raises(ConfigError, match="unknown key 'max_batch'"):
        coterie.train(resume=folder, overrides=["engine.max_batch=3"])


def test_a_change_of_a_finished_run_says_that_it_has_no_effect(tmp_path, caplog):
    folder = started(tmp_path / "run")
    assert coterie.train(resume=folder, overrides=["executor.max_live=2"]).finished
    assert "the changed settings have no effect" in caplog.text and record(folder)["changes"] == []


def test_a_shorter_run_is_this_calls_alone(tmp_path):
    folder = started(tmp_path / "run", "schedule.stop_after=1e-9", steps=4)
    coterie.train(resume=folder, overrides=["schedule.stop_after=null", "schedule.steps=1"])
    assert record(folder)["changes"] == [
        {"step": 1, "settings": {"schedule.stop_after": [1e-9, None]}, "versions": {}}
    ]
    assert coterie.train(resume=folder).step == 4


def test_allow_change_is_for_a_resumed_run(tmp_path):
    with pytest.raises(ConfigError, match="resumed run"):
        coterie.train(MATRIX, out=tmp_path / "run", allow_change=True)
    assert not (tmp_path / "run").exists()


def test_the_record_is_there_before_the_folder_is_a_run(tmp_path, monkeypatch):
    """A kill between the two files must not forget the plugin files."""
    from coterie.api import run_files

    monkeypatch.setattr(run_files, "write_atomic", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        run_files.create_run(tmp_path, "", RunRecord({}, {}, {}))
    assert (tmp_path / "resolved.yaml").is_file() and not (tmp_path / "config.yaml").exists()


# ------------------------------------------------------------------------- defaults, versions, plugin files

PLUGIN = """
from typing import Annotated
import coterie

class Judge(coterie.Plugin):
    class Config(coterie.PluginConfig):
        bonus: float = {bonus}
        {more}
    scope = "joint"
    components = {{"judged": "increment"}}
    weights = {{"judged": {weight}}}
    policy_fault = 0.0
    async def score(self, view):
        return {{(coterie.TEAM, "judged"): self.config.bonus * len(view.actions["row"].text)}}

@coterie.hookimpl
def register_rewards(register):
    register("judge", Judge)
"""


def plugin(path: Path, bonus: float = 0.5, weight: float = 1.0, more: str = "") -> Path:
    path.parent.mkdir(exist_ok=True)
    path.write_text(textwrap.dedent(PLUGIN).format(bonus=bonus, weight=weight, more=more))
    return path


def command(*arguments, fails: bool = False) -> str:
    """What the command says, as a process of its own: it reads plugin files anew."""
    done = anew(*arguments)
    assert (done.exit_code != 0) == fails, done.output
    assert done.exception is None or isinstance(done.exception, SystemExit)
    return done.stderr


@pytest.fixture
def judged(tmp_path, monkeypatch):
    """A run with a plugin file, and the file."""
    file = plugin(tmp_path / "code" / "my_judge.py")
    judge = ["rewards.environment.type=environment", "rewards.judge.type=judge"]
    monkeypatch.chdir(file.parents[1])
    named = "code/my_judge.py"
    command("run", MATRIX, *judge, "schedule.steps=2", "--out", tmp_path / "run", "-p", named)
    return tmp_path / "run", file


def test_a_plugin_file_is_remembered_by_all_that_read_the_folder(judged, tmp_path):
    folder, file = judged
    assert list(record(folder)["plugin_files"]) == [str(file)]
    told = command("run", "--resume", folder, "schedule.steps=3")
    assert "not bit-equal" not in told
    command("eval", folder, "--tasks", "2")
    command("config", folder)
    command("plan", folder)
    command("export", folder, "--policy", "row", "-o", tmp_path / "out")


def test_a_plugin_file_that_was_moved_is_told_with_what_to_do(judged, tmp_path):
    folder, file = judged
    moved = tmp_path / "elsewhere" / file.name
    moved.parent.mkdir()
    file.rename(moved)
    told = command("run", "--resume", folder, "schedule.steps=3", fails=True)
    assert f"the plugin file {file} is gone" in told and "-p" in told and "judge" in told
    told = command("run", "--resume", folder, "schedule.steps=3", "-p", moved)
    assert "is gone" not in told


def test_a_changed_default_is_told_and_the_run_keeps_its_own(judged, tmp_path):
    folder, file = judged
    whole = tmp_path / "whole"
    shutil.copytree(folder, whole)
    command("run", "--resume", whole, "schedule.steps=4")
    plugin(file, bonus=-3.0, weight=2.0, more="strict: bool = True")
    refused = command("run", "--resume", folder, "schedule.steps=4", fails=True)
    assert "a file has changed since the run began" in refused and f"--accept-changes {file}" in refused
    told = command("run", "--resume", folder, "schedule.steps=4", "--accept-changes", file.name)
    assert "rewards.judge.bonus" in told and "is -3.0 now; the run goes on with 0.5" in told
    assert "rewards.judge.weights.judged" in told and "is 2.0 now; the run goes on with 1.0" in told
    assert "rewards.judge.strict" in told and "it is True" in told
    assert str(file) in told, "the file has another content"
    assert rows(whole) == rows(folder) and weights(whole) == weights(folder)
    told = command("eval", folder, "--tasks", "2")
    assert "goes on with 0.5" in told and "reads other contents" not in told, "they were accepted"
    again = command("run", "--resume", folder, "schedule.steps=5", "rewards.judge.bonus=0.5")
    assert "goes on with 0.5" not in again
    command("run", "--resume", folder, "rewards.judge.bonus=-3.0", fails=True)


def test_a_default_that_changed_in_a_file_that_was_moved_is_told(judged, tmp_path):
    folder, file = judged
    moved = plugin(tmp_path / "elsewhere" / file.name, bonus=-3.0)
    file.unlink()
    accepted = ("--accept-changes", moved)
    told = command("run", "--resume", folder, "schedule.steps=3", "-p", moved, *accepted)
    assert "goes on with 0.5" in told and "since the run began" in told, "its content is another one, too"
    assert list(record(folder)["plugin_files"]) == [str(moved)]
    again = command("run", "--resume", folder, "schedule.steps=4")
    assert "is gone" not in again and "since the run began" not in again


def test_a_setting_that_is_gone_is_told(judged):
    folder, file = judged
    file.write_text(
        file.read_text().replace("bonus: float = 0.5", "gain: float = 0.5").replace("g.bonus", "g.gain")
    )
    assert f"reads other contents than the run: {file} (" in command("eval", folder, "--tasks", "1")
    told = command("run", "--resume", folder, "schedule.steps=3", "--accept-changes", file)
    assert "rewards.judge.bonus" in told and "no such setting any more; it was 0.5" in told


def test_another_version_is_told_and_recorded_once(tmp_path, caplog):
    folder = started(tmp_path / "run")
    path = folder / "resolved.yaml"
    path.write_text(path.read_text().replace("numpy: ", "numpy: 0."))
    coterie.train(resume=folder, overrides=["schedule.steps=3"])
    assert "since the run began: numpy 0." in caplog.text and "not bit-equal" in caplog.text
    assert "numpy" in record(folder)["changes"][0]["versions"]
    caplog.clear()
    coterie.train(resume=folder, overrides=["schedule.steps=4"])
    assert "since the run began" not in caplog.text
