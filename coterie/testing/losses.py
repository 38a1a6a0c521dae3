"""`check_loss`: its slope is the slope of its value, token by token."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from coterie.core.protocols import Surrogate, TokenBatch
from coterie.testing.failure import finite, guarded, require, require_kind

LENGTHS = ("token_mean", "sequence_mean", "sequence_sum")
_STEP = 1e-6
_TOKENS = 400


def check_loss(loss: Any, *, detached: bool = False, seed: int = 0) -> None:
    """Check a loss in numpy.

    - `needs`, `length` and `entropy` are declared; values, slopes and metrics have shape (N,).
    - The slope is the numerical derivative of the value in float64, except where the value has a kink.
    - A token's value depends on that token alone, so no split into micro-batches changes it.
    - Values and slopes are finite where the ratio is past the range of float32, in float32 too.
    - On the weights that sampled, a good token's log-prob is pushed up and a bad one's down; without a KL
      term a token of advantage 0 has slope 0.
    - The arrays that went in stay as they were.

    Args:
        detached: the value holds factors that no gradient flows through (CISPO's ratio), so that its
            numerical derivative is another than its slope; only the signs are then held against it.

    Raises:
        ConformanceError: what is wrong, where, and how to mend it.
    """
    name = require_kind(loss, "loss")
    unknown = [need for need in loss.needs if need != "ref_logprobs"]
    require(not unknown, f"asks for {unknown}", where=f"{name}.needs", mend="TokenBatch has ref_logprobs")
    known = loss.length in LENGTHS
    require(known, f"is {loss.length!r}", where=f"{name}.length", mend=f"one of {', '.join(LENGTHS)}")
    fits = finite(loss.entropy) and loss.entropy >= 0
    require(fits, f"is {loss.entropy!r}", where=f"{name}.entropy", mend="a coefficient, 0 for none")
    rng = np.random.default_rng(seed)
    tokens = _tokens(rng)
    found = _ask(loss, tokens, name)
    if not detached:
        _check_slope(loss, tokens, found, name)
    _check_alone(loss, tokens, found, name)
    _check_signs(loss, rng, name)
    for kind in (np.float64, np.float32):
        _ask(loss, _extreme(kind), name)


def _tokens(rng: np.random.Generator, wide: float = 0.7) -> TokenBatch:
    """Tokens on both sides of every clip, some of them far."""
    logprobs = -rng.exponential(size=_TOKENS)
    return TokenBatch(
        logprobs=logprobs,
        behaviour=logprobs
        + rng.normal(scale=np.where(rng.random(_TOKENS) < 0.1, 10 * wide, wide), size=_TOKENS),
        advantages=np.where(rng.random(_TOKENS) < 0.1, 0.0, rng.normal(size=_TOKENS)),
        ref_logprobs=logprobs + rng.normal(scale=0.5, size=_TOKENS),
    )


def _extreme(kind: Any) -> TokenBatch:
    far = np.array([-1.0, -900.0, -1.0, -900.0, 0.0, -1e9], kind)
    near = np.array([-900.0, -1.0, -1.0, -900.0, -1e9, 0.0], kind)
    signs = np.array([-1.0, 1.0, 1e4, -1e4, 1.0, -1.0], kind)
    return TokenBatch(logprobs=far, behaviour=near, advantages=signs, ref_logprobs=near.copy())


def _ask(loss: Any, tokens: TokenBatch, name: str) -> Surrogate:
    """What the loss says, its shapes and finiteness checked."""
    arrays = dataclasses.asdict(tokens)
    with guarded(name), np.errstate(over="ignore", invalid="ignore"):
        found = loss(np, tokens)
    changed = [key for key, before in arrays.items() if not np.array_equal(before, getattr(tokens, key))]
    require(not changed, f"changed {', '.join(changed)}", where=name, mend="make new arrays")
    require(
        isinstance(found, Surrogate), f"returned a {type(found).__name__}", where=name, mend="a Surrogate"
    )
    shape = np.shape(tokens.logprobs)
    for part, values in (("value", found.value), ("slope", found.slope), *found.metrics.items()):
        where = f"{name}: {part}"
        require(
            np.shape(values) == shape, f"has shape {np.shape(values)}", where=where, mend="one number a token"
        )
        bad = np.flatnonzero(~np.isfinite(values))
        if len(bad):
            at = bad[0]
            require(
                False,
                f"is {values[at]} where the log-prob is {tokens.logprobs[at]} and was {tokens.behaviour[at]}",
                where=where,
                mend="cut log-ratios before exponentiating (see coterie.plugins.losses.common)",
            )
    return found


def _check_slope(loss: Any, tokens: TokenBatch, found: Surrogate, name: str) -> None:
    up, down = (
        _ask(loss, dataclasses.replace(tokens, logprobs=tokens.logprobs + step), name).value
        for step in (_STEP, -_STEP)
    )
    right, left = (up - found.value) / _STEP, (found.value - down) / _STEP
    scale = 1.0 + np.abs(right) + np.abs(left)
    smooth = np.abs(right - left) < 1e-3 * scale  # elsewhere a clip begins within the step
    require(smooth.mean() > 0.9, "has no derivative at many points", where=f"{name}: value")
    wrong = smooth & (np.abs(found.slope - (right + left) / 2) > 1e-3 * scale)
    if wrong.any():
        at = int(np.flatnonzero(wrong)[0])
        require(
            False,
            f"is {found.slope[at]:.6g}, and the value's derivative is {(right + left)[at] / 2:.6g}, "
            f"where log pi is {tokens.logprobs[at]:.4g}, the behaviour's {tokens.behaviour[at]:.4g} and "
            f"A {tokens.advantages[at]:.4g} ({wrong.sum()} of {_TOKENS} tokens)",
            where=f"{name}: slope",
            mend="return d value / d logprobs; a trainer without autograd descends it",
        )


def _check_alone(loss: Any, tokens: TokenBatch, found: Surrogate, name: str) -> None:
    """Half of the tokens, in another order."""
    some = np.random.default_rng(1).permutation(_TOKENS)[: _TOKENS // 2]
    part = TokenBatch(**{key: array[some] for key, array in dataclasses.asdict(tokens).items()})
    other = _ask(loss, part, name)
    for what in ("value", "slope"):
        same = np.allclose(getattr(other, what), getattr(found, what)[some], rtol=1e-9, atol=1e-12)
        require(
            same,
            "depends on the other tokens of the batch",
            where=f"{name}: {what}",
            mend="micro-batches would change the gradient: what spans tokens belongs into the advantages",
        )


def _check_signs(loss: Any, rng: np.random.Generator, name: str) -> None:
    tokens = _tokens(rng)
    same = tokens.logprobs
    tokens = dataclasses.replace(tokens, behaviour=same.copy(), ref_logprobs=same.copy())
    slope = _ask(loss, tokens, name).slope
    wrong = (slope * tokens.advantages > 1e-12) | ((tokens.advantages != 0) & (slope == 0))
    require(
        not wrong.any(),
        "doesn't push a good token up and a bad one down on the weights that sampled",
        where=f"{name}: slope",
        mend="a loss is minimised: its slope has the sign of -A",
    )
    if "ref_logprobs" not in loss.needs:
        off = _tokens(rng)
        still = _ask(loss, dataclasses.replace(off, advantages=np.zeros(_TOKENS)), name).slope
        require(
            not np.any(still), "moves tokens of advantage 0", where=f"{name}: slope", mend="scale it by A"
        )
