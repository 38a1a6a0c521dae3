"""Weights in files of a shared disk: they arrive as they were sent, and no file outlives its versions."""

from __future__ import annotations

import asyncio
import logging
import pickle
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from coterie.backends.cluster.processes import check_weights  # noqa: E402
from coterie.backends.cluster.settings import ClusterConfig  # noqa: E402
from coterie.backends.executors.ray import weight_files  # noqa: E402
from coterie.backends.executors.ray.hosted_engine import HostedEngine  # noqa: E402
from coterie.backends.executors.ray.shipping import Receiver, Sender  # noqa: E402
from coterie.backends.executors.ray.weight_files import (  # noqa: E402
    OnDisk,
    WeightFiles,
    check_seen,
    opened,
    read_there,
    received,
)
from coterie.backends.models.versions import Versions  # noqa: E402
from coterie.core.errors import ConfigError, UserError, WriteError  # noqa: E402
from coterie.core.types import Weights  # noqa: E402
from tests.backends.executors.ray.test_exchange import Context, Recording  # noqa: E402
from tests.backends.executors.ray.test_hosted_engine import Actor, Cluster  # noqa: E402
from tests.backends.executors.ray.test_shipping import Two, change, travelled  # noqa: E402


class Tied(torch.nn.Module):
    """A weight with two names, a buffer that no state has, and a frozen parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = torch.nn.Linear(4, 3, bias=False)
        self.head = torch.nn.Linear(4, 3)
        self.head.weight = self.embedding.weight
        self.head.bias.requires_grad_(False)
        self.register_buffer("frequencies", torch.arange(6).reshape(2, 3).T, persistent=False)


def weights(policy: str, version: int, module: Any, adapter: str | None = None) -> Weights:
    return Weights(policy=policy, version=version, module=module, adapter=adapter, tokenizer=f"of {policy}")


def arrived(receiver: Receiver, stored: Any) -> Weights:
    return asyncio.run(received(receiver, pickle.loads(pickle.dumps(stored))))


def same(one: Any, other: Any) -> bool:
    pairs = zip(
        [*one.named_parameters(), *one.named_buffers()],
        [*other.named_parameters(), *other.named_buffers()],
        strict=True,
    )
    return all(
        n == m and torch.equal(a, b) and a.requires_grad == b.requires_grad for (n, a), (m, b) in pairs
    )


# -------------------------------------------------------------------------------------- there and back again


def test_weights_arrive_through_files_as_they_do_through_the_object_store(tmp_path: Path) -> None:
    files, sender, direct, receiver = WeightFiles(tmp_path / "files"), Sender(), Receiver(), Receiver()
    two, tied = Two(), Tied()
    for version in range(3):
        for handle in (
            weights("a", version, two, "a"), weights("ab", version, two, "ab"), weights("p", version, tied)
        ):  # fmt: skip
            sent = sender.send(handle)
            stored = files.store(sent)
            assert isinstance(stored, OnDisk) and stored.weights.version == version
            change(handle.module)  # the trainer goes on
            expected, got = direct.receive(travelled(sent)), arrived(receiver, stored)
            assert (got.tokenizer, got.version, got.adapter) == (handle.tokenizer, version, handle.adapter)
            assert same(got.module, expected.module) and not same(got.module, handle.module)
    assert got.module.embedding.weight is got.module.head.weight


def test_policies_of_one_module_share_it_there_too(tmp_path: Path) -> None:
    files, sender, receiver, module = WeightFiles(tmp_path / "files"), Sender(), Receiver(), Two()
    got = [arrived(receiver, files.store(sender.send(weights(n, 0, module, n)))).module for n in ("a", "ab")]
    assert got[0] is got[1]


def test_gathered_tensors_arrive_in_their_order(tmp_path: Path) -> None:
    tensors = [("w", torch.ones(2, dtype=torch.bfloat16)), ("b", torch.zeros(())), ("a", torch.ones(2, 3).T)]
    handle = Weights(policy="p", version=3, tensors=lambda: iter(tensors))
    got = arrived(Receiver(), WeightFiles(tmp_path / "files").store(Sender().send(handle)))
    assert got.module is None and got.tensors is not None
    assert [(name, t.dtype, t.tolist()) for name, t in got.tensors()] == [
        (name, tensor.dtype, tensor.tolist()) for name, tensor in tensors
    ]


def test_what_has_no_tensors_needs_no_file(tmp_path: Path) -> None:
    files = WeightFiles(tmp_path / "files")
    sent = Sender().send(Weights(policy="p", version=0, module={"logits": [1]}))
    assert files.store(sent) is sent and not [*files.folder.iterdir()]
    assert arrived(Receiver(), sent).module == {"logits": [1]}


def test_nothing_of_a_file_is_unpickled(tmp_path: Path) -> None:
    from safetensors import safe_open

    stored = WeightFiles(tmp_path / "files").store(Sender().send(weights("p", 0, Tied())))
    assert isinstance(stored, OnDisk)
    with safe_open(stored.file, "pt") as file:
        kinds = {str(file.get_tensor(name).dtype) for name in file.keys()}  # noqa: SIM118
    assert kinds == {"torch.float32", "torch.int64"}
    assert len(stored.pickled) < 5000, "the module's tensors are not in it"


# ------------------------------------------------------------------------------------------------ the files


def names(files: WeightFiles) -> list[str]:
    return sorted(path.name for path in files.folder.iterdir())


def test_a_file_goes_with_the_last_lease_of_its_version_and_the_first_one_stays(tmp_path: Path) -> None:
    """A receiver that takes the place of another one needs the module, whose values it then replaces."""
    files, sender, module = WeightFiles(tmp_path / "files"), Sender(), Two()
    kept, introductions = Versions[Any](lambda policy, stored: files.drop(stored)), list[Any]()

    def load(sent: Any) -> None:
        stored = files.store(sent)
        introductions.extend([stored] * sent.introduces)
        kept.put("a", sent.weights.version, stored)

    for version in range(3):
        load(sender.send(weights("a", version, module, "a")))
        change(module)
        if version == 1:
            kept.lease("a", 1)
    first, leased, newest = (f"{number}-version-{number}.safetensors" for number in range(3))
    assert names(files) == [first, leased, newest]
    kept.release("a", 1)
    assert names(files) == [first, newest]
    load(sender.send(weights("a", 2, module, "a")))
    assert names(files) == [first, "3-version-2.safetensors"], "the same version again, after a warm start"
    other = Receiver()
    for stored in introductions:
        arrived(other, stored)
    (version,) = [arrived(other, stored) for _, _, stored, _ in kept.items()]
    assert version.version == 2 and torch.equal(version.module.lora_A["a"].weight, module.lora_A["a"].weight)
    files.close()
    assert not files.folder.exists()


def test_files_of_a_run_that_was_killed_are_removed(tmp_path: Path) -> None:
    WeightFiles(tmp_path / "files").store(Sender().send(weights("p", 0, Two())))
    assert names(WeightFiles(tmp_path / "files")) == []


@pytest.mark.parametrize("written", [0, 100])
def test_a_full_disk_is_named_and_leaves_no_part_of_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, written: int
) -> None:
    from safetensors import SafetensorError, torch as library

    def full(tensors: Any, file: Path) -> None:
        Path(file).write_bytes(b"." * written)
        assert not [
            name for name in names(files) if name.endswith(".safetensors") and not name.startswith(".")
        ]
        raise SafetensorError("I/O error: No space left on device (os error 28)")

    files = WeightFiles(tmp_path / "files")
    monkeypatch.setattr(library, "save_file", full)
    with pytest.raises(WriteError, match=r"version 4 of the weights of 'p' to .* can't be written") as caught:
        files.store(Sender().send(weights("p", 4, Two())))
    assert "No space left" in caught.value.why and names(files) == []


def test_a_file_that_a_node_does_not_see_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weight_files, "LAG", 0.0)
    files = WeightFiles(tmp_path / "files")
    stored = files.store(Sender().send(weights("p", 4, Two())))
    files.close()
    with pytest.raises(UserError, match="version 4 of the weights of 'p' can't be read on node") as caught:
        arrived(Receiver(), stored)
    assert "FileNotFoundError" in caught.value.why and "cluster.weights_folder" in caught.value.fix


# ---------------------------------------------------------------------------------------- the shared folder


class Ray:
    """As much of Ray as the check asks for: a node for each way to answer.

    Args:
        answers: by node, what reads a file there.
    """

    class exceptions:
        RayError = type("RayError", (Exception,), {})

    def __init__(self, **answers: Callable[[str], tuple[str, str]]) -> None:
        self._answers = answers
        affinity = SimpleNamespace(NodeAffinitySchedulingStrategy=lambda node, soft: node)
        self.util = SimpleNamespace(scheduling_strategies=affinity)

    def nodes(self) -> list[dict[str, Any]]:
        there = [
            {
                "Alive": True,
                "NodeID": name,
                "NodeManagerHostname": name,
                "NodeManagerAddress": f"ip of {name}",
            }
            for name in self._answers
        ]
        return [*there, {"Alive": False, "NodeID": "dead"}]

    def put(self, thing: Any) -> Any:
        return thing

    def remote(self, function: Any) -> Any:
        assert function is read_there
        return SimpleNamespace(
            options=lambda scheduling_strategy, **_: SimpleNamespace(
                remote=lambda path: (scheduling_strategy, path)
            )
        )

    def get(self, asked: tuple[str, str], timeout: float) -> tuple[str, str]:
        node, path = asked
        return self._answers[node](path)


def lost(path: str) -> tuple[str, str]:
    raise Ray.exceptions.RayError("the node is gone\nmore")


def test_every_node_that_does_not_see_the_folder_is_named_with_its_reason(tmp_path: Path) -> None:
    seen = Ray(head=read_there, other=read_there)
    check_seen(seen, tmp_path / "new" / "folder", 1.0)
    assert not [*(tmp_path / "new" / "folder").iterdir()]
    blind = Ray(
        head=read_there,
        empty=lambda path: ("empty", read_there(path + "x", lag=0.0)[1]),
        copy=lambda path: ("copy", "what another disk has"),
        gone=lost,
    )
    with pytest.raises(
        UserError, match=f"3 of 4 nodes can't read what the run writes to {tmp_path}"
    ) as caught:
        check_seen(blind, tmp_path, 1.0)
    empty, copy, gone = caught.value.why.splitlines()
    assert empty.startswith("node empty (ip of empty): FileNotFoundError")
    assert copy == "node copy (ip of copy): the file has another content there: it is another disk"
    assert gone == "node gone (ip of gone): its process: the node is gone"
    assert caught.value.path == "cluster.weights" and "cluster.weights_folder" in caught.value.fix
    assert not [*tmp_path.glob("probe*")]


def test_a_file_that_comes_late_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "late"
    monkeypatch.setattr(weight_files.time, "sleep", lambda seconds: file.write_text("here"))
    assert read_there(str(file))[1] == "here"


def test_a_folder_that_nothing_is_written_to_is_refused() -> None:
    for way in ("auto", "store"):
        with pytest.raises(ConfigError, match="nothing is written to this folder") as caught:
            check_weights(ClusterConfig.model_validate({"weights": way, "weights_folder": "/shared"}))
        assert caught.value.path == "cluster.weights_folder" and caught.value.why.endswith(way)
    check_weights(ClusterConfig(weights="disk", weights_folder="/shared"))


# ------------------------------------------------------------------------------------------ the whole engine


class OnFiles(Cluster):
    """A cluster whose nodes all see the folder."""

    def __init__(self, settings: ClusterConfig) -> None:
        super().__init__(shared=False)
        self.settings = settings
        errors = self.ray.exceptions
        self.ray = Ray(head=read_there)  # type: ignore[assignment]
        self.ray.exceptions, self.ray.cloudpickle = errors, pickle  # type: ignore[misc, attr-defined]


class Noting(Recording):
    """An engine that remembers the weights that it gets."""

    got: list[tuple[int, list[list[float]]]] = []

    async def load_weights(self, weights: Any) -> None:
        Noting.got.append((weights.version, weights.module.weight.tolist()))


def test_an_engine_host_in_place_of_another_gets_its_weights_from_the_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(Noting, "got", [])
    module = torch.nn.Linear(2, 2)
    cluster = OnFiles(ClusterConfig(weights="disk"))

    async def run() -> None:
        hosted = HostedEngine(Noting, cluster)  # type: ignore[arg-type]
        hosted.use_run_folder(tmp_path)
        await hosted.open(Context())  # type: ignore[arg-type]
        for version in range(3):
            await hosted.load_weights(weights("p", version, module))
            change(module)
        assert len([*(tmp_path / "sent_weights").iterdir()]) == 2, "the first and the newest"
        replaced = Actor.__getattr__(hosted.actor, "load_weights")
        assert replaced is not None
        await hosted.another(hosted.start, "a test")
        assert Noting.got[3:] == [Noting.got[2]], "the newest version, with its values"
        await hosted.close()

    with caplog.at_level(logging.INFO, logger="coterie"):
        asyncio.run(run())
    assert [version for version, _ in Noting.got] == [0, 1, 2, 2]
    assert not (tmp_path / "sent_weights").exists()
    told = [line for line in caplog.messages if line.startswith("weights go to the engine's process by")]
    assert told == [
        "weights go to the engine's process by safetensors files in the run's folder: cluster.weights is disk"
    ]


def test_two_runs_share_a_folder_and_a_run_without_one_is_refused(tmp_path: Path) -> None:
    shared = OnFiles(ClusterConfig(weights="disk", weights_folder=str(tmp_path / "shared")))
    with pytest.raises(ConfigError, match="there is no folder") as missing:
        opened(shared, tmp_path / "first")  # type: ignore[arg-type]
    assert missing.value.path == "cluster.weights_folder" and not (tmp_path / "shared").exists()
    (tmp_path / "shared").mkdir()
    both = [opened(shared, tmp_path / name) for name in ("first", "second", "first")]  # type: ignore[arg-type]
    folders = [files.folder for files in both if files is not None]
    assert folders[0] == folders[2] != folders[1] and {f.parent for f in folders} == {tmp_path / "shared"}
    alone = OnFiles(ClusterConfig(weights="disk"))
    with pytest.raises(ConfigError, match="weights have no folder") as caught:
        opened(alone, None)  # type: ignore[arg-type]
    assert caught.value.path == "cluster.weights_folder"
    blind = OnFiles(ClusterConfig(weights="disk"))
    blind.ray._answers = {"other": lambda path: ("other", "nothing")}  # type: ignore[attr-defined]
    with pytest.raises(UserError, match="1 of 1 nodes"):
        opened(blind, tmp_path)  # type: ignore[arg-type]
    assert not (tmp_path / "sent_weights").exists()
