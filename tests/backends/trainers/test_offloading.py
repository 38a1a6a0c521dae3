# ruff: noqa: E402 (torch is asked for first)
"""A trainer leaves its device in rollouts, comes back before it computes, and computes the same."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from weakref import WeakKeyDictionary, WeakSet

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("peft")

from hypothesis import given, settings, strategies as st
from safetensors.torch import load_file
from torch import Tensor

from coterie.backends.engines.vllm.sync import BaseWeights
from coterie.backends.models import device_memory
from coterie.backends.models.policy import WarmStart
from coterie.backends.trainers import offloading, torch_state
from coterie.backends.trainers.offloading import Offloaded, TorchDevice
from coterie.backends.trainers.settings import TorchConfig, offload_of
from coterie.backends.trainers.torch_trainer import TorchTrainer
from coterie.backends.trainers.torch_weights import masters_of, weights_of
from coterie.core.errors import ConfigError, UserError
from coterie.core.protocols import Demonstration
from coterie.core.types import Sample
from coterie.plugins.losses.ppo_clip import PPOClip
from tests.backends.trainers.poisoned import Poisoned, PoisonedTrainer, freed
from tests.backends.trainers.tiny import (
    annotate,
    opened,
    policy,
    samples,
    update,
    with_reference,
    with_targets,
)

pytestmark = pytest.mark.torch
NEEDS = ("ref_logprobs", "values")
NAMES = ("full", "a", "b")


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Trainers and engines that other tests left open are asked for nothing."""
    monkeypatch.setattr(device_memory, "occupied", WeakKeyDictionary())
    monkeypatch.setattr(device_memory, "lenders", WeakSet())


def policies() -> dict[str, Any]:
    """bf16 weights with masters, two adapters on one base, and a frozen policy."""
    return {
        "full": policy(dtype="bfloat16"), "a": policy("lora"), "b": policy("lora"), "n": policy("none")
    }  # fmt: skip


class Watching(PPOClip):
    """A loss that is computed while all of the trainer is on its device: what is away could be read, too."""

    device: Poisoned | None = None

    def __call__(self, *arguments: Any) -> Any:
        assert self.device is None or not self.device.freed
        return super().__call__(*arguments)


def made(offload: str, cls: type[TorchTrainer] = PoisonedTrainer, **settings: Any) -> TorchTrainer:
    loss, wanted = Watching(), {"offload_in_rollouts": offload, "minibatch_size": 8, **settings}
    trainer = opened(policies(), loss, needs=NEEDS, trainer=cls, **wanted)
    loss.device = getattr(trainer, "device", None)
    return trainer


def rows(step: int) -> dict[str, list[Sample]]:
    return {
        name: with_targets(with_reference(samples(name, seed=10 * step + len(name), groups=2)), without=3)
        for name in NAMES
    }


def room() -> None:
    """What an engine asks for before its servers start or wake."""
    asyncio.run(device_memory.make_room())


def read(trainer: TorchTrainer) -> dict[str, Tensor]:
    """The weights as an engine reads them through the trainer's handles."""
    seen = {}
    for name in NAMES:
        handle = trainer.weights(name)
        merged = BaseWeights(handle, merge=handle.adapter is not None)
        seen |= {f"{name}/{part}": tensor.clone() for part, tensor in merged}
    return seen


def played(trainer: TorchTrainer, folder: Path, between: Callable[[], None], steps: int = 2) -> list[Any]:
    """All that a run has of its trainer in a few steps; `between` is called where episodes are played."""
    seen: list[Any] = [read(trainer)]
    for step in range(steps):
        between()
        seen.append(trainer.digest())
        for what in ("ref_logprobs", "old_logprobs", "values"):
            seen.append(annotate(trainer, samples("a", seed=step), what))
        seen.append(update(trainer, rows(step), step))
        seen.append(read(trainer))
        between()
        seen.append(read(trainer))
        trainer.save(folder / str(step))
        seen.append({str(path.relative_to(folder)): load_file(str(path)) for path in _files(folder)})
    return seen


