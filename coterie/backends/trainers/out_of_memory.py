"""Micro-batches that are too large for the memory: halved, and computed again from cleared gradients."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from coterie.backends.models.devices import is_out_of_memory, reason, release
from coterie.backends.trainers.forward import TokenScorer
from coterie.core.errors import UserError

log = logging.getLogger("coterie")
T = TypeVar("T")


def halving(
    scorer: TokenScorer, policy: str, attempt: Callable[[], T], undo: Callable[[], object] | None
) -> T:
    """The result of an attempt; while it runs out of memory, micro-batches are halved and it is made anew.

    The result doesn't depend on the division into micro-batches, but for rounding (and, with adapter dropout,
    but for its draws). The smaller micro-batches stay until the end of the process.

    Args:
        attempt: computes rows in the micro-batches of `scorer.plan`.
        undo: takes back what a failed attempt has done, such as gradients; None: nothing can.

    Raises:
        UserError: a single sample doesn't fit, or nothing can be undone.
    """
    while True:
        try:
            return attempt()
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            why = reason(error)
        # Outside of `except`, so that no traceback holds the tensors of the failed attempt.
        rows, tokens = scorer.latest
        if undo is None or rows <= 1:
            raise too_large(policy, rows, tokens, why)
        undo()
        release()
        scorer.budget = max(min(scorer.budget, tokens) // 2, 1)
        log.warning(
            "policy '%s': out of memory in a micro-batch of %d samples with %s tokens (%s). It is computed "
            "again in micro-batches of at most %s tokens, and so are all later ones; "
            "trainer.micro_tokens=%d avoids the failed attempts",
            policy, rows, f"{tokens:,}", why, f"{scorer.budget:,}", scorer.budget,
        )  # fmt: skip


def too_large(policy: str, rows: int, tokens: int, why: str) -> UserError:
    """The error for a micro-batch that can't be divided."""
    what = "a single sample" if rows <= 1 else f"a micro-batch of {rows} samples"
    return UserError(
        f"policy '{policy}': {what} of {tokens:,} tokens does not fit the memory",
        path="trainer.micro_tokens" if rows > 1 else f"policies.{policy}",
        why=why,
        fix=("lower trainer.micro_tokens; " if rows > 1 else "")
        + f"set trainer.gradient_checkpointing=true; bound the tokens (policies.{policy}.context, "
        f"sampler.sampling.max_new_tokens); train an adapter (policies.{policy}.train=lora); or divide the "
        "model with the trainer `deepspeed` (stage 3, offload). `coterie plan` estimates each",
    )


@contextmanager
def optimiser_memory(policy: str) -> Iterator[None]:
    """Explain an optimiser that does not fit: its moments are made in the first step.

    Raises:
        UserError: it does not fit.
    """
    try:
        yield
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        raise UserError(
            f"policy '{policy}': the optimiser's step does not fit the memory",
            path=f"policies.{policy}",
            why=reason(error),
            fix=f"train an adapter (policies.{policy}.train=lora), or divide or offload the optimiser's "
            "state with the trainer `deepspeed` (trainer.stage, trainer.offload.optimizer)",
        ) from error
