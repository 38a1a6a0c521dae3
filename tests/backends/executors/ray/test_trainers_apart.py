# ruff: noqa: E402 (torch is asked for first)
"""Trainers of their own for sets of weights: their sum is one trainer. Without Ray: actors are threads."""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("peft")

from coterie.backends.chat_formats.formats import AutoChat
from coterie.backends.cluster.transfer import NotAtHand, Order
from coterie.backends.executors.ray import trainer_files
from coterie.backends.executors.ray.hosted_trainers import HostedTrainers, hosted_trainers
from coterie.backends.executors.ray.shipping import Elsewhere, Receiver
from coterie.backends.models import device_memory
from coterie.backends.models.compute_threads import compute
from coterie.backends.models.policy import WarmStart
from coterie.backends.trainers.torch_trainer import TorchTrainer
from coterie.core.errors import ConfigError, PluginError, UserError
from coterie.core.protocols import TrainerContext
from coterie.core.protocols.trainer import FollowsBudget, KeepsVersions
from coterie.discovery.members import CountsOptimizerSteps, TakesWeights, WarmStarts
from coterie.plugins.losses.ppo_clip import PPOClip
from tests.backends.executors.ray.stand_in import StandIn
from tests.backends.trainers.test_warm_start import demonstrations
from tests.backends.trainers.tiny import WORDS, policy, samples, with_reference

pytestmark = pytest.mark.torch

NAMES = ("full", "a", "b")
WARM = WarmStart.model_validate({"steps": 3, "learning_rate": 1e-2})
POLICIES = {
    "full": policy(warm_start=WARM),
    "a": policy("lora", warm_start=WARM),
    "b": policy("lora", warm_start=WARM),
}
"""One set of initial weights, and two sets of weights: `full`, and the adapters `a` and `b`."""


class Broken(TorchTrainer):
    """A trainer whose update fails for one policy."""

    async def update(self, samples: Any, step: int) -> Any:
        if "a" in samples:
            raise ConfigError("it is wrong", path="trainer.how", why="a test wants it", fix="none")
        return await super().update(samples, step)


class Slow(TorchTrainer):
    """A trainer that takes its time for a digest."""

    def digest(self) -> dict[str, str]:
        time.sleep(1.6)
        return super().digest()


class Lossy(TorchTrainer):
    """A trainer that joins states to nothing."""

    def join_states(self, *arguments: Any) -> None:
        pass


class Silent(TorchTrainer):
    """A trainer that returns nothing."""

    def same_start(self, policies: Any) -> Any:
        return None


class Leaving(TorchTrainer):
    """A trainer that tells when an engine asks it to leave its GPU."""

    left: ClassVar[list[tuple[str, ...]]] = []

    async def offload(self) -> None:
        self.left.append(tuple(self.policies))


@pytest.fixture(autouse=True)
def _threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process computes in one thread, and each of these trainers would have a process: their warm starts
    wait for each other. All else would share torch's generator."""

    async def beside(work: Callable[..., Any], *arguments: Any) -> Any:
        return await (compute(work, *arguments) if arguments else asyncio.to_thread(work))

    monkeypatch.setattr("coterie.backends.trainers.torch_trainer.compute", beside)


def make(cls: type[TorchTrainer] = TorchTrainer) -> Any:
    return cls(TorchTrainer.Config(device="cpu")), PPOClip(), AutoChat()


def context(policies: Mapping[str, Any] = POLICIES, needs: Sequence[str] = ()) -> TrainerContext:
    _, loss, chat = make()
    return TrainerContext(
        policies=policies,
        loss=loss,
        chat=chat,
        seed=0,
        deterministic=True,
        vocabulary=WORDS,
        needs=tuple(needs),
    )


async def hosted(
    ctx: TrainerContext | None = None, cls: type[TorchTrainer] = TorchTrainer, **settings: Any
) -> tuple[HostedTrainers, StandIn]:
    connection = StandIn(**settings)
    trainers = hosted_trainers(make(cls)[0], partial(make, cls), connection)  # type: ignore[arg-type]
    await trainers.open(ctx or context())
    return trainers, connection


async def alone(ctx: TrainerContext | None = None) -> TorchTrainer:
    trainer: TorchTrainer = make()[0]
    await trainer.open(ctx or context())
    return trainer


def batch(seed: int = 0) -> dict[str, Any]:
    return {name: samples(name, seed=seed) for name in NAMES}


