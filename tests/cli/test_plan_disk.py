"""The disk that `coterie plan` counts is what the checkpoints of a run take."""

from __future__ import annotations

import pytest

from tests.cli.support import coterie
from tests.cli.test_plan import planned

pytestmark = pytest.mark.torch
ADAPTERS = ("--with", "l1")
SMALL = ("schedule.tasks_per_step=1", "schedule.evaluate_tasks=1", "team.max_turns=1")
"""What is changed to be quick, and changes no checkpoint's size."""
ALL_STEPS = ("schedule.steps=4", "schedule.checkpoint_every=1", "schedule.keep_checkpoints=3", *SMALL)


def tensors(folder):
    """Bytes of all tensors in a folder."""
    safetensors = pytest.importorskip("safetensors.torch")
    return sum(
        tensor.numel() * tensor.element_size()
        for file in folder.rglob("*.safetensors")
        for tensor in safetensors.load_file(file).values()
    )


@pytest.mark.parametrize(("options", "ahead"), [((), 0), ((), 2), (ADAPTERS, 2)])
def test_it_is_that_of_the_run(tmp_path, options, ahead):
    run = ("plan_path", "--scale", "smoke", *options, *ALL_STEPS, f"schedule.max_staleness={ahead}")
    disk = planned(*run)["disk"]
    assert coterie("run", *run, "--out", str(tmp_path / "run")).exit_code == 0
    saved = sorted((tmp_path / "run" / "checkpoints").glob("step-*"))
    assert len(saved) == 3 and disk["checkpoints"] == 4, "another one is being written before one goes"
    for folder in saved:  # besides, the optimiser has a step count a tensor
        assert tensors(folder) == pytest.approx(disk["checkpoint"], rel=1e-3)
    versions = {tensors(folder / "versions") for folder in saved}
    assert versions == {disk["versions"]} and (disk["versions"] > 0) == (ahead > 0)
    assert disk["bytes"] == 4 * disk["checkpoint"]


def test_a_short_run_has_no_more_checkpoints_than_steps(tmp_path):
    steps = 2
    often = ("schedule.checkpoint_every=1", "schedule.keep_checkpoints=20", "schedule.evaluate_every=1")
    run = ("plan_path", "--scale", "smoke", *often, *SMALL, f"schedule.steps={steps}")
    assert coterie("run", *run, "--out", str(tmp_path / "run")).exit_code == 0
    saved = len([*(tmp_path / "run" / "checkpoints").glob("step-*")])
    assert planned(*run)["disk"]["checkpoints"] == saved == steps + 1


def test_what_is_played_in_flight_keeps_no_versions():
    run = ("plan_path", "--scale", "smoke", "schedule.max_staleness=2")
    assert planned(*run)["disk"]["versions"] > 0
    assert planned(*run, "schedule.play=in_flight")["disk"]["versions"] == 0


def test_a_line_says_it():
    done = coterie("plan", "quickstart", "schedule.max_staleness=1")
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("disk: ")]
    assert "earlier weights for steps ahead" in line and "at most 4 at once" in line
    tables = coterie("plan", "quickstart", "engine=tabular", "trainer=tabular")
    assert "disk:" not in tables.stdout
