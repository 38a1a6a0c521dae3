"""Log-probs and entropies from hidden states, without an array of tokens x vocabulary.

The language-model head is computed in blocks of the vocabulary, for all tokens at once. The forward pass
keeps a few numbers per token: the log of the sum of exponentials, and the entropy. The backward pass computes
each block's logits once more and turns them, in place, into the gradient of the logits. Blocks of the
vocabulary rather than of tokens make each row of the weight's gradient complete in one product: nothing as
large as the weight is read and written again for every block.

Where only the hidden states need a gradient (a frozen head), the forward pass makes it too, for a gradient of
1 of each log-prob: sum_j p_j w_j is a mean that runs along with the sums, and nothing is computed twice.

With z = logits / temperature, p = softmax(z), H the entropy and t the target:
d log p_t / dz = onehot(t) - p, and dH / dz = -p (log p + H).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from coterie.backends.models.memory import LOGITS_AT_ONCE, NARROWEST_BLOCK

Sum = Callable[[], Tensor]
"""Gives the tensor that a weight's gradient is added to, of the weight's shape; called in backward passes."""

_sum_of: ContextVar[Callable[[Tensor], Sum | None]] = ContextVar("sum_of", default=lambda weight: None)


@contextmanager
def adding_to(sum_of: Callable[[Tensor], Sum | None]) -> Iterator[None]:
    """Let heads that are computed inside add their weights' gradients to sums, in the backward pass.

    A head's gradient is the largest of a small model. Added block by block, it exists once, in fp32.

    Args:
        sum_of: by weight; None: autograd adds the gradient, as always.
    """
    token = _sum_of.set(sum_of)
    try:
        yield
    finally:
        _sum_of.reset(token)


def sum_for(tensor: Tensor) -> Sum | None:
    """Where a weight's gradient is added, inside of `adding_to`; None: autograd adds it."""
    return _sum_of.get()(tensor)


class Term(NamedTuple):
    """A part of the logits: features @ weight.T."""

    features: Tensor
    """Shape (N, H)."""
    weight: Tensor
    """Shape (V, H)."""


def terms_of(head: Any, features: Tensor) -> tuple[tuple[Term, ...], Tensor | None] | None:
    """The logits of a head as a sum of terms, and its bias; None: a head of another form.

    Known are a plain `Linear`, and PEFT's adapters (LoRA, modules_to_save) on one.

    Args:
        features: shape (N, H).
    """
    if type(head).__name__ == "ModulesToSaveWrapper":
        active = list(head.active_adapters)
        if len(active) > 1:
            return None
        saved = [head.modules_to_save[name] for name in active if name in head.modules_to_save]
        chosen = head.original_module if head.disable_adapters or not saved else saved[0]
        return terms_of(chosen, features)
    if _hooked(head):
        return None
    if type(head) is torch.nn.Linear:
        return (Term(features.to(head.weight.dtype), head.weight),), head.bias
    if not (type(head).__name__ == "Linear" and hasattr(head, "lora_A")):
        return None
    plain = terms_of(head.base_layer, features)
    if plain is None or head.disable_adapters or head.merged:
        return plain
    terms, bias = plain
    for name in head.active_adapters:
        if name not in head.lora_A:
            continue
        down, up = head.lora_A[name], head.lora_B[name]
        if head.lora_variant.get(name) is not None or up.bias is not None or _hooked(down) or _hooked(up):
            return None
        inner = down(head.lora_dropout[name](features.to(down.weight.dtype))) * head.scaling[name]
        terms += (Term(inner, up.weight),)
    return terms, bias


def _hooked(module: torch.nn.Module) -> bool:
    return bool(module._forward_hooks or module._forward_pre_hooks)


