# ruff: noqa: E402 (torch is asked for first)
"""Two ranks do what one does: updates, annotations, warm starts, checkpoints; and what ends them."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("peft")

from coterie.backends.models.policy import WarmStart
from coterie.backends.trainers import devices
from coterie.backends.trainers.devices import device_of
from coterie.backends.trainers.parameters import hollow, read_sources
from coterie.backends.trainers.ranks.collectives import buckets, shares
from coterie.backends.trainers.ranks.group import RankLost, RankPlace
from coterie.backends.trainers.replicas import check_same, checksum
from coterie.core.errors import ConfigError, UserError
from coterie.core.protocols import Demonstration
from coterie.core.types import Sample
from coterie.plugins.losses.ppo_clip import PPOClip
from tests.backends.trainers.on_ranks import DoubleTrainer
from tests.backends.trainers.tiny import (
    annotate,
    opened,
    policy,
    samples,
    update,
    with_reference,
    with_targets,
)

# One worker makes the pair of trainers once, for all tests of this file.
pytestmark = [pytest.mark.torch, pytest.mark.xdist_group("ranks")]

NEEDS = ("ref_logprobs", "values")
Loss = PPOClip(PPOClip.Config(entropy=0.01, kl=0.05) if "kl" in PPOClip.Config.model_fields else None)


def policies() -> dict[str, Any]:
    """All weights trained, adapters in one base, one of them with dropout, a frozen policy, and adapters on a
    source's weights."""
    drops = policy("lora", lora={"rank": 4, "alpha": 8, "dropout": 0.3})
    begun = policy("lora", **{"from": "x"})
    return {
        "p": policy(), "q": policy("lora"), "r": policy("lora"), "d": drops, "f": policy("none"), "s": begun,
    }  # fmt: skip


@pytest.fixture(scope="module")
def pair() -> Iterator[tuple[DoubleTrainer, DoubleTrainer]]:
    """One rank and two, with equal weights and heads; `s` goes on from another trainer's."""
    source = opened({"s": policy("lora")}, Loss, needs=NEEDS, trainer=DoubleTrainer, seed=3)
    update(source, {"s": rows("s", 3)})
    made = []
    for ranks in (1, 2):
        settings = {"ranks": ranks, "minibatch_size": 8, "epochs": 2, "micro_tokens": 120}
        each = DoubleTrainer(DoubleTrainer.Config(device="cpu", **settings))
        each.begin_with({"s": source.weights("s")})
        asyncio.run(each.open(replace(source.ctx, policies=policies(), seed=0)))
        each.commands.run("rank_turn_heads")
        made.append(each)
    one, two = made
    yield one, two
    asyncio.run(one.close())
    asyncio.run(two.close())


def rows(name: str, seed: int) -> list[Sample]:
    return with_targets(with_reference(samples(name, seed=seed, temperatures=(1.0, 0.7))), without=3)


def weights(made: DoubleTrainer) -> dict[str, torch.Tensor]:
    return {
        f"{name}/{part}": tensor.detach().clone()
        for name, owner in made.policies.items()
        for part, tensor in owner.weights().items()
    }


def close_together(one: DoubleTrainer, two: DoubleTrainer, tolerance: float = 1e-10) -> None:
    theirs = weights(two)
    for name, tensor in weights(one).items():
        torch.testing.assert_close(tensor, theirs[name], rtol=tolerance, atol=tolerance, msg=name)


def gradients(
    made: DoubleTrainer, name: str, given: list[Sample]
) -> tuple[list[dict[str, Any]], dict[str, float]]:
    """The gradients of each optimiser step of an update, as the optimiser gets them, and the metrics."""
    optimizer, seen = made.policies[name].optimizer, []
    assert optimizer is not None
    original = optimizer.step

    def noted() -> Any:
        seen.append({n: m.grad.clone() for n, m in optimizer.masters().items() if m.grad is not None})
        return original()

    optimizer.step = noted  # type: ignore[method-assign]
    try:
        metrics = update(made, {name: given}, 5)[name]
    finally:
        optimizer.step = original  # type: ignore[method-assign]
    return seen, metrics


