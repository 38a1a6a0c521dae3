"""What can't be on this machine is refused before a run starts; what runs today is not."""

from __future__ import annotations

import asyncio
import gc
import logging
import tracemalloc

import pytest

import coterie
from coterie.api.resume import resumption
from coterie.backends.models.policy import TorchPolicy
from coterie.backends.models.sizes import blueprint, least_size
from coterie.backends.trainers import devices
from coterie.compose import prepare, trained_splits
from coterie.core.errors import ConfigError
from coterie.core.loop import train as train_loop
from coterie.estimate import least
from coterie.estimate.least import (
    ACTION_BYTES,
    JOINT_BYTES,
    TREE_BYTES,
    check_trees,
    least_step,
    machine_memory,
)
from coterie.recipes import load, recipes
from coterie.recipes.layers import gather
from coterie.testing import coterie_run
from tests.cli.support import TABULAR, coterie as command, process
from tests.cli.test_wrong_input import WITHOUT_TORCH, refused

GB = 10**9


def checked(*overrides, source=TABULAR, scale=None):
    resolved = load(source, overrides=overrides, scale=scale)
    splits = trained_splits(resolved.config.schedule)
    prepared = prepare(resolved, splits)
    check_trees(prepared.side, prepared.config, splits)
    return prepared


@pytest.mark.parametrize(
    ("setting", "path"),
    [
        ("sampler.chains=1000000000", "sampler"),
        ("sampler.branches=1000000000", "sampler"),
        ("schedule.tasks_per_step=1000000000", "schedule.tasks_per_step"),
    ],
)
def test_a_step_past_the_machines_memory_is_refused_with_its_numbers(setting, path, tmp_path, monkeypatch):
    monkeypatch.setattr(least, "machine_memory", lambda: 64 * GB)
    with pytest.raises(ConfigError, match="this machine has 64 GB") as error:
        coterie.train(TABULAR, overrides=[setting], out=tmp_path / "run")
    assert error.value.path == path and "trees" in error.value.why
    assert "any_size=True" in error.value.fix and "--yes" in error.value.fix
    assert not (tmp_path / "run").exists()


def test_trees_that_are_played_on_everywhere_are_refused_past_memory(tmp_path, monkeypatch):
    monkeypatch.setattr(least, "machine_memory", lambda: 64 * GB)
    settings = ["sampler.expand=all", "sampler.branches=4", "team.max_turns=40"]
    with pytest.raises(ConfigError, match=r"up to .* joint actions") as error:
        coterie.train(TABULAR, overrides=settings, out=tmp_path / "run")
    assert error.value.path == "sampler.expand" and "--yes" in error.value.fix


def test_the_refusal_comes_before_torch_is_imported():
    refused(
        process("run", "quickstart", "sampler.chains=1000000000", code=WITHOUT_TORCH), "of trees", "--yes"
    )


def test_an_evaluation_past_the_machines_memory_is_refused(monkeypatch):
    monkeypatch.setattr(least, "machine_memory", lambda: GB)
    large = ("env.val_tasks=1000000", "schedule.evaluate_tasks=1000000")
    with pytest.raises(ConfigError, match="an evaluation has at least 4 GB") as error:
        checked(*large)
    assert error.value.path == "schedule.evaluate_tasks"
    checked(*large, "schedule.evaluate_every=0")


def test_the_trees_of_steps_that_are_played_at_once_count_together(monkeypatch):
    monkeypatch.setattr(least, "machine_memory", lambda: GB)
    checked("sampler.chains=10000")
    with pytest.raises(ConfigError, match="of trees in 9 steps that are played at once") as error:
        checked("sampler.chains=10000", "schedule.max_staleness=8", "schedule.steps=20")
    with pytest.raises(ConfigError, match="of trees in 4 steps that are played at once"):
        checked("sampler.chains=10000", "schedule.max_staleness=8", "schedule.steps=4")
    assert "schedule.max_staleness" in error.value.fix
    monkeypatch.setattr(least, "machine_memory", lambda: None)
    checked("sampler.chains=1000000", "schedule.max_staleness=9")  # an hour a step is not one of nine


def test_a_step_of_more_than_an_hour_is_refused(monkeypatch):
    monkeypatch.setattr(least, "machine_memory", lambda: None)
    with pytest.raises(ConfigError, match="takes at least 177 hours"):
        checked("sampler.chains=1000000000")
    checked("sampler.chains=1000000")


def test_all_joint_actions_of_roles_that_act_at_once_are_counted():
    run = coterie_run(
        order=[["one", "two"]], sampler={"branches": 100, "pairing": "cross"}, schedule={"tasks_per_step": 3}
    )
    step = least_step(run.rollout_side, run.config)
    assert (step.trees, step.joints) == (3, 3 * 100**2)
    aligned = coterie_run(order=[["one", "two"]], sampler={"branches": 100}, schedule={"tasks_per_step": 3})
    assert least_step(aligned.rollout_side, aligned.config).joints == 3 * 100


