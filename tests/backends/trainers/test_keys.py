# ruff: noqa: E402 (torch is asked for first)
"""Every key of the trainer has an effect: another value changes something observable."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytest.importorskip("peft")

from pydantic import BaseModel

from coterie.backends.models.policy import TorchPolicy
from coterie.backends.trainers.torch_trainer import TorchTrainer
from coterie.core.errors import CoterieError
from tests.backends.trainers.tiny import MODEL, opened, samples, update, with_targets

pytestmark = pytest.mark.torch

TRAINER: dict[str, Any] = {"minibatch_size": 8, "micro_tokens": 150, "value": {"coefficient": 0.5}}
FULL: dict[str, Any] = {
    "model": MODEL,
    "optimizer": {"learning_rate": 1e-2, "schedule": "linear", "horizon": 4, "warmup_steps": 1},
}
LORA: dict[str, Any] = FULL | {"train": "lora", "lora": {"rank": 4, "alpha": 8}}

OF_TRAINER: dict[str, Any] = {
    "minibatch_size": 4,
    "epochs": 2,
    "micro_tokens": 60,
    "packing": False,
    "gradient_checkpointing": True,
    "device": "cuda:99",
    "value.coefficient": 1.0,
    "value.clip": 0.01,
    "value.learning_rate": 1e-3,
}
OF_POLICY: dict[str, Any] = {
    "model.init": "tabular",
    "model.hidden_size": 16,
    "model.layers": 1,
    "model.heads": 2,
    "model.kv_heads": 4,
    "model.head_dim": 4,
    "model.mlp_size": 32,
    "model.context": 64,
    "model.tie_embeddings": False,
    "model.tokenizer": "no/such/folder",
    "train": "none",
    "dtype": "bfloat16",
    "optimizer.learning_rate": 2e-2,
    "optimizer.weight_decay": 0.5,
    "optimizer.betas": (0.8, 0.99),
    "optimizer.eps": 1e-3,
    "optimizer.clip": 1e-2,
    "optimizer.schedule": "cosine",
    "optimizer.warmup_steps": 2,
    "optimizer.final_share": 0.5,
    "optimizer.horizon": 5,
}
OF_LORA: dict[str, Any] = {
    "train": "full",
    "lora.rank": 2,
    "lora.alpha": 16,
    "lora.dropout": 0.5,
    "lora.target_modules": ["q_proj"],
}
ELSEWHERE = {
    "model": "a hub id or a folder: test_torch_state.py, and below",
    "lora": "its keys are above",
    "optimizer": "its keys are above",
    "value": "its keys are above",
    "revision": "below",
    "from_": "test_source_weights.py",
    "warm_start": "given to `warm_start`: test_warm_start.py",
    "ranks": "test_ranks.py",
    "patience": "test_rank_program.py",
    "attention": "test_probe.py",
    "offload_in_rollouts": "test_offloading.py",
    "context": "test_loading.py",
}


def changed(table: dict[str, Any], key: str, value: Any) -> dict[str, Any]:
    outer, _, inner = key.partition(".")
    return table | {outer: {**table.get(outer, {}), inner: value} if inner else value}


def observed(settings: dict[str, Any], table: dict[str, Any]) -> Any:
    """The observable results of two updates; if the settings are refused, the key in the error."""
    if table.get("train") != "lora":
        table = {key: value for key, value in table.items() if key != "lora"}
    try:
        trainer = opened({"p": TorchPolicy.model_validate(table)}, needs=("values",), **settings)
    except CoterieError as error:
        return error.path
    forwards: list[Any] = []
    backbone = trainer.policies["p"].model.model
    for module in (backbone, backbone.layers[0]):
        module.register_forward_pre_hook(lambda m, args, kwargs: forwards.append(
            [tuple(x.shape) for x in (*args, *kwargs.values()) if isinstance(x, torch.Tensor)]
        ), with_kwargs=True)  # fmt: skip
    metrics = []
    if trainer.policies["p"].optimizer is not None:
        metrics = [update(trainer, {"p": with_targets(samples(seed=step))}, step) for step in range(2)]
    return forwards, metrics, trainer.digest(), trainer.initial_weights[0].context


@pytest.fixture(scope="module")
def plain() -> dict[str, Any]:
    return {"full": observed(TRAINER, FULL), "lora": observed(TRAINER, LORA)}


def test_the_same_settings_are_observed_to_be_the_same(plain: dict[str, Any]) -> None:
    assert observed(TRAINER, FULL) == plain["full"] and observed(TRAINER, LORA) == plain["lora"]


@pytest.mark.parametrize("key", OF_TRAINER)
def test_each_trainer_key(key: str, plain: dict[str, Any]) -> None:
    changed_run = observed(changed(TRAINER, key, OF_TRAINER[key]), FULL)
    assert changed_run != plain["full"] and (
        not isinstance(changed_run, str) or changed_run == f"trainer.{key}"
    )


@pytest.mark.parametrize("key", OF_POLICY)
def test_each_policy_key(key: str, plain: dict[str, Any]) -> None:
    changed_run = observed(TRAINER, changed(FULL, key, OF_POLICY[key]))
    assert changed_run != plain["full"] and (
        not isinstance(changed_run, str) or f"policies.p.{key}".startswith(changed_run)
    )


@pytest.mark.parametrize("key", OF_LORA)
def test_each_adapter_key(key: str, plain: dict[str, Any]) -> None:
    changed_run = observed(TRAINER, changed(LORA, key, OF_LORA[key]))
    assert changed_run != plain["lora"] and not isinstance(changed_run, str)


def test_revisions_reach_the_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened({"p": TorchPolicy.model_validate(FULL)}).export("p", tmp_path)
    requested: list[tuple[str, Any]] = []

    def fetched(kind: Any) -> Any:
        original = kind.from_pretrained

        def from_pretrained(source: str, *, revision: Any = None, **more: Any) -> Any:
            requested.append((source, revision))
            return original(str(tmp_path), **more)

        return from_pretrained

    for kind in (transformers.AutoModelForCausalLM, transformers.AutoTokenizer):
        monkeypatch.setattr(kind, "from_pretrained", fetched(kind))
    tables = {name: FULL | {"model": "own/model", "revision": name} for name in ("one", "two")}
    trainer = opened({name: TorchPolicy.model_validate(table) for name, table in tables.items()})
    assert trainer.bases() == {"one": ("one",), "two": ("two",)}
    assert sorted(requested) == [("own/model", "one")] * 2 + [("own/model", "two")] * 2


def leaves(config: type[BaseModel], prefix: str = "") -> Iterator[str]:
    """Dotted keys of a configuration, those of its tables too."""
    for name, field in config.model_fields.items():
        yield prefix + name
        for kind in (field.annotation, *get_args(field.annotation)):
            if isinstance(kind, type) and issubclass(kind, BaseModel) and prefix + name != "warm_start":
                yield from leaves(kind, f"{prefix}{name}.")


def test_no_key_is_left_out() -> None:
    tested = {*OF_TRAINER, *OF_POLICY, *OF_LORA}
    assert {*leaves(TorchTrainer.Config), *leaves(TorchPolicy)} == tested | set(ELSEWHERE)
    assert not tested & set(ELSEWHERE)
