"""Weights that the process with the trainer sends itself: what passes the run's process, and what doesn't."""

from __future__ import annotations

import asyncio
import functools
import logging
import pickle
from dataclasses import dataclass
from typing import Any

import pytest

from coterie.backends.cluster.transfer import NotAtHand, Order, Orders, Transfer
from coterie.backends.cluster.wire import own_code
from coterie.backends.executors.ray import direct_weights
from coterie.backends.executors.ray.direct_weights import Holder
from coterie.backends.executors.ray.hosted_engine import HostedEngine
from coterie.backends.executors.ray.shipping import Elsewhere, Receiver, Sender
from coterie.backends.executors.ray.trainer_host import Opening, TrainerHost
from coterie.core.errors import ConfigError
from coterie.core.types import Weights
from tests.backends.executors.ray.test_exchange import Context, Recording
from tests.backends.executors.ray.test_hosted_engine import Cluster

torch = pytest.importorskip("torch")
WAYS = {"vllm p/0": "nccl", "vllm p/1": "nccl"}
LOADED: list[tuple[str, int]] = []
SENT: list[tuple[str, dict[str, Any]]] = []
FAULTS: list[str] = []


class Asking(Recording):
    """An engine that orders its weights for two receivers, as vLLM's replicas do."""

    async def load_weights(self, weights: Any) -> None:
        if FAULTS and FAULTS[0] == "cancel":
            FAULTS.clear()
            order = asyncio.ensure_future(weights.tensors.send_by(functools.partial(stuck)))
            await asyncio.sleep(0.1)
            order.cancel()
        if hasattr(weights.tensors, "send_by"):
            assert all(parameter.is_meta for parameter in weights.module.parameters())
            assert weights.tensors.state() == weights.version
            with pytest.raises(RuntimeError, match="in another process"):
                list(weights.tensors())
            ordered = [functools.partial(send, to=name) for name in weights.tensors.ways]
            await asyncio.gather(*(weights.tensors.send_by(each) for each in ordered))
        LOADED.append((weights.policy, weights.version))


async def send(weights: Any, links: Any, to: str) -> None:
    values = {name: tensor.detach().clone() for name, tensor in weights.module.named_parameters()}
    SENT.append((to, values))
    if FAULTS:
        with torch.no_grad():
            weights.module.weight.add_(1)


async def stuck(weights: Any, links: Any) -> None:
    try:
        await asyncio.sleep(600)
    except asyncio.CancelledError:
        SENT.append(("cancelled", {}))
        raise


class Direct(Cluster):
    """A cluster whose replicas can get weights from the trainer's GPU."""

    def transfer(self) -> Transfer:
        return Transfer("nccl", "weights go by NCCL", "because", WAYS)


@pytest.fixture(autouse=True)
def _clean(monkeypatch: pytest.MonkeyPatch) -> None:
    for noted in (LOADED, SENT, FAULTS):
        noted.clear()
    monkeypatch.setattr(direct_weights, "has_gpu", lambda: True)


def in_engine(test: Any, **settings: Any) -> Any:
    """Run a coroutine function with an open engine; the engine host is in this process."""

    async def run() -> None:
        cluster: Any = Direct(False)
        cluster.settings = cluster.settings.model_copy(update={"timeout": 4.0, **settings})
        hosted = HostedEngine(Asking, cluster)
        await hosted.open(Context())  # type: ignore[arg-type]
        try:
            async with asyncio.timeout(30):
                await test(hosted)
        finally:
            await hosted.close()

    asyncio.run(run())


def weights(version: int, module: Any, **more: Any) -> Weights:
    return Weights(policy="p", version=version, module=module, tokenizer="words", **more)


