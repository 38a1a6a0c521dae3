"""`check_loss`: its slope is the slope of its value, token by token."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from coterie.core.protocols import Surrogate, TokenBatch
from coterie.testing.support.failure import finite, guarded, require, require_kind

LENGTHS = ("token_mean", "sequence_mean", "sequence_sum", "constant")
NEEDS = ("ref_logprobs", "old_logprobs")
_STEP = 1e-6
_TOKENS = 400
_LONGEST = 12


def check_loss(loss: Any, *, detached: bool = False, seed: int = 0) -> None:
    """Check a loss in numpy.

    - `needs`, `length` (with its constant) and `entropy` are declared; values, slopes and metrics have shape
      (N,).
    - The slope is the numerical derivative in float64 of the summed value, except where that has a kink.
    - A token's value depends on its sequence alone, so no split into micro-batches changes it.
    - Values and slopes are finite where the ratio is past the range of float32, in float32 too.
    - On the weights that sampled, a good token's log-prob is pushed up and a bad one's down; without a KL
      term a token of advantage 0 has slope 0.
    - The arrays that went in stay as they were.

    Args:
        detached: the value holds factors that no gradient flows through (CISPO's ratio), so that its
            numerical derivative is another than its slope; only the signs are then held against it.

    Raises:
        ConformanceError: what is wrong, where, and how to fix it.
    """
    name = require_kind(loss, "loss")
    _check_declared(loss, name)
    rng = np.random.default_rng(seed)
    tokens = _tokens(rng, loss)
    found = _ask(loss, tokens, name)
    if not detached:
        _check_slope(loss, tokens, found, name)
    _check_alone(loss, tokens, found, name)
    _check_signs(loss, rng, name)
    for kind in (np.float64, np.float32):
        for engine in (True, False):
            _ask(loss, _extreme(loss, kind, engine), name)


def _check_declared(loss: Any, name: str) -> None:
    unknown = [need for need in loss.needs if need not in NEEDS]
    have = " and ".join(NEEDS)
    require(not unknown, f"asks for {unknown}", where=f"{name}.needs", fix=f"TokenBatch has {have}")
    known = loss.length in LENGTHS
    require(known, f"is {loss.length!r}", where=f"{name}.length", fix=f"one of {', '.join(LENGTHS)}")
    if loss.length == "constant":
        constant = getattr(loss, "length_constant", None)
        require(
            constant is not None and finite(constant) and constant > 0,
            f"is {constant!r}",
            where=f"{name}.length_constant",
            fix="what the length `constant` divides by",
        )
    fits = finite(loss.entropy) and loss.entropy >= 0
    require(fits, f"is {loss.entropy!r}", where=f"{name}.entropy", fix="a coefficient, 0 for none")


def _tokens(rng: np.random.Generator, loss: Any) -> TokenBatch:
    """Sequences of several lengths, on both sides of every clip, some far away and some hardly moved."""
    lengths = rng.integers(1, _LONGEST + 1, _TOKENS)
    sequence = np.repeat(np.arange(_TOKENS), lengths)[:_TOKENS]
    far = np.where(rng.random(_TOKENS) < 0.1, 7.0, 0.7)
    wide = np.where(rng.random(_TOKENS) < 0.3, 3e-4, 1.0)[sequence]
    logprobs = -rng.exponential(size=_TOKENS)
    behaviour = logprobs + wide * rng.normal(scale=far)
    return TokenBatch(
        logprobs=logprobs,
        behaviour=behaviour,
        advantages=np.where(rng.random(_TOKENS) < 0.1, 0.0, rng.normal(size=_TOKENS)),
        ref_logprobs=logprobs + rng.normal(scale=0.5, size=_TOKENS),
        old=behaviour + wide * rng.normal(scale=0.3, size=_TOKENS) if "old_logprobs" in loss.needs else None,
        sequence=sequence,
        sequences=int(sequence[-1]) + 1,
    )


def _extreme(loss: Any, kind: Any, engine: bool) -> TokenBatch:
    """Policies that have nothing in common; the old one is the engine's, or the present one."""
    far = np.array([-1.0, -900.0, -1.0, -900.0, 0.0, -1e9], kind)
    near = np.array([-900.0, -1.0, -1.0, -900.0, -1e9, 0.0], kind)
    signs = np.array([-1.0, 1.0, 1e4, -1e4, 1.0, -1.0], kind)
    old = (near if engine else far).copy() if "old_logprobs" in loss.needs else None
    return TokenBatch(
        logprobs=far,
        behaviour=near,
        advantages=signs,
        ref_logprobs=near.copy(),
        old=old,
        sequence=np.array([0, 1, 2, 2, 3, 4]),
        sequences=5,
    )


def _part(tokens: TokenBatch, order: np.ndarray) -> TokenBatch:
    """Whole sequences, by the indices of their tokens; numbered anew."""
    arrays = {
        field.name: getattr(tokens, field.name)[order]
        for field in dataclasses.fields(tokens)
        if isinstance(getattr(tokens, field.name), np.ndarray)
    }
    kept, arrays["sequence"] = np.unique(arrays["sequence"], return_inverse=True)
    return dataclasses.replace(tokens, **arrays, sequences=len(kept))


def _ask(loss: Any, tokens: TokenBatch, name: str) -> Surrogate:
    """What the loss says, its shapes and finiteness checked."""
    arrays = dataclasses.asdict(tokens)
    with guarded(name), np.errstate(over="ignore", invalid="ignore"):
        found = loss(np, tokens)
    changed = [key for key, before in arrays.items() if not np.array_equal(before, getattr(tokens, key))]
    require(not changed, f"changed {', '.join(changed)}", where=name, fix="make new arrays")
    require(isinstance(found, Surrogate), f"returned a {type(found).__name__}", where=name, fix="a Surrogate")
    shape = np.shape(tokens.logprobs)
    for part, values in (("value", found.value), ("slope", found.grad), *found.metrics.items()):
        where = f"{name}: {part}"
        require(
            np.shape(values) == shape, f"has shape {np.shape(values)}", where=where, fix="one number a token"
        )
        bad = np.flatnonzero(~np.isfinite(values))
        if len(bad):
            at = bad[0]
            require(
                False,
                f"is {values[at]} where the log-prob is {tokens.logprobs[at]} and was {tokens.behaviour[at]}",
                where=where,
                fix="cut log-ratios before exponentiating (see coterie.plugins.losses.blocks.ratios)",
            )
    return found


def _check_slope(loss: Any, tokens: TokenBatch, found: Surrogate, name: str) -> None:
    """One token of every sequence moves at a time: what that does to its sequence's sum is its slope."""
    sequence: Any = tokens.sequence
    place = np.arange(_TOKENS) - np.flatnonzero(np.diff(sequence, prepend=-1))[sequence]
    right, left = np.zeros(_TOKENS), np.zeros(_TOKENS)
    for number in range(int(place.max()) + 1):
        moved = place == number
        for side, step in ((right, _STEP), (left, -_STEP)):
            there = _ask(loss, dataclasses.replace(tokens, logprobs=tokens.logprobs + step * moved), name)
            gain = np.bincount(sequence, there.value - found.value)
            side[moved] = gain[sequence[moved]] / step
    rounding = np.bincount(sequence, np.abs(found.value))[sequence] * 1e-15 / _STEP
    near = 1e-3 * (1.0 + np.abs(right) + np.abs(left)) + rounding
    smooth = np.abs(right - left) < near  # elsewhere a clip begins within the step
    require(smooth.mean() > 0.9, "has no derivative at many points", where=f"{name}: value")
    wrong = smooth & (np.abs(found.grad - (right + left) / 2) > near)
    if wrong.any():
        at = int(np.flatnonzero(wrong)[0])
        require(
            False,
            f"is {found.grad[at]:.6g}, and the value's derivative is {(right + left)[at] / 2:.6g}, "
            f"where log pi is {tokens.logprobs[at]:.4g}, the behaviour's {tokens.behaviour[at]:.4g} and "
            f"A {tokens.advantages[at]:.4g} ({wrong.sum()} of {_TOKENS} tokens)",
            where=f"{name}: slope",
            fix="return d sum(value) / d logprobs; a trainer without autograd descends it",
        )


def _check_alone(loss: Any, tokens: TokenBatch, found: Surrogate, name: str) -> None:
    """Half of the sequences, in another order."""
    kept = np.random.default_rng(1).permutation(tokens.sequences)[: tokens.sequences // 2]
    some = np.concatenate([np.flatnonzero(tokens.sequence == number) for number in kept])
    other = _ask(loss, _part(tokens, some), name)
    for what in ("value", "slope"):
        same = np.allclose(getattr(other, what), getattr(found, what)[some], rtol=1e-9, atol=1e-12)
        require(
            same,
            "depends on the other sequences of the batch",
            where=f"{name}: {what}",
            fix="micro-batches would change the gradient: what spans sequences belongs into the advantages",
        )


def _check_signs(loss: Any, rng: np.random.Generator, name: str) -> None:
    tokens = _tokens(rng, loss)
    same = tokens.logprobs
    tokens = dataclasses.replace(
        tokens,
        advantages=tokens.advantages[tokens.sequence],  # one a sequence
        behaviour=same.copy(),
        ref_logprobs=same.copy(),
        old=None if tokens.old is None else same.copy(),
    )
    grad = _ask(loss, tokens, name).grad
    wrong = (grad * tokens.advantages > 1e-12) | ((tokens.advantages != 0) & (grad == 0))
    require(
        not wrong.any(),
        "doesn't push a good token up and a bad one down on the weights that sampled",
        where=f"{name}: slope",
        fix="a loss is minimised: its slope has the sign of -A",
    )
    if "ref_logprobs" not in loss.needs:
        off = _tokens(rng, loss)
        still = _ask(loss, dataclasses.replace(off, advantages=np.zeros(_TOKENS)), name).grad
        require(not np.any(still), "moves tokens of advantage 0", where=f"{name}: slope", fix="scale it by A")
