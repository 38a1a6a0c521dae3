"""One run with three training levels: a frozen role, one with an adapter, and one fully trained."""

from __future__ import annotations

import asyncio
import importlib
import json
import sys
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("peft")

import coterie  # noqa: E402
from coterie.api.open_run import open_run  # noqa: E402
from coterie.compose import compose  # noqa: E402
from coterie.core.loop import train  # noqa: E402
from coterie.recipes import load  # noqa: E402
from tests.cli.support import coterie as command  # noqa: E402

pytestmark = pytest.mark.torch

LEVELS = {"planner": "none", "executor": "lora", "solver": "full"}
FULL = (
    "{model: {init: qwen3, hidden_size: 32, layers: 1, heads: 2, head_dim: 16, mlp_size: 64, context: 64}, "
    "train: full, warm_start: {demonstrations: oracle, noise: 0.5, steps: 5, batch: 32}, "
    "optimizer: {learning_rate: 1.0e-2}}"
)
MIXED = (
    "team.order=[planner, executor, solver]",
    "team.roles.solver={type: plan_path_solver, policy: solver}",
    f"policies.solver={FULL}",
    "policies.planner.train=none",
    "policies.executor.train=lora",
    "policies.executor.lora={rank: 2, alpha: 4}",
    "policies.executor.optimizer.learning_rate=1e-2",
    "rewards.varied={type: function, function: 'tests.test_mixed_levels:varied', scope: action}",
    "sampler.branches=4",
    "sampler.sampling.max_new_tokens=3",
    "schedule.checkpoint_every=1",
)
RECIPE, SCALE = "plan_path_split", "smoke"
PER_ROLE = ["per_role"]
EARNS = {"role": ""}
"""The role whose actions `varied` pays by their text; empty: all roles."""


def varied(view):
    """A reward that varies among the siblings of an untrained model."""
    return float(sum(view.action.text.encode()) % 7) if EARNS["role"] in ("", view.role) else 0.0


def weights(run):
    """Copies of the trainer's weights by owner: the part of each policy, and the base that they share."""
    trainer = run.trainer
    (initial,) = trainer.initial_weights
    parts = {name: policy.own_parameters() for name, policy in trainer.policies.items()} | {
        "base": initial.weights()
    }
    return {owner: {n: p.detach().clone() for n, p in part.items()} for owner, part in parts.items()}


def moved(*overrides):
    """Owners of weights of which training changed at least one bit."""
    run = compose(load(RECIPE, overlays=PER_ROLE, scale=SCALE, overrides=(*MIXED, "trackers={}", *overrides)))

    async def go():
        await open_run(run)
        before = weights(run)
        await train(run)
        after = weights(run)
        await run.close()
        return before, after

    before, after = asyncio.run(go())
    same = {
        owner: all(torch.equal(before[owner][n], after[owner][n]) for n in before[owner]) for owner in before
    }
    return {owner for owner in same if not same[owner]}


def test_frozen_and_base_weights_stay_bit_identical_and_the_others_move():
    assert moved() == {"executor", "solver"}


@pytest.mark.parametrize(
    ("role", "moves"), [("planner", set()), ("executor", {"executor"}), ("solver", {"solver"})]
)
def test_rewards_of_one_role_move_its_weights_only(role, moves, monkeypatch):
    """The rewards of the other roles are equal in every group, so advantages and gradients are zero."""
    monkeypatch.setitem(EARNS, "role", role)
    assert moved(*ONLY_VARIED) == moves


ONLY_VARIED = (
    "schedule.steps=1",
    "rewards.environment.weights={goal: 0, progress: 0, plan_goal: 0, plan_progress: 0, team: 0, "
    "plan_team: 0, format: 0, legal: 0, shortest: 0}",
)


def test_a_run_that_trains_nothing_plays_with_a_warning(tmp_path, caplog):
    coterie.train(
        RECIPE, overlays=[*PER_ROLE, "l0"], scale=SCALE, overrides=["schedule.steps=1"], out=tmp_path / "run"
    )
    assert "nothing is trained: every policy has train: none" in caplog.text
    assert "`coterie eval`" in caplog.text
    assert (tmp_path / "run" / "rollouts" / "step-000001.jsonl.gz").is_file()
    caplog.clear()
    assert len(coterie.evaluate(RECIPE, overlays=[*PER_ROLE, "l0"], scale=SCALE, tasks=3).per_task) == 3
    coterie.train(
        RECIPE, overlays=[*PER_ROLE, "l1"], scale=SCALE, overrides=["schedule.steps=1"], out=tmp_path / "l1"
    )
    assert "nothing is trained" not in caplog.text