class _Embedding(torch.autograd.Function):
    """Rows of a weight. Their gradients are added to a sum, without an array of the weight's size."""

    @staticmethod
    def forward(ctx: Any, ids: Tensor, weight: Tensor, add: Sum, ignored: int | None) -> Tensor:
        ctx.add, ctx.ignored = add, ignored
        ctx.save_for_backward(ids)
        return torch.nn.functional.embedding(ids, weight)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_rows: Tensor) -> tuple[None, ...]:
        (ids,), total = ctx.saved_tensors, ctx.add()
        rows = d_rows.flatten(0, -2).to(total.dtype)
        if ctx.ignored is not None:
            rows = rows.masked_fill((ids == ctx.ignored).flatten()[:, None], 0)
        total.index_add_(0, ids.flatten(), rows)
        return None, None, None, None


def embedded(module: Any, ids: Tensor) -> Tensor | None:
    """An embedding's output whose gradient is added to a sum (`adding_to`); None: autograd adds it.

    A dense gradient of an embedding is as large as a tied head's, and all zeros but for a few rows. Small
    weights are left to autograd.

    Args:
        ids: int64, any shape.
    """
    plain = type(module) is torch.nn.Embedding and not _hooked(module) and module.max_norm is None
    if not plain or module.scale_grad_by_freq or module.sparse or not torch.is_grad_enabled():
        return None
    add = sum_for(module.weight) if module.weight.requires_grad else None
    if add is None or module.weight.numel() <= LOGITS_AT_ONCE:
        return None
    rows: Tensor = _Embedding.apply(ids, module.weight, add, module.padding_idx)  # type: ignore[no-untyped-call]
    return rows


def head_scores(
    terms: Sequence[Term],
    bias: Tensor | None,
    targets: Tensor,
    temperatures: Tensor | None,
    *,
    entropy_grad: bool,
    most: int,
) -> tuple[Tensor, Tensor]:
    """Log-probs of the targets and entropies, each of shape (N,); never below float32.

    Args:
        targets: int64, shape (N,).
        temperatures: shape (N,); None: all are 1.
        entropy_grad: whether the entropies are differentiable.
        most: logits that are held at once.
    """
    tensors = [bias, *(tensor for term in terms for tensor in term)]
    trained = [tensor is not None and tensor.requires_grad for tensor in tensors]
    if torch.is_grad_enabled() and trained == [False, True, False] and not entropy_grad:
        frozen: tuple[Tensor, Tensor] = _FrozenHeadScores.apply(  # type: ignore[no-untyped-call]
            targets, temperatures, most, *tensors
        )
        return frozen
    sums = [None if tensor is None else sum_for(tensor) for tensor in tensors]
    scores: tuple[Tensor, Tensor] = HeadScores.apply(  # type: ignore[no-untyped-call]
        targets, temperatures, entropy_grad, most, sums, *tensors
    )
    return scores


class HeadScores(torch.autograd.Function):
    """The function of `head_scores`; see the module's text."""

    @staticmethod
    def forward(
        ctx: Any,
        targets: Tensor,
        temperatures: Tensor | None,
        entropy_grad: bool,
        most: int,
        sums: Sequence[Sum | None],
        *tensors: Tensor | None,
    ) -> tuple[Tensor, Tensor]:
        blocks = _VocabularyBlocks(tensors, targets, temperatures, most)
        logprobs, entropy, logsum = _summed(blocks)
        ctx.most, ctx.sums, ctx.entropy_grad = most, sums, entropy_grad
        ctx.save_for_backward(targets, temperatures, logsum, entropy if entropy_grad else None, *tensors)
        if not entropy_grad:
            ctx.mark_non_differentiable(entropy)
        return logprobs, entropy

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_logprobs: Tensor, d_entropy: Tensor) -> tuple[Any, ...]:
        targets, temperatures, logsum, entropy, *tensors = ctx.saved_tensors
        blocks = _VocabularyBlocks(tensors, targets, temperatures, ctx.most)
        gradients = _Gradients(tensors, ctx.needs_input_grad[5:], ctx.sums, blocks.wide)
        spare = blocks.buffer() if ctx.entropy_grad else None
        for part, logits, (rows, columns) in blocks:
            logits.sub_(logsum[:, None])
            if spare is None:
                logits.exp_().mul_(d_logprobs.neg()[:, None])
            else:
                powers = torch.exp(logits, out=spare[: logits.numel()].view_as(logits))
                logits.add_(entropy[:, None]).mul_(d_entropy[:, None]).add_(d_logprobs[:, None])
                logits.mul_(powers).neg_()
            logits[rows, columns] += d_logprobs[rows]
            if temperatures is not None:
                logits.div_(temperatures[:, None])
            gradients.add(part, logits)
        return (None, None, None, None, None, *gradients.left())


