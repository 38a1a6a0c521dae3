"""Log-probs and entropies of trained tokens under a causal language model, by the fastest correct forward.

Two optimisations are used where a model allows them: rows that share a prompt are packed, and the
language-model head runs only on positions whose next token is trained. A new `Scorer` tries each mode on a
few tokens and keeps the first whose log-probs agree with the model's own padded forward.
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
"""Most logits held at once. Above it, the head runs in chunks that the backward pass computes again: 16,384
tokens over a vocabulary of 152,000 would take 10 GB."""


@dataclass(frozen=True, slots=True, eq=False)
class Scores:
    """Scores of every trained token, row after row; each tensor has the shape (N,)."""

    logprobs: Tensor
    """Log-probs at the row's temperature."""
    entropy: Tensor
    """Entropy of the distribution that the token was drawn from, at the same temperature."""
    values: Tensor | None = None
    """The value head's values; None without a value head."""


class ForwardMode(NamedTuple):
    """The optimisations of a forward."""

    packed: bool
    """True: one row with each distinct prompt once. False: one padded row per sample."""
    trained_only: bool
    """True: the head runs on trained positions only. False: the model's own forward gives all logits."""


class Probe(NamedTuple):
    """A row that is scored and never trained."""

    token_ids: np.ndarray
    loss_mask: np.ndarray
    temperature: float = 1.0


class Scorer:
    """Scores rows with one model.

    Args:
        model: a transformers CausalLM; LoRA layers may be injected into it, before or later.
        packing: whether shared prompts may be packed.
        budget: tokens of one forward.
        name: the policy's name, for the log.
    """

    def __init__(self, model: Any, *, packing: bool, budget: int, name: str) -> None:
        self.model, self.budget = model, budget
        self.mode = self._choose(packing, name)

    def plan(self, rows: Sequence[Row]) -> list[list[int]]:
        """Indices of the rows of each forward (see `packing.plan`)."""
        return plan(rows, self.budget, self.mode.packed)

    def session(self) -> AbstractContextManager[None]:
        """The context of forward and backward passes."""
        return packed_rows(self.model) if self.mode.packed else nullcontext()

    def __call__(
        self, rows: Sequence[Row], *, entropy_grad: bool = False, value_head: Tensor | None = None
    ) -> Scores:
        """Score rows that fit in one forward.

        Args:
            entropy_slope: whether the entropy must be differentiable.
            value_head: shape (H,); None: no values.
        """
        return self._score(rows, self.mode, entropy_grad, value_head)

    def values(self, rows: Sequence[Row], value_head: Tensor) -> Tensor:
        """Values alone, shape (N,); skips the language-model head where the mode allows it."""
        packed = pack(rows) if self.mode.packed else pad(rows)
        return values_of(self._forward(packed, self.mode, hidden=True)[0], value_head)

    def _score(
        self, rows: Sequence[Row], mode: ForwardMode, entropy_grad: bool, value_head: Tensor | None = None
    ) -> Scores:
        packed = pack(rows) if mode.packed else pad(rows)
        states, logits = self._forward(packed, mode, hidden=value_head is not None)
        features, head = (
            (states, self.model.get_output_embeddings()) if mode.trained_only else (logits, _identity)
        )
        targets = torch.from_numpy(packed.targets).to(features.device)
        temperatures = _temperatures(packed.temperatures, features.device)
        scores = _in_chunks(head, features, targets, temperatures, entropy_grad, self.model.config)
        return scores if value_head is None else replace(scores, values=values_of(states, value_head))

    def _forward(self, packed: Packed, mode: ForwardMode, *, hidden: bool) -> tuple[Any, Any]:
        """Hidden states (N, H) and logits (N, V) of the positions that predict trained tokens.

        Hidden states are None unless the mode or the caller needs them. Logits are None if the mode skips the
        model's own head.
        """
        device = next(self.model.parameters()).device
        select = torch.from_numpy(packed.select).to(device)
        inputs = _inputs(packed, device)
        if mode.trained_only:
            return self.model.base_model(**inputs).last_hidden_state.flatten(0, 1).index_select(
                0, select
            ), None
        output = self.model(**inputs, **({"output_hidden_states": True} if hidden else {}))
        states = output.hidden_states[-1].flatten(0, 1).index_select(0, select) if hidden else None
        return states, output.logits.flatten(0, 1).index_select(0, select)

    def _choose(self, packing: bool, name: str) -> ForwardMode:
        """The fastest mode whose log-probs agree with the padded forward on a few tokens."""
        rows = _probe_rows(int(self.model.config.get_text_config().vocab_size))
        tolerance = 1e-4 if self.model.dtype in (torch.float32, torch.float64) else 0.15
        modes = (ForwardMode(True, True), ForwardMode(True, False), ForwardMode(False, True))[
            0 if packing else 2 :
        ]
        failures = []
        with torch.no_grad():
            expected = self._score(rows, ForwardMode(False, False), False).logprobs
            for mode in modes:
                try:
                    with packed_rows(self.model) if mode.packed else nullcontext():
                        worst = float((self._score(rows, mode, False).logprobs - expected).abs().max())
                    if worst <= tolerance:
                        break
                    failures.append(f"{mode}: log-probs differ by {worst:.2g}")
                except Exception as error:  # models that don't know our arguments raise anything
                    failures.append(f"{mode}: {type(error).__name__}: {error}")
            else:
                mode = ForwardMode(False, False)
        if failures:
            log.warning(
                "policy '%s': %s is trained with %s, which is slower: no faster mode agrees with the model's forward (%s)",  # noqa: E501
                name,
                type(self.model).__name__,
                mode,
                "; ".join(failures),
            )
        return mode


def _probe_rows(vocabulary: int) -> list[Probe]:
    """Two prompts, one with three completions and one with two; one completion is a single token."""
    rng = np.random.default_rng(0)
    rows = []
    for length, completions in ((5, (4, 1, 6)), (9, (3, 7))):
        prompt = rng.integers(0, vocabulary, length)
        for length_of_completion in completions:
            ids = np.concatenate([prompt, rng.integers(0, vocabulary, length_of_completion)])
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
    # transformers passes a 4-D mask on unchanged and makes no mask over the whole row. It is never read.
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
    entropy_grad: bool,
    config: Any,
) -> Scores:
    size = max(_LOGITS // int(config.get_text_config().vocab_size), 1)
    if len(features) <= size:
        return Scores(*_token_scores(head, features, targets, temperatures, entropy_grad))
    chunks = []
    for start in range(0, len(features), size):
        part = slice(start, start + size)
        chunks.append(
            checkpoint(
                _token_scores,
                head,
                features[part],
                targets[part],
                None if temperatures is None else temperatures[part],
                entropy_grad,
                use_reentrant=False,
            )
        )
    logprobs, entropies = zip(*chunks, strict=True)
    return Scores(torch.cat(logprobs), torch.cat(entropies))


def _token_scores(
    head: Callable[[Tensor], Tensor],
    features: Tensor,
    targets: Tensor,
    temperatures: Tensor | None,
    entropy_grad: bool,
) -> tuple[Tensor, Tensor]:
    """Log-probs of the targets and entropies, each of shape (n,); never below float32."""
    logits = head(features)
    logits = logits if logits.dtype == torch.float64 else logits.float()
    if temperatures is not None:
        logits = logits / temperatures[:, None].to(logits.dtype)
    all_logprobs = logits.log_softmax(-1)
    with nullcontext() if entropy_grad else torch.no_grad():
        entropy = -(all_logprobs.exp() * all_logprobs).sum(-1)
    return all_logprobs.gather(-1, targets[:, None]).squeeze(-1), entropy