# ------------------------------------------------------------------------------------------------- the folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A run of three steps."""
    path = tmp_path_factory.mktemp("mixed") / "run"
    coterie.train(RECIPE, overlays=PER_ROLE, scale=SCALE, overrides=(*MIXED, "schedule.steps=3"), out=path)
    return path


def files(checkpoint: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(checkpoint)): path.read_bytes() for path in checkpoint.rglob("*.safetensors")
    }


def test_a_resumed_run_is_the_same_to_the_bit(folder, tmp_path):
    part = tmp_path / "run"
    coterie.train(RECIPE, overlays=PER_ROLE, scale=SCALE, overrides=(*MIXED, "schedule.steps=1"), out=part)
    coterie.train(resume=part, overrides=["schedule.steps=3"])
    whole, resumed = (files(path / "checkpoints" / "step-000003") for path in (folder, part))
    assert whole == resumed
    kept = {Path(name).name.partition(".")[0] for name in whole if name.startswith("policies/")}
    assert kept == {"executor", "solver"}, "no weights of the frozen policy are saved"
    assert whole != files(folder / "checkpoints" / "step-000002")


class Blocker:
    """A finder of modules that refuses coterie."""

    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "coterie":
            raise ImportError("coterie is blocked")


def loaded_without_coterie(folder: Path) -> dict[str, np.ndarray]:
    """Logits of each export, while coterie is not imported and can't be; `ids`: those of a prompt."""
    from peft import PeftModel
    from transformers import AutoModelForCausalLM, AutoTokenizer

    outputs = {}
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in sys.modules if name.partition(".")[0] == "coterie"]:
            patch.delitem(sys.modules, name)
        patch.setattr(sys, "meta_path", [Blocker(), *sys.meta_path])
        with pytest.raises(ImportError, match="coterie is blocked"):
            importlib.import_module("coterie")
        for name in LEVELS:
            base = place = folder / name
            if (place / "adapter_config.json").is_file():
                base = json.loads((place / "adapter_config.json").read_text())["base_model_name_or_path"]
            model = AutoModelForCausalLM.from_pretrained(base)
            if base != place:
                model = PeftModel.from_pretrained(model, place)
            ids = AutoTokenizer.from_pretrained(place)("R D L U", return_tensors="pt")["input_ids"]
            with torch.no_grad():
                outputs[name] = model.eval()(ids).logits.numpy()
        assert not [name for name in sys.modules if name.partition(".")[0] == "coterie"]
    return {**outputs, "ids": ids.numpy()}


def test_transformers_and_peft_load_the_export_of_each_level_without_coterie(folder, tmp_path):
    for name in LEVELS:
        done = command("export", folder, "--policy", name, "-o", tmp_path / name, "--checkpoint", "3")
        assert done.exit_code == 0, done.output
    assert [name for name in LEVELS if (tmp_path / name / "adapter_config.json").is_file()] == ["executor"]
    outputs = loaded_without_coterie(tmp_path)
    ours = logits(folder, torch.from_numpy(outputs["ids"]))
    assert outputs["ids"].shape == (1, 4), "each word is one token for transformers too"
    for name in LEVELS:
        np.testing.assert_allclose(outputs[name], ours[name], rtol=1e-4, atol=1e-5)
    assert not np.allclose(ours["executor"], ours["planner"], atol=1e-3), "the adapter changes the logits"


def logits(folder, ids):
    """Logits by policy, of the trainer's models at the run's last checkpoint."""
    run = compose(load(folder))

    async def go():
        await run.open_trainer(folder / "checkpoints" / "step-000003")
        logits_of = {}
        for name, policy in run.trainer.policies.items():
            with torch.no_grad(), policy.scoring():
                logits_of[name] = policy.model(ids).logits.numpy()
        await run.trainer.close()
        return logits_of

    return asyncio.run(go())
