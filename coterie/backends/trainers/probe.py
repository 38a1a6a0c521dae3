"""The choice of a forward mode: the fastest whose log-probs agree with the model's own forward.

Weights of 16 bits are compared in float32, module by module: two right modes then differ by about 1e-6 of a
log-prob, and a wrong one (a mask that leaks, a shifted position) by far more. In bfloat16 itself the
difference can't be judged: over 28 layers of random weights, two right modes differ by up to 1 nat.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from coterie.backends.trainers.attention import HALF_ONLY, kernel
from coterie.backends.trainers.packing import Probe

log = logging.getLogger("coterie")

TOLERANCE = 1e-4
"""Largest difference of two right modes in float32, in nats; times the log-probs' deviation above 1."""
LIKE_PLAIN = 2.0
"""In 16 bits a right mode's root-mean-square error is about the plain forward's; above this multiple of it a
mode counts as wrong. Measured over 28 random layers: right modes have 1.0, leaks and shifts 3.8 and more."""
SLACK = 1e-3
"""Error in nats below which nothing counts as wrong in 16 bits: models that know next to nothing."""


class ForwardMode(NamedTuple):
    """The optimisations of a forward."""

    packed: bool
    """True: one row with each distinct prompt once. False: one padded row per sample."""
    trained_only: bool
    """True: the head runs on trained positions only. False: the model's own forward gives all logits."""


PLAIN = ForwardMode(False, False)
"""The model's own forward of padded rows."""


def choose(
    model: Any, logprobs: Callable[[Sequence[Probe], ForwardMode], Tensor], packing: bool, attention: str
) -> tuple[ForwardMode, list[str]]:
    """The fastest right mode, and why each faster one is not right.

    Args:
        logprobs: gives the log-probs of rows in a mode; it is called in the attention's context.
        packing: whether shared prompts may be packed.
        attention: the kernel's name.
    """
    modes = (ForwardMode(True, True), ForwardMode(True, False), ForwardMode(False, True))[
        0 if packing else 2 :
    ]
    failures: list[str] = []
    with torch.no_grad():
        judge = _Judge(model, logprobs, attention)
        for mode in modes:
            try:
                wrong = judge(mode)
            except Exception as error:  # models that don't know our arguments raise anything
                wrong = f"{type(error).__name__}: {error}"
            if wrong is None:
                return mode, failures
            failures.append(f"{mode}: {wrong}")
    return PLAIN, failures


class _Judge:
    """Compares modes with the plain forward on a few tokens."""

    def __init__(
        self, model: Any, logprobs: Callable[[Sequence[Probe], ForwardMode], Tensor], attention: str
    ) -> None:
        self.model, self.logprobs, self.attention = model, logprobs, attention
        vocabulary = int(model.config.get_text_config().vocab_size)
        self.low = model.dtype not in (torch.float32, torch.float64)
        self.rows = probe_rows(vocabulary, 8 if self.low else 1)
        self.exact: Tensor | None = None
        self.plain = logprobs(self.rows, PLAIN).double()
        if self.low:
            try:
                with in_float32(model):
                    self.exact = logprobs(self.rows, PLAIN).double()
            except Exception as error:  # a model that casts by itself: judged in its own dtype
                log.info("%s can't be computed in float32: %s", type(model).__name__, error)

    def __call__(self, mode: ForwardMode) -> str | None:
        """What is wrong with the mode; None: nothing."""
        scored = self._in_mode(mode)
        if not self.low:
            worst = float((scored - self.plain).abs().max())
            return None if worst <= TOLERANCE else f"log-probs differ by {worst:.2g}"
        reference = self.plain if self.exact is None else self.exact
        noise = 0.0 if self.exact is None else _rms(self.plain - self.exact)
        if self.exact is not None and self.attention not in HALF_ONLY:
            with in_float32(self.model):
                worst = float((self._in_mode(mode) - self.exact).abs().max())
            if not worst <= TOLERANCE * max(1.0, float(self.exact.std())):
                return f"log-probs in float32 differ by {worst:.2g}"
            return None if bool(scored.isfinite().all()) else "log-probs are not finite"
        error = _rms(scored - reference)
        if self.exact is None:  # without an exact value, all that can be asked is that the two are alike
            noise = 0.1 * float(reference.std())
        if not error <= LIKE_PLAIN * noise + SLACK:
            return f"log-probs are off by {error:.2g}, those of the plain forward by {noise:.2g}"
        return None

    def _in_mode(self, mode: ForwardMode) -> Tensor:
        with kernel(self.model, self.attention, packed=mode.packed):
            return self.logprobs(self.rows, mode).double()


def _rms(difference: Tensor) -> float:
    return float(difference.square().mean().sqrt())


def probe_rows(vocabulary: int, times: int = 1) -> list[Probe]:
    """Two prompts, one with three completions and one with two; one completion is a single token.

    Args:
        times: so many of these pairs of prompts, each of other tokens.
    """
    rng = np.random.default_rng(0)
    rows = []
    for length, completions in ((5, (4, 1, 6)), (9, (3, 7))) * times:
        prompt = rng.integers(0, vocabulary, length)
        for length_of_completion in completions:
            ids = np.concatenate([prompt, rng.integers(0, vocabulary, length_of_completion)])
            rows.append(Probe(ids, np.arange(len(ids)) >= length))
    return rows


@contextmanager
def in_float32(model: Any) -> Iterator[None]:
    """Compute a model of 16 bits in float32; each module's weights are widened while it runs.

    At most one module's weights are there twice, besides those of a plain head: its weights are read without
    a call of the module (`head.py`), so they are wide all the time. TensorFloat-32 is off meanwhile.
    """
    kept: dict[torch.nn.Parameter, Tensor] = {}
    head = model.get_output_embeddings()
    plain = list(head.parameters(recurse=False)) if type(head) is torch.nn.Linear else []
    always = {parameter: parameter.data for parameter in plain}

    def widen(module: torch.nn.Module, *_: Any) -> None:
        for parameter in module.parameters(recurse=False):
            if parameter.dtype in (torch.bfloat16, torch.float16):
                kept[parameter] = parameter.data
                parameter.data = parameter.data.float()

    def narrow(module: torch.nn.Module, *_: Any) -> None:
        for parameter in module.parameters(recurse=False):
            if parameter in kept:
                parameter.data = kept.pop(parameter)

    precision = torch.get_float32_matmul_precision()
    handles = [
        handle
        for module in model.modules()
        if next(module.parameters(recurse=False), None) is not None and not (plain and module is head)
        for handle in (module.register_forward_pre_hook(widen), module.register_forward_hook(narrow))
    ]
    torch.set_float32_matmul_precision("highest")
    for parameter in plain:
        parameter.data = parameter.data.float()
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(precision)
        for handle in handles:
            handle.remove()
        for parameter, data in {**kept, **always}.items():
            parameter.data = data


def cost(mode: ForwardMode, vocabulary: int, budget: int) -> str:
    """What a mode computes, and what that takes."""
    prompts = "each prompt once" if mode.packed else "a prompt for each of its completions, in padded rows"
    if mode.trained_only:
        return f"{prompts}, and logits of trained tokens only"
    size = 3 * 4 * vocabulary * budget / 1e9  # logits, their log-softmax and their gradient in float32
    return f"{prompts}, and logits of all tokens: up to {size:.2g} GB in a micro-batch of {budget:,} tokens"
