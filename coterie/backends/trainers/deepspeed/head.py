"""DeepSpeed's optimiser on one rank: the tensors that it holds, and a value head without value targets."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor


class Head:
    """Keeps the value head as it is in steps without value targets, as trainer `torch` does.

    All ranks must add the same tensors' gradients, so the head always has one, if of zeros. AdamW would move
    it by decay and momentum.

    Args:
        adam: gets a group, marked `head`, of the head alone: DeepSpeed makes one tensor of each group.
    """

    def __init__(self, adam: torch.optim.AdamW, head: Tensor | None) -> None:
        self.trained = True
        """Whether the minibatch has value targets."""
        self.steps = 0
        self._held: list[tuple[Tensor, Tensor, dict[str, Tensor]]] = []
        """The head, or a rank's part of it, during a step; copies of its values and of its moments."""
        if head is not None:
            _separate(adam, head)
            adam.register_step_pre_hook(self._hold)
            adam.register_step_post_hook(self._put_back)

    def _hold(self, adam: torch.optim.Optimizer, *_: Any) -> None:
        heads = [] if self.trained else [t for g in adam.param_groups if g.get("head") for t in g["params"]]
        for tensor in heads:
            state = {part: value.clone() for part, value in adam.state.get(tensor, {}).items()}
            self._held.append((tensor, tensor.detach().clone(), state))

    def _put_back(self, adam: torch.optim.Optimizer, *_: Any) -> None:
        for tensor, value, state in self._held:
            tensor.detach().copy_(value)
            for part, moved in adam.state.get(tensor, {}).items():
                if state:
                    moved.copy_(state[part])
                else:
                    moved.zero_()
        self._held.clear()


def _separate(adam: torch.optim.AdamW, head: Tensor) -> None:
    for group in adam.param_groups:
        rest = [tensor for tensor in group["params"] if tensor is not head]
        if len(rest) == len(group["params"]):
            continue
        if rest:
            group["params"] = rest
            adam.add_param_group({**group, "params": [head], "head": True})
        else:
            group["head"] = True
        return


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
