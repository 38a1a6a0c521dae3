# ruff: noqa: E402 (torch is asked for first)
"""The value head: where it is, what it learns, and where it must not turn up."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("peft")

from safetensors import safe_open

from coterie.backends.models.policy import TorchPolicy
from coterie.backends.trainers.torch_trainer import TorchTrainer
from coterie.backends.trainers.value_head import explained_variance, value_loss
from coterie.core.errors import RunFolderError
from coterie.core.types import Sample
from tests.backends.trainers.tiny import (
    MODEL,
    annotate,
    opened,
    policy,
    sample,
    samples,
    turn_heads,
    update,
    with_targets,
)

pytestmark = pytest.mark.torch
NEEDS = ("values",)


def team() -> dict[str, TorchPolicy]:
    """Of one start, but for the bf16 one."""
    return {
        "full": policy(),
        "half": policy(dtype="bfloat16"),
        "a": policy("lora"),
        "b": policy("lora", lora={"rank": 2}),
        "none": policy("none"),
    }


def heads(trainer: TorchTrainer) -> dict[str, torch.Tensor]:
    found = {name: one.value_head for name, one in trainer.policies.items()}
    return {name: head.detach().clone() for name, head in found.items() if head is not None}


def test_the_loss_by_hand() -> None:
    values, old, targets = (
        torch.tensor(numbers, dtype=torch.float64)
        for numbers in ([0.1, 0.5, -0.5, 0.5, 2.0], [0.0, 0.0, 0.0, 0.0, 0.0], [1.0, 1.0, 1.0, 0.1, 0.0])
    )
    values.requires_grad_()
    found, clipped = value_loss(values, old, targets, clip=0.2)
    # inside; beyond towards the target; beyond away from it; past a target within reach; beyond, away
    assert found.tolist() == pytest.approx([0.81, 0.64, 2.25, 0.16, 4.0])
    assert clipped.tolist() == [False, True, False, False, False]
    found.sum().backward()
    assert values.grad.tolist() == pytest.approx([-1.8, 0.0, -3.0, 0.8, 4.0])
    free, clipped = value_loss(values.detach(), old, targets, clip=None)
    assert free.tolist() == pytest.approx([0.81, 0.25, 2.25, 0.16, 4.0]) and not clipped.any()


def test_explained_variance_by_hand() -> None:
    row = sample("p", "t", 0, [3, 4], [5, 6, 7], [True, False, True])
    targets = np.array([0, 0, 1.0, 99.0, 3.0], np.float32)

    def explained(first: float, second: float, goal: np.ndarray = targets) -> float | None:
        values = np.array([0, 0, first, -99.0, second], np.float32)
        return explained_variance([replace(row, extras={"values": values, "targets": goal}), row])

    assert explained(1.0, 3.0) == 1.0 and explained(0.5, 0.5) == 0.0
    assert explained(3.0, 1.0) == pytest.approx(1.0 - 4.0 / 1.0)  # errors of -2 and 2, targets around 2
    assert explained(0.0, 1.0, np.ones(5, np.float32)) is None and explained_variance([row]) is None


def test_there_is_a_head_only_where_values_are_needed() -> None:
    assert not heads(opened(team()))
    found = heads(opened(team(), needs=NEEDS))
    assert set(found) == {"full", "half", "a", "b"}
    for head in found.values():
        assert head.shape == (MODEL["hidden_size"],) and head.dtype == torch.float32 and not head.any()


def test_a_head_learns_the_targets() -> None:
    """The same states with the same targets, over and over: V gets there, by each way of training."""
    configs = {"full": policy(), "a": policy("lora"), "half": policy(dtype="bfloat16")}
    trainer = opened(
        configs, needs=NEEDS, value={"clip": None, "coefficient": 10.0, "learning_rate": 0.05}, epochs=25
    )
    for name in configs:
        rows = [replace(row, advantages=0 * row.advantages) for row in samples(name)]
        # Of the token before, which the state holds.
        goals = {
            row.key: np.where(np.roll(row.token_ids, 1) % 2, 1.0, -0.5).astype(np.float32) for row in rows
        }

        def aimed(rows: list[Sample] = rows, name: str = name, goals: dict = goals) -> list[Sample]:
            values = annotate(trainer, rows, "values")
            found = []
            for row in rows:
                known = np.zeros(len(row.token_ids), np.float32)
                known[row.loss_mask] = values[row.key]
                found.append(replace(row, extras={"values": known, "targets": goals[row.key]}))
            return found

        first = update(trainer, {name: aimed()})[name]
        assert first["explained_variance"] == 0.0  # V was 0 everywhere
        last = update(trainer, {name: aimed()}, 1)[name]
        assert last["explained_variance"] > 0.8 and last["value_loss"] < 0.2 * first["value_loss"]


def test_the_head_has_a_learning_rate_of_its_own_where_it_is_given() -> None:
    # Adam's first step is as long as the learning rate.
    for rate, wanted in ((None, 1e-2), (1e-3, 1e-3)):
        trainer = opened({"p": policy()}, needs=NEEDS, value={"learning_rate": rate})
        before = trainer.policies["p"].own_parameters()["model.norm.weight"].detach().clone()
        found = update(trainer, {"p": with_targets(samples())})["p"]
        assert float(heads(trainer)["p"].abs().median()) == pytest.approx(wanted, rel=1e-2)
        moved = (trainer.policies["p"].own_parameters()["model.norm.weight"].detach() - before).abs().median()
        assert float(moved) == pytest.approx(1e-2, rel=1e-2) and found["learning_rate"] == 1e-2


def test_the_heads_rate_follows_the_policys_schedule() -> None:
    decay = {"learning_rate": 1e-2, "schedule": "linear", "horizon": 1, "final_share": 0.0}
    trainer = opened({"p": policy(optimizer=decay)}, needs=NEEDS, value={"learning_rate": 1e-3})
    update(trainer, {"p": with_targets(samples())})
    after = heads(trainer)["p"]
    update(trainer, {"p": with_targets(samples(seed=1))}, 1)
    assert after.any() and torch.equal(heads(trainer)["p"], after)


def test_the_heads_gradient_is_clipped_with_the_others() -> None:
    rows = with_targets(samples())
    norms = {}
    for coefficient in (1e-9, 1e6):  # a fresh head sends no gradient into the model
        trainer = opened(
            {"p": policy(optimizer={"learning_rate": 1e-9, "clip": 1e-3})},
            needs=NEEDS, value={"coefficient": coefficient},
        )  # fmt: skip
        norms[coefficient] = update(trainer, {"p": rows})["p"]["grad_norm"]
        state = trainer.policies["p"].optimizer.state()
        first = torch.cat([tensor.flatten() for name, tensor in state.items() if name.endswith("/exp_avg")])
        assert float(first.norm()) == pytest.approx(0.1 * 1e-3, rel=1e-4)
    assert norms[1e6] > 1e3 * norms[1e-9]


def test_an_update_moves_its_own_head_only() -> None:
    trainer = opened(team(), needs=NEEDS)
    for step, name in enumerate(("full", "half", "a", "b")):
        before, digests = heads(trainer), trainer.digest()
        update(trainer, {name: with_targets(samples(name))}, step)
        after = heads(trainer)
        assert {other for other in after if not torch.equal(after[other], before[other])} == {name}
        now = trainer.digest()
        assert {other for other in now if now[other] != digests[other]} == {name}


def test_samples_without_targets_leave_the_head_alone() -> None:
    trainer = opened({"p": policy()}, needs=NEEDS)
    found = update(trainer, {"p": samples()})["p"]
    assert not heads(trainer)["p"].any() and "value_loss" not in found


def test_a_digest_sees_the_head() -> None:
    trainer = opened(team(), needs=NEEDS)
    before = trainer.digest()
    with torch.no_grad():
        trainer.policies["a"].value_head[0] = 1e-7
    assert {name for name, found in trainer.digest().items() if found != before[name]} == {"a"}


@pytest.mark.parametrize("merge", [False, True])
def test_neither_engines_nor_exports_get_the_head(tmp_path: Path, merge: bool) -> None:
    policies = {name: of for name, of in team().items() if name in ("full", "a", "none")}
    trainer, plain = opened(policies, needs=NEEDS), opened(policies)
    update(trainer, {name: with_targets(samples(name)) for name in heads(trainer)})
    for name in policies:
        given = {key for key, _ in trainer.weights(name).module.named_parameters()}
        assert given == {key for key, _ in plain.weights(name).module.named_parameters()}
        names = []
        for number, source in enumerate((trainer, plain)):
            folder = tmp_path / f"{name}-{number}"
            source.export(name, folder, merge=merge)
            found: dict[str, set[str]] = {}
            for file in folder.rglob("*.safetensors"):
                with safe_open(file, "pt") as tensors:
                    found[str(file.relative_to(folder))] = set(tensors.keys())
            names.append(found)
        assert names[0] and names[0] == names[1]


def test_heads_are_saved_and_resumed_bit_for_bit(tmp_path: Path) -> None:
    def steps(trainer: TorchTrainer, numbers: range) -> dict:
        found = {}
        for step in numbers:
            given = {name: with_targets(samples(name, seed=step)) for name in heads(trainer)}
            found = update(trainer, given, step)
        return found

    how = {"needs": NEEDS, "minibatch_size": 5, "value": {"learning_rate": 3e-3}}
    whole, first, second = (opened(team(), **how) for _ in range(3))
    wanted = steps(whole, range(2))
    steps(first, range(1))
    first.save(tmp_path)
    second.load(tmp_path)
    assert second.digest() == first.digest()
    assert steps(second, range(1, 2)) == wanted
    assert second.digest() == whole.digest()
    for name, head in heads(whole).items():
        assert head.any() and torch.equal(heads(second)[name], head)
    with pytest.raises(RunFolderError, match="other value heads"):
        opened(team()).load(tmp_path)


def test_a_checkpoint_without_heads_is_not_read_where_values_are_needed(tmp_path: Path) -> None:
    opened(team()).save(tmp_path)
    with pytest.raises(RunFolderError, match="other value heads"):
        opened(team(), needs=NEEDS).load(tmp_path)


def test_the_same_update_without_a_head_is_the_same_to_the_model() -> None:
    """Fresh heads pull at nothing, and clipping aside the model's own gradients are what they were."""
    rows = samples()
    loose = policy(optimizer={"learning_rate": 1e-2, "clip": 1e9})
    plain, valued = opened({"p": loose}), opened({"p": loose}, needs=NEEDS)
    update(plain, {"p": rows})
    update(valued, {"p": with_targets(rows)})
    for name, weight in plain.policies["p"].own_parameters().items():
        assert torch.equal(valued.policies["p"].own_parameters()[name], weight), name
    turn_heads(valued)
    update(plain, {"p": rows}, 1)
    update(valued, {"p": with_targets(rows)}, 1)
    assert any(not torch.equal(valued.policies["p"].own_parameters()[name], w)
               for name, w in plain.policies["p"].own_parameters().items())  # fmt: skip
