"""What a loss returned, checked: an error names the loss, and not the trainer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NoReturn

import numpy as np

from coterie.core.errors import PluginError
from coterie.core.plugins.origin import origin_of, plugin_call
from coterie.core.protocols import Loss, Surrogate, TokenBatch

TRAINER_METRICS = frozenset(
    ("entropy", "explained_variance", "grad_norm", "learning_rate", "loss", "mismatch", "mismatch_kl",
     "mismatch_max", "optimizer_steps", "samples", "skipped_steps", "stale_samples", "tokens", "value",
     "value_clipped", "value_loss")
)  # fmt: skip
"""Metrics of an update that the trainers report; no loss may use their names."""
AGED = frozenset(("clip_fraction",))
"""Metrics of losses that trainers report by the age of the tokens too."""
BY_AGE = "/staleness/"
"""Between the name of a metric and an age, in updates; no loss may have it in a name."""


def surrogate_of(loss: Loss, xp: Any, tokens: TokenBatch) -> Surrogate:
    """The loss of a batch.

    Raises:
        PluginError: the loss returned no `Surrogate`, an array that isn't of shape (N,), or a metric under a
            name of the trainer's.
    """
    with plugin_call(loss, "__call__"):
        surrogate: Any = loss(xp, tokens)
    if not isinstance(surrogate, Surrogate):
        _refuse(loss, f"{surrogate!r:.200}", "return a coterie.Surrogate(value=..., grad=..., metrics=...)")
    if not isinstance(surrogate.metrics, Mapping):
        _refuse(
            loss, f"the metrics {surrogate.metrics!r:.200}", "return a mapping of arrays by name; {}: none"
        )
    for name in surrogate.metrics:
        if not isinstance(name, str) or name in TRAINER_METRICS or BY_AGE in f"/{name}":
            fix = f"it is a metric of the trainer's: begin its name with '{origin_of(loss).name}_'"
            _refuse(loss, f"the metric {name!r}", fix)
    shape = np.shape(tokens.logprobs)
    for part, values in (("value", surrogate.value), ("grad", surrogate.grad), *surrogate.metrics.items()):
        if np.shape(values) != shape or not isinstance(values, type(tokens.logprobs)):
            what = f"as `{part}` a {type(values).__name__} of shape {np.shape(values)}"
            _refuse(loss, what, f"one number for each sampled token: an array of `xp`, shape {tuple(shape)}")
    return surrogate


def check_finite(loss: Loss, xp: Any, tokens: TokenBatch, surrogate: Surrogate) -> None:
    """Refuse a value that is NaN and a gradient that isn't finite, unless the loss was given such numbers.

    Raises:
        PluginError: it names the loss.
    """
    for part, values, bad in (
        ("value", surrogate.value, xp.isnan(surrogate.value)),
        ("grad", surrogate.grad, ~xp.isfinite(surrogate.grad)),
    ):
        given = (tokens.logprobs, tokens.behaviour, tokens.advantages, tokens.ref_logprobs, tokens.old)
        if bool(bad.any()) and all(bool(xp.isfinite(each).all()) for each in given if each is not None):
            at = bad.tolist().index(True)
            log_prob, behaviour, advantage = (array[at].item() for array in given[:3])
            what = (
                f"as `{part}` {values[at].item()} for a token with the log-prob {log_prob:.6g}, the "
                f"behaviour log-prob {behaviour:.6g} and the advantage {advantage:.6g}"
            )
            _refuse(loss, what, "clip log-ratios before you exponentiate them (coterie.log_ratio does)")


def _refuse(loss: Loss, what: str, fix: str) -> NoReturn:
    origin = origin_of(loss)
    raise PluginError(f"{origin}: __call__ returned {what}", path=origin.path, fix=fix)
