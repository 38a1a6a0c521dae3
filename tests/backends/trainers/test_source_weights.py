# ruff: noqa: E402 (torch is asked for first)
"""`policies.<name>.from` with models of tensors: full weights, and adapters on whatever weights."""

from __future__ import annotations

import asyncio
import functools
import json
import logging
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
peft = pytest.importorskip("peft")

from coterie import export, train
from coterie.api.checkpoints import find_checkpoint
from coterie.api.open_run import open_run
from coterie.backends.models.loading import load_model
from coterie.backends.trainers.torch_trainer import TorchTrainer
from coterie.compose import compose
from coterie.core.errors import ConfigError
from coterie.core.types import Weights
from coterie.recipes import load
from tests.backends.trainers.tiny import MODEL, WORDS, annotate, opened, policy, samples, update

pytestmark = pytest.mark.torch

ROLE = "coterie.testing.support.toys:EchoRole"
MATRIX = MODEL | {"hidden_size": 16, "heads": 2, "kv_heads": 1, "layers": 1, "mlp_size": 24, "context": 64}
LORA = {"train": "lora", "lora": {"rank": 2, "alpha": 4}}
RANK = {"lora": {"rank": 3, "alpha": 4}}
WIDE = {"model": MATRIX | {"hidden_size": 24}}


def recipe(row: dict[str, Any], column: dict[str, Any], **settings: Any) -> dict[str, Any]:
    optimizer = {"learning_rate": 0.05}
    return {
        "env": {"type": "tests.games:Matrix"},
        "team": {
            "order": [["row", "column"]],
            "roles": {name: {"type": ROLE, "policy": name} for name in ("row", "column")},
        },
        "policies": {
            "row": {"model": MATRIX, "optimizer": optimizer, **row},
            "column": {"model": MATRIX, "optimizer": optimizer, **column},
        },
        "sampler": {"branches": 4, "pairing": "cross", "sampling": {"max_new_tokens": 1}},
        "algorithm": {"type": "at_grpo"},
        "engine": {"type": "hf"},
        "trainer": {"type": "torch", "device": "cpu"},
        "schedule": {"steps": 2, "tasks_per_step": 4, "checkpoint_every": 1, "record_every": 0,
                     "keep_checkpoints": 9},
        **settings,
    }  # fmt: skip


def trained(
    folder: Path, row: dict[str, Any], column: dict[str, Any], *overrides: str, **settings: Any
) -> Path:
    train(recipe(row, column, **settings), overrides=overrides, out=folder)
    return folder


@functools.cache  # no folder that was asked for changes
def digests(source: Path, which: Any = "latest") -> dict[str, str]:
    run = compose(load(source))

    async def go() -> dict[str, str]:
        try:
            await run.open_trainer(find_checkpoint(source, which).path)
            return run.trainer.digest()
        finally:
            await run.trainer.close()

    return asyncio.run(go())


