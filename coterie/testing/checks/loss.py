"""`check_loss`: the declared gradient is the derivative of the value, token by token."""

from __future__ import annotations

import dataclasses
from typing import Any, get_args

import numpy as np

from coterie.backends.trainers.surrogates import TRAINER_METRICS
from coterie.core.errors import type_text
from coterie.core.protocols import Length, Surrogate, TokenBatch
from coterie.discovery.members import HasLengthConstant, NeedsFreshSamples
from coterie.testing.support.failure import finite, guarded, require, require_kind
from coterie.testing.support.promises import promise

LENGTHS = get_args(Length)
NEEDS = ("ref_logprobs", "old_logprobs")
_STEP = 1e-6
_TOKENS = 400
_LONGEST = 12


def check_loss(loss: Any, *, detached: bool = False, seed: int = 0) -> None:
    """Check a loss in numpy.

    - `needs`, `length` (with its constant) and `entropy` are declared; value, grad and metrics have shape
      (N,).
    - `grad` is the numerical derivative in float64 of the summed value, except where that has a kink.
    - A token's value depends on its sequence alone, so no split into micro-batches changes it.
    - Value and grad are finite where the ratio is past the range of float32, in float32 too.
    - On the weights that sampled the tokens, a descent step raises the log-prob of a token with a positive
      advantage and lowers that of one with a negative advantage; without a KL term a token of advantage 0 has
      grad 0.
    - A loss whose gradient doesn't depend on the policy that sampled says so (`fresh_samples`): a second
      optimiser step on the same samples is then refused.
    - The loss leaves its input arrays unchanged.

    Args:
        detached: whether the value has factors that no gradient flows through (CISPO's ratio). Its numerical
            derivative then differs from `grad`, and only the signs of `grad` are checked.
        seed: seed of the synthetic tokens.

    Raises:
        ConformanceError: what is wrong, where, and how to fix it.
    """
    name = require_kind(loss, "loss")
    _check_declared(loss, name)
    rng = np.random.default_rng(seed)
    tokens = _tokens(rng, loss)
    promise("value, grad and metrics are one finite number a token")
    surrogate = _surrogate(loss, tokens, name)
    again = _surrogate(loss, tokens, name)
    same = np.array_equal(surrogate.value, again.value) and np.array_equal(surrogate.grad, again.grad)
    require(same, "gives other numbers when called twice", name, fix="no draws, no memory between calls")
    if not detached:
        promise("grad is the derivative of the value")
        _check_grad(loss, tokens, surrogate, name)
    promise("a token's value depends on its sequence alone")
    _check_sequences(loss, tokens, surrogate, name)
    promise("a step raises good tokens and lowers bad ones")
    _check_signs(loss, rng, name)
    promise("it says whether its samples must be fresh")
    _check_ratio(loss, tokens, surrogate, name)
    promise("extreme ratios give finite numbers")
    for kind in (np.float64, np.float32):
        for old_is_behaviour in (True, False):
            _surrogate(loss, _extreme(loss, kind, old_is_behaviour), name)


def _check_ratio(loss: Any, tokens: TokenBatch, surrogate: Surrogate, name: str) -> None:
    """Require of a loss without a ratio that it declares whether its samples must be fresh."""
    changes = [{"behaviour": tokens.behaviour - 0.5}]
    changes += [{"old": tokens.old - 0.5}] if tokens.old is not None else []
    others = [_surrogate(loss, dataclasses.replace(tokens, **change), name) for change in changes]
    same = all(np.array_equal(other.grad, surrogate.grad) for other in others)
    require(
        not same or isinstance(loss, NeedsFreshSamples),
        "has the same gradient whichever policy sampled the tokens, and doesn't say whether that is wrong",
        name,
        fix="fresh_samples = True, so that updates of several steps are refused; or False if it needs none",
    )