def _files(folder: Path) -> list[Path]:
    return sorted(folder.glob("**/*.safetensors"))


def same(ours: Any, theirs: Any) -> None:
    """Equal, bit for bit."""
    assert type(ours) is type(theirs)
    if isinstance(ours, dict):
        assert ours.keys() == theirs.keys()
        ours, theirs = [*ours.values()], [*theirs.values()]
    if isinstance(ours, list):
        assert len(ours) == len(theirs)
        for mine, other in zip(ours, theirs, strict=True):
            same(mine, other)
    elif isinstance(ours, Tensor):
        assert torch.equal(ours, theirs) and not ours.isnan().any()
    elif hasattr(ours, "tobytes"):
        assert ours.tobytes() == theirs.tobytes()
    else:
        assert ours == theirs


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    """Of a trainer that stays."""
    trainer = made("none")
    seen = played(trainer, tmp_path_factory.mktemp("stays"), lambda: None)
    assert freed(trainer) == [0]
    return seen


# --------------------------------------------------------------------------------------------- a whole run


@pytest.mark.parametrize("offload", [pytest.param("optimizer", marks=pytest.mark.long), "all"])
def test_a_trainer_that_leaves_computes_the_same_bit_for_bit(
    offload: str, expected: list[Any], tmp_path: Path
) -> None:
    trainer = made(offload)
    bytes_away = set()

    def between() -> None:
        room()
        bytes_away.add(freed(trainer)[0])
        assert offload == "all" or all(torch.isfinite(t).all() for t in models(trainer))

    same(played(trainer, tmp_path, between), expected)
    weights = sum(t.numel() * t.element_size() for t in distinct(models(trainer)))
    moments = sum(
        t.numel() * t.element_size()
        for name in NAMES
        for part, t in trainer.policies[name].optimizer.state().items()  # type: ignore[union-attr]
    )
    masters = 4 * sum(p.numel() for p in trainer.policies["full"].own_parameters().values())
    heads = sum(trainer.policies[name].value_head.nbytes for name in NAMES)  # type: ignore[union-attr]
    assert max(bytes_away) == (moments if offload == "optimizer" else moments + weights + heads)
    assert min(bytes_away) == (masters if offload == "optimizer" else masters + weights + heads)


def models(trainer: TorchTrainer) -> Iterator[Tensor]:
    frozen = (initial.frozen for initial in trainer.initial_weights)
    references = [module for module in frozen if module is not None]
    for module in (*references, *(owner.model for owner in trainer.policies.values())):
        yield from module.parameters()
        yield from module.buffers()


def distinct(tensors: Iterator[Tensor]) -> list[Tensor]:
    return [*{id(tensor): tensor for tensor in tensors}.values()]


@pytest.mark.long
def test_nothing_of_the_trainers_stays_on_the_device_in_rollouts() -> None:
    """Counted by the collector of garbage, in all tensors of the process that the trainer has made."""

    class Here(TorchTrainer):
        def _offload_device(self) -> TorchDevice:
            return TorchDevice("cpu")  # its storages are freed for real

    before = {storage.data_ptr() for storage in storages()}
    trainer = made("all", Here)
    update(trainer, rows(0))

    def new() -> int:
        here = {storage.data_ptr(): storage.nbytes() for storage in storages()}
        return sum(size for place, size in here.items() if place not in before)

    held = new()
    buffers = trainer.away.bytes if trainer.away else 0  # of masters and moments, which have left
    room()
    assert trainer.away is not None
    assert new() == trainer.away.bytes > held - buffers > 0, "all that lives is what the CPU's memory keeps"
    update(trainer, rows(1))
    asyncio.run(trainer.close())


def storages() -> list[Any]:
    gc.collect()
    tensors = [thing for thing in gc.get_objects() if issubclass(type(thing), Tensor)]
    kept = [tensor.untyped_storage() for tensor in tensors if tensor.device.type == "cpu"]
    return [storage for storage in kept if storage.nbytes()]