UNTRAINED = "schedule.steps=0"


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of an adapter (row) and of full weights (column)."""
    return trained(tmp_path_factory.mktemp("source") / "a", LORA, {})


def test_an_adapter_and_full_weights_go_on_from_a_run(source: Path, tmp_path: Path) -> None:
    new = trained(tmp_path / "b", LORA | {"from": str(source)}, {"from": f"{source}@1"}, UNTRAINED, seed=5)
    assert digests(new)["row"] == digests(source)["row"]
    assert digests(new)["column"] == digests(source, 1)["column"] != digests(source)["column"]


def test_only_the_policy_with_a_source_begins_there(source: Path, tmp_path: Path) -> None:
    new = trained(tmp_path / "b", LORA, {"from": str(source)}, UNTRAINED)
    assert digests(new)["column"] == digests(source)["column"]
    assert digests(new)["row"] == digests(source, 0)["row"] != digests(source)["row"]


@pytest.mark.parametrize("row", [LORA, {}], ids=["lora", "full"])
def test_a_resume_needs_no_source(source: Path, tmp_path: Path, row: dict[str, Any]) -> None:
    """Its weights, its reference and its groups of shared weights are those of its own checkpoint."""
    shutil.copytree(source, tmp_path / "gone")
    named = {"from": f"{tmp_path / 'gone'}:{'row' if row else 'column'}"}
    both = (row | named, {"train": "none", "from": f"{tmp_path / 'gone'}:column"})
    loss = {"type": "ppo_clip", "kl": 0.1}
    whole = trained(tmp_path / "whole", *both, loss=loss)
    part = trained(tmp_path / "part", *both, "schedule.steps=1", loss=loss)
    shutil.rmtree(tmp_path / "gone")
    train(resume=part, overrides=("schedule.steps=2",))
    assert digests(part) == digests(whole)
    assert digests(part)["row"] != digests(source)["row" if row else "column"]
    assert digests(part)["column"] == digests(source)["column"]
    assert metrics(part) == metrics(whole)


def metrics(folder: Path) -> list[dict[str, Any]]:
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [{k: v for k, v in row.items() if not k.startswith(("time/", "machine/"))} for row in rows]


def test_adapters_on_the_weights_of_two_full_policies(source: Path, tmp_path: Path) -> None:
    """One value of `from` may name two bases; a resume keeps them apart."""
    two = trained(tmp_path / "two", {}, {})
    shutil.copytree(two, tmp_path / "gone")
    begun = LORA | {"from": str(tmp_path / "gone")}
    new = trained(tmp_path / "b", begun, begun, "schedule.steps=1")
    shutil.rmtree(tmp_path / "gone")
    train(resume=new, overrides=("schedule.steps=2",))
    for name in ("row", "column"):
        export(two, name, tmp_path / f"two-{name}", checkpoint="latest")
        export(new, name, tmp_path / f"late-{name}", checkpoint=2)
        adapter = json.loads((tmp_path / f"late-{name}" / "adapter_config.json").read_text())
        theirs, base = (
            plain_weights(folder)
            for folder in (tmp_path / f"two-{name}", Path(adapter["base_model_name_or_path"]))
        )
        assert theirs.keys() == base.keys() and all(torch.equal(theirs[key], base[key]) for key in theirs)


def plain_weights(folder: Path) -> dict[str, Any]:
    from safetensors.torch import load_file

    return load_file(folder / "model.safetensors")


def test_adapters_of_one_base_share_it(tmp_path: Path) -> None:
    two = trained(tmp_path / "two", LORA, LORA)
    begun = LORA | {"from": str(two)}
    run = compose(load(recipe(begun, begun)))

    async def go() -> int:
        try:
            await open_run(run)
            return len(run.trainer.initial_weights)  # type: ignore[attr-defined]
        finally:
            await run.close()

    assert asyncio.run(go()) == 1


@pytest.mark.parametrize("merge", [False, True], ids=["adapter", "merged"])
def test_an_exported_folder_is_a_source(source: Path, tmp_path: Path, merge: bool) -> None:
    export(source, "row", tmp_path / "out", merge=merge, checkpoint="latest")
    shutil.move(tmp_path / "out", tmp_path / "moved")  # the base lies beside the adapter
    settings = {} if merge else LORA
    new = trained(tmp_path / "b", {**settings, "from": str(tmp_path / "moved")}, {}, UNTRAINED, seed=5)
    if not merge:
        assert digests(new)["row"] == digests(source)["row"]
    export(new, "row", tmp_path / "again", merge=not merge, checkpoint="latest")
    if not merge:
        export(source, "row", tmp_path / "merged", merge=True, checkpoint="latest")
    ours, theirs = (
        plain_weights(tmp_path / "again"),
        plain_weights(tmp_path / ("moved" if merge else "merged")),
    )
    assert all(torch.equal(ours[key], theirs[key]) for key in theirs)


def test_an_adapter_of_peft_on_the_models_own_weights(tmp_path: Path) -> None:
    """Its base is the policy's model: nothing of it is saved again."""
    loaded = load_model(policy(), policy="p", seed=3, vocabulary=WORDS)
    loaded.module.save_pretrained(tmp_path / "model")
    loaded.tokenizer.save_pretrained(tmp_path / "model")
    settings = peft.LoraConfig(r=4, lora_alpha=8, target_modules="all-linear", task_type="CAUSAL_LM")
    settings.base_model_name_or_path = str(tmp_path / "model")
    wrapped = peft.get_peft_model(loaded.module, settings)
    wrapped.peft_config["default"].base_model_name_or_path = str(tmp_path / "model")
    with torch.no_grad():
        for name, parameter in wrapped.named_parameters():
            if "lora_B" in name:
                parameter.normal_(std=0.1, generator=torch.Generator().manual_seed(len(name)))
    wrapped.save_pretrained(tmp_path / "adapter")
    config = policy("lora", model=str(tmp_path / "model"), **{"from": str(tmp_path / "adapter")})
    trainer = begun({"p": config}, {"p": Weights(policy="p", version=0, folder=str(tmp_path / "adapter"))})
    assert not trainer.policies["p"].initial.must_be_saved
    rows = samples("p")
    got = annotate(trainer, rows, "old_logprobs")
    with torch.no_grad():
        for row in rows[:3]:
            logits = wrapped(torch.from_numpy(row.token_ids)[None]).logits[0] / row.temperature
            at = np.flatnonzero(row.loss_mask)
            wanted = logits.log_softmax(-1)[at - 1, torch.from_numpy(row.token_ids)[at]]
            assert np.allclose(got[row.key], wanted.numpy(), atol=1e-4)


