"""The dtype of weights where a policy leaves it open."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, TypeVar

from coterie.backends.models.policy import TensorFields

log = logging.getLogger("coterie")
Config = TypeVar("Config", bound=TensorFields)

SMALL = 10**8
"""Parameters of a model below which nobody minds float32 on a GPU."""


def auto_dtype(device: str) -> str:
    """The dtype that `auto` stands for on a type of device: bfloat16 on GPUs, float32 elsewhere."""
    return "bfloat16" if device == "cuda" else "float32"


def with_dtype(configs: Mapping[str, Config], device: str) -> dict[str, Config]:
    """The policies with `dtype: auto` resolved for a type of device: `cpu`, `cuda`."""
    return {
        name: config.model_copy(update={"dtype": auto_dtype(device)}) if config.dtype == "auto" else config
        for name, config in configs.items()
    }


def dtype_of(config: TensorFields, model: Any = None) -> str:
    """The dtype of a policy's weights in an engine.

    Args:
        model: the model whose weights the trainer hands over: it has chosen what `auto` is. None: the engine
            reads them itself, for a GPU where there is one.
    """
    if config.dtype != "auto":
        return config.dtype
    if model is not None:
        return str(model.get_input_embeddings().weight.dtype).removeprefix("torch.")
    import torch

    return auto_dtype("cuda" if torch.cuda.is_available() else "cpu")


def warn_of_float32(policy: str, dtype: str, device: str, parameters: int) -> None:
    """Warn of float32 weights on a GPU, which only a policy's own `dtype` brings there."""
    if device == "cuda" and dtype == "float32" and parameters >= SMALL:
        log.warning(
            "policies.%s.dtype is float32 on a GPU: weights, activations and caches take twice the memory of "
            "bfloat16, and matrix products are several times slower. `dtype: auto` is bfloat16 there, with "
            "fp32 masters of trained weights",
            policy,
        )