def test_a_source_and_a_warm_start_reach_all_ranks(pair: Any) -> None:
    """The first of these tests: bit for bit, before sums of two ranks have rounded otherwise."""
    one, two = pair
    assert one.bases() == two.bases() and two.digest() == one.digest()
    given = samples("s", seed=9)
    before, after = (annotate(each, given, "ref_logprobs") for each in pair)
    assert all(np.allclose(before[key], after[key], atol=1e-6) for key in before)
    demonstrations = [
        Demonstration(policy="p", messages=({"role": "user", "content": "w1 w2"},), completion=f"w{n}")
        for n in (4, 5)
    ]
    for each in pair:
        asyncio.run(each.warm_start("p", lambda step: demonstrations, WarmStart(steps=3, batch=2)))
    assert two.digest() == one.digest()
    for each in pair:
        update(each, {"s": rows("s", 6)})
    close_together(one, two)


@pytest.mark.parametrize("name", ["p", "q"])
def test_two_ranks_give_the_gradients_and_metrics_of_one(name: str, pair: Any) -> None:
    one, two = pair
    expected, metrics = gradients(one, name, rows(name, 1))
    summed, theirs = gradients(two, name, rows(name, 1))
    assert len(expected) == len(summed) == 4
    for before, after in zip(expected, summed, strict=True):
        assert set(before) == set(after) and any(float(grad.abs().max()) > 1e-4 for grad in before.values())
        for part, grad in before.items():
            torch.testing.assert_close(after[part], grad, rtol=1e-6, atol=1e-9)
    assert set(metrics) == set(theirs)
    assert {"value_loss", "explained_variance", "mismatch_max", "clip_fraction"} <= set(metrics)
    for metric, value in metrics.items():
        assert theirs[metric] == pytest.approx(value, rel=1e-9, abs=1e-12), metric
    close_together(one, two)


def test_two_ranks_count_by_age_as_one_does(pair: Any) -> None:
    found = []
    for made in pair:
        version, given = made.policies["q"].version, []
        for row in rows("q", 8):
            tokens = int(row.loss_mask.sum())
            runs = ((version - 2, 1), (version - 1, 1), (version, tokens - 2)) if tokens > 2 else ()
            given.append(replace(row, version=version - 2, version_runs=runs))
        metrics = update(made, {"q": given}, 7)["q"]
        found.append({name: value for name, value in metrics.items() if "/staleness/" in name})
    assert set(found[0]) == {
        f"{name}/staleness/{k}" for name in ("mismatch", "clip_fraction") for k in range(3)
    }
    assert found[1] == pytest.approx(found[0], rel=1e-9, abs=1e-12)


def test_a_rank_without_samples_adds_nothing(pair: Any) -> None:
    one, two = pair
    single = with_targets(with_reference(samples("r", groups=1, siblings=1)))
    for step in range(2):
        before, after = (update(made, {"r": single}, step) for made in pair)
        assert before["r"] == pytest.approx(after["r"], rel=1e-9) and set(before) == {*"pqrds"}
    close_together(one, two)
    assert two.weights("r").version == one.weights("r").version > 0


def test_a_head_without_targets_is_left_alone_by_its_moments_too(pair: Any) -> None:
    one, two = pair
    for made in pair:
        update(made, {"p": rows("p", 5)}, 1)
    before = two.policies["p"].value_head.detach().clone()
    for made in pair:
        update(made, {"p": with_reference(samples("p", seed=6))}, 2)
    assert torch.equal(two.policies["p"].value_head.detach(), before)
    close_together(one, two)


def test_a_gradient_that_is_not_finite_on_one_rank_is_skipped_on_all(pair: Any) -> None:
    one, two = pair
    given = rows("p", 4)
    given[0] = replace(given[0], advantages=np.where(given[0].loss_mask, np.inf, 0).astype(np.float32))
    before, after = (update(made, {"p": given}, 3)["p"] for made in pair)
    assert after["skipped_steps"] == before["skipped_steps"] == 2  # its minibatch, in both epochs
    assert after["optimizer_steps"] == before["optimizer_steps"] == 2
    close_together(one, two)
    two.digest()


