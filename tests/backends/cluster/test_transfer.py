"""How weights travel on a cluster: which way, and why."""

from __future__ import annotations

import pytest

from coterie.backends.cluster.placement import RUN, Process
from coterie.backends.cluster.settings import ClusterConfig
from coterie.backends.cluster.transfer import transfer_of

ENGINE = Process("engine", 1)


def processes(trainer: int, replica: int | None, shares: tuple[str, ...] = ()) -> list[Process]:
    run = Process(RUN, 1, trainer)
    return [run, ENGINE, *([] if replica is None else [Process("vllm p/0", 1, replica, shares=shares)])]


@pytest.mark.parametrize(
    ("placed", "why"),
    [
        (processes(0, None), "the engine has a process of its own, without a group of GPUs in common"),
        (processes(1, None), "the engine has a process of its own, without a group of GPUs in common"),
        (processes(1, 1), "the GPUs of trainer and replicas could exchange them by NCCL, and executor 'ray'"),
        (
            processes(1, 0, (RUN,)),
            "replicas are on GPUs of the trainer, where NCCL connects no two processes",
        ),
        (processes(0, 1), "NCCL needs GPUs on both sides"),
        (processes(0, 0), "NCCL needs GPUs on both sides"),
    ],
)
def test_auto_is_the_object_store_and_says_why_nothing_else(placed: list[Process], why: str) -> None:
    transfer = transfer_of(ClusterConfig(), placed)
    assert (
        transfer.name == "store" and transfer.why.startswith(why) and "cluster.weights=disk" in transfer.why
    )
    to = "the engine's process" + (" and its replicas" if len(placed) > 2 else "")
    assert transfer.sentence == f"weights go to {to} through Ray's object store: {transfer.why}"


def test_a_way_that_is_asked_for_is_taken() -> None:
    assert transfer_of(ClusterConfig(weights="store"), processes(1, 1)).why == "cluster.weights is store"
    disk = transfer_of(ClusterConfig(weights="disk"), processes(1, 1))
    first = "weights go to the engine's process by safetensors files in the run's folder"
    onward = "and from there through the object store to the replicas"
    assert (disk.name, disk.sentence) == ("disk", f"{first}, {onward}: cluster.weights is disk")
    named = transfer_of(ClusterConfig(weights="disk", weights_folder="/shared"), processes(1, None))
    assert named.text == "weights go to the engine's process by safetensors files in /shared"
