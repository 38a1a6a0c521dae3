"""The weights of models and of adapters by name: listed, copied, filled, compared."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor


def copies(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Copies of tensors, on their devices."""
    return {name: tensor.detach().clone() for name, tensor in tensors.items()}


def fill(target: Mapping[str, Tensor], source: Mapping[str, Tensor]) -> None:
    """Copy tensors into parameters of the same names and shapes."""
    with torch.no_grad():
        for name, tensor in target.items():
            tensor.copy_(source[name])


def plain_parameters(model: Any) -> dict[str, torch.nn.Parameter]:
    """Weights of a model by their names without adapters; tied weights are listed once."""
    return {
        name.replace(".base_layer.", "."): parameter
        for name, parameter in model.named_parameters()
        if "lora_" not in name
    }


def adapter_parameters(model: Any, adapter: str) -> dict[str, torch.nn.Parameter]:
    """One adapter's weights, by names without the adapter's name."""
    parameters = {}
    for name, parameter in model.named_parameters():
        pieces = name.split(".")
        for place, piece in enumerate(pieces[:-1]):
            if piece.startswith("lora_") and pieces[place + 1] == adapter:
                parameters[".".join(pieces[: place + 1] + pieces[place + 2 :])] = parameter
    return parameters


def digest(tensors: Mapping[str, Tensor], head: int | None = None) -> str:
    """sha256 over names, dtypes, shapes and bytes; with `head`, only of each tensor's first `head` values."""
    hashed = hashlib.sha256()
    for name in sorted(tensors):
        tensor = tensors[name].detach()
        values = tensor.reshape(-1)[:head].contiguous().cpu()
        hashed.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        hashed.update(values.view(torch.uint8).numpy().tobytes())
    return hashed.hexdigest()
