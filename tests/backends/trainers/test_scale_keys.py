"""What the settings of ranks, DeepSpeed and vLLM refuse before a model is loaded, or a process started."""

from __future__ import annotations

import importlib.util
import os
from typing import Any

import pytest

from coterie.api.train import train
from coterie.backends.engines.vllm.settings import VLLMConfig
from coterie.backends.trainers.deepspeed.settings import DeepSpeedConfig
from coterie.backends.trainers.settings import TorchConfig
from coterie.compose import prepare
from coterie.core.errors import ConfigError, MissingExtra
from coterie.discovery.validation import validate
from coterie.recipes import load

DEEPSPEED, VLLM = "trainer.type=deepspeed", "engine.type=vllm"


@pytest.mark.parametrize(
    ("overrides", "path", "part"),
    [
        ([DEEPSPEED, "trainer.stage=4"], "trainer.stage", "got 4"),
        ([DEEPSPEED, "trainer.stage=zero2"], "trainer.stage", "got 'zero2'"),
        ([DEEPSPEED, "trainer.stage=true"], "trainer.stage", "got True"),
        ([DEEPSPEED, "trainer.offload=cpu"], "trainer.offload", "got 'cpu'"),
        ([DEEPSPEED, "trainer.offload.optimizer=nvme"], "trainer.offload.optimizer", "got 'nvme'"),
        ([DEEPSPEED, "trainer.offload.optimiser=cpu"], "trainer.offload.optimiser", "mean 'optimizer'?"),
        ([DEEPSPEED, "trainer.rank=2"], "trainer.rank", "did you mean 'ranks'?"),
        (["trainer.ranks=true"], "trainer.ranks", "got True"),
        (["trainer.ranks=1.5"], "trainer.ranks", "got 1.5"),
        ([VLLM, "engine.replicas=true"], "engine.replicas", "got True"),
        ([VLLM, "engine.process=inside", "engine.replicas=2"], "engine.process", "can't have replicas: 2"),
        ([VLLM, "engine.replicas=2", "engine.devices=[1,1]"], "engine.devices", "GPU 1 is named twice"),
    ],
)
def test_wrong_settings_are_named(overrides: list[str], path: str, part: str) -> None:
    with pytest.raises(ConfigError) as caught:
        prepare(load("quickstart", overrides=overrides))
    assert caught.value.path == path and part in str(caught.value)


@pytest.mark.parametrize(("overrides", "package"), [([DEEPSPEED], "deepspeed"), ([VLLM], "vllm")])
def test_a_missing_package_is_named_before_a_folder_is_made(
    overrides: list[str], package: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *rest: None if name == package else find(name, *rest)
    )
    with pytest.raises(MissingExtra, match=f"'{package}' is not installed"):
        train("quickstart", overrides=overrides, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_numbers_are_what_they_were() -> None:
    assert validate(TorchConfig, {"ranks": 2}).ranks == 2
    assert validate(DeepSpeedConfig, {"stage": 1}).stage == 1
    assert validate(VLLMConfig, {"replicas": 2, "devices": [2, 3]}).replicas == 2


@pytest.mark.torch
def test_more_ranks_than_the_host_can_run_are_refused_before_one_starts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    torch = pytest.importorskip("torch")
    from coterie.backends.trainers.devices import check_ranks
    from tests.backends.trainers import tiny

    monkeypatch.setattr(
        "coterie.backends.trainers.ranks.processes.start", lambda world: pytest.fail("started")
    )
    with pytest.raises(ConfigError, match="this host can't run 1000000 ranks") as caught:
        tiny.opened({"p": tiny.policy()}, ranks=1_000_000)
    assert caught.value.path == "trainer.ranks"
    check_ranks(max(os.cpu_count() or 1, 8), "cpu")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    check_ranks(2, "auto")
    with pytest.raises(ConfigError, match="this host can't run 3 ranks") as caught:
        check_ranks(3, "cuda")
    assert "it has 2 GPUs" in caught.value.why
    monkeypatch.setattr("coterie.backends.trainers.ranks.group.joined", type("World", (), {"world": 16}))
    check_ranks(16, "auto")  # the ranks are there already, on whatever hosts