def begun(policies: dict[str, Any], weights: dict[str, Weights], **settings: Any) -> TorchTrainer:
    class Begun(TorchTrainer):
        def __init__(self, *args: Any) -> None:
            super().__init__(*args)
            self.begin_with(weights)

    return opened(policies, trainer=Begun, **settings)


@pytest.mark.parametrize("train_as", ["full", "lora"])
def test_the_reference_is_the_weights_of_the_source(train_as: str, tmp_path: Path) -> None:
    first = opened({"p": policy(train_as), "q": policy("none")})
    for step in range(2):
        update(first, {"p": samples("p", seed=step)}, step)
    rows = samples("p", seed=9)
    wanted = annotate(first, rows, "old_logprobs")
    config = policy(train_as, **{"from": "somewhere"})
    second = begun({"p": config}, {"p": first.weights("p")}, needs=("ref_logprobs",))
    third = opened({"p": config}, needs=("ref_logprobs",), seed=9)
    for trainer in (second, third):
        if trainer is third:
            second.save(tmp_path)
            third.load(tmp_path)
        reference = annotate(trainer, rows, "ref_logprobs")
        assert all(np.allclose(reference[key], wanted[key], atol=1e-5) for key in wanted)
        update(trainer, {"p": samples("p", seed=5)}, 5)
        again, moved = (annotate(trainer, rows, name) for name in ("ref_logprobs", "old_logprobs"))
        assert all(np.array_equal(reference[key], again[key]) for key in wanted)
        assert not any(np.allclose(moved[key], again[key], atol=1e-3) for key in wanted)


def test_a_warm_start_is_left_out_and_that_is_said(source: Path, tmp_path: Path, caplog: Any) -> None:
    warm = {"warm_start": {"steps": 2, "batch": 4}}  # the game has no oracle, which would be an error
    with caplog.at_level(logging.WARNING, "coterie"):
        new = trained(tmp_path / "b", LORA, {"from": str(source), **warm}, UNTRAINED)
    assert digests(new)["column"] == digests(source)["column"]
    assert "policies.column.warm_start has no effect" in caplog.text


@pytest.mark.parametrize(
    ("row", "message", "fix"),
    [
        ({"from": "{source}:row"}, "an adapter can't be .* `train: full`", "--merge"),
        ({"train": "none", "from": "{source}:row"}, "with `train: none`", "policies.row.train=lora"),
        ({"from": "{source}/out"}, "with `train: full`", "policies.row.train=lora"),
        (LORA | RANK | {"from": "{source}"}, "has another rank", "policies.row.lora.rank=2"),
        (LORA | RANK | {"from": "{source}/out"}, "has another rank", "policies.row.lora.rank=2"),
        (WIDE | {"from": "{source}:column"}, "another architecture", "policies.row.model"),
        (LORA | WIDE | {"from": "{source}/out"}, "another architecture", "policies.row.model"),
        (WIDE | {"from": "{source}/full"}, "another architecture", "policies.row.model"),
    ],
)
def test_what_a_policy_cant_begin_with_is_told_before_a_folder_is_made(
    source: Path, tmp_path: Path, row: dict[str, Any], message: str, fix: str
) -> None:
    if not (source / "out").is_dir():
        export(source, "row", source / "out", checkpoint="latest")
        export(source, "column", source / "full", checkpoint="latest")
    row = row | {"from": row["from"].format(source=source)}
    with pytest.raises(ConfigError, match=message) as error:
        trained(tmp_path / "b", row, {})
    assert error.value.path == "policies.row.from" and fix in error.value.fix
    assert not (tmp_path / "b").exists()


def test_a_table_is_no_source_of_tensors(tmp_path: Path) -> None:
    (tmp_path / "table").mkdir()
    (tmp_path / "table" / "table.npz").touch()
    with pytest.raises(ConfigError, match="the policy has tensors, and what it would begin with has tables"):
        trained(tmp_path / "b", {"from": str(tmp_path / "table")}, {})


def test_weights_of_other_tokens_are_refused() -> None:
    first = opened({"p": policy()})
    config = policy(**{"from": "somewhere"})
    source = first.weights("p")
    other = load_model(policy(), policy="p", seed=0, vocabulary=(*WORDS[:-1], "other")).tokenizer
    with pytest.raises(ConfigError, match="trained on other tokens") as error:
        begun({"p": config}, {"p": Weights(policy="p", version=0, module=source.module, tokenizer=other)})
    assert error.value.path == "policies.p.from" and "tokens differ" in error.value.why