def _check_declared(loss: Any, name: str) -> None:
    unknown = [need for need in loss.needs if need not in NEEDS]
    require(not unknown, f"asks for {unknown}", f"{name}.needs", fix=f"of {', '.join(NEEDS)}")
    is_known = loss.length in LENGTHS
    require(is_known, f"is {loss.length!r}", f"{name}.length", fix=f"one of {', '.join(LENGTHS)}")
    if loss.length == "constant":
        constant = loss.length_constant if isinstance(loss, HasLengthConstant) else None
        require(
            constant is not None and finite(constant) and constant > 0,
            f"is {constant!r}",
            f"{name}.length_constant",
            fix="the positive number that the length `constant` divides by",
        )
    sound = finite(loss.entropy) and loss.entropy >= 0
    require(sound, f"is {loss.entropy!r}", f"{name}.entropy", fix="a coefficient, 0 for none")


def _tokens(rng: np.random.Generator, loss: Any) -> TokenBatch:
    """Sequences of several lengths, with log-ratios on both sides of every clip, some large, some near 0."""
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


def _extreme(loss: Any, kind: Any, old_is_behaviour: bool) -> TokenBatch:
    """Tokens with extreme log-ratios; the old log-probs are the behaviour's or the present ones."""
    logprobs = np.array([-1.0, -900.0, -1.0, -900.0, 0.0, -1e9], kind)
    behaviour = np.array([-900.0, -1.0, -1.0, -900.0, -1e9, 0.0], kind)
    advantages = np.array([-1.0, 1.0, 1e4, -1e4, 1.0, -1.0], kind)
    old = (behaviour if old_is_behaviour else logprobs).copy() if "old_logprobs" in loss.needs else None
    return TokenBatch(
        logprobs=logprobs,
        behaviour=behaviour,
        advantages=advantages,
        ref_logprobs=behaviour.copy(),
        old=old,
        sequence=np.array([0, 1, 2, 2, 3, 4]),
        sequences=5,
    )


def _part(tokens: TokenBatch, order: np.ndarray) -> TokenBatch:
    """Whole sequences, given the indices of their tokens, with new sequence numbers."""
    arrays = {
        field.name: getattr(tokens, field.name)[order]
        for field in dataclasses.fields(tokens)
        if isinstance(getattr(tokens, field.name), np.ndarray)
    }
    kept, arrays["sequence"] = np.unique(arrays["sequence"], return_inverse=True)
    return dataclasses.replace(tokens, **arrays, sequences=len(kept))


def _surrogate(loss: Any, tokens: TokenBatch, name: str) -> Surrogate:
    """The loss of a batch, with its shapes and finiteness checked."""
    arrays = dataclasses.asdict(tokens)
    with guarded(name), np.errstate(over="ignore", invalid="ignore"):
        surrogate = loss(np, tokens)
    changed = [key for key, before in arrays.items() if not np.array_equal(before, getattr(tokens, key))]
    require(not changed, f"changed {', '.join(changed)}", name, fix="make new arrays")
    require(isinstance(surrogate, Surrogate), f"returned {type_text(surrogate)}", name, fix="a Surrogate")
    taken = sorted(TRAINER_METRICS.intersection(surrogate.metrics))
    require(
        not taken,
        f"reports {taken}, which are the trainer's",
        f"{name}: metrics",
        fix="begin their names with the loss's own",
    )
    shape = np.shape(tokens.logprobs)
    for part, values in (("value", surrogate.value), ("grad", surrogate.grad), *surrogate.metrics.items()):
        where = f"{name}: {part}"
        require(np.shape(values) == shape, f"has shape {np.shape(values)}", where, fix="one number a token")
        bad = np.flatnonzero(~np.isfinite(values))
        if len(bad):
            token = bad[0]
            require(
                False,
                f"is {values[token]} where the log-prob is {tokens.logprobs[token]} and the behaviour's "
                f"{tokens.behaviour[token]}",
                where,
                fix="clip log-ratios before exponentiating (coterie.log_ratio does)",
            )
    return surrogate


