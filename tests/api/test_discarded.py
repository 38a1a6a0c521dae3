"""What a resume takes out of a run's folder is told before, and kept."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

import coterie
from coterie.api.checkpoints import CheckpointStore
from coterie.api.rows import read_metrics
from coterie.core.errors import WriteError
from tests.cli.support import coterie as command
from tests.test_resume import MATRIX, same

RARE = ("schedule.checkpoint_every=0", "schedule.steps=6")
"""One checkpoint, of step 0, besides the best; the matrix game evaluates every second step."""


def stopped(folder: Path, *overrides: str, step: int = 5) -> Path:
    """A run of the matrix game that died in a step, of which nothing is in its folder."""
    from coterie.backends.trainers.tabular import TabularTrainer

    original = TabularTrainer.update

    async def update(self, samples, done):
        if done + 1 == step:
            raise MemoryError("as if it was killed")
        return await original(self, samples, done)

    with pytest.MonkeyPatch.context() as patch, pytest.raises(MemoryError):
        patch.setattr(TabularTrainer, "update", update)
        coterie.train(MATRIX, overrides=[*RARE, *overrides], out=folder)
    return folder


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def kept(folder: Path) -> list[Path]:
    return sorted((folder / "discarded").iterdir())


def test_the_steps_after_the_newest_checkpoint_are_told_and_kept(tmp_path, caplog):
    coterie.train(MATRIX, overrides=[*RARE, "schedule.evaluate_every=0"], out=tmp_path / "whole")
    folder = stopped(tmp_path / "run", "schedule.evaluate_every=0")
    before = contents(folder)
    coterie.train(resume=folder)
    [line] = [record.getMessage() for record in caplog.records if "lost" in record.getMessage()]
    assert (
        "was stopped after step 4, and its newest sound checkpoint is of step 0: 4 steps are lost (" in line
    )
    assert f"4 rows, 4 rollout files kept in {folder / 'discarded'}" in line
    [place] = kept(folder)
    assert place.name.endswith("-after-step-000000")
    names = ["metrics.jsonl", *(f"rollouts/step-{step:06d}.jsonl.gz" for step in (1, 2, 3, 4))]
    assert contents(place) == {name: before[name] for name in names}
    same(tmp_path / "whole", folder)


def test_a_damaged_checkpoint_is_kept_with_its_evaluation(tmp_path, caplog):
    folder = tmp_path / "run"
    coterie.train(MATRIX, overrides=["schedule.keep_checkpoints=9"], out=folder)
    marks = CheckpointStore(folder / "checkpoints", keep=9).marks()
    table = next((folder / "checkpoints" / "step-000004").glob("*.npz"))
    table.write_bytes(b"x")
    before = contents(folder)
    coterie.train(resume=folder)
    assert "2 rows, 2 rollout files, 1 evaluation, 1 damaged checkpoint kept in" in caplog.text
    [place] = kept(folder)
    moved = ["eval/step-000004.json", "rollouts/step-000003.jsonl.gz", "rollouts/step-000004.jsonl.gz"]
    moved += [name for name in before if name.startswith("checkpoints/step-000004/")]
    rows = contents(place).pop("metrics.jsonl")
    assert rows == b"".join(before["metrics.jsonl"].splitlines(keepends=True)[2:])
    assert contents(place) == {"metrics.jsonl": rows, **{name: before[name] for name in moved}}
    assert CheckpointStore(folder / "checkpoints", keep=9).marks() == marks


def test_no_resume_writes_over_what_an_earlier_one_kept(tmp_path, monkeypatch):
    monkeypatch.setattr("coterie.api.discarded.time.strftime", lambda format: "20260101-120000")
    folder, without = tmp_path / "run", "schedule.evaluate_every=0"
    stopped(folder, without)
    first = contents(folder)["metrics.jsonl"]
    for steps in (1, 2):  # it dies again and again
        coterie.train(resume=folder, overrides=[f"schedule.steps={steps}"])
        (folder / "checkpoints" / f"step-{steps:06d}").rename(tmp_path / f"gone-{steps}")
    names = [place.name for place in kept(folder)]
    assert names == ["20260101-120000-after-step-000000", "20260101-120000-after-step-000000-2"]
    assert contents(kept(folder)[0])["metrics.jsonl"] == first
    assert len(contents(kept(folder)[1])["metrics.jsonl"].splitlines()) == 1


def test_a_resume_that_discards_nothing_makes_no_folder_and_says_nothing(tmp_path, caplog):
    coterie.train(MATRIX, overrides=["schedule.steps=2"], out=tmp_path / "run")
    coterie.train(resume=tmp_path / "run", overrides=["schedule.steps=3"])
    assert not (tmp_path / "run" / "discarded").exists() and "lost" not in caplog.text


def test_a_resume_whose_model_cant_be_opened_has_moved_nothing_but_said_it(tmp_path, monkeypatch, caplog):
    from coterie.backends.trainers.tabular import TabularTrainer

    folder = stopped(tmp_path / "run", "schedule.evaluate_every=0")
    before = contents(folder)

    async def broken(self, ctx):
        raise MemoryError("no room for the model")

    monkeypatch.setattr(TabularTrainer, "open", broken)
    with pytest.raises(MemoryError, match="no room"):
        coterie.train(resume=folder)
    assert "steps are lost" in caplog.text and contents(folder) == before


def test_what_cant_be_moved_stays_and_the_next_resume_takes_the_rest(tmp_path, monkeypatch):
    coterie.train(MATRIX, overrides=[*RARE, "schedule.evaluate_every=0"], out=tmp_path / "whole")
    folder = stopped(tmp_path / "run", "schedule.evaluate_every=0")
    before, rename, moves = contents(folder), os.rename, []

    def full(source, target):
        if "rollouts" in str(target):
            moves.append(source)
            if len(moves) == 3:
                raise OSError(28, "No space left on device")
        rename(source, target)

    with monkeypatch.context() as patch, pytest.raises(WriteError, match="can't be written") as error:
        patch.setattr("shutil.move", full)
        coterie.train(resume=folder)
    assert "No space left" in error.value.why and "the checkpoint of step 0 is intact" in error.value.fix
    [place] = kept(folder)
    assert {**contents(place), **contents(folder)}.items() >= before.items(), "every file is in one of them"
    coterie.train(resume=folder)
    assert len(kept(folder)) == 2
    same(tmp_path / "whole", folder)


def test_what_is_kept_is_no_part_of_the_run(tmp_path):
    folder = stopped(tmp_path / "run", "schedule.evaluate_every=0")
    coterie.train(resume=folder)
    listed = json.loads(command("runs", tmp_path, "--json").stdout)
    assert [(run["name"], run["step"], run["finished"]) for run in listed] == [("run", 6, True)]
    assert json.loads(command("runs", kept(folder)[0], "--json").stdout) == []
    assert [row["step"] for row in read_metrics(folder / "metrics.jsonl")] == [1, 2, 3, 4, 5, 6]
    exported = command("export", folder, "--policy", "row", "--out", tmp_path / "row")
    assert exported.exit_code == 0, exported.output
    assert not list((tmp_path / "row").rglob("*discarded*"))


def test_a_killed_start_has_lost_no_step(tmp_path, caplog):
    from coterie.api.run_files import create_run

    create_run(tmp_path / "run", "half of a configuration")
    coterie.train(MATRIX, out=tmp_path / "run")
    assert "before its first checkpoint: starting over; no step is lost" in caplog.text


def test_a_run_without_any_checkpoint_says_what_starting_over_costs(tmp_path, caplog):
    folder = stopped(tmp_path / "run", "schedule.evaluate_every=0")
    (folder / "checkpoints" / "step-000000").rename(tmp_path / "gone")
    coterie.train(resume=folder)
    assert "and it has no checkpoint: 4 steps are lost (" in caplog.text
    assert len(contents(kept(folder)[0])["metrics.jsonl"].splitlines()) == 4