def test_each_receiver_gets_the_trainers_tensors_and_the_engine_gets_none() -> None:
    module = torch.nn.Linear(300, 300)
    kept: list[Any] = []

    async def load(hosted: HostedEngine) -> None:
        for version in range(3):
            with torch.no_grad():
                module.weight.add_(1)
            await hosted.load_weights(weights(version, module))
            for (name, values), wanted in zip(SENT[-2:], WAYS, strict=True):
                assert name == wanted
                assert all(torch.equal(values[name], value) for name, value in module.named_parameters())
            kept.extend(stored for *_, stored, _ in hosted.kept.items())

    in_engine(load)
    assert LOADED == [("p", 0), ("p", 1), ("p", 2)] and len(SENT) == 6
    sizes = [len(pickle.dumps(stored)) for stored in kept]
    assert max(sizes) < 4000, "nothing of the 360 kB passes"


def test_what_no_replica_can_get_itself_passes_as_before() -> None:
    async def load(hosted: HostedEngine) -> None:
        await hosted.load_weights(weights(0, torch.nn.Linear(3, 3), adapter="a"))
        await hosted.load_weights(Weights(policy="other", version=0, module=torch.nn.Linear(3, 3)))

    in_engine(load)
    assert LOADED == [("p", 0), ("other", 0)] and not SENT


def test_weights_that_change_while_they_are_sent_are_refused() -> None:
    FAULTS.append("update")

    async def load(hosted: HostedEngine) -> None:
        with pytest.raises(NotAtHand, match="version 5 of the weights of 'p'"):
            await hosted.load_weights(weights(5, torch.nn.Linear(3, 3)))

    in_engine(load)
    assert not LOADED


def test_an_order_that_nobody_waits_for_is_dropped_where_it_is_fulfilled() -> None:
    FAULTS.append("cancel")

    async def load(hosted: HostedEngine) -> None:
        await hosted.load_weights(weights(0, torch.nn.Linear(3, 3)))

    in_engine(load)
    assert SENT[0][0] == "cancelled" or SENT[1][0] == "cancelled" or SENT[2][0] == "cancelled"
    assert LOADED == [("p", 0)]


def test_another_engine_host_orders_the_version_again_while_it_is_at_hand(
    caplog: pytest.LogCaptureFixture,
) -> None:
    module = torch.nn.Linear(3, 3)

    async def replace(hosted: HostedEngine) -> None:
        await hosted.load_weights(weights(7, module))
        await hosted.another(hosted.start, "a test")
        assert LOADED == [("p", 7)] * 2 and len(SENT) == 4
        with torch.no_grad():
            module.weight.add_(1)  # an update has begun
        await hosted.another(hosted.start, "a test")
        assert LOADED == [("p", 7)] * 2

    with caplog.at_level(logging.WARNING, "coterie"):
        in_engine(replace)
    has, *lines = [record.getMessage() for record in caplog.records]
    assert "another one has its weights" in has
    assert len(lines) == 2 and "no weights of 'p' yet: version 7" in lines[0]


