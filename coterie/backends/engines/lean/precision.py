"""Products of 16-bit matrices that keep the float32 in which they are summed."""

from __future__ import annotations

import torch
from torch import Tensor

_OUT_DTYPE = "dtype" in torch.ops.aten.bmm.overloads() and "dtype" in torch.ops.aten.mm.overloads()
"""Whether this PyTorch has products with an `out_dtype`; they exist for CUDA alone."""


def cache_dtype(dtype: torch.dtype, device: torch.device) -> torch.dtype:
    """The dtype of keys and values of a decoder of this dtype.

    On a CPU it is float32: a CPU's products of 16-bit matrices round what they return, and a conversion of
    all keys and values for each token took longer than the products (3 times as long at 1,500 keys).
    """
    return torch.float32 if device.type in ("cpu", "meta") else dtype


def product(a: Tensor, b: Tensor) -> Tensor:
    """a @ b in float32, of two matrices or of two batches of matrices."""
    if a.device.type == "cuda" and _OUT_DTYPE:
        multiply = torch.bmm if a.dim() == 3 else torch.mm
        return multiply(a, b, out_dtype=torch.float32)
    return a.float() @ b.float()


def attend(
    q: Tensor, keys: Tensor, values: Tensor, own_keys: Tensor, own_values: Tensor, mask: Tensor | None
) -> Tensor:
    """Attention with scores and softmax in float32, and one rounding at the end, as in SDPA's kernels.

    Shapes: H key/value heads of all groups, K slots, R queries each, P prompt keys, T own keys, D head size.

    Args:
        q: (H, K R, D).
        keys, values: (H, P, D), of the prompts.
        own_keys, own_values: (H K, T, D).
        mask: (H, 1, P), 0 or -inf, for padded prompts.

    Returns:
        (H K, R, D).
    """
    rows, total, width = own_keys.shape
    own_q = q.reshape(rows, -1, width)
    prompt_scores = product(q, keys.transpose(1, 2))
    own_scores = product(own_q, own_keys.transpose(1, 2)).view(*q.shape[:2], total)
    scores = torch.cat((prompt_scores, own_scores), dim=-1).mul_(width**-0.5)
    length = keys.shape[1]
    if mask is not None:
        scores[..., :length] += mask
    share = torch.softmax(scores, dim=-1).to(q.dtype)
    output = product(share[..., :length], values).view(own_q.shape)
    own_share = share[..., length:].reshape(rows, -1, total)
    return (output + product(own_share, own_values)).to(q.dtype)
