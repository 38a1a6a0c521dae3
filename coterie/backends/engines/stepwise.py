"""The decoder for every other architecture: the forward of transformers, one token at a time."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from coterie.backends.engines.rows import Counts, Drawn, Row, siblings
from coterie.backends.engines.sampling import Tape
from coterie.backends.models.dense import Dense


class StepwiseDecoder:
    """Draws from a copy of the module: what a trainer does to the original is not seen before `refresh`.

    One left-padded prefill per distinct prompt; its cache is then repeated for every sibling.

    Args:
        dense: the model, with its adapter if it has one.
        dtype: of the copy.
    """

    def __init__(self, dense: Dense, dtype: torch.dtype) -> None:
        self.model: Any = _stripped(copy.deepcopy(dense.model)).to(dtype).eval().requires_grad_(False)
        self.counts = Counts()
        accepted = inspect.signature(self.model.forward).parameters
        self._last_only = {"logits_to_keep": 1} if "logits_to_keep" in accepted else {}
        self._takes_positions = "position_ids" in accepted
        self.refresh(dense)

    @torch.no_grad()
    def refresh(self, weights: Dense) -> None:
        for name, parameter in self.model.named_parameters():
            parameter.copy_(weights[name])

    @torch.inference_mode()
    def generate(self, rows: Sequence[Row]) -> list[Drawn]:
        """Draw for all rows together; rows with one prompt share its prefill."""
        if not rows:
            return []
        device = self.model.get_input_embeddings().weight.device
        tape = Tape(rows, device)
        groups = siblings(rows)
        logits, cache, mask, positions = self._prefill(
            [rows[members[0]].prompt_ids for members in groups], device
        )
        slots = np.concatenate(groups)
        tape.seat(slots)
        chosen = torch.from_numpy(np.repeat(np.arange(len(groups)), [len(members) for members in groups])).to(
            device
        )
        cache.reorder_cache(chosen)
        logits, mask, positions = logits[chosen], mask[chosen], positions[chosen]
        while True:
            tokens = tape.draw(logits)
            live = tape.live
            if not live.any():
                return tape.drawn()
            if live.sum() <= 0.5 * len(slots):
                slots = slots[live]
                tape.seat(slots)
                chosen = torch.from_numpy(np.flatnonzero(live)).to(device)
                cache.reorder_cache(chosen)
                tokens, mask, positions = tokens[chosen], mask[chosen], positions[chosen]
            positions = positions + 1
            mask = torch.cat((mask, mask.new_ones(len(mask), 1)), dim=1)
            logits = self._forward(tokens[:, None], mask, positions[:, None], cache)
            self.counts.steps += 1
            self.counts.slots += len(slots)

    def _prefill(
        self, prompts: Sequence[tuple[int, ...]], device: torch.device
    ) -> tuple[Tensor, Any, Tensor, Tensor]:
        """Logits (G, V) after the prompts, their cache, mask (G, P) and last positions (G,)."""
        from transformers import DynamicCache

        longest = max(len(prompt) for prompt in prompts)
        ids = np.zeros((len(prompts), longest), dtype=np.int64)
        mask = np.zeros_like(ids)
        for index, prompt in enumerate(prompts):
            ids[index, longest - len(prompt) :] = prompt
            mask[index, longest - len(prompt) :] = 1
        placed = torch.from_numpy(mask).to(device)
        positions = (placed.cumsum(dim=1) - 1).clamp_(min=0)
        cache = DynamicCache(config=self.model.config)
        logits = self._forward(torch.from_numpy(ids).to(device), placed, positions, cache)
        self.counts.prompts += len(prompts)
        self.counts.prompt_tokens += int(mask.sum())
        return logits, cache, placed, positions[:, -1]

    def _forward(self, ids: Tensor, mask: Tensor, positions: Tensor, cache: Any) -> Tensor:
        """Logits of the last token, shape (N, V)."""
        more = dict(self._last_only)
        if self._takes_positions:
            more["position_ids"] = positions
        output = self.model(input_ids=ids, attention_mask=mask, past_key_values=cache, use_cache=True, **more)
        return output.logits[:, -1]


def _stripped(module: nn.Module) -> Any:
    """The module with PEFT's layers replaced by what they wrap."""
    for name, child in list(module.named_children()):
        if hasattr(child, "base_layer"):
            setattr(module, name, child.get_base_layer())
        elif hasattr(child, "modules_to_save") and hasattr(child, "original_module"):
            setattr(module, name, child.original_module)
        else:
            _stripped(child)
    return module
