"""Log-probs and entropies on a GPU by Liger's fused kernel, where the extra `liger` is installed.

Liger (arXiv 2410.10989) turns a chunk of logits into losses and gradients in one pass over them. On an H100
that is 1.5 to 1.8 times as fast as Coterie's blocks for a frozen head, and 1.1 to 1.5 times for a trained one
(`benchmarks/gpu_head.py`). Its loss is
-log p_t, and its gradient with respect to the hidden state h, without a bias, is sum_v p_v w_v - w_t. So with
logits z = w h the entropy H = log sum_v e^z_v - sum_v p_v z_v follows without another pass:

    loss - h . d loss / dh = (log sum_v e^z_v - z_t) - (sum_v p_v z_v - z_t) = H

The forward pass makes the gradient of every token's loss; the backward pass multiplies it by the token's, and
only a weight that is trained needs the logits again.
"""

from __future__ import annotations

import importlib.util
import logging
from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from coterie.backends.trainers.head import Sum, Term, head_scores, sum_for

log = logging.getLogger("coterie")

ROWS = 1024
"""Tokens of a chunk: 311 MB of logits in 16 bits at a vocabulary of 151,936. Measured, fewer are slower."""
_TRIED = 32
"""Tokens of the comparison with Coterie's own head."""
_TOLERANCE = {torch.float32: 1e-3, torch.bfloat16: 0.1, torch.float16: 0.02}
"""Largest difference of a log-prob, in nats: Liger rounds logits to the weight's dtype."""
Kernel = Callable[..., Any]


def liger_kernel(weight: Tensor) -> Kernel | None:
    """Liger's function for a head's weight; None: not on a GPU, not installed, or wrong here.

    A version whose log-probs or gradients differ from those of Coterie's head on a few tokens is not used,
    with a warning.

    Args:
        weight: shape (V, H).
    """
    if weight.device.type != "cuda" or weight.dtype not in _TOLERANCE:
        return None
    if importlib.util.find_spec("liger_kernel") is None:
        return None
    try:
        from liger_kernel.ops.fused_linear_cross_entropy import fused_linear_cross_entropy_forward as kernel

        wrong = wrong_numbers(kernel, weight)
    except Exception as error:  # another version of Liger or Triton raises anything
        wrong = f"{type(error).__name__}: {error}"
    if wrong is None:
        return cast(Kernel, kernel)
    log.warning("the head is computed without Liger's kernel, which would be faster: %s", wrong)
    return None


def wrong_numbers(kernel: Kernel, weight: Tensor) -> str | None:
    """What is wrong with the kernel's numbers on a few tokens; None: nothing."""
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(_TRIED, weight.shape[1], generator=generator).to(weight.device, weight.dtype)
    targets = torch.randint(len(weight), (_TRIED,), generator=generator).to(weight.device)
    given = torch.randn(_TRIED, generator=generator).to(weight.device)
    sides = []
    for way in (lambda x: liger_scores(kernel, x, weight.detach(), targets, None),
                lambda x: head_scores((Term(x, weight.detach()),), None, targets, None,
                                      entropy_grad=False, most=2**24)):  # fmt: skip
        inputs = features.clone().requires_grad_(True)
        with torch.enable_grad():
            logprobs, entropy = way(inputs)
            (gradient,) = torch.autograd.grad(logprobs, inputs, given)
        sides.append((logprobs.detach().float(), entropy.float(), gradient.float()))
    (logprobs, entropy, gradient), (exact, exact_entropy, exact_gradient) = sides
    most = _TOLERANCE[weight.dtype]
    for name, off in (
        ("log-probs", (logprobs - exact).abs().max()),
        ("entropies", (entropy - exact_entropy).abs().mean()),
        ("gradients", (gradient - exact_gradient).abs().max() / exact_gradient.abs().max()),
    ):
        if not float(off) <= most:
            return f"its {name} are off by {float(off):.2g}"
    return None


def liger_scores(
    kernel: Kernel, features: Tensor, weight: Tensor, targets: Tensor, temperatures: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Log-probs of the targets and entropies, each of shape (N,) in float32; entropies have no gradient.

    Args:
        kernel: as `liger_kernel` gives it.
        features: shape (N, H).
        weight: shape (V, H); the head has no bias.
        targets: int64, shape (N,).
        temperatures: shape (N,); None: all are 1.
    """
    if temperatures is not None:  # the logits of h / T are z / T
        features = features / temperatures[:, None].to(features.dtype)
    scores: tuple[Tensor, Tensor] = _LigerScores.apply(  # type: ignore[no-untyped-call]
        features, weight, targets, kernel, sum_for(weight)
    )
    return scores


class _LigerScores(torch.autograd.Function):
    """The function of `liger_scores`; see the module's text."""

    @staticmethod
    def forward(
        ctx: Any, features: Tensor, weight: Tensor, targets: Tensor, kernel: Kernel, total: Sum | None
    ) -> tuple[Tensor, Tensor]:
        loss, unit = _run(kernel, features, weight, targets, None)[:2]
        # Products in float32: the sum over the width has terms of both signs.
        entropy = loss - (features.float() * unit.float()).sum(-1)
        ctx.kernel, ctx.total = kernel, total
        ctx.save_for_backward(features, weight, targets, unit)
        ctx.mark_non_differentiable(entropy)
        return -loss, entropy

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_logprobs: Tensor, d_entropy: Tensor) -> tuple[Any, ...]:
        features, weight, targets, unit = ctx.saved_tensors
        d_features = d_weight = None
        if ctx.needs_input_grad[0]:
            d_features = (unit.float() * d_logprobs.neg()[:, None]).to(features.dtype)
        if ctx.needs_input_grad[1]:
            d_weight = _run(ctx.kernel, features, weight, targets, d_logprobs.neg())[2]
            if ctx.total is not None:
                ctx.total().add_(d_weight)
                d_weight = None
        return d_features, d_weight, None, None, None


def _run(
    kernel: Kernel, features: Tensor, weight: Tensor, targets: Tensor, given: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Losses (N,) in float32, their gradients (N, H), and with `given` the gradient (V, H) of the weight.

    Args:
        given: the gradient of each token's loss, shape (N,); None: 1, and no gradient of the weight.
    """
    tokens, width = features.shape
    results = kernel(
        _input=features.detach().contiguous(),
        weight=weight.detach(),
        target=targets,
        reduction="none",
        accum_dtype=torch.float32,
        token_grad_output=given,
        compute_gradients=True,
        weight_requires_grad=given is not None,
        chunk_mem_const=max(1, ROWS * len(weight) // max(tokens * width, 1)),
    )
    return results[0], results[4], results[5]
