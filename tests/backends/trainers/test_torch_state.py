# ruff: noqa: E402 (torch is asked for first)
"""Checkpoints resume bit for bit, exports load without Coterie."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
peft = pytest.importorskip("peft")

from safetensors.torch import load_file

from coterie.backends.models.policy import TorchPolicy
from coterie.backends.trainers.torch_trainer import TorchTrainer
from coterie.core.errors import RunFolderError
from tests.backends.trainers.tiny import MODEL, WORDS, opened, policy, samples, update

pytestmark = pytest.mark.torch

DECAY = {"learning_rate": 1e-2, "schedule": "cosine", "horizon": 8, "warmup_steps": 2}


def team() -> dict[str, TorchPolicy]:
    return {
        "full": policy(optimizer=DECAY),
        "half": policy(dtype="bfloat16", optimizer=DECAY),
        "untied": policy(model=MODEL | {"tie_embeddings": False}),
        "lora": policy("lora", optimizer=DECAY, lora={"rank": 4, "dropout": 0.2}),
        "lo.ra/2": policy("lora", lora={"rank": 2}),
        "none": policy("none"),
    }


def run(trainer: TorchTrainer, steps: range) -> dict:
    metrics = {}
    for step in steps:
        given = {name: samples(name, seed=step) for name in trainer.policies if name != "none"}
        metrics = update(trainer, given, step)
    return metrics


def test_two_updates_are_one_and_resume_and_another(tmp_path: Path) -> None:
    settings = {"minibatch_size": 5, "epochs": 2, "needs": ("ref_logprobs",)}
    whole = opened(team(), **settings)
    wanted = run(whole, range(2))
    first = opened(team(), **settings)
    run(first, range(1))
    first.save(tmp_path)
    second = opened(team(), seed=5, **settings)  # the checkpoint replaces all state
    second.ctx = first.ctx
    second.load(tmp_path)
    assert second.digest() == first.digest()
    assert second.weights("full").version == 1
    assert run(second, range(1, 2)) == wanted
    assert second.digest() == whole.digest()
    for name, expected in whole.policies.items():
        if expected.optimizer is not None:
            other = second.policies[name].optimizer
            state = expected.optimizer.state()
            assert other.count == expected.optimizer.count and set(other.state()) == set(state)
            assert all(torch.equal(tensor, other.state()[key]) for key, tensor in state.items())


def test_only_what_cant_be_read_again_is_saved(tmp_path: Path) -> None:
    trainer = opened(team())
    trainer.save(tmp_path / "made")
    files = {
        str(file.relative_to(tmp_path / "made")) for file in (tmp_path / "made").rglob("*") if file.is_file()
    }
    assert "starts/full.safetensors" in files  # the newly initialised base of lora and none
    assert "policies/none.safetensors" not in files and "policies/lo.ra%2F2.safetensors" in files
    assert all("lora_" in name for name in load_file(tmp_path / "made" / "policies" / "lora.safetensors"))
    trainer.export("none", tmp_path / "base")
    fetched = opened(
        {"a": policy("lora", model=str(tmp_path / "base")), "b": policy("none", model=str(tmp_path / "base"))}
    )
    fetched.save(tmp_path / "fetched")
    assert not (tmp_path / "fetched" / "starts").exists()
    fetched.load(tmp_path / "fetched")


def test_a_base_that_has_changed_behind_the_run_is_refused(tmp_path: Path) -> None:
    opened({"p": policy("none")}).export("p", tmp_path / "base")
    config = {"a": policy("lora", model=str(tmp_path / "base"))}
    opened(config).save(tmp_path / "state")
    opened({"p": policy("none")}, seed=1).export("p", tmp_path / "base")
    with pytest.raises(RunFolderError, match="not the model that this run began with"):
        opened(config).load(tmp_path / "state")


@pytest.mark.parametrize(
    ("other", "message"),
    [
        ({"a": policy()}, "other policies"),
        ({"a": policy(), "b": policy("none")}, "other policies"),
        ({"a": policy(), "b": policy("lora", model=MODEL | {"layers": 1})}, "other starts"),
        ({"a": policy(), "b": policy("lora", lora={"rank": 8})}, "lora_A"),
    ],
)
def test_a_checkpoint_of_another_configuration_is_refused(tmp_path: Path, other: dict, message: str) -> None:
    opened({"a": policy(), "b": policy("lora")}).save(tmp_path)
    with pytest.raises(RunFolderError, match=message):
        opened(other).load(tmp_path)


def test_a_checkpoint_of_other_words_is_refused_though_there_are_as_many(tmp_path: Path, monkeypatch) -> None:
    opened({"a": policy(), "b": policy("lora")}).save(tmp_path)
    monkeypatch.setattr("tests.backends.trainers.tiny.WORDS", ("aaa", *sorted(WORDS)[1:]))
    trainer = opened({"a": policy(), "b": policy("lora")})
    with pytest.raises(RunFolderError, match="other words") as error:
        trainer.load(tmp_path)
    assert error.value.path == "policies.a.model" and error.value.fix


def test_a_damaged_checkpoint_is_refused_and_named(tmp_path: Path) -> None:
    trainer = opened({"a": policy()})
    trainer.save(tmp_path)
    file = tmp_path / "policies" / "a.safetensors"
    file.write_bytes(file.read_bytes()[:100])
    with pytest.raises(RunFolderError, match=r"a\.safetensors can't be read"):
        trainer.load(tmp_path)
    file.unlink()
    with pytest.raises(RunFolderError, match=r"a\.safetensors can't be read"):
        trainer.load(tmp_path)
    state = json.loads((tmp_path / "state.json").read_text())
    (tmp_path / "state.json").write_text(json.dumps(state | {"format": 99}))
    with pytest.raises(RunFolderError, match="format 99"):
        trainer.load(tmp_path)


def test_a_digest_tells_weights_apart() -> None:
    trainer = opened({"a": policy(), "b": policy("lora")})
    before = trainer.digest()
    assert before == trainer.digest() and all(len(loaded) == 64 for loaded in before.values())
    with torch.no_grad():
        next(iter(trainer.policies["a"].own_parameters().values())).view(-1)[0] += 1e-7
    assert trainer.digest()["a"] != before["a"] and trainer.digest()["b"] == before["b"]


# --------------------------------------------------------------------------------------------------- exports

IDS = torch.tensor([[3, 4, 5, 6, 7, 8]])


def logits(trainer: TorchTrainer, name: str) -> torch.Tensor:
    owner = trainer.policies[name]
    with torch.no_grad(), owner.scoring():
        return owner.model(IDS).logits


def trained(tmp_path: Path) -> TorchTrainer:
    configs = {
        "full": policy(),
        "untied": policy(model=MODEL | {"tie_embeddings": False}),
        "a": policy("lora"),
        "b": policy("lora", lora={"rank": 2}),
        "none": policy("none"),
    }
    trainer = opened(configs)
    update(trainer, {name: samples(name) for name in configs if name != "none"})
    return trainer


def load(folder: Path) -> torch.Tensor:
    assert len(transformers.AutoTokenizer.from_pretrained(folder)("w1 w2")["input_ids"]) == 2
    with torch.no_grad():
        return transformers.AutoModelForCausalLM.from_pretrained(folder).eval()(IDS).logits


def test_full_and_untrained_policies_export_to_transformers(tmp_path: Path) -> None:
    trainer = trained(tmp_path)
    for name in ("full", "untied", "none"):
        trainer.export(name, tmp_path / name)
        torch.testing.assert_close(load(tmp_path / name), logits(trainer, name))


def test_adapters_export_to_peft_with_a_newly_initialised_base(tmp_path: Path) -> None:
    trainer = trained(tmp_path)
    before = trainer.digest()
    for name in ("a", "b"):
        trainer.export(name, tmp_path / name)
        settings = json.loads((tmp_path / name / "adapter_config.json").read_text())
        assert Path(settings["base_model_name_or_path"]) == tmp_path / name / "base"
        base = transformers.AutoModelForCausalLM.from_pretrained(settings["base_model_name_or_path"])
        with torch.no_grad():
            loaded = peft.PeftModel.from_pretrained(base, tmp_path / name).eval()(IDS).logits
        torch.testing.assert_close(loaded, logits(trainer, name))
    assert not torch.allclose(logits(trainer, "a"), logits(trainer, "b"))
    assert trainer.digest() == before


def test_merged_adapters_export_to_transformers(tmp_path: Path) -> None:
    trainer = trained(tmp_path)
    before = trainer.digest()
    for name in ("a", "b"):
        trainer.export(name, tmp_path / name, merge=True)
        torch.testing.assert_close(load(tmp_path / name), logits(trainer, name), rtol=1e-4, atol=1e-5)
    assert trainer.digest() == before


def test_an_adapter_over_a_folder_names_that_folder(tmp_path: Path) -> None:
    trained(tmp_path).export("full", tmp_path / "model")
    trainer = opened({"a": policy("lora", model=str(tmp_path / "model"))})
    update(trainer, {"a": samples("a")})
    trainer.export("a", tmp_path / "adapter")
    assert not (tmp_path / "adapter" / "base").exists()
    settings = json.loads((tmp_path / "adapter" / "adapter_config.json").read_text())
    assert Path(settings["base_model_name_or_path"]) == tmp_path / "model"
    loaded = peft.AutoPeftModelForCausalLM.from_pretrained(tmp_path / "adapter").eval()
    with torch.no_grad():
        torch.testing.assert_close(loaded(IDS).logits, logits(trainer, "a"))