@pytest.mark.parametrize("what", ["ref_logprobs", "old_logprobs", "values"])
@pytest.mark.parametrize("name", ["p", "q", "f"])
def test_annotations_are_those_of_one_process(name: str, what: str, pair: Any) -> None:
    given = samples(name, groups=4, seed=2)
    before, after = (annotate(made, given, what) for made in pair)
    assert list(before) == list(after)
    for key, values in before.items():
        assert values.dtype == after[key].dtype and np.allclose(values, after[key], rtol=0, atol=1e-6)


def test_a_run_goes_on_from_one_rank_to_two_and_back(pair: Any, tmp_path: Path) -> None:
    one, two = pair
    one.save(tmp_path / "one")
    two.load(tmp_path / "one")
    assert two.digest() == one.digest()  # bit for bit, on both ranks
    for step in (11, 12):
        for made in pair:
            update(made, {name: rows(name, step) for name in "pqr"}, step)
    close_together(one, two)
    two.save(tmp_path / "two")
    one.load(tmp_path / "two")
    assert one.digest() == two.digest()
    assert [one.weights(name).version for name in "pqrdf"] == [two.weights(name).version for name in "pqrdf"]
    before, after = (update(made, {"p": rows("p", 13)}, 13)["p"] for made in pair)
    assert after == pytest.approx(before, rel=1e-9)


def test_the_share_of_the_budget_reaches_all_ranks(pair: Any) -> None:
    _, two = pair
    two.set_progress(0.25)
    assert two.policies["p"].optimizer.spent == 0.25
    two.digest()


def test_no_group_of_torchs_is_taken(pair: Any) -> None:
    assert not torch.distributed.is_initialized()