def test_masters_and_moments_leave_after_the_update_and_weights_when_an_engine_asks() -> None:
    trainer = made("all")
    update(trainer, rows(0))
    optimiser = freed(trainer)[0]
    states = [trainer.policies[name].optimizer.state() for name in NAMES]  # type: ignore[union-attr]
    assert optimiser == sum(tensor.nbytes for state in states for tensor in state.values())
    room()
    assert freed(trainer)[0] > optimiser
    annotate(trainer, samples("a"), "old_logprobs")
    assert freed(trainer) == [0]
    room()
    again = freed(trainer)
    trainer.commands = None  # type: ignore[assignment]  # no rank is asked again
    room()
    assert trainer.rank_freed() == again[0], "it has left already"  # type: ignore[attr-defined]


def test_the_memory_that_a_tensor_got_outside_is_used_again() -> None:
    trainer = made("all")
    for step in range(3):
        update(trainer, rows(step))
        room()
        if step == 0:
            made_first = trainer.device.made  # type: ignore[attr-defined]
    assert trainer.device.made == made_first > 0  # type: ignore[attr-defined]


# ------------------------------------------------------------------------------------- what else reads it


def test_a_resume_a_warm_start_and_an_export_find_the_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folders = {}
    plain = torch_state.load

    def load(*arguments: Any) -> None:
        assert freed(resumed) == [0], "moments are made where the masters are"
        plain(*arguments)

    monkeypatch.setattr(torch_state, "load", load)
    for offload in ("none", "all"):
        trainer = made(offload)
        wish = WarmStart(steps=2, batch=2, learning_rate=1e-3)
        for base in trainer.bases():
            room()
            asyncio.run(trainer.warm_start(base, partial(demonstrations, trainer), wish))
        update(trainer, rows(0))
        folders[offload] = folder = tmp_path / offload
        room()
        trainer.save(folder / "state")
        for name in NAMES:
            trainer.export(name, folder / "export" / name)
        resumed = made(offload)
        room()
        resumed.load(folder / "state")
        assert bool(freed(resumed)[0]) == (offload == "all"), "masters and moments have left again"
        assert all(torch.isfinite(tensor).all() for tensor in models(resumed))
        assert resumed.digest() == trainer.digest()
        room()
        update(resumed, rows(1))
        room()
        resumed.save(folder / "later")
    ours, theirs = (
        {str(path.relative_to(folder)): load_file(str(path)) for path in _files(folder)}
        for folder in folders.values()
    )
    same(ours, theirs)


def demonstrations(trainer: TorchTrainer, step: int) -> list[Demonstration]:
    assert freed(trainer) == [0]
    return [
        Demonstration(policy="a", messages=(), completion="w3 w4", prompt_ids=(5, 6)),
        Demonstration(policy="a", messages=(), completion="w7", prompt_ids=(8,)),
    ]


def test_a_kept_version_is_kept_and_read_wherever_the_weights_are() -> None:
    seen = []
    for offload in ("none", "all"):
        trainer = made(offload)
        room()
        trainer.keep("full")
        trainer.keep("a")
        update(trainer, rows(0))
        room()
        for name in ("full", "a"):
            with trainer.weights_at(name, 0):
                assert freed(trainer) == [0]
                seen.append(
                    {n: t.detach().clone() for n, t in trainer.policies[name].own_parameters().items()}
                )
        seen.append(trainer.digest())
    same(seen[:3], seen[3:])


def test_an_error_in_an_update_leaves_a_trainer_that_goes_on() -> None:
    class Wrong(PPOClip):
        on = False

        def __call__(self, *arguments: Any) -> Any:
            if self.on:
                raise ValueError("a loss that is wrong")
            return super().__call__(*arguments)

    digests = []
    for offload in ("none", "all"):
        loss = Wrong()
        trainer = opened(policies(), loss, needs=NEEDS, trainer=PoisonedTrainer, offload_in_rollouts=offload)
        update(trainer, rows(0))
        room()
        loss.on = True
        with pytest.raises(ValueError, match="a loss that is wrong"):
            update(trainer, rows(1))
        loss.on = False
        room()
        update(trainer, rows(2))
        digests.append(trainer.digest())
    assert digests[0] == digests[1]


