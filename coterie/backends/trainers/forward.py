"""Log-probs and entropies of trained tokens under a causal language model, by the fastest correct forward.

Two optimisations are used where a model allows them: rows that share a prompt are packed, and the
language-model head runs only on positions whose next token is trained. A new `TokenScorer` tries each mode
on a few tokens and keeps the first whose log-probs agree with the model's own padded forward (`probe.py`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from coterie.backends.models.memory import LOGITS_AT_ONCE, block_logits, most_logits
from coterie.backends.trainers.adapted_linear import fused_adapters
from coterie.backends.trainers.attention_kernels import kernel, layout_for
from coterie.backends.trainers.head import embedded, head_scores, terms_of
from coterie.backends.trainers.liger_head import liger_kernel, liger_scores
from coterie.backends.trainers.packing import PackedRows, TokenRow, pack, pad, plan
from coterie.backends.trainers.probe import ForwardMode, Probe as Probe, choose, cost
from coterie.backends.trainers.value_head import values_of

log = logging.getLogger("coterie")
_UNKNOWN = object()


@dataclass(frozen=True, slots=True, eq=False)
class TokenScores:
    """Scores of every trained token, row after row; each tensor has the shape (N,)."""

    logprobs: Tensor
    """Log-probs at the row's temperature."""
    entropy: Tensor
    """Entropy of the distribution that the token was drawn from, at the same temperature."""
    values: Tensor | None = None
    """The value head's values; None without a value head."""