def test_each_rank_draws_its_dropout_and_the_weights_stay_equal(
    pair: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, two = pair
    (row,) = with_targets(with_reference(samples("d", groups=1, siblings=1)))
    twins = [replace(row, key=row.key._replace(branch=branch)) for branch in range(2)]  # one on each rank
    original, seen = two.place.sum_gradients, []

    def noted(tensors: Any, loss: float) -> float:
        before = [tensor.grad.clone() for tensor in tensors]
        total = original(tensors, loss)
        seen.extend((mine, tensor.grad.clone()) for mine, tensor in zip(before, tensors, strict=True))
        return total

    monkeypatch.setattr(two.place, "sum_gradients", noted)
    update(two, {"d": twins}, 3)
    # Equal draws would give equal gradients, and twice rank 0's in the sum.
    assert any(not torch.allclose(both, 2 * mine, rtol=1e-3) for mine, both in seen)
    two.digest()


def test_one_rank_imports_none_of_this(monkeypatch: pytest.MonkeyPatch) -> None:
    name = "coterie.backends.trainers.ranks.collectives"
    monkeypatch.delitem(sys.modules, name, raising=False)
    update(opened({"p": policy()}, ranks=1), {"p": samples()})
    assert name not in sys.modules


def test_a_killed_rank_ends_the_update_and_the_others(pair: Any) -> None:
    """The last of these tests."""
    _, two = pair
    two.commands.run("rank_misbehave", "kill")
    with pytest.raises(RankLost, match="rank 1 was killed by signal 9"):
        update(two, {name: rows(name, 7) for name in "pqr"}, 20)
    with pytest.raises(RankLost, match="the ranks have ended"):
        two.digest()


# ----------------------------------------------------------------------------------- without processes


def test_rows_are_divided_evenly_and_prompts_stay_together() -> None:
    given = samples(groups=8, siblings=4)
    for world in (2, 3):
        dealt = shares(given, world, packing=True)
        assert sorted(index for part in dealt for index in part) == list(range(len(given)))
        assert all(part == sorted(part) for part in dealt)
        tokens = [sum(len(given[index].token_ids) for index in part) for part in dealt]
        assert max(tokens) < 1.5 * min(tokens)
        groups = [{given[index].group for index in part} for part in dealt]
        assert sum(map(len, groups)) <= 8 + world - 1  # at most a group too large for one rank is divided


def test_one_group_is_divided_and_one_row_is_not() -> None:
    group = samples(groups=1, siblings=8)
    first, second = shares(group, 2, packing=True)
    assert len(first) == len(second) == 4
    assert sorted(map(len, shares(group[:1], 2, packing=True))) == [0, 1]
    assert shares([], 2, packing=True) == [[], []]
    assert sorted(map(len, shares(group, 2, packing=False)))[0] >= 3


def test_gradients_are_summed_in_buckets_of_limited_size_that_hold_all_of_them() -> None:
    sizes = (5, 10, 10, 40, 1, 20, 5)
    given = [torch.zeros(size, dtype=torch.float32) for size in sizes] + [torch.zeros(3, dtype=torch.float64)]
    made = list(buckets(given, most=100))
    assert sorted(id(tensor) for bucket in made for tensor in bucket) == sorted(map(id, given))
    assert all(len({tensor.dtype for tensor in bucket}) == 1 for bucket in made)
    assert all(len(bucket) == 1 or sum(t.nbytes for t in bucket) <= 100 for bucket in made)


def test_a_checksum_sees_one_bit_and_an_exchange() -> None:
    tensors = {"a": torch.randn(7), "b": torch.randn(7)}
    before = checksum(tensors)
    changed = tensors["a"].clone()
    changed[3] = torch.nextafter(changed[3], torch.tensor(9.0))
    assert checksum({"a": changed, "b": tensors["b"]}) != before == checksum(tensors)
    assert checksum({"a": tensors["b"], "b": tensors["a"]}) != before
    check_same("p", [before, checksum(tensors)])
    with pytest.raises(UserError, match="policy 'p': the weights of rank 2"):
        check_same("p", [before, before, 0])


def test_weights_that_differ_are_an_error_that_names_the_policy() -> None:
    class BesideAnother(RankPlace):
        """The other rank's sums of bits differ in one."""

        world = 2

        def gather(self, value: Any) -> list[Any]:
            return [value, (value[0] + 1, *value[1:]) if isinstance(value[0], int) else value]

    trainer = opened({"p": policy("none"), "q": policy("lora")})
    trainer.place = BesideAnother()
    with pytest.raises(UserError, match="policy 'q': the weights of rank 1 differ from rank 0's") as raised:
        update(trainer, {"q": samples("q")})
    assert raised.value.path == "policies.q"


def test_hollow_sources_have_the_shapes_and_take_no_memory() -> None:
    source = opened({"s": policy("lora"), "t": policy("lora")})
    read = read_sources({name: source.weights(name) for name in "st"})
    empty = hollow(read)
    assert empty is not None and empty["s"].base is empty["t"].base and hollow(None) is None
    assert {n: t.shape for n, t in empty["s"].base.items()} == {n: t.shape for n, t in read["s"].base.items()}
    assert sum(t.untyped_storage().nbytes() for t in empty["s"].base.values()) < 1000
    assert empty["s"].adapter is not None and not any(t.any() for t in empty["s"].adapter.values())


def test_each_rank_of_a_host_has_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    chosen: list[Any] = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(devices.torch, "empty", lambda size, device: chosen.append(device))
    assert device_of("auto", 1) == device_of("cuda", 1) == torch.device("cuda:1")
    assert device_of("cuda:1") == torch.device("cuda:1") and device_of("auto") == torch.device("cuda")
    with pytest.raises(ConfigError, match="no GPU for rank 2 of this host") as raised:
        device_of("auto", 2)
    assert raised.value.path == "trainer.ranks"
    with pytest.raises(ConfigError, match="all ranks would train on 'cuda:0'"):
        device_of("cuda:0", 0)
    assert device_of("cpu", 5) == torch.device("cpu")