def test_a_machine_with_too_little_memory_is_named_and_nothing_is_lost() -> None:
    stays, trainer = made("none"), made("all")
    for each in (stays, trainer):
        update(each, rows(0))
    device: Poisoned = trainer.device  # type: ignore[attr-defined]
    device.most = device.made + 3
    with pytest.raises(UserError, match=r"the CPU's memory has no room for [0-9,]+ bytes") as caught:
        room()
    assert caught.value.path == "trainer.offload_in_rollouts" and "optimizer or none" in caught.value.fix
    assert trainer.digest() == stays.digest()
    device.full = True
    with pytest.raises(UserError, match=r"the GPU has no room for [0-9,]+ bytes") as caught:
        update(trainer, rows(1))
    assert "out of memory" in caught.value.why and "engine.memory_share" in caught.value.fix
    device.full = False
    for each in (stays, trainer):
        update(each, rows(1))
    assert trainer.digest() == stays.digest()


@pytest.mark.long
def test_all_ranks_leave_and_come_back(expected: list[Any], tmp_path: Path) -> None:
    seen = []
    for offload in ("none", "all"):
        trainer = made(offload, ranks=2)
        folder = tmp_path / offload

        def between() -> None:
            room()
            first, second = freed(trainer)  # noqa: B023
            assert first == second
            assert bool(first) == (offload == "all")  # noqa: B023

        seen.append(played(trainer, folder, between))
        asyncio.run(trainer.close())
    same(seen[0], seen[1])


# -------------------------------------------------------------------------------------------- the settings


@pytest.mark.parametrize(
    ("wanted", "cluster", "chosen"),
    [
        ("auto", None, "none"),
        ("auto", {"layout": "separate"}, "none"),
        ("auto", {"layout": "colocate"}, "all"),
        ("none", {"layout": "colocate"}, "none"),
        ("optimizer", None, "optimizer"),
        ("all", None, "all"),
    ],
)
def test_auto_leaves_where_replicas_have_the_trainers_gpus(wanted: Any, cluster: Any, chosen: str) -> None:
    run: Any = SimpleNamespace(
        cluster=cluster, engine={"type": "vllm"}, executor={"type": "ray"},
        schedule=SimpleNamespace(max_staleness=0),
    )  # fmt: skip
    assert offload_of(TorchConfig(offload_in_rollouts=wanted), run) == chosen
    assert offload_of(TorchConfig(), None) == "none"


@pytest.mark.parametrize(
    ("engine", "staleness", "why"),
    [("hf", 0, "with the trainer's own modules"), ("vllm", 1, "schedule.max_staleness is 1")],
)
def test_weights_stay_where_something_computes_with_them_in_rollouts(
    engine: str, staleness: int, why: str
) -> None:
    run: Any = SimpleNamespace(
        cluster=None, engine={"type": engine}, executor={"type": "local"},
        schedule=SimpleNamespace(max_staleness=staleness),
    )  # fmt: skip
    with pytest.raises(ConfigError, match="can't leave its GPU") as caught:
        offload_of(TorchConfig(offload_in_rollouts="all"), run)
    assert caught.value.path == "trainer.offload_in_rollouts" and why in caught.value.why
    assert offload_of(TorchConfig(offload_in_rollouts="optimizer"), run) == "optimizer"


def test_a_trainer_on_a_cpu_stays() -> None:
    trainer = opened({"p": policy()}, offload_in_rollouts="all")
    update(trainer, {"p": samples()})
    room()
    assert trainer.away is not None and not trainer.away
    assert all(tensor.numel() for tensor in models(trainer))