def test_who_accepts_it_starts_and_is_told(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(least, "machine_memory", lambda: 1000)
    done = command("run", TABULAR, "schedule.steps=1", "--out", tmp_path / "run")
    refused(done, "a step has at least", "--yes")
    done = command("run", TABULAR, "schedule.steps=1", "--out", tmp_path / "run", "--yes")
    assert done.exit_code == 0 and "a step has at least" in done.stderr, done.output


def test_a_run_that_ran_before_resumes_with_a_warning(tmp_path, monkeypatch, caplog):
    coterie.train(TABULAR, overrides=["schedule.steps=1"], out=tmp_path / "run")
    monkeypatch.setattr(least, "machine_memory", lambda: 1000)
    with caplog.at_level(logging.WARNING, logger="coterie"):
        result = coterie.train(resume=tmp_path / "run", overrides=["schedule.steps=2"])
    assert result.finished and "a step has at least" in caplog.text
    assert resumption(None, tmp_path / "run").run.config.schedule.steps == 2


def test_every_recipe_for_a_cpu_starts_on_a_small_machine(monkeypatch, caplog):
    monkeypatch.setattr(least, "machine_memory", lambda: 4 * GB)
    played = 0
    for info in recipes():
        if "cpu" in gather(info.name).table.get("scales", {}):
            prepared = prepare(load(info.name, scale="cpu"))
            check_trees(prepared.side, prepared.config)
            played += 1
    assert played > 10
    assert "answers are cut" not in caplog.text


# ----------------------------------------------------------------------------- the constants are lower bounds


def peak(**sampler):
    """Most bytes that Python holds in one step of the smallest game, without a model."""
    algorithm = {"type": "grpo" if sampler.get("branches", 1) == 1 else "at_grpo"}
    order = [["one", "two"]] if sampler.get("pairing") else ["one"]
    run = coterie_run("1", order=order, sampler={"branches": 1, **sampler}, algorithm=algorithm)

    async def play():
        await run.open()
        await run.sync()
        gc.disable()  # what a collection frees, and when, depends on all that the process did before
        tracemalloc.start()
        try:
            await train_loop(run)
            most = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
            gc.enable()
        await run.close()
        return most

    return asyncio.run(play())


def test_a_tree_an_action_and_a_joint_action_take_more_bytes_than_are_counted():
    tasks, few, many = 2, 5, 20
    tree = (peak(chains=many) - peak(chains=few)) / (tasks * (many - few))
    assert tree > TREE_BYTES + ACTION_BYTES + JOINT_BYTES
    few, many = 100, 200  # of few branches the memory that a step reuses is as much as theirs
    action = (peak(branches=many) - peak(branches=few)) / (tasks * (many - few))
    assert action > ACTION_BYTES + JOINT_BYTES
    cross = (peak(branches=12, pairing="cross") - peak(branches=3, pairing="cross")) / (
        tasks * (12**2 - 3**2)
    )
    assert cross > 1.5 * JOINT_BYTES


def test_the_machine_has_some_memory():
    memory = machine_memory()
    assert memory is None or memory > 2**27


# ----------------------------------------------------------------------------------------------------- models


def made(train="full", **model):
    return TorchPolicy.model_validate(
        {"model": {"init": "qwen3", "tokenizer": "bytes", **model}, "train": train, "dtype": "float32"}
    )


@pytest.mark.torch
def test_the_size_is_a_lower_bound_and_close():
    pytest.importorskip("torch")
    for policy in (
        made(),
        made(layers=2, heads=8, kv_heads=2, tie_embeddings=False),
        made(tokenizer="words"),
    ):
        words = ("up", "down")
        real = blueprint({"p": policy}, vocabulary=words).size.parameters
        counted = least_size(policy, words).parameters
        assert 0.98 * real < counted <= real


@pytest.mark.torch
def test_models_that_the_trainers_device_cant_hold_are_refused():
    pytest.importorskip("torch")
    large = {"hidden_size": 4096, "layers": 32, "heads": 32, "head_dim": 128, "mlp_size": 11008}
    with pytest.raises(ConfigError, match=r"at least 104 GB, and its device 'cpu' has 64 GB") as error:
        devices.check_fit("cpu", {"p": made(**large)}, (), 64 * GB)
    assert error.value.path == "policies.p" and "float32, and train: full" in error.value.why
    devices.check_fit("cpu", {"p": made("lora", **large)}, (), 64 * GB)  # one frozen copy: 26 GB
    devices.check_fit("cpu", {"p": made(**large)}, (), None)


@pytest.mark.torch
def test_a_model_that_cant_be_held_is_refused_before_a_folder_is_made(tmp_path, monkeypatch):
    pytest.importorskip("torch")
    monkeypatch.setattr(least, "machine_memory", lambda: 100 * 10**6)
    done = command("run", "quickstart", "policies.shared.model.hidden_size=4096", "--out", tmp_path / "run")
    refused(done, "the trainer needs at least", "train: lora", "--yes")
    assert not (tmp_path / "run").exists()


@pytest.mark.torch
def test_hours_a_step_are_warned_of_and_minutes_are_not(caplog, monkeypatch):
    pytest.importorskip("torch")
    monkeypatch.setattr(devices.os, "cpu_count", lambda: 4)
    policies = {"p": made(hidden_size=2048, layers=28, heads=16, head_dim=128, mlp_size=6144)}
    devices.warn_of_hours("cpu", policies, (), {"p": 10_000})
    assert not caplog.records
    devices.warn_of_hours("cpu", policies, (), {"p": 2_000_000})
    assert "a step may take more than 5 hours" in caplog.text
    devices.warn_of_hours("cpu", policies, (), {"p": 10**400})


@pytest.mark.torch
def test_a_device_that_isnt_there_is_told_before_weights_are_made(tmp_path):
    torch = pytest.importorskip("torch")
    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    for setting in ("engine.device=cuda", "trainer.device=cuda"):
        done = command("run", "quickstart", setting, "--out", tmp_path / "run")
        path = setting.partition("=")[0]
        refused(done, f"{path}: there is no device 'cuda'", f"set {path}=auto")
        assert "making" not in done.output and not (tmp_path / "run").exists()
