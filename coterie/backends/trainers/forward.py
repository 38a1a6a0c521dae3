"""Log-probs and entropies of trained tokens under a causal language model, by the quickest way that is right.

Two short cuts are taken where they can be: rows that share a prompt are packed, and the language-model head
is applied only where the next token is trained. Which models allow them isn't looked up anywhere: a
`Scorer` tries each way on a few tokens when it is made, and keeps the first that agrees with the model's own
padded forward.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from coterie.backends.trainers.attention import Layout, layout_of, packed_rows
from coterie.backends.trainers.packing import Packed, Row, pack, pad, plan
from coterie.backends.trainers.value_head import values_of

log = logging.getLogger("coterie")

_LOGITS = 2**26
"""Logits held at once. Past it, the head runs in chunks that the backward pass computes again: 16,384 tokens
over a vocabulary of 152,000 would take 10 GB."""


@dataclass(frozen=True, slots=True, eq=False)
class Scores:
    """Of every trained token, row after row; shape (N,)."""

    logprobs: Tensor
    """At the row's temperature."""
    entropy: Tensor
    """Of the distribution the token was drawn from, at the same temperature."""
    values: Tensor | None = None
    """Of the value head, where one was given."""


class ForwardMode(NamedTuple):
    """How a forward is done."""

    packed: bool
    """Shared prompts once, in one row; else one padded row each."""
    cut: bool
    """The head runs on trained positions only; else the model's own forward gives all logits."""


class Probe(NamedTuple):
    """A row that is only scored."""

    token_ids: np.ndarray
    loss_mask: np.ndarray
    temperature: float = 1.0


class Scorer:
    """Scores rows with one model.

    Args:
        model: a transformers CausalLM; LoRA layers may be injected into it, before or later.
        packing: whether shared prompts may be packed.
        budget: tokens of one forward.
        name: of the policy, for the log.
    """

    def __init__(self, model: Any, *, packing: bool, budget: int, name: str) -> None:
        self.model, self.budget = model, budget
        self.way = self._choose(packing, name)

    def plan(self, rows: Sequence[Row]) -> list[list[int]]:
        """Indices of the rows of each forward (see `packing.plan`)."""
        return plan(rows, self.budget, self.way.packed)

    def session(self) -> AbstractContextManager[None]:
        """Forward and backward passes belong inside."""
        return packed_rows(self.model) if self.way.packed else nullcontext()

    def __call__(
        self, rows: Sequence[Row], *, entropy_slope: bool = False, value_head: Tensor | None = None
    ) -> Scores:
        """Score rows that fit in one forward.

        Args:
            entropy_slope: whether the entropy must be differentiable.
            value_head: shape (H,); values are given where it is.
        """
        return self._score(rows, self.way, entropy_slope, value_head)

    def values(self, rows: Sequence[Row], value_head: Tensor) -> Tensor:
        """Values alone, shape (N,); where it can be, the language-model head isn't run."""
        packed = pack(rows) if self.way.packed else pad(rows)
        return values_of(self._forward(packed, self.way, hidden=True)[0], value_head)

    def _score(
        self, rows: Sequence[Row], way: ForwardMode, entropy_slope: bool, value_head: Tensor | None = None
    ) -> Scores:
        packed = pack(rows) if way.packed else pad(rows)
        states, logits = self._forward(packed, way, hidden=value_head is not None)
        features, head = (states, self.model.get_output_embeddings()) if way.cut else (logits, _identity)
        targets = torch.from_numpy(packed.targets).to(features.device)
        temperatures = _temperatures(packed.temperatures, features.device)
        scores = _in_chunks(head, features, targets, temperatures, entropy_slope, self.model.config)
        return scores if value_head is None else replace(scores, values=values_of(states, value_head))

    def _forward(self, packed: Packed, way: ForwardMode, *, hidden: bool) -> tuple[Any, Any]:
        """Of the positions that predict trained tokens: hidden states (N, H) where the way or the caller
        needs them, and logits (N, V) where the way has them; else None."""
        device = next(self.model.parameters()).device
        select = torch.from_numpy(packed.select).to(device)
        inputs = _inputs(packed, device)
        if way.cut:
            return self.model.base_model(**inputs).last_hidden_state.flatten(0, 1).index_select(
                0, select
            ), None
        output = self.model(**inputs, **({"output_hidden_states": True} if hidden else {}))
        states = output.hidden_states[-1].flatten(0, 1).index_select(0, select) if hidden else None
        return states, output.logits.flatten(0, 1).index_select(0, select)

    def _choose(self, packing: bool, name: str) -> ForwardMode:
        """The first way that agrees with the padded forward on a few tokens."""
        rows = _probe_rows(int(self.model.config.get_text_config().vocab_size))
        tolerance = 1e-4 if self.model.dtype in (torch.float32, torch.float64) else 0.15
        ways = (ForwardMode(True, True), ForwardMode(True, False), ForwardMode(False, True))[
            0 if packing else 2 :
        ]
        failures = []
        with torch.no_grad():
            wanted = self._score(rows, ForwardMode(False, False), False).logprobs
            for way in ways:
                try:
                    with packed_rows(self.model) if way.packed else nullcontext():
                        worst = float((self._score(rows, way, False).logprobs - wanted).abs().max())
                    if worst <= tolerance:
                        break
                    failures.append(f"{way}: log-probs differ by {worst:.2g}")
                except Exception as error:  # whatever a model that doesn't know our arguments does
                    failures.append(f"{way}: {type(error).__name__}: {error}")
            else:
                way = ForwardMode(False, False)
        if failures:
            log.warning(
                "policy '%s': %s is trained with %s, which is slower, since nothing quicker agrees with its own forward (%s)",  # noqa: E501
                name,
                type(self.model).__name__,
                way,
                "; ".join(failures),
            )
        return way


