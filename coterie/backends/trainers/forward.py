"""Log-probs and entropies of trained tokens under a causal language model, by the fastest correct forward.

Two optimisations are used where a model allows them: rows that share a prompt are packed, and the
language-model head runs only on positions whose next token is trained. A new `TokenScorer` tries each mode
on a few tokens and keeps the first whose log-probs agree with the model's own padded forward (`probe.py`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.utils.checkpoint import checkpoint

from coterie.backends.models.devices import gpu_memory
from coterie.backends.models.memory import LOGITS_AT_ONCE, block_logits, most_logits
from coterie.backends.trainers.attention import kernel, layout_for
from coterie.backends.trainers.head import embedded, head_scores, terms_of
from coterie.backends.trainers.liger_head import liger_kernel, liger_scores
from coterie.backends.trainers.packing import PackedRows, TokenRow, pack, pad, plan
from coterie.backends.trainers.probe import ForwardMode, choose, cost
from coterie.backends.trainers.value_head import values_of

log = logging.getLogger("coterie")
LOW = (torch.bfloat16, torch.float16)
_UNKNOWN = object()
_inside: ContextVar[bool] = ContextVar("inside", default=False)
"""Whether adapted layers are computed here in this thread."""


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
        attention: the kernel, as `attention.kernel_of` gives it.
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
        return values_of(self.forward(packed, self.mode, hidden=True)[0], value_head)

    def _score(
        self,
        rows: Sequence[TokenRow],
        mode: ForwardMode,
        entropy_grad: bool,
        value_head: Tensor | None = None,
    ) -> TokenScores:
        packed = pack(rows) if mode.packed else pad(rows)
        self.latest = len(rows), packed.ids.size
        states, logits = self.forward(packed, mode, hidden=value_head is not None)
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
        most = block_logits(gpu_memory(features.device))
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
        most = most_logits(gpu_memory(next(self.model.parameters()).device))
        return max(most // int(self.model.config.get_text_config().vocab_size), 1)

    def forward(self, packed: PackedRows, mode: ForwardMode, *, hidden: bool) -> tuple[Any, Any]:
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
        return TokenScores(*token_scores(head, features, targets, temperatures, entropy_grad))
    chunks = []
    for part in slices:
        chunks.append(
            checkpoint(
                token_scores,
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


def token_scores(
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


# ---------------------------------------------------------------------------- linear layers with an adapter


@contextmanager
def fused_adapters(model: Any) -> Iterator[None]:
    """Compute the model's linear layers with an adapter on a 16-bit base here, for an update's time on a CPU.

    PEFT computes the adapter in float32: it casts the input of every adapted layer, keeps that copy for the
    backward pass, and adds two arrays in float32. Here the adapter's products are of 16 bits too, as its
    base's are. Its weights, their gradients and the optimiser stay float32. The layers of one input share
    what is kept.

    This holds in this thread alone; an engine may use the layers in another. Layers of other forms, and all
    on a GPU, keep their forward.
    """
    layers = [module for module in model.modules() if _is_adapted(module)]
    for layer in layers:
        layer.forward = partial(_adapted_forward, layer)
    token = _inside.set(True)
    try:
        yield
    finally:
        _inside.reset(token)
        for layer in layers:
            del layer.forward


def _is_adapted(module: Any) -> bool:
    """Whether it is PEFT's LoRA on a plain linear layer of 16 bits, on a CPU."""
    if type(module).__name__ != "Linear" or not hasattr(module, "lora_A") or "forward" in vars(module):
        return False
    base = module.base_layer
    return type(base) is torch.nn.Linear and base.weight.device.type == "cpu"


def _adapted_forward(layer: Any, features: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    name = None if args or kwargs or not _inside.get() else _only_adapter(layer, features)
    if name is None:
        output: Tensor = type(layer).forward(layer, features, *args, **kwargs)
        return output
    base, down, up = layer.base_layer, layer.lora_A[name], layer.lora_B[name]
    output = AdaptedLinear.apply(  # type: ignore[no-untyped-call]
        features, base.weight, base.bias, down.weight, up.weight, float(layer.scaling[name])
    )
    return output


def _only_adapter(layer: Any, features: Tensor) -> str | None:
    """The adapter that is active, if one alone is and nothing of it is beyond two products."""
    active = [name for name in layer.active_adapters if name in layer.lora_A]
    if len(active) != 1 or layer.disable_adapters or layer.merged or layer.lora_variant.get(active[0]):
        return None
    name = active[0]
    base, down, up, drop = (
        layer.base_layer, layer.lora_A[name], layer.lora_B[name], layer.lora_dropout[name]
    )  # fmt: skip
    plain = isinstance(drop, torch.nn.Identity) or not drop.training or drop.p == 0
    hooks = any(module._forward_hooks or module._forward_pre_hooks for module in (base, down, up))
    low = features.dtype == base.weight.dtype and features.dtype in LOW
    fits = low and plain and not hooks and up.bias is None and not base.weight.requires_grad
    return name if fits else None


class AdaptedLinear(torch.autograd.Function):
    """x W^T + bias + s (x A^T) B^T with a frozen W. A and B are rounded to W's dtype, their gradients not."""

    @staticmethod
    def forward(
        ctx: Any,
        features: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        down: Tensor,
        up: Tensor,
        scaling: float,
    ) -> Tensor:
        rows = features.flatten(0, -2)
        inner = rows @ down.to(rows.dtype).t()
        output = torch.nn.functional.linear(rows, weight, bias)
        output.addmm_(inner, up.to(rows.dtype).t(), alpha=scaling)
        ctx.scaling = scaling
        ctx.save_for_backward(features, weight, down, up, inner)
        return output.view(*features.shape[:-1], -1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_output: Tensor) -> tuple[Any, ...]:
        features, weight, down, up, inner = ctx.saved_tensors
        d_rows, rows = d_output.flatten(0, -2), features.flatten(0, -2)
        d_inner = (d_rows @ up.to(d_rows.dtype)).mul_(ctx.scaling)
        d_features = None
        if ctx.needs_input_grad[0]:
            d_features = (d_rows @ weight).addmm_(d_inner, down.to(d_rows.dtype)).view_as(features)
        d_down = (d_inner.t() @ rows).to(down.dtype)
        d_up = (d_rows.t() @ inner).to(up.dtype).mul_(ctx.scaling)
        return d_features, None, None, d_down, d_up, None
