# ruff: noqa: E402 (torch is asked for first)
"""`dtype: auto` in a trainer: one choice for all, which a resumed run keeps on whatever machine."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("peft")

from coterie.backends.chat_formats.formats import AutoChat
from coterie.backends.engines.hf import HFEngine
from coterie.backends.engines.lean.weights import cache_dtype
from coterie.backends.models import precision
from coterie.backends.models.precision import Rates, kept_dtypes, left_open
from coterie.backends.trainers.replicas import layout_of
from coterie.backends.trainers.torch_trainer import TorchTrainer
from coterie.core.errors import RunFolderError
from coterie.core.types import Weights
from tests.backends.engines.support import context, wait
from tests.backends.trainers.tiny import WORDS, opened, policy, samples, update

pytestmark = pytest.mark.torch

NUMBERS = 2 * 2 * 2 * 8
"""Keys and values of a token in all layers of `MODEL`."""
CPU = torch.device("cpu")
Machine = Callable[[float], None]


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    """Moves to a CPU whose products in bfloat16 are so many times as fast, for models of all sizes."""
    monkeypatch.setattr(precision, "SMALL", 1)
    monkeypatch.setattr(precision, "has_instructions", lambda: True)

    def move(ratio: float) -> None:
        monkeypatch.setattr(precision, "measured", lambda *widths: Rates(100, 100 * ratio))

    move(2.0)
    return move


def dtypes(trainer: TorchTrainer) -> dict[str, str]:
    return {
        name: str(one.model.get_input_embeddings().weight.dtype).removeprefix("torch.")
        for name, one in trainer.policies.items()
    }


def trained(trainer: TorchTrainer, steps: range) -> TorchTrainer:
    for step in steps:
        given = {name: samples(name, seed=step) for name, one in trainer.policies.items() if one.optimizer}
        update(trainer, given, step)
    return trainer


def team() -> dict:
    return {
        "all": policy(),
        "a": policy("lora"),
        "b": policy("lora"),
        "fixed": policy("lora", dtype="float32"),
    }


def test_policies_of_one_model_have_one_choice_which_the_log_names(machine, caplog):
    with caplog.at_level(logging.INFO, "coterie"):
        trainer = opened(team())
    assert dtypes(trainer) == dict.fromkeys(("all", "a", "b"), "bfloat16") | {"fixed": "float32"}
    assert trainer.bases() == {"all": ("all", "a", "b"), "fixed": ("fixed",)}
    lines = [record.message for record in caplog.records if "dtype" in record.message]
    assert lines == [
        "policies.all.dtype, policies.a.dtype, policies.b.dtype: auto is bfloat16: its products take 0.50 of "
        "float32's time here (200 and 100 GFLOP/s a core)"
    ]


@pytest.mark.parametrize(("began", "elsewhere"), [(2.0, 1.0), (1.0, 2.0)])
def test_a_resumed_run_keeps_its_dtype_on_another_machine(machine, tmp_path: Path, caplog, began, elsewhere):
    machine(began)
    whole = trained(opened(team()), range(2))
    trained(opened(team()), range(1)).save(tmp_path)
    machine(elsewhere)
    moved = opened(team(), seed=5)
    assert dtypes(moved) != dtypes(whole)
    moved.load(tmp_path)
    assert dtypes(moved) == dtypes(whole) and moved.bases() == whole.bases()
    here, there = ("float32", "bfloat16") if began > elsewhere else ("bfloat16", "float32")
    said = f"dtype: stays {there}, with which the run began; auto is {here} on this machine"
    assert [record.message for record in caplog.records if record.levelno == logging.WARNING] == [
        f"policies.{name}.{said}" for name in ("all", "a", "b")
    ]
    moved.ctx = whole.ctx
    assert trained(moved, range(1, 2)).digest() == whole.digest()


def test_a_run_on_the_same_machine_is_not_set_up_twice(machine, tmp_path: Path, caplog):
    opened(team()).save(tmp_path)
    again = opened(team())
    before = again.weights("all").module
    caplog.clear()
    again.load(tmp_path)
    assert again.weights("all").module is before and not caplog.records


def test_a_named_dtype_is_not_replaced_by_a_checkpoints(machine, tmp_path: Path):
    opened({"p": policy()}).save(tmp_path)
    with pytest.raises(RunFolderError, match="bfloat16"):
        opened({"p": policy(dtype="float32")}).load(tmp_path)


def test_a_checkpoint_that_does_not_say_changes_nothing():
    configs = {"p": policy(dtype="float32"), "q": policy(dtype="float32")}
    assert kept_dtypes(configs, ("p", "q"), {"p": None}) == configs


def test_other_ranks_take_the_dtypes_of_rank_0(machine, tmp_path: Path):
    first = opened(team())
    machine(1.0)
    other = opened(team())
    other.rank_receive(layout_of(first.initial_weights, first.policies))
    assert dtypes(other) == dtypes(first)


def test_the_engine_takes_what_the_trainer_has(machine, tmp_path: Path):
    opened({"p": policy()}).save(tmp_path)
    machine(1.0)
    trainer = opened({"p": policy()})
    trainer.load(tmp_path)
    ctx = context({"p": policy()}, AutoChat(), WORDS)
    engine = HFEngine(HFEngine.Config())
    wait(engine.open(ctx))
    wait(engine.load_weights(trainer.weights("p")))
    assert engine.served.at("p").kv.token == cache_dtype(torch.bfloat16, CPU).itemsize * NUMBERS


@pytest.mark.parametrize(("ratio", "dtype"), [(2.0, torch.bfloat16), (1.0, torch.float32)])
def test_an_engine_without_a_trainer_chooses_by_the_same_rule(machine, caplog, ratio, dtype):
    machine(ratio)
    engine = HFEngine(HFEngine.Config())
    wait(engine.open(context({"p": policy("none")}, AutoChat(), WORDS)))
    with caplog.at_level(logging.INFO, "coterie"):
        wait(engine.load_weights(Weights(policy="p", version=0)))
    assert engine.served.at("p").kv.token == cache_dtype(dtype, CPU).itemsize * NUMBERS
    assert f"policies.p.dtype: auto is {str(dtype).removeprefix('torch.')}" in caplog.text


@pytest.mark.parametrize(("stage", "dtypes"), [(0, {"all": "float32"}), (1, {})])
def test_deepspeeds_stage_0_trains_in_float32(machine, stage, dtypes):
    from coterie.backends.trainers.deepspeed.trainer import DeepSpeedTrainer

    trainer = DeepSpeedTrainer(DeepSpeedTrainer.Config(device="cpu", stage=stage))
    required = trainer.required_dtypes(left_open(team()))
    assert {name: config.dtype for name, config in required.items()} == dtypes


def test_a_warm_start_trains_in_the_chosen_dtype_and_so_does_its_resume(machine, tmp_path: Path):
    start = {"demonstrations": "oracle", "steps": 1, "batch": 2}
    policies = {"p": policy("lora", warm_start=start), "q": policy("none", warm_start=start)}
    trainer = opened(policies)
    assert set(dtypes(trainer).values()) == {"bfloat16"}
    initial = trainer.initial_weights[0]
    initial.warmed = True
    with torch.no_grad():
        for weight in initial.weights().values():
            weight.add_(0.5)
    trainer.save(tmp_path)
    machine(1.0)
    other = opened(policies)
    other.load(tmp_path)
    assert set(dtypes(other).values()) == {"bfloat16"} and other.initial_weights[0].warmed
    assert other.digest() == trainer.digest()
