"""Exports of a policy to a folder that transformers or PEFT load without Coterie."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

from safetensors.torch import save_file

from coterie.backends.models.loading import without_bars
from coterie.backends.trainers.policies import PolicyWeights


def export(policy: PolicyWeights, folder: Path, *, merge: bool) -> None:
    """Write a Hugging Face folder, or for an unmerged `lora` policy a PEFT adapter folder.

    An adapter names its base: the hub id or folder of the configuration. A base that was newly initialised or
    warm-started in this run is written to `folder/base`.
    """
    folder.mkdir(parents=True, exist_ok=True)
    initial = policy.initial
    if policy.adapter is None:
        shares = policy.module is not policy.model  # a base with the adapters of other policies
        model = copy.deepcopy(initial.peft).unload() if shares else policy.model
        _write_model(model, initial.tokenizer, folder)
    elif merge:
        merged = copy.deepcopy(initial.peft).merge_and_unload(adapter_names=[policy.adapter])
        _write_model(merged, initial.tokenizer, folder)
    else:
        _write_adapter(policy, folder)


def _write_model(model: Any, tokenizer: Any, folder: Path) -> None:
    with without_bars():
        model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def _write_adapter(policy: PolicyWeights, folder: Path) -> None:
    from peft import get_peft_model_state_dict

    initial, adapter = policy.initial, policy.adapter
    base = str(initial.config.model)  # a hub id
    if initial.must_be_saved:
        base = str((folder / "base").resolve())
        _write_model(copy.deepcopy(initial.peft).unload(), initial.tokenizer, Path(base))
    elif Path(base).expanduser().is_dir():
        base = str(Path(base).expanduser().resolve())
    tensors = get_peft_model_state_dict(initial.peft, adapter_name=adapter, save_embedding_layers=False)
    save_file(
        {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()},
        str(folder / "adapter_model.safetensors"),
        metadata={"format": "pt"},
    )
    settings = copy.copy(initial.peft.peft_config[adapter])
    settings.base_model_name_or_path, settings.revision = base, initial.config.revision
    settings.inference_mode = True
    settings.save_pretrained(str(folder))
    initial.tokenizer.save_pretrained(folder)