class _FrozenHeadScores(torch.autograd.Function):
    """`HeadScores` where features alone need a gradient."""

    @staticmethod
    def forward(
        ctx: Any,
        targets: Tensor,
        temperatures: Tensor | None,
        most: int,
        bias: Tensor | None,
        features: Tensor,
        weight: Tensor,
    ) -> tuple[Tensor, Tensor]:
        blocks = _VocabularyBlocks((bias, features, weight), targets, temperatures, most)
        gradient = torch.zeros_like(features, dtype=blocks.wide)
        logprobs, entropy, _ = _summed(blocks, gradient)
        gradient.neg_().add_(weight[targets])
        if temperatures is not None:
            gradient.div_(temperatures[:, None])
        ctx.save_for_backward(gradient.to(features.dtype))
        ctx.mark_non_differentiable(entropy)
        return logprobs, entropy

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_logprobs: Tensor, _: Tensor) -> tuple[Any, ...]:
        (gradient,) = ctx.saved_tensors
        return None, None, None, None, (gradient * d_logprobs[:, None]).to(gradient.dtype), None


def _summed(blocks: _VocabularyBlocks, mean: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
    """Log-probs, entropies and the logs of the sums of exponentials, each of shape (N,).

    Args:
        mean: zeros of shape (N, H), which become sum_j p_j w_j of the only term's weight.
    """
    peak = blocks.numbers().fill_(torch.finfo(blocks.wide).min)
    total, weighted, chosen = blocks.numbers(), blocks.numbers(), blocks.numbers()
    spare, weight = blocks.buffer(), blocks.terms[0].weight
    for part, logits, (rows, columns) in blocks:
        chosen[rows] = logits[rows, columns]
        highest = torch.maximum(peak, logits.amax(1))
        # S = sum e^(z - peak) and W = sum e^(z - peak) (z - peak), when the peak rises by d:
        # S' = S e^-d and W' = (W - S d) e^-d.
        fall = peak - highest
        weighted = (weighted + total * fall) * fall.exp()
        total = total * fall.exp()
        logits.sub_(highest[:, None])
        powers = torch.exp(logits, out=spare[: logits.numel()].view_as(logits))
        total += powers.sum(1)
        if mean is not None:
            _add_product(mean.mul_(fall.exp()[:, None]), powers.to(weight.dtype), weight[part])
        weighted += powers.mul_(logits).sum(1)
        peak = highest
    if mean is not None:
        mean.div_(total[:, None])
    logsum = peak + total.log()
    return chosen - logsum, total.log() - weighted / total, logsum


class _VocabularyBlocks:
    """The logits divided by the temperatures, block of the vocabulary after block, in one buffer.

    Args:
        tensors: the bias or None, and of every term features and weight.
    """

    def __init__(
        self, tensors: Sequence[Any], targets: Tensor, temperatures: Tensor | None, most: int
    ) -> None:
        self.bias = tensors[0]
        self.terms = [Term(*pair) for pair in zip(tensors[1::2], tensors[2::2], strict=True)]
        self.wide = torch.float64 if tensors[1].dtype == torch.float64 else torch.float32
        self.temperatures = temperatures
        self.tokens, self.vocabulary = len(targets), len(tensors[2])
        self.width = min(max(most // max(self.tokens, 1), NARROWEST_BLOCK), self.vocabulary)
        self._starts = range(0, self.vocabulary, self.width)
        self._sorted, self._order = targets.sort()
        ends = torch.tensor([*self._starts, self.vocabulary], device=targets.device)
        self._bounds = torch.searchsorted(self._sorted, ends).tolist()

    def numbers(self) -> Tensor:
        """Zeros, shape (N,)."""
        return self.buffer(self.wide, 1).zero_()

    def buffer(self, dtype: torch.dtype | None = None, width: int | None = None) -> Tensor:
        """Room for one block, flat."""
        device = self.terms[0].features.device
        return torch.empty(self.tokens * (width or self.width), dtype=dtype or self.wide, device=device)

    def __iter__(self) -> Iterator[tuple[slice, Tensor, tuple[Tensor, Tensor]]]:
        """The block's slice, its logits (N, width), and where the targets are in it: rows and columns."""
        wide, narrow = self.buffer(), {}
        for number, start in enumerate(self._starts):
            part = slice(start, min(start + self.width, self.vocabulary))
            shape = self.tokens, part.stop - part.start
            logits = wide[: shape[0] * shape[1]].view(shape)
            for index, (features, weight) in enumerate(self.terms):
                if index == 0 and weight.dtype == self.wide:
                    torch.mm(features, weight[part].t(), out=logits)
                    continue
                if index == 0 and _keeps_sums(weight):
                    torch.mm(features, weight[part].t(), out_dtype=self.wide, out=logits)
                    continue
                if weight.dtype not in narrow:
                    narrow[weight.dtype] = self.buffer(weight.dtype)
                product = narrow[weight.dtype][: logits.numel()].view(shape)
                torch.mm(features, weight[part].t(), out=product)
                logits = logits.copy_(product) if index == 0 else logits.add_(product)
            if self.bias is not None:
                logits.add_(self.bias[part])
            if self.temperatures is not None:
                logits.div_(self.temperatures[:, None])
            between = slice(self._bounds[number], self._bounds[number + 1])
            yield part, logits, (self._order[between], self._sorted[between] - start)


class _Gradients:
    """The gradients of bias, features and weights, added block by block, in float32 or above.

    Args:
        tensors: as `_VocabularyBlocks` gets them.
        needed: whether each of them needs a gradient.
        sums: where gradients are added, for those that autograd doesn't add.
    """

    def __init__(
        self,
        tensors: Sequence[Any],
        needed: Sequence[bool],
        sums: Sequence[Sum | None],
        wide: torch.dtype,
    ) -> None:
        self._tensors, self._elsewhere = tensors, [add is not None for add in sums]
        self._totals = [
            None if not need else torch.zeros_like(tensor, dtype=wide) if add is None else add()
            for tensor, need, add in zip(tensors, needed, sums, strict=True)
        ]

    def add(self, part: slice, logits: Tensor) -> None:
        """Add what a block's gradient of the logits gives."""
        bias = self._totals[0]
        if bias is not None:
            bias[part] += logits.sum(0)
        for index in range(1, len(self._tensors), 2):
            features, weight = self._tensors[index : index + 2]
            d_features, d_weight = self._totals[index : index + 2]
            narrow = logits.to(weight.dtype)
            if d_features is not None:
                _add_product(d_features, narrow, weight[part])
            if d_weight is not None:
                _add_product(d_weight[part], narrow.t(), features)

    def left(self) -> Iterator[Tensor | None]:
        """The gradients that autograd still has to add, in the tensors' dtypes."""
        for total, elsewhere, tensor in zip(self._totals, self._elsewhere, self._tensors, strict=True):
            yield None if total is None or elsewhere else total.to(tensor.dtype)


_OUT_DTYPE = all("dtype_out" in product.overloads() for product in (torch.ops.aten.mm, torch.ops.aten.addmm))
"""Whether this PyTorch's products of 16 bits can keep the float32 in which they are summed; on CUDA alone."""


def _keeps_sums(weight: Tensor) -> bool:
    return _OUT_DTYPE and weight.device.type == "cuda" and weight.dtype in (torch.bfloat16, torch.float16)


def _add_product(total: Tensor, left: Tensor, right: Tensor) -> None:
    if total.dtype == left.dtype:
        total.addmm_(left, right)
    elif _keeps_sums(left):
        torch.addmm(total, left, right, out_dtype=total.dtype, out=total)
    else:
        total.add_(left @ right)