def _check_grad(loss: Any, tokens: TokenBatch, surrogate: Surrogate, name: str) -> None:
    """Compare `grad` with the change of a sequence's summed value when one of its tokens moves."""
    sequence: Any = tokens.sequence
    position = np.arange(_TOKENS) - np.flatnonzero(np.diff(sequence, prepend=-1))[sequence]
    right, left = np.zeros(_TOKENS), np.zeros(_TOKENS)
    for number in range(int(position.max()) + 1):
        moved = position == number
        for side, step in ((right, _STEP), (left, -_STEP)):
            shifted = _surrogate(
                loss, dataclasses.replace(tokens, logprobs=tokens.logprobs + step * moved), name
            )
            gain = np.bincount(sequence, shifted.value - surrogate.value)
            side[moved] = gain[sequence[moved]] / step
    rounding = np.bincount(sequence, np.abs(surrogate.value))[sequence] * 1e-15 / _STEP
    near = 1e-3 * (1.0 + np.abs(right) + np.abs(left)) + rounding
    smooth = np.abs(right - left) < near  # elsewhere a clip begins within the step
    require(
        smooth.mean() > 0.9, "has no derivative at many points", f"{name}: value", fix="kinks only at clips"
    )
    wrong = smooth & (np.abs(surrogate.grad - (right + left) / 2) > near)
    if wrong.any():
        token = int(np.flatnonzero(wrong)[0])
        require(
            False,
            f"is {surrogate.grad[token]:.6g}, and the value's derivative is "
            f"{(right + left)[token] / 2:.6g}, where log pi is {tokens.logprobs[token]:.4g}, the behaviour's "
            f"{tokens.behaviour[token]:.4g} and A {tokens.advantages[token]:.4g} "
            f"({wrong.sum()} of {_TOKENS} tokens)",
            f"{name}: grad",
            fix="return d sum(value) / d logprobs: a trainer without autograd descends along it",
        )


def _check_sequences(loss: Any, tokens: TokenBatch, surrogate: Surrogate, name: str) -> None:
    """Half of the sequences, in another order, have the same values as in the whole batch."""
    kept = np.random.default_rng(1).permutation(tokens.sequences)[: tokens.sequences // 2]
    indices = np.concatenate([np.flatnonzero(tokens.sequence == number) for number in kept])
    half = _surrogate(loss, _part(tokens, indices), name)
    for field in ("value", "grad"):
        same = np.allclose(getattr(half, field), getattr(surrogate, field)[indices], rtol=1e-9, atol=1e-12)
        require(
            same,
            "depends on the other sequences of the batch",
            f"{name}: {field}",
            fix="compute what spans sequences in the advantages: here micro-batches would change it",
        )


def _check_signs(loss: Any, rng: np.random.Generator, name: str) -> None:
    tokens = _tokens(rng, loss)
    logprobs = tokens.logprobs
    tokens = dataclasses.replace(
        tokens,
        advantages=tokens.advantages[tokens.sequence],  # one a sequence
        behaviour=logprobs.copy(),
        ref_logprobs=logprobs.copy(),
        old=None if tokens.old is None else logprobs.copy(),
    )
    grad = _surrogate(loss, tokens, name).grad
    wrong = (grad * tokens.advantages > 1e-12) | ((tokens.advantages != 0) & (grad == 0))
    require(
        not wrong.any(),
        "doesn't raise good tokens and lower bad ones on the weights that sampled",
        f"{name}: grad",
        fix="a loss is minimised: its grad has the sign of -A",
    )
    if "ref_logprobs" not in loss.needs:
        others = _tokens(rng, loss)
        grad = _surrogate(loss, dataclasses.replace(others, advantages=np.zeros(_TOKENS)), name).grad
        require(not np.any(grad), "moves tokens of advantage 0", f"{name}: grad", fix="scale it by A")