def _probe_rows(vocabulary: int) -> list[Probe]:
    """Two prompts, one with three completions and one with two; one completion is a single token."""
    rng = np.random.default_rng(0)
    rows = []
    for length, completions in ((5, (4, 1, 6)), (9, (3, 7))):
        prompt = rng.integers(0, vocabulary, length)
        for own in completions:
            ids = np.concatenate([prompt, rng.integers(0, vocabulary, own)])
            rows.append(Probe(ids, np.arange(len(ids)) >= length))
    return rows


def _inputs(packed: Packed, device: Any) -> dict[str, Any]:
    inputs: dict[str, Any] = {
        "input_ids": torch.from_numpy(packed.ids).to(device),
        "position_ids": torch.from_numpy(packed.positions).to(device),
        "use_cache": False,
    }
    if packed.mask is not None:
        return inputs | {"attention_mask": torch.from_numpy(packed.mask).to(device)}
    layout: Layout = layout_of(packed, device)
    # A 4-D mask is handed on as it is, so no mask over the whole row is made; ours is never read.
    return inputs | {"attention_mask": torch.zeros(1, 1, 1, 1, device=device), "layout": layout}


def _temperatures(values: np.ndarray, device: Any) -> Tensor | None:
    if (values == 1.0).all():
        return None
    if (values <= 0.0).any():
        raise ValueError("greedy samples (temperature 0) have no log-probs to train on")
    return torch.from_numpy(values).to(device)


def _identity(logits: Tensor) -> Tensor:
    return logits


def _in_chunks(
    head: Callable[[Tensor], Tensor],
    features: Tensor,
    targets: Tensor,
    temperatures: Tensor | None,
    entropy_slope: bool,
    config: Any,
) -> Scores:
    size = max(_LOGITS // int(config.get_text_config().vocab_size), 1)
    if len(features) <= size:
        return Scores(*_token_scores(head, features, targets, temperatures, entropy_slope))
    found = []
    for start in range(0, len(features), size):
        part = slice(start, start + size)
        found.append(
            checkpoint(
                _token_scores,
                head,
                features[part],
                targets[part],
                None if temperatures is None else temperatures[part],
                entropy_slope,
                use_reentrant=False,
            )
        )
    logprobs, entropies = zip(*found, strict=True)
    return Scores(torch.cat(logprobs), torch.cat(entropies))


def _token_scores(
    head: Callable[[Tensor], Tensor],
    features: Tensor,
    targets: Tensor,
    temperatures: Tensor | None,
    entropy_slope: bool,
) -> tuple[Tensor, Tensor]:
    """Log-probs of the targets and entropies, each of shape (n,); never below float32."""
    logits = head(features)
    logits = logits if logits.dtype == torch.float64 else logits.float()
    if temperatures is not None:
        logits = logits / temperatures[:, None].to(logits.dtype)
    everything = logits.log_softmax(-1)
    with nullcontext() if entropy_slope else torch.no_grad():
        entropy = -(everything.exp() * everything).sum(-1)
    return everything.gather(-1, targets[:, None]).squeeze(-1), entropy
