"""Top-k and top-p: the probabilities that sampling keeps."""

from __future__ import annotations

import torch
from torch import Tensor

UNIT = 2.0**50
"""The integer that stands for a probability of 1 in the distribution function.

It is small enough that the largest uniform (1 - 2**-53) times the total rounds below the total, so a token of
probability 0 is never drawn. It is large enough that only tokens rarer than 2**-50 count as impossible.
"""


def filtered_mass(mass: Tensor, top_k: Tensor, top_p: Tensor) -> Tensor:
    """Set tokens outside top-k, and then outside top-p of the rest, to zero; ties go to the lower id.

    Args:
        mass: probabilities, shape (N, V).
        top_k: int, shape (N, 1); 0: off.
        top_p: shape (N, 1); the smallest set of likeliest tokens with at least this share is kept.
    """
    ordered, order = mass.sort(dim=-1, descending=True, stable=True)
    rank = torch.arange(mass.shape[-1], device=mass.device)
    keep = (rank < top_k) | (top_k <= 0)
    parts = (ordered * keep * UNIT).long()
    summed = parts.cumsum(dim=-1)
    keep &= (summed - parts) < (summed[:, -1:] * top_p)
    keep |= rank == 0
    return torch.zeros_like(mass).scatter_(1, order, ordered * keep)


def top_mass(mass: Tensor, top_k: Tensor, top_p: Tensor, most: int) -> Tensor:
    """`filtered_mass` without sorting all tokens, for rows with a top-k of at most `most`.

    Args:
        mass: probabilities, shape (N, V).
        top_k: int, shape (N, 1), at least 1.
        top_p: shape (N, 1).
    """
    values = mass.topk(most, dim=-1).values
    keep = torch.arange(most, device=mass.device) < top_k
    summed = (values * keep * UNIT).long().cumsum(dim=-1)
    return _first(mass, values, keep, summed[:, -1:] * top_p)


def likeliest_mass(mass: Tensor, top_k: Tensor, top_p: Tensor, most: int = 1024) -> Tensor:
    """`filtered_mass`, which sorts all tokens of those rows only that keep more than `most` of them.

    Args:
        mass: probabilities, shape (N, V).
        top_k: int, shape (N, 1); 0: off.
        top_p: shape (N, 1).
    """
    values = mass.topk(min(most, mass.shape[-1]), dim=-1).values
    keep = (torch.arange(values.shape[-1], device=mass.device) < top_k) | (top_k <= 0)
    summed = (values * keep * UNIT).long().cumsum(dim=-1)[:, -1:]
    whole = (mass * UNIT).long().sum(dim=-1, keepdim=True)
    border = torch.where(top_k > 0, summed, whole) * top_p
    complete = torch.where(top_k > 0, top_k <= values.shape[-1], summed >= border)[:, 0]
    filtered = _first(mass, values, keep, border)
    if not bool(complete.all()):
        rest = ~complete
        filtered[rest] = filtered_mass(mass[rest], top_k[rest], top_p[rest])
    return filtered


def _first(mass: Tensor, values: Tensor, keep: Tensor, border: Tensor) -> Tensor:
    """`mass` of the likeliest tokens whose sum before them is below `border`, and of the likeliest of all.

    Args:
        values: the largest probabilities, descending, shape (N, most).
        keep: which of them may stay; bool, of their shape.
        border: shape (N, 1), in parts of `UNIT`.
    """
    parts = (values * keep * UNIT).long()
    keep = keep & (parts.cumsum(dim=-1) - parts < border)
    keep[:, 0] = True
    count = keep.sum(dim=-1, keepdim=True)
    last = values.gather(1, count - 1)
    above, level = mass > last, mass == last
    level &= level.cumsum(dim=-1, dtype=torch.int32) <= count - above.sum(dim=-1, keepdim=True)
    return mass * (above | level)  # of equal tokens at the border, those with the lower ids