@pytest.mark.parametrize("stated", ["auto", "nccl"])
def test_a_trainer_without_cuda_falls_back_or_is_refused(
    stated: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(direct_weights, "has_gpu", lambda: False)

    async def load(hosted: HostedEngine) -> None:
        if stated == "auto":
            await hosted.load_weights(weights(0, torch.nn.Linear(3, 3)))
            return
        with pytest.raises(ConfigError, match="can't go to the replicas by NCCL") as caught:
            await hosted.load_weights(weights(0, torch.nn.Linear(3, 3)))
        assert caught.value.path == "cluster.weights"

    with caplog.at_level(logging.WARNING, "coterie"):
        in_engine(load, weights=stated)
    assert ([("p", 0)] if stated == "auto" else []) == LOADED and not SENT
    assert ("no GPU of CUDA" in caplog.text) == (stated == "auto")


def test_trainers_of_their_own_send_their_weights_themselves() -> None:
    """The module is in another process; what it sends and fulfils is only passed on."""
    module, passed = torch.nn.Linear(3, 3), []

    async def load(hosted: HostedEngine) -> None:
        there = TrainerHost()
        opening = Opening("set", functools.partial(parts, module), TrainerPolicies(), None, ())  # type: ignore[arg-type]
        assert (await there.open(own_code(), pickle.dumps(opening), {}))[0]

        async def sent(ways: Any) -> tuple[Any, bool]:
            (_, introduces), stored = await there.send("p", None, ways)
            passed.append(stored)
            return stored, bool(introduces)

        async def fulfil(order: Order) -> None:
            assert (await there.fulfil(order))[0]

        async def can_send() -> bool:
            return bool((await there.can_send())[1])

        await hosted.load_weights(weights(3, Elsewhere(sent, fulfil, can_send)))
        assert [to for to, _ in SENT] == [*WAYS]
        order = Order(1, "p", 3, stuck)
        waiting = asyncio.ensure_future(there.fulfil(order))
        await asyncio.sleep(0.1)
        await there.drop(1)
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert SENT[-1][0] == "cancelled"

    in_engine(load)
    assert LOADED == [("p", 3)] and passed[0].ways == WAYS and passed[0].introduces


@dataclass(frozen=True)
class TrainerPolicies:
    """As much of a `TrainerContext` as a trainer host reads."""

    policies: tuple[str, ...] = ("p",)
    loss: Any = None
    chat: Any = None


def parts(module: Any) -> tuple[Any, None, None]:
    return Trainer(module), None, None


class Trainer:
    """As much of a trainer as sends weights."""

    def __init__(self, module: Any) -> None:
        self.module = module

    async def open(self, ctx: Any) -> None: ...

    def weights(self, policy: str) -> Weights:
        return Weights(policy=policy, version=3, module=self.module, tokenizer="words")


def test_an_outline_has_the_shapes_and_ties_of_a_module_and_no_memory() -> None:
    module = torch.nn.Sequential(
        torch.nn.Embedding(7, 4), torch.nn.Linear(4, 7, bias=False), torch.nn.BatchNorm1d(7)
    )
    module[1].weight = module[0].weight
    sender, receiver = Sender(), Receiver()
    first, second = (sender.outline(weights(version, module), WAYS) for version in (1, 2))
    got = receiver.receive(pickle.loads(pickle.dumps(first)))
    assert got.module[1].weight is got.module[0].weight and got.module[1].weight.is_meta
    assert got.module[1].weight.shape == (7, 4) and got.tokenizer == "words" and got.tensors is None
    assert torch.equal(got.module[2].running_var, module[2].running_var)
    assert not module[0].weight.is_meta and not second.pickled and second.ways == WAYS
    again = receiver.receive(pickle.loads(pickle.dumps(second)))
    assert again.module is got.module and again.version == 2


def test_orders_are_taken_once_and_settled_by_number() -> None:
    async def run() -> None:
        orders = Orders()
        assert await orders.take(0.01) == ([], [])
        first = asyncio.ensure_future(orders.fulfilled("p", 1, stuck))
        second = asyncio.ensure_future(orders.fulfilled("q", 2, stuck))
        (a, b), dropped = await orders.take(5)
        assert (a.policy, a.version, b.policy, b.version, dropped) == ("p", 1, "q", 2, [])
        orders.settle(a.number, None)
        orders.settle(b.number, NotAtHand("gone"))
        orders.settle(12, None)  # nobody's
        await first
        with pytest.raises(NotAtHand, match="gone"):
            await second
        third = asyncio.ensure_future(orders.fulfilled("p", 3, stuck))
        ((c,), _) = await orders.take(5)
        third.cancel()
        await asyncio.gather(third, return_exceptions=True)
        assert await orders.take(5) == ([], [c.number])
        orders.settle(c.number, None)

    asyncio.run(run())


def test_a_holder_ends_what_it_sends() -> None:
    closed: list[str] = []

    class Link:
        def close(self) -> None:
            closed.append("closed")

    async def linked(weights: Any, links: Any) -> None:
        links["vllm p/0"] = Link()

    async def run() -> None:
        kept = Holder()
        kept.keep(weights(1, torch.nn.Linear(2, 2)))
        await kept.fulfil(Order(1, "p", 1, linked))
        with pytest.raises(NotAtHand):
            await kept.fulfil(Order(2, "p", 2, linked))
        with pytest.raises(NotAtHand):
            await kept.fulfil(Order(3, "q", 1, linked))
        await kept.close()

    asyncio.run(run())
    assert closed == ["closed"]