class TokenScorer:
    """Scores rows with one model.

    Args:
        model: a transformers CausalLM; LoRA layers may be injected into it, before or later.
        packing: whether shared prompts may be packed.
        budget: tokens of one forward; it may be lowered later.
        name: the policy's name, for the log.
        attention: the kernel, as `attention_kernels.kernel_of` gives it.
    """

    def __init__(self, model: Any, *, packing: bool, budget: int, name: str, attention: str = "sdpa") -> None:
        self.model, self.budget, self.attention = model, budget, attention
        self.latest = (0, 0)
        """Rows and tokens of the latest forward, padding included."""
        self._root: Callable[[Callable[[], Tensor]], Tensor] | None = None
        self._chunks: int | None = None
        self._liger: Any = _UNKNOWN
        """Liger's kernel for the head; None: Coterie's own."""
        self.mode = self._choose(packing, name)

    def divide(self, root: Callable[[Callable[[], Tensor]], Tensor]) -> None:
        """Note that ranks divide the model: they gather each layer's weights together.

        All ranks then call each layer equally often, so every forward has the same number of chunks.

        Args:
            root: calls a function in which the weights can be gathered.
        """
        config = self.model.config.get_text_config()
        longest = max(self.budget, int(getattr(config, "max_position_embeddings", None) or 0))
        self._root, self._chunks = root, -(-longest // self._chunk_size())

    @property
    def divided(self) -> bool:
        """Whether ranks divide the model."""
        return self._root is not None

    def without_gradients(self, compute: Callable[[], Tensor]) -> Tensor:
        """The result of a function that calls this scorer, without gradients."""
        with torch.no_grad():
            return compute() if self._root is None else self._root(compute)

    def plan(self, rows: Sequence[TokenRow]) -> list[list[int]]:
        """Indices of the rows of each forward (see `packing.plan`)."""
        return plan(rows, self.budget, self.mode.packed)

    @contextmanager
    def session(self) -> Iterator[None]:
        """The context of forward and backward passes."""
        with ExitStack() as stack:
            stack.enter_context(kernel(self.model, self.attention, packed=self.mode.packed))
            if not self.divided:
                stack.enter_context(fused_adapters(self.model))
            yield

    def __call__(
        self, rows: Sequence[TokenRow], *, entropy_grad: bool = False, value_head: Tensor | None = None
    ) -> TokenScores:
        """Score rows that fit in one forward.

        Args:
            entropy_grad: whether the entropy must be differentiable.
            value_head: shape (H,); None: no values.
        """
        return self._score(rows, self.mode, entropy_grad, value_head)

    def values(self, rows: Sequence[TokenRow], value_head: Tensor) -> Tensor:
        """Values alone, shape (N,); skips the language-model head where the mode allows it."""
        packed = pack(rows) if self.mode.packed else pad(rows)
        self.latest = len(rows), packed.ids.size
        return values_of(self._forward(packed, self.mode, hidden=True)[0], value_head)

    def _score(
        self,
        rows: Sequence[TokenRow],
        mode: ForwardMode,
        entropy_grad: bool,
        value_head: Tensor | None = None,
    ) -> TokenScores:
        packed = pack(rows) if mode.packed else pad(rows)
        self.latest = len(rows), packed.ids.size
        states, logits = self._forward(packed, mode, hidden=value_head is not None)
        features, head = (
            (states, self.model.get_output_embeddings()) if mode.trained_only else (logits, _identity)
        )
        targets = torch.from_numpy(packed.targets).to(features.device)
        temperatures = _temperatures(packed.temperatures, features.device)
        scores = self._in_blocks(head, features, targets, temperatures, entropy_grad)
        if scores is None:
            slices = self._slices(len(features))
            scores = _in_chunks(head, features, targets, temperatures, entropy_grad, slices)
        return scores if value_head is None else replace(scores, values=values_of(states, value_head))

    def _in_blocks(
        self,
        head: Any,
        features: Tensor,
        targets: Tensor,
        temperatures: Tensor | None,
        entropy_grad: bool,
    ) -> TokenScores | None:
        """The scores by blocks of the vocabulary; None: the logits are few, or the head allows no blocks."""
        logits = len(features) * int(self.model.config.get_text_config().vocab_size)
        if head is _identity or self.divided or logits <= LOGITS_AT_ONCE:
            return None
        known = terms_of(head, features)
        if known is None:
            return None
        (features, weight), *others = known[0]
        if not others and known[1] is None and not entropy_grad:
            if self._liger is _UNKNOWN:
                self._liger = liger_kernel(weight)
            if self._liger is not None:
                return TokenScores(*liger_scores(self._liger, features, weight, targets, temperatures))
        most = block_logits(memory_of(features.device))
        return TokenScores(*head_scores(*known, targets, temperatures, entropy_grad=entropy_grad, most=most))

    def _slices(self, positions: int) -> list[slice]:
        """The chunks of positions that the head computes one after the other."""
        if self._chunks is not None:
            ends = [positions * number // self._chunks for number in range(self._chunks + 1)]
            return [slice(start, stop) for start, stop in pairwise(ends)]
        size = self._chunk_size()
        return [slice(start, start + size) for start in range(0, max(positions, 1), size)]

    def _chunk_size(self) -> int:
        """Most positions whose logits are held at once."""
        most = most_logits(memory_of(next(self.model.parameters()).device))
        return max(most // int(self.model.config.get_text_config().vocab_size), 1)

    def _forward(self, packed: PackedRows, mode: ForwardMode, *, hidden: bool) -> tuple[Any, Any]:
        """Hidden states (N, H) and logits (N, V) of the positions that predict trained tokens.

        Hidden states are None unless the mode or the caller needs them. Logits are None if the mode skips the
        model's own head.
        """
        device = next(self.model.parameters()).device
        select = torch.from_numpy(packed.select).to(device)
        inputs = _inputs(packed, device, self.attention)
        if mode.trained_only:
            rows = None if self.divided else embedded(self.model.get_input_embeddings(), inputs["input_ids"])
            if rows is not None:
                inputs = {**inputs, "input_ids": None, "inputs_embeds": rows}
            states = self.model.base_model(**inputs).last_hidden_state
            return states.flatten(0, 1).index_select(0, select), None
        output = self.model(**inputs, **({"output_hidden_states": True} if hidden else {}))
        states = output.hidden_states[-1].flatten(0, 1).index_select(0, select) if hidden else None
        return states, output.logits.flatten(0, 1).index_select(0, select)

    def _choose(self, packing: bool, name: str) -> ForwardMode:
        """The fastest mode that agrees with the padded forward on a few tokens; logs what it costs."""
        mode, failures = choose(
            self.model, lambda rows, mode: self._score(rows, mode, False).logprobs, packing, self.attention
        )
        costs = cost(mode, int(self.model.config.get_text_config().vocab_size), self.budget)
        if failures:
            log.warning(
                "policy '%s': %s is trained with %s, which is slower: no faster mode agrees with the model's "
                "forward (%s). It computes %s",
                name, type(self.model).__name__, mode, "; ".join(failures), costs,
            )  # fmt: skip
        else:
            log.info("policy '%s': updates compute %s, by %s", name, costs, self.attention)
        return mode


def _inputs(packed: PackedRows, device: Any, attention: str) -> dict[str, Any]:
    inputs: dict[str, Any] = {
        "input_ids": torch.from_numpy(packed.ids).to(device),
        "position_ids": torch.from_numpy(packed.positions).to(device),
        "use_cache": False,
    }
    if packed.mask is not None:
        return inputs | {"attention_mask": torch.from_numpy(packed.mask).to(device)}
    layout = layout_for(attention, packed, device)
    # transformers passes a 4-D mask on unchanged and makes no mask over the whole row. It is never read.
    return inputs | {"attention_mask": torch.zeros(1, 1, 1, 1, device=device), "layout": layout}


def _temperatures(values: np.ndarray, device: Any) -> Tensor | None:
    if (values == 1.0).all():
        return None
    if (values <= 0.0).any():
        raise ValueError("greedy samples (temperature 0) have no log-probs to train on")
    return torch.from_numpy(values).to(device)


def memory_of(device: torch.device) -> int | None:
    """Bytes of a GPU; None for other devices. All of it, so that it is the same in a resumed run."""
    if device.type != "cuda":
        return None
    return int(torch.cuda.get_device_properties(device).total_memory)


def _identity(logits: Tensor) -> Tensor:
    return logits


def _in_chunks(
    head: Callable[[Tensor], Tensor],
    features: Tensor,
    targets: Tensor,
    temperatures: Tensor | None,
    entropy_grad: bool,
    slices: Sequence[slice],
) -> TokenScores:
    if len(slices) == 1:
        return TokenScores(*_token_scores(head, features, targets, temperatures, entropy_grad))
    chunks = []
    for part in slices:
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
    return TokenScores(torch.cat(logprobs), torch.cat(entropies))


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
    del logits  # as large as the log-probs, and nothing reads them any more
    with nullcontext() if entropy_grad else torch.no_grad():
        entropy = -(all_logprobs.exp() * all_logprobs).sum(-1)
    return all_logprobs.gather(-1, targets[:, None]).squeeze(-1), entropy
