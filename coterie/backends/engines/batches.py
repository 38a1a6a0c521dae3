"""The batches of engine `hf`: bounded by rows and by bytes of keys and values, halved out of memory."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from coterie.backends.engines.rows import BatchRow, Drawn
from coterie.backends.models.devices import is_out_of_memory, reason, release
from coterie.backends.models.memory import kv_bytes
from coterie.core.errors import UserError
from coterie.core.types import Request

if TYPE_CHECKING:
    from coterie.backends.engines.rows import Decoder, SharedBase

log = logging.getLogger("coterie")

CPU_BYTES = 32 * 2**30
"""`kv_memory: auto` on a CPU: the same on every machine, so that a run has the same batches on each."""
FREE_SHARE = 0.7
"""`kv_memory: auto` on a GPU: of the free memory. Logits, scores and fragments need the rest."""
WHOLE_SHARE = 0.25
"""The same with `deterministic: true`: of the whole memory, since the free memory differs from run to run."""


class KvCost(NamedTuple):
    """What a decoder's cache takes."""

    token: int
    """Bytes of one token's keys and values, over all layers."""
    shared: bool
    """Whether rows with the same prompt share one copy of its keys and values."""


NO_COST = KvCost(0, True)


class BatchShape(NamedTuple):
    """The size of a batch."""

    prompts: int = 0
    """Distinct prompts."""
    prompt: int = 0
    """Tokens of the longest prompt."""
    rows: int = 0
    answer: int = 0
    """Most new tokens of any row."""

    def joined(self, other: BatchShape) -> BatchShape:
        return BatchShape(
            self.prompts + other.prompts,
            max(self.prompt, other.prompt),
            self.rows + other.rows,
            max(self.answer, other.answer),
        )


def shape_of(rows: Sequence[BatchRow]) -> BatchShape:
    """The size of a batch of these rows."""
    return BatchShape(
        len({(row.adapter, row.prompt_ids) for row in rows}),
        max(len(row.prompt_ids) for row in rows),
        len(rows),
        max(row.limit for row in rows),
    )


@dataclass(frozen=True, slots=True)
class BatchBound:
    """The bounds of a batch."""

    rows: float
    bytes: float = math.inf
    cost: KvCost = NO_COST

    def bytes_of(self, shape: BatchShape) -> int:
        """Bytes of keys and values if every row draws all of its tokens; prompts count as the longest."""
        return kv_bytes(
            self.cost.token,
            prompts=shape.prompts if self.cost.shared else shape.rows,
            prompt=shape.prompt,
            rows=shape.rows,
            answer=shape.answer,
        )

    def fits(self, shape: BatchShape) -> bool:
        return shape.rows <= self.rows and self.bytes_of(shape) <= self.bytes


def kv_limit(
    setting: Literal["auto"] | int, memory: tuple[float, float] | None, *, repeats: bool, staying: int = 0
) -> float:
    """Most bytes of a batch's keys and values.

    Args:
        setting: `engine.kv_memory`.
        memory: (free, whole) bytes of a GPU; None: a CPU.
        repeats: whether batches must be the same in every run.
        staying: bytes that will be allocated besides.
    """
    if setting != "auto":
        return int(setting)
    if memory is None:
        return CPU_BYTES
    free, whole = memory
    return WHOLE_SHARE * whole if repeats else max(FREE_SHARE * (free - staying), 0.0)


def memory_of(device: Any) -> tuple[float, float] | None:
    """(free, whole) bytes of a GPU, for `kv_limit`; None: a CPU."""
    if device.type != "cuda":
        return None
    import torch

    free, whole = torch.cuda.mem_get_info(device)
    # PyTorch keeps what it freed: a batch may use that again.
    return free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device), whole


def split(requests: Sequence[Request], rows: Sequence[BatchRow], bound: BatchBound) -> list[list[int]]:
    """Indices of the requests of each batch, in order; siblings of a decision stay together where they fit.

    A single row is a batch whatever it takes.
    """
    parts: list[list[int]] = [[]]
    size = BatchShape()
    for family in _families(requests):
        whole = shape_of([rows[index] for index in family])
        if parts[-1] and not bound.fits(size.joined(whole)):
            parts.append([])
            size = BatchShape()
        if bound.fits(size.joined(whole)):
            parts[-1] += family
            size = size.joined(whole)
            continue
        for index in family:
            size = shape_of([rows[other] for other in (*parts[-1], index)])
            if parts[-1] and not bound.fits(size):
                parts.append([])
                size = shape_of([rows[index]])
            parts[-1].append(index)
    return parts


def _families(requests: Sequence[Request]) -> list[list[int]]:
    families: list[list[int]] = []
    for index, request in enumerate(requests):
        if families and requests[families[-1][0]].key.decision == request.key.decision:
            families[-1].append(index)
        else:
            families.append([index])
    return families


def generate(
    decoder: Decoder | SharedBase,
    requests: Sequence[Request],
    rows: Sequence[BatchRow],
    bound: BatchBound,
    halved: Callable[[int], None],
) -> list[Drawn]:
    """Draw for all rows, in as many batches as the bounds and the memory need.

    A batch that runs out of memory is halved, and its caches are freed first. Every draw is keyed by its row,
    so the tokens are those of the whole batch, but for rounding.

    Args:
        halved: called with the bytes of keys and values that a failed batch may have taken.

    Raises:
        UserError: a single row runs out of memory.
    """
    drawn: dict[int, Drawn] = {}
    waiting = split(requests, rows, bound) if requests else []
    while waiting:
        part = waiting.pop(0)
        failure = ""
        try:
            drawn |= zip(part, decoder.generate([rows[index] for index in part]), strict=True)
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            failure = reason(error)
        if not failure:
            continue
        release()  # after the `except` block: its traceback kept the caches alive
        size = shape_of([rows[index] for index in part])
        if len(part) == 1:
            raise _too_large(requests[part[0]], rows[part[0]], failure)
        halved(bound.bytes_of(size))
        decoder.counts.halved += 1
        log.warning(
            "out of memory while generating for %d rows with up to %.2f GB of keys and values: the batch is "
            "halved, for the %s time (%s). Smaller batches change sums in their last bits; engine.max_batch "
            "or engine.kv_memory bounds them from the start",
            len(part), bound.bytes_of(size) / 1e9, _ordinal(decoder.counts.halved), failure,
        )  # fmt: skip
        half = BatchBound(rows=-(-len(part) // 2))
        parts = split([requests[index] for index in part], [rows[index] for index in part], half)
        waiting[:0] = [[part[place] for place in places] for places in parts]
    return [drawn[index] for index in range(len(requests))]


def _too_large(request: Request, row: BatchRow, failure: str) -> UserError:
    return UserError(
        f"one answer of policy '{request.policy}' does not fit in memory",
        path="engine",
        why=f"{len(row.prompt_ids)} tokens of prompt and up to {row.limit} new, alone in a batch: {failure}",
        fix=f"lower sampler.sampling.max_new_tokens or policies.{request.policy}.context, or free memory: "
        "lower trainer.micro_tokens, share weights (train: lora), end other programs on the device",
    )


def _ordinal(count: int) -> str:
    ends = {1: "st", 2: "nd", 3: "rd"}
    return f"{count}{ends.get(count % 10, 'th') if count % 100 not in (11, 12, 13) else 'th'}"
