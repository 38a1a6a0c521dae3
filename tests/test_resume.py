"""N steps = k steps + resume, bit for bit; also after `kill -9` at a random moment."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import coterie
from coterie.api.checkpoints import CheckpointStore
from coterie.api.rows import read_metrics
from coterie.api.run_files import claimed
from coterie.core.training import schedule

pytestmark = pytest.mark.resume

MATRIX = str(Path(__file__).parent / "recipes" / "matrix.yaml")
TINY = ["schedule.steps=6", "schedule.checkpoint_every=1", "schedule.evaluate_every=3"]


def rows(folder: Path) -> list[dict[str, object]]:
    """metrics.jsonl without times and facts of the machine."""
    return [
        {
            name: value
            for name, value in json.loads(line).items()
            if name.split("/")[0] not in ("time", "machine")
        }
        for line in (folder / "metrics.jsonl").read_text().splitlines()
    ]


def weights(folder: Path) -> dict[str, str]:
    latest = CheckpointStore(folder / "checkpoints", keep=99).latest()
    assert latest is not None
    return {"step": latest.step, **latest.meta["weights"]}


def rollouts(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted((folder / "rollouts").glob("*.jsonl.gz"))}


def same(first: Path, second: Path) -> None:
    """Assert that two run folders have equal metrics, weights and rollouts."""
    assert rows(first) == rows(second)
    assert weights(first) == weights(second)
    assert rollouts(first) == rollouts(second)


@pytest.mark.parametrize(
    "source",
    [(MATRIX, None, [], []), ("plan_path", "smoke", TINY, []), ("plan_path", "smoke", TINY, ["per_role"])],
    ids=["tabular", "torch", "per_role"],
)
def test_n_steps_are_k_steps_and_resume(tmp_path, source):
    recipe, scale, overrides, overlays = source
    settings = {"scale": scale, "overlays": overlays}
    whole = coterie.train(
        recipe, **settings, overrides=[*overrides, "schedule.steps=5"], out=tmp_path / "whole"
    )
    part = coterie.train(
        recipe, **settings, overrides=[*overrides, "schedule.steps=2"], out=tmp_path / "part"
    )
    assert part.finished and part.step == 2
    rest = coterie.train(resume=tmp_path / "part", overrides=["schedule.steps=5"])
    assert rest.step == whole.step == 5
    same(tmp_path / "whole", tmp_path / "part")


@pytest.mark.parametrize("overlays", [[], ["per_role"]], ids=["shared", "per_role"])
def test_saving_after_every_step_changes_nothing_of_a_run_of_tensors(tmp_path, monkeypatch, overlays):
    settings = [*TINY, "schedule.steps=4", "schedule.keep_checkpoints=9"]
    for name, most_lost, every in (("often", 0.0, "auto"), ("rarely", 300.0, "0")):
        monkeypatch.setattr(schedule, "MOST_LOST", most_lost)
        overrides = [*settings, f"schedule.checkpoint_every={every}"]
        coterie.train("plan_path", scale="smoke", overlays=overlays, overrides=overrides, out=tmp_path / name)
    same(tmp_path / "often", tmp_path / "rarely")
    saved = [CheckpointStore(tmp_path / name / "checkpoints", keep=9).steps() for name in ("often", "rarely")]
    assert saved == [[0, 1, 2, 3, 4], [0, 3, 4]], "step 3 is the best"


def test_resuming_a_finished_run_changes_nothing(tmp_path):
    coterie.train(MATRIX, out=tmp_path / "run")
    before = (tmp_path / "run" / "metrics.jsonl").read_bytes()
    again = coterie.train(resume=tmp_path / "run")
    assert again.finished and (tmp_path / "run" / "metrics.jsonl").read_bytes() == before


def test_a_resume_names_the_rows_that_are_lost_for_good(tmp_path, caplog):
    run = tmp_path / "run"
    coterie.train(MATRIX, out=run)  # four steps
    lines = (run / "metrics.jsonl").read_bytes().splitlines(keepends=True)
    (run / "metrics.jsonl").write_bytes(lines[0] + lines[1][:-9])
    coterie.train(resume=run, overrides=["schedule.steps=6"])
    assert "torn" in caplog.text and "lacks the rows of 3 of 4 steps: 2-4. They can't be made" in caplog.text
    assert [row["step"] for row in rows(run)] == [1, 5, 6]
    caplog.clear()
    assert read_metrics(run / "metrics.jsonl") and "3 of 6 steps: 2-4" in caplog.text


def test_two_runs_of_one_seed_are_the_same_and_of_two_seeds_are_not(tmp_path):
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        coterie.train(MATRIX, overrides=[f"seed={seed}"], out=tmp_path / name)
    same(tmp_path / "a", tmp_path / "b")
    assert weights(tmp_path / "a") != weights(tmp_path / "c")


def test_a_run_of_tensors_goes_on_with_another_batch_and_another_learning_rate(tmp_path, caplog):
    folder = tmp_path / "run"
    coterie.train("plan_path", scale="smoke", overrides=[*TINY, "schedule.steps=1"], out=folder)
    place = ["engine.max_batch=7", "trainer.micro_tokens=300", "trainer.device=cpu"]
    coterie.train(resume=folder, overrides=[*place, "schedule.steps=2"])
    assert "from step 2 on, trainer.micro_tokens: 16384 -> 300" in caplog.text
    assert "not bit-equal to the uninterrupted one" in caplog.text
    rate = "policies.shared.optimizer.learning_rate=1e-30"
    with pytest.raises(coterie.UserError, match="can't change"):
        coterie.train(resume=folder, overrides=[rate, "schedule.steps=3"])
    before = weights(folder)
    coterie.train(resume=folder, overrides=[rate, "schedule.steps=3"], allow_change=True)
    assert rows(folder)[-1]["policy/shared/learning_rate"] == pytest.approx(1e-30)
    assert weights(folder)["shared"] == before["shared"], "a rate this small rounds to no step"


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole") / "run"
    start = time.perf_counter()
    run(folder, "run", "plan_path", "--scale", "smoke", *TINY, "--out", str(folder))
    return folder, time.perf_counter() - start


def command(*arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "coterie", *arguments],
        text=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )


def run(folder: Path, *arguments: str) -> None:
    process = command(*arguments)
    _, errors = process.communicate(timeout=240)
    assert process.returncode == 0, errors


def killed_and_resumed(tmp_path: Path, uninterrupted: tuple[Path, float], seed: int) -> None:
    """Kill -9 at a random moment after the folder was made, then resume to the end."""
    whole, seconds = uninterrupted
    folder, rng = tmp_path / "run", random.Random(seed)
    process = command("run", "plan_path", "--scale", "smoke", *TINY, "--out", str(folder))
    while not (folder / "config.yaml").exists():
        assert process.poll() is None, process.communicate()[1]
        time.sleep(0.01)
    # The rest of the run takes a second or two; the import of torch came before.
    time.sleep(rng.uniform(0, max(0.3, seconds / 3)))
    process.send_signal(signal.SIGKILL)
    process.communicate()
    run(folder, "run", "--resume", str(folder))
    same(whole, folder)


@pytest.mark.xdist_group("resume")
@pytest.mark.parametrize("seed", range(5))
def test_a_run_that_was_killed_resumes_to_the_same_end(tmp_path, uninterrupted, seed):
    killed_and_resumed(tmp_path, uninterrupted, seed)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(100, 120))
def test_twenty_runs_that_were_killed_resume_to_the_same_end(tmp_path, uninterrupted, seed):
    killed_and_resumed(tmp_path, uninterrupted, seed)


UNSTATED = """
import sys
from coterie.core.training import schedule
schedule.MOST_LOST = float(sys.argv.pop(1))
from coterie.cli.main import main
main()
"""
"""The command, which may lose as many seconds of training as its first argument says, in place of 300."""
MOST_LOST = 0.4


@pytest.fixture(scope="module")
def unstated(tmp_path_factory):
    """A recipe that states neither checkpoints nor evaluations, and a run of it that nobody stopped."""
    folder = tmp_path_factory.mktemp("unstated")
    *settings, schedule = Path(MATRIX).read_text().splitlines()
    assert schedule.startswith("schedule:")
    recipe = folder / "unstated.yaml"
    recipe.write_text("\n".join([*settings, "schedule: {steps: 120, tasks_per_step: 4}"]) + "\n")
    coterie.train(recipe, out=folder / "whole")
    return recipe, folder / "whole"


def killed_by_default(tmp_path: Path, unstated: tuple[Path, Path], seed: int) -> tuple[int, float]:
    """Kill -9 after a random step, check what a resume says and keeps; (steps, seconds) that were lost."""
    recipe, whole = unstated
    folder, after = tmp_path / "run", random.Random(seed).randrange(1, 110)
    process = subprocess.Popen(
        [sys.executable, "-c", UNSTATED, str(MOST_LOST), "run", str(recipe), "--out", str(folder)],
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    metrics = folder / "metrics.jsonl"
    while not metrics.exists() or metrics.read_bytes().count(b"\n") < after:
        assert process.poll() is None, process.communicate()[1]
        time.sleep(0.002)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    done = [json.loads(line) for line in metrics.read_bytes().splitlines() if line.endswith(b"}")]
    saved = CheckpointStore(folder / "checkpoints", keep=99).latest()
    assert saved is not None
    lost = [row["time/step"] + row.get("time/evaluate", 0) for row in done if row["step"] > saved.step]
    assert sum(lost[:-1]) <= MOST_LOST, "the last step may have been longer than those before it"
    resumed = command("run", "--resume", str(folder))
    _, said = resumed.communicate(timeout=120)
    assert resumed.returncode == 0, said
    if lost:
        stopped = f"was stopped after step {done[-1]['step']}, and its newest sound checkpoint is of step "
        steps = f"{len(lost)} step{'s are' if len(lost) > 1 else ' is'} lost ("
        assert f"{stopped}{saved.step}: {steps}" in said, said
        [place] = (folder / "discarded").iterdir()
        assert (place / "metrics.jsonl").read_bytes().count(b"\n") == len(lost)
    same(whole, folder)
    return len(lost), sum(lost)


@pytest.mark.parametrize("seed", range(2))
def test_a_run_with_the_defaults_that_was_killed_loses_little_and_says_so(tmp_path, unstated, seed):
    killed_by_default(tmp_path, unstated, seed)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(100, 120))
def test_twenty_runs_with_the_defaults_that_were_killed_lose_little(tmp_path, unstated, seed):
    steps, seconds = killed_by_default(tmp_path, unstated, seed)
    print(f"lost {steps} steps, {seconds:.2f} s")


def test_a_kill_between_the_best_checkpoint_and_its_mark_does_not_lose_the_mark(tmp_path):
    coterie.train(MATRIX, out=tmp_path / "run")
    store = CheckpointStore(tmp_path / "run" / "checkpoints", keep=99)
    best = store.marks()["best"]
    (tmp_path / "run" / "checkpoints" / "best.json").unlink()
    coterie.train(resume=tmp_path / "run", overrides=["schedule.steps=5"])
    assert store.marks()["best"] == best


def test_a_run_stopped_by_its_time_limit_saves_its_last_step(tmp_path):
    result = coterie.train(
        MATRIX,
        overrides=["schedule.steps=100000", "schedule.stop_after=0.5", "schedule.checkpoint_every=0"],
        out=tmp_path / "run",
    )
    assert not result.finished and 0 < result.step < 100_000
    assert weights(tmp_path / "run")["step"] == result.step


def test_a_damaged_checkpoint_is_named_and_the_previous_one_used(tmp_path, caplog):
    coterie.train(MATRIX, overrides=["schedule.keep_checkpoints=9"], out=tmp_path / "whole")
    coterie.train(MATRIX, overrides=["schedule.keep_checkpoints=9"], out=tmp_path / "run")
    damaged = next((tmp_path / "run" / "checkpoints" / "step-000004").glob("*.npz"))
    damaged.write_bytes(damaged.read_bytes()[:-1] + b"x")
    again = coterie.train(resume=tmp_path / "run")
    assert again.finished and again.step == 4
    assert "step-000004" in caplog.text and "step-000002" in caplog.text
    same(tmp_path / "whole", tmp_path / "run")


def test_two_processes_in_one_folder_are_refused(tmp_path):
    coterie.train(MATRIX, out=tmp_path / "run")
    from coterie.core.errors import RunFolderError
    from coterie.core.storage.run_folder import RunFolder

    with claimed(RunFolder.open(tmp_path / "run")), pytest.raises(RunFolderError, match="another process"):
        coterie.train(resume=tmp_path / "run", overrides=["schedule.steps=5"])