def files(folder: Path) -> dict[str, str]:
    return {
        path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


async def run(trainer: Any, folder: Path) -> dict[str, Any]:
    """Train, and save; returns what there is to compare."""
    warmed = await trainer.warm_start("full", partial(demonstrations, policies=NAMES), WARM)
    updated = [await trainer.update(batch(step), step) for step in range(2)]
    trainer.keep("a")
    updated.append(await trainer.update({"a": samples("a", seed=3)}, 2))
    annotated = await trainer.annotate([row for rows in batch().values() for row in rows], "old_logprobs")
    trainer.save(folder)
    return {
        "warmed": warmed,
        "updated": updated,
        "annotated": {key: values.tolist() for key, values in annotated.items()},
        "digest": trainer.digest(),
        "versions": {name: trainer.weights(name).version for name in NAMES},
        "bases": {name: tuple(group) for name, group in trainer.bases().items()},
    }


@pytest.mark.parametrize("needs", [(), ("ref_logprobs",)], ids=["plain", "references"])
def test_several_trainers_are_one(tmp_path: Path, needs: Sequence[str]) -> None:
    async def compare() -> None:
        trainers, connection = await hosted(context(needs=needs))
        one = await alone(context(needs=needs))
        assert [*connection.actors] == ["trainer full/0", "trainer a/0"]
        several, single = await run(trainers, tmp_path / "several"), await run(one, tmp_path / "one")
        assert several == single
        assert files(tmp_path / "several") == files(tmp_path / "one")
        await trainers.close()
        await one.close()

    asyncio.run(compare())


@pytest.mark.parametrize("seen", [True, False], ids=["a folder of both", "no folder of both"])
def test_a_state_is_loaded_by_one_trainer_and_by_several(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seen: bool
) -> None:
    pieces: list[int] = []
    if not seen:
        read = trainer_files.HostFiles.read

        def noted(files_: trainer_files.HostFiles, name: str, start: int, size: int) -> bytes:
            pieces.append(size)
            return read(files_, name, start, size)

        monkeypatch.setattr(trainer_files, "PIECE", 10_000)
        monkeypatch.setattr(trainer_files, "sees", lambda file: False)
        monkeypatch.setattr(trainer_files.HostFiles, "read", noted)

    async def compare() -> None:
        trainers, _ = await hosted()
        await run(trainers, tmp_path / "saved")
        assert bool(pieces) is not seen
        fresh, _ = await hosted()
        one = await alone()
        for number, each in enumerate((fresh, one)):
            each.load(tmp_path / "saved")
            assert each.digest() == trainers.digest()
            assert [each.weights(name).version for name in NAMES] == [2, 3, 2]
            await each.update(batch(7), 3)
            each.save(tmp_path / str(number))
        assert fresh.digest() == one.digest() != trainers.digest()
        assert files(tmp_path / "0") == files(tmp_path / "1")
        for each in (trainers, fresh, one):
            await each.close()

    asyncio.run(compare())


def test_weights_are_read_from_what_a_trainer_sends_now_and_of_a_kept_version() -> None:
    async def compare() -> None:
        trainers, _ = await hosted()
        one, receiver = await alone(), Receiver()
        for each in (trainers, one):
            each.keep("a")
            await each.update(batch(), 0)
        for name, version in (("full", None), ("a", 0), ("a", None), ("b", None)):
            with trainers.weights_at(name, 0) if version == 0 else nullcontext() as kept:
                weights = kept if version == 0 else trainers.weights(name)
                assert isinstance(weights.module, Elsewhere) and weights.version == (
                    1 if version is None else 0
                )
                stored, introduces = await weights.module.send(None)
                assert introduces is (version == 0 or name != "a")
                got = receiver.receive(await stored)
            with one.weights_at(name, 0) if version == 0 else nullcontext() as held:
                wanted = held if version == 0 else one.weights(name)
                assert got.adapter == wanted.adapter
                theirs = dict(got.module.named_parameters())
                names = [n for n in theirs if wanted.adapter is None or f".{wanted.adapter}." in n]
                ours = dict(wanted.module.named_parameters())
                assert names and all(torch.equal(theirs[n], ours[n]) for n in names)
        with pytest.raises(KeyError):
            with trainers.weights_at("a", 9) as missing:
                await missing.module.send(None)
        for each in (trainers, one):
            each.drop("a", 0)
        with pytest.raises(KeyError):
            with trainers.weights_at("a", 0) as missing:
                await missing.module.send(None)
        await trainers.close()
        await one.close()

    asyncio.run(compare())


SENT: list[dict[str, Any]] = []


async def sends(weights: Any, links: Any) -> None:
    SENT.append({name: each.detach().clone() for name, each in weights.module.named_parameters()})


async def waits(weights: Any, links: Any) -> None:
    try:
        await asyncio.sleep(600)
    except asyncio.CancelledError:
        SENT.append({})
        raise


def test_a_trainer_of_its_own_sends_the_version_that_it_has_itself() -> None:
    async def compare() -> None:
        SENT.clear()
        trainers, _ = await hosted()
        one = await alone()
        for each in (trainers, one):
            await each.update(batch(), 0)
        there = trainers.weights("full").module
        assert not await there.can_send(), "this machine has no GPU"
        stored, introduces = await there.send({"vllm full/0": "nccl"})
        sent = await stored
        assert introduces and sent.tensors is None and sent.state is None and len(sent.pickled) < 20_000
        await there.fulfil(Order(1, "full", 1, sends))
        (got,) = SENT
        ours = dict(one.weights("full").module.named_parameters())
        assert got.keys() == ours.keys() and all(torch.equal(got[name], ours[name]) for name in ours)
        waiting = asyncio.ensure_future(there.fulfil(Order(2, "full", 1, waits)))
        await asyncio.sleep(0.2)
        waiting.cancel()
        while len(SENT) < 2:
            await asyncio.sleep(0.01)
        await trainers.update(batch(1), 1)
        with pytest.raises(NotAtHand, match="version 1 of the weights of 'full'"):
            await there.fulfil(Order(3, "full", 1, sends))
        await trainers.close()
        await one.close()

    asyncio.run(asyncio.wait_for(compare(), 60))


def test_policies_begin_with_the_weights_of_others() -> None:
    ctx = context({name: each.model_copy(update={"from_": "run"}) for name, each in POLICIES.items()})

    async def compare() -> None:
        source, sent = await alone(), {}
        await source.update(batch(5), 0)
        for name in NAMES:
            sent[name] = source.weights(name)
        one, trainers = make()[0], hosted_trainers(make()[0], make, StandIn())  # type: ignore[arg-type]
        for each in (one, trainers):
            each.begin_with(sent)
        await source.update(batch(6), 1)
        for each in (one, trainers):
            await each.open(ctx)
        assert trainers.digest() == one.digest()
        for each in (trainers, one, source):
            await each.close()

    asyncio.run(compare())


def test_a_trainer_that_is_opened_without_a_cluster_is_that_of_this_process(tmp_path: Path) -> None:
    async def compare() -> None:
        connection, one = StandIn(), await alone()
        connection.connected = False
        trainers = hosted_trainers(make()[0], make, connection)  # type: ignore[arg-type]
        await trainers.open(context())
        assert not connection.actors
        assert await run(trainers, tmp_path / "here") == await run(one, tmp_path / "one")
        assert files(tmp_path / "here") == files(tmp_path / "one")
        await trainers.close()
        await one.close()

    asyncio.run(compare())


def test_the_trainers_have_what_the_one_has() -> None:
    optional: tuple[Any, ...] = (KeepsVersions, FollowsBudget, WarmStarts, TakesWeights, CountsOptimizerSteps)

    class Less(TorchTrainer):
        keep = bases = set_progress = None  # type: ignore[assignment]

    for cls, lacks in ((TorchTrainer, ()), (Less, (KeepsVersions, WarmStarts, FollowsBudget))):
        trainers = hosted_trainers(make(cls)[0], partial(make, cls), StandIn())  # type: ignore[arg-type]
        assert [each for each in optional if not isinstance(trainers, each)] == [
            each for each in optional if each in lacks
        ]


def test_the_size_of_one_set_is_what_a_device_has_to_hold() -> None:
    checked: list[list[str]] = []

    class Sized(TorchTrainer):
        class Config(TorchTrainer.Config):
            def check_size(self, policies: Any, *more: Any) -> None:
                checked.append([*policies])

    trainers = hosted_trainers(Sized(Sized.Config(device="cpu")), make, StandIn())  # type: ignore[arg-type]
    trainers.config.check_size(POLICIES, (), {}, None)
    assert checked == [["full"], ["a", "b"]] and trainers.config.device == "cpu"


# --------------------------------------------------------------------------------------------------- faults


def failing(then: Callable[[HostedTrainers, StandIn], Any], **settings: Any) -> None:
    async def go() -> None:
        trainers, connection = await hosted(**settings)
        try:
            await then(trainers, connection)
        finally:
            await trainers.close()

    asyncio.run(go())


def test_an_error_of_one_trainer_comes_back_with_its_setting() -> None:
    async def update(trainers: HostedTrainers, connection: StandIn) -> None:
        with pytest.raises(ConfigError, match=r"trainer\.how: it is wrong") as raised:
            await trainers.update(batch(), 0)
        assert raised.value.path == "trainer.how" and raised.value.fix == "none"
        assert raised.value.__notes__ == ["in the trainer of a, b"]
        assert trainers.weights("full").version == 1, "the other update is done"

    failing(update, cls=Broken)


def test_a_lost_trainer_is_named_in_an_update_and_in_each_later_call() -> None:
    async def update(trainers: HostedTrainers, connection: StandIn) -> None:
        lost: list[BaseException] = []
        trainers.hosts.failed = lost.append  # type: ignore[union-attr]
        updating = asyncio.ensure_future(trainers.update(batch(), 0))
        await asyncio.sleep(0)
        connection.actors["trainer a/0"].kill()
        with pytest.raises(UserError, match="the trainer of a, b is gone") as raised:
            await updating
        assert raised.value.path == "cluster.updates" and "the actor is dead" in raised.value.why
        with pytest.raises(UserError, match="the trainer of a, b is gone"):
            trainers.digest()
        await asyncio.sleep(0.1)
        assert lost == [raised.value], "whoever plays meanwhile is told, too"

    failing(update)


def test_a_trainer_that_hangs_is_named_while_it_is_waited_for() -> None:
    async def digest(trainers: HostedTrainers, connection: StandIn) -> None:
        connection.actors["trainer full/0"].freeze()
        with pytest.raises(UserError, match=r"the trainer of full is gone[\s\S]*no answer for 1.1 s"):
            trainers.digest()

    failing(digest, timeout=1.1)


def test_a_trainer_that_computes_for_longer_than_the_time_out_is_not_lost() -> None:
    async def digest(trainers: HostedTrainers, connection: StandIn) -> None:
        assert [*trainers.digest()] == [*NAMES]

    failing(digest, cls=Slow, timeout=1.1)


def test_demonstrations_that_cannot_be_made_end_the_warm_start() -> None:
    def none(step: int) -> Any:
        if step == 1:
            raise ConfigError("some roles act too rarely", path="policies")
        return demonstrations(step, NAMES)

    async def warm(trainers: HostedTrainers, connection: StandIn) -> None:
        with pytest.raises(ConfigError, match="some roles act too rarely") as raised:
            await trainers.warm_start("full", none, WARM)
        assert not hasattr(raised.value, "__notes__")

    failing(warm)


def test_a_step_is_demonstrated_once_for_all_trainers() -> None:
    steps: list[int] = []

    def counted(step: int) -> Any:
        steps.append(step)
        return demonstrations(step, NAMES)

    async def warm(trainers: HostedTrainers, connection: StandIn) -> None:
        await trainers.warm_start("full", counted, WARM)
        assert steps == [0, 1, 2]

    failing(warm)


def test_replicas_on_the_trainers_gpus_sleep_before_an_update() -> None:
    asleep: list[str] = []

    class Sleeper:
        async def sleep(self) -> None:
            asleep.append("yes")

    async def update(trainers: HostedTrainers, connection: StandIn) -> None:
        sleeper = Sleeper()
        device_memory.lend(sleeper)
        try:
            await trainers.update({}, 0)
            assert len(asleep) == 1 + 2, "once for all; and the two trainers, which are in this process, too"
            await trainers.annotate(with_reference(samples("a", groups=1)), "old_logprobs")
        finally:
            device_memory.withdraw(sleeper)

    failing(update)


def test_all_trainers_leave_their_gpus_for_an_engine() -> None:
    async def room(trainers: HostedTrainers, connection: StandIn) -> None:
        Leaving.left.clear()
        await trainers.offload()
        assert sorted(Leaving.left) == [("a", "b"), ("full",)]
        assert trainers in device_memory.occupied

    failing(room, cls=Leaving)


def test_a_state_that_could_not_be_loaded_is_refused_when_it_is_saved(tmp_path: Path) -> None:
    async def save(trainers: HostedTrainers, connection: StandIn) -> None:
        with pytest.raises(PluginError, match="join_states") as error:
            trainers.save(tmp_path / "state")
        assert "part_of_state divides" in str(error.value)

    failing(save, cls=Lossy)


def test_a_trainer_that_does_not_say_which_weights_are_alike_is_named() -> None:
    with pytest.raises(PluginError, match="same_start"):
        failing(lambda trainers, connection: None, cls=Silent)
