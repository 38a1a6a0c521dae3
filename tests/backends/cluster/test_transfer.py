"""How weights travel on a cluster: which way, and why."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from coterie.backends.cluster.placement import RUN, Process
from coterie.backends.cluster.settings import ClusterConfig
from coterie.backends.cluster.transfer import Transfer, check_engine, transfer_of
from coterie.core.errors import ConfigError

ENGINE = Process("engine", 1)


def processes(trainer: int, replica: int | None, shares: tuple[str, ...] = ()) -> list[Process]:
    run = Process(RUN, 1, trainer)
    return [run, ENGINE, *([] if replica is None else [Process("vllm p/0", 1, replica, shares=shares)])]


def run(ahead: int = 0, **trained: str) -> Any:
    policies = {name: SimpleNamespace(train=train) for name, train in (trained or {"p": "full"}).items()}
    return SimpleNamespace(policies=policies, schedule=SimpleNamespace(max_staleness=ahead))


@pytest.mark.parametrize(
    ("placed", "of", "why"),
    [
        (processes(0, None), run(), "the engine has a process of its own, without a group of GPUs in common"),
        (processes(1, None), run(), "the engine has a process of its own, without a group of GPUs in common"),
        (processes(0, 1), run(), "NCCL needs GPUs on both sides"),
        (processes(0, 0), run(), "NCCL needs GPUs on both sides"),
        (processes(1, 1), run(p="lora"), "no policy is trained whole, and adapters are small"),
        (processes(1, 1), run(p="none"), "no policy is trained whole"),
        (processes(1, 1), run(1), "steps are played ahead (schedule.max_staleness), and a replica that dies"),
        (processes(1, 0, (RUN, "rank 1")), run(), "a replica is on the GPUs of rank 0 and of others"),
    ],
)
def test_auto_is_the_object_store_where_no_gpus_exchange_weights(
    placed: list[Process], of: Any, why: str
) -> None:
    transfer = transfer_of(ClusterConfig(), placed, of)
    assert (
        transfer.name == "store" and transfer.why.startswith(why) and "cluster.weights=disk" in transfer.why
    )
    to = "the engine's process" + (" and its replicas" if len(placed) > 2 else "")
    assert transfer.sentence == f"weights go to {to} through Ray's object store: {transfer.why}"
    assert not transfer.ways


def replica(name: str, gpus: int = 0, *shares: str) -> Process:
    return Process(f"vllm {name}", 1, gpus, shares=shares)


def test_auto_is_nccl_between_gpus_and_ipc_on_one() -> None:
    apart = transfer_of(ClusterConfig(), processes(1, 2), run())
    assert (apart.name, dict(apart.ways), apart.of("p")) == ("nccl", {"vllm p/0": "nccl"}, apart.ways)
    assert apart.sentence == (
        "weights of p go from the trainer's GPU to the replicas by NCCL: "
        "trainer and replicas have different GPUs"
    )
    same = transfer_of(ClusterConfig(), processes(1, 0, (RUN,)), run())
    assert (same.name, dict(same.ways)) == ("ipc", {"vllm p/0": "ipc"})
    assert same.text.endswith("by CUDA IPC") and same.why.startswith("replicas are on the trainer's GPU")


def test_replicas_on_the_gpus_of_several_ranks_have_each_their_way() -> None:
    """Rank 0 sends. A replica on its GPU alone shares memory; that of another rank is another GPU."""
    ranks = [Process(RUN, 1, 1), Process("rank 1", 1, 1), Process("rank 2", 1, 1)]
    placed = [
        *(*ranks, ENGINE, replica("p/0", 0, RUN), replica("p/1", 0, "rank 1")),
        *(replica("q/0", 0, RUN, "rank 1"), replica("r/0", 0, "rank 2")),
    ]
    transfer = transfer_of(ClusterConfig(), placed, run(p="full", q="full", r="lora"))
    assert transfer.ways == {"vllm p/0": "ipc", "vllm p/1": "nccl"}
    assert transfer.of("p") == transfer.ways and not transfer.of("q") and not transfer.of("r")
    assert transfer.text == (
        "weights of p go from the trainer's GPU to the replicas by NCCL (vllm p/1) or CUDA IPC (vllm p/0), "
        "all others through Ray's object store"
    )
    assert "vllm q/0: on the GPUs of rank 0 and of others" in transfer.why


def test_trainers_of_their_own_send_from_their_gpus() -> None:
    placed = [
        *(Process(RUN, 1), Process("trainer p/0", 1, 1), Process("trainer q/0", 1, 1), ENGINE),
        *(replica("p/0", 0, "trainer p/0"), replica("q/0", 1), replica("q/1", 0, "trainer p/0")),
    ]
    transfer = transfer_of(ClusterConfig(), placed, run(p="full", q="full"))
    assert transfer.ways == {"vllm p/0": "ipc", "vllm q/0": "nccl", "vllm q/1": "nccl"}


def test_a_way_that_is_asked_for_is_taken() -> None:
    store = transfer_of(ClusterConfig(weights="store"), processes(1, 1), run())
    assert (store.why, dict(store.ways)) == ("cluster.weights is store", {})
    disk = transfer_of(ClusterConfig(weights="disk"), processes(1, 1), run())
    first = "weights go to the engine's process by safetensors files in the run's folder"
    onward = "and from there through the object store to the replicas"
    assert (disk.name, disk.sentence) == ("disk", f"{first}, {onward}: cluster.weights is disk")
    named = transfer_of(ClusterConfig(weights="disk", weights_folder="/shared"), processes(1, None), run())
    assert named.text == "weights go to the engine's process by safetensors files in /shared"
    ahead = transfer_of(ClusterConfig(weights="nccl"), processes(1, 1), run(2))
    assert ahead.ways == {"vllm p/0": "nccl"} and ahead.why == "cluster.weights says so"
    assert transfer_of(ClusterConfig(weights="ipc"), processes(1, 0, (RUN,)), run()).name == "ipc"


@pytest.mark.parametrize(
    ("way", "placed", "of", "why"),
    [
        ("nccl", processes(1, None), run(), "the engine has no replicas"),
        ("nccl", processes(0, 1), run(), "trainer or replicas have no GPU"),
        ("nccl", processes(1, 0), run(), "trainer or replicas have no GPU"),
        ("nccl", processes(1, 1), run(p="lora"), "no policy is trained whole"),
        ("nccl", processes(1, 0, (RUN,)), run(), "vllm p/0 is on the trainer's GPU, which takes CUDA IPC"),
        ("ipc", processes(1, 1), run(), "vllm p/0 is on another GPU than rank 0, which takes NCCL"),
        ("ipc", processes(1, 0, (RUN, "rank 1")), run(), "vllm p/0 is on the GPUs of rank 0 and of others"),
    ],
)
def test_a_way_that_the_processes_lack_is_refused(way: Any, placed: list[Process], of: Any, why: str) -> None:
    with pytest.raises(ConfigError, match="weights can't go to the replicas by") as caught:
        transfer_of(ClusterConfig(weights=way), placed, of)
    assert caught.value.path == "cluster.weights" and str(caught.value.why).startswith(why)
    assert "cluster.weights=auto" in caught.value.fix


def test_a_transfer_names_the_replicas_of_a_policy_only() -> None:
    ways = {"vllm a/0": "nccl", "vllm a b/0": "ipc", "vllm ab/1": "nccl"}
    transfer = Transfer("nccl", "", "", ways)
    assert transfer.of("a") == {"vllm a/0": "nccl"} and transfer.of("a b") == {"vllm a b/0": "ipc"}


def test_an_engine_that_says_something_else_is_refused_when_processes_are_planned() -> None:
    for transfer, weights in (("auto", "nccl"), ("nccl", "nccl"), ("file", "store"), ("memory", "auto")):
        check_engine(transfer, weights)
    with pytest.raises(ConfigError, match="is file, and") as caught:
        check_engine("file", "ipc")
    assert caught.value.path == "engine.transfer" and caught.value.fix == "set engine.transfer=auto"
    with pytest.raises(ConfigError, match="=nccl"):
        check_engine("nccl", "auto")
