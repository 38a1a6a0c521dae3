"""What a run's folder keeps of a resume: what files say, and changes without a step."""

from __future__ import annotations

import pytest

import coterie
from coterie.core.errors import RunFolderError, TooManyMissing
from tests.api.test_resume import record, started
from tests.games import Matrix


def test_what_a_prompt_file_says_is_a_setting(tmp_path, caplog):
    file = tmp_path / "prompt.md"
    file.write_text("Score.\n$format\n$parts\n")
    coach = (
        "environment.type=environment",
        "coach.type=coach",
        "coach.model=heuristic",
        f"coach.prompt={file}",
    )
    folder = started(tmp_path / "run", *(f"rewards.{setting}" for setting in coach))
    before = record(folder)["files"]
    assert before["rewards.coach.prompt"]["path"] == str(file)
    assert coterie.train(resume=folder, overrides=["schedule.steps=3"]).step == 3
    file.write_text("Score high.\n$format\n$parts\n")
    for allowed in (False, True):  # that is for what settings say
        with pytest.raises(RunFolderError, match="has changed since the run began") as error:
            coterie.train(resume=folder, overrides=["schedule.steps=4"], allow_change=allowed)
    assert error.value.path == "rewards.coach.prompt"
    assert "--accept-changes rewards.coach.prompt" in error.value.fix
    assert f"{file} ({before['rewards.coach.prompt']['sha256'][:12]} -> " in error.value.why
    coterie.train(resume=folder, overrides=["schedule.steps=4"], accept_changes=["rewards.coach.prompt"])
    assert "from step 4 on, rewards.coach.prompt: " in caplog.text and "not bit-equal" in caplog.text
    assert "rewards.coach.prompt" in record(folder)["changes"][1]["settings"]
    assert record(folder)["files"] != before
    assert coterie.train(resume=folder, overrides=["schedule.steps=5"]).step == 5


def test_a_component_that_is_named_by_its_type_alone_is_no_change(tmp_path):
    coach = ("environment.type=environment", "coach.type=coach", "coach.model=heuristic")
    folder = started(tmp_path / "run", *(f"rewards.{setting}" for setting in coach))
    assert coterie.train(resume=folder, overrides=["schedule.steps=3"]).step == 3
    table = ["rewards.coach.model={type: heuristic}", "schedule.steps=4"]
    assert coterie.train(resume=folder, overrides=table).step == 4


def test_a_change_of_a_run_that_is_out_of_time_is_not_kept_and_it_says_so(tmp_path, caplog):
    folder = started(tmp_path / "run")
    before = {path: path.read_bytes() for path in folder.glob("*.*")}
    changes = ["schedule.steps=4", "schedule.stop_after=1e-6", "trainer.learning_rate=9.0"]
    done = coterie.train(resume=folder, overrides=changes, allow_change=True)
    assert done.step == 2 and not done.finished
    assert "no effect, and the folder doesn't keep them" in caplog.text
    assert before == {path: path.read_bytes() for path in folder.glob("*.*")}


def test_a_change_is_kept_by_a_resume_whose_first_step_fails_and_it_says_so(tmp_path, caplog):
    folder = started(tmp_path / "run")
    with pytest.MonkeyPatch.context() as patch, pytest.raises(TooManyMissing, match="broken"):
        patch.setattr(Matrix, "step", lambda *_: (_ for _ in ()).throw(RuntimeError("broken")))
        coterie.train(resume=folder, overrides=["schedule.steps=3", "executor.max_live=2"])
    assert "config.yaml has them for later resumes, even if this one plays no step" in caplog.text
    assert "max_live: 2" in (folder / "config.yaml").read_text()
    assert coterie.train(resume=folder).step == 3