def test_a_trainer_whose_setting_the_run_refuses_does_not_open() -> None:
    class Build:
        run = SimpleNamespace(
            cluster=None, engine={"type": "hf"}, executor={"type": "local"},
            schedule=SimpleNamespace(max_staleness=0),
        )  # fmt: skip

    trainer = TorchTrainer(TorchConfig(offload_in_rollouts="all"), Build())
    with pytest.raises(ConfigError, match="can't leave its GPU"):
        asyncio.run(trainer.open(SimpleNamespace(needs=())))  # type: ignore[arg-type]


# --------------------------------------------------------------------------------------------- the storages


@settings(max_examples=20, deadline=None)
@given(st.data())
def test_any_views_of_any_storages_come_back_as_they_were(data: st.DataObject) -> None:
    """Views overlap, some tensors don't leave themselves, and some are written while they are away."""
    sizes = data.draw(st.lists(st.integers(1, 40), min_size=1, max_size=4))
    bases = [torch.randn(size) for size in sizes]
    shadows = [base.clone() for base in bases]
    views, shadow_views = [], []
    for _ in range(data.draw(st.integers(1, 8))):
        number = data.draw(st.integers(0, len(bases) - 1))
        part = slice(data.draw(st.integers(0, sizes[number] - 1)), None, data.draw(st.integers(1, 3)))
        views.append(bases[number][part])
        shadow_views.append(shadows[number][part])
    leaving = data.draw(st.lists(st.integers(0, len(views) - 1), max_size=8))
    written = data.draw(st.lists(st.sampled_from(leaving), max_size=2)) if leaving else []
    pointers = [view.data_ptr() for view in views]
    device = Poisoned()
    away = Offloaded(device)
    for _ in range(2):  # the second time they are away already
        away.leave([views[number] for number in leaving])
    left = {number for number in range(len(views)) if views[number].data_ptr() != pointers[number]}
    assert left == {*leaving}
    gone = {id(bases[n]): 4 * sizes[n] for n in range(len(bases)) if bases[n].isnan().all()}
    assert away.bytes == sum(gone.values()) == device.freed
    for number in leaving:
        assert torch.equal(views[number], shadow_views[number]), "it is readable while it is away"
    for number in written:
        views[number].mul_(2)
        shadow_views[number].mul_(2)
    away.come_back()
    assert not away and not device.freed
    assert [view.data_ptr() for view in views] == pointers
    assert all(torch.equal(base, shadow) for base, shadow in zip(bases, shadows, strict=True))


def test_a_gpu_keeps_versions_and_gradients_of_what_has_left() -> None:
    """An engine sees by the count of in-place changes whether its weights are the newest."""
    weight = torch.nn.Parameter(torch.randn(3))
    weight.sum().backward()
    version = weight._version
    away = Offloaded(TorchDevice("cpu"))
    alias = weight.detach()
    away.leave([weight])
    assert weight._version == version and alias.untyped_storage().nbytes() == 0
    away.come_back()
    assert weight._version == version and torch.equal(alias, weight) and weight.grad is not None


def test_pageable_memory_does_where_none_can_be_pinned(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    empty = torch.empty

    def pinned(*size: Any, pin_memory: bool = False, **named: Any) -> Tensor:
        if pin_memory:
            raise RuntimeError("cudaHostAlloc: out of memory\nmore")
        return empty(*size, **named)

    monkeypatch.setattr(offloading.torch, "empty", pinned)
    device = TorchDevice("cuda")
    with caplog.at_level("WARNING", logger="coterie"):
        assert [len(device.buffer(size)) for size in (3, 5)] == [3, 5]
    assert caplog.text.count("pageable memory") == 1 and "cudaHostAlloc: out of memory)" in caplog.text
    assert not device.holds(empty(1)) and TorchDevice("cpu").holds(empty(1))


def test_tensors_of_the_optimiser_are_found_as_they_are_now() -> None:
    trainer = made("none")
    assert [*masters_of(trainer.policies)] and [*weights_of(trainer.initial_weights, trainer.policies)]
    before = len([*masters_of(trainer.policies)])
    update(trainer, rows(0))
    assert len([*masters_of(trainer.policies)]) > before, "moments are made in the first step"
