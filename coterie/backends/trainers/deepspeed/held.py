"""The tensors that an optimiser of DeepSpeed's holds on one rank."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

MASTERS = (
    "single_partition_of_fp32_groups",
    "fp32_groups_flat_partition",
    "fp32_partitioned_groups_flat",
)
"""This rank's part of the fp32 weights, by the class of DeepSpeed's optimiser: ZeRO 1 and 2, bf16, ZeRO 3."""
GRADIENTS = ("fp32_groups_gradients_flat", "grad_partitions_flat_buffer")
"""Sums of gradients that stay between updates: bf16, ZeRO 3."""


def held(adam: torch.optim.Optimizer, optimizer: Any) -> Iterator[Tensor]:
    """Masters, moments and sums of gradients.

    Args:
        optimizer: DeepSpeed's around `adam`; None: the engine isn't made yet.
    """
    for state in adam.state.values():
        yield from (value for value in state.values() if isinstance(value, Tensor))
    for name in (*MASTERS, *GRADIENTS):
        kept = getattr(optimizer, name, None)
        if kept is not None:
            yield from [kept] if isinstance(kept, Tensor) else kept
