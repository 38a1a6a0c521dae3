"""Keyed token sampling by inverse distribution function, for all rows of a batch at once.

A row's token depends only on its own logits, its seed and the token's position. On a CPU the distribution
function of a small vocabulary is an integer sum, which is exact: its value is the same in every order and on
every device. A sum of floats is not. From tens of thousands of tokens on, passes in int64 over all tokens of
all rows take longer than the head's product: there, and on a GPU, sums over blocks of tokens draw. The tokens
are the same, except where a uniform number falls on the border of two of them up to rounding.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from coterie.backends.engines.filters import UNIT, filtered_mass, likeliest_mass, top_mass
from coterie.backends.engines.rows import BatchRow, Drawn
from coterie.core.errors import SystemFault

MOST_EXACT = 4096
"""Most tokens of a vocabulary that are summed as integers on a CPU."""
_CHUNK = 2**24
"""Most probabilities held at once, twice, in float32: 134 MB."""
_CPU_CHUNK = 2**19
"""The same on a CPU: 2 MB stay in a core's cache between the passes."""
_BLOCK = 512
"""Tokens whose probabilities are summed before a row's distribution function is formed."""
_BELOW_ONE = 1.0 - 2.0**-52
"""Any positive number times this rounds below the number."""
_MOST_TOP = 4096
"""Largest top-k that is found without sorting all tokens."""


class SamplingState:
    """The tokens that the rows of a batch have drawn so far; all rows are at the same position.

    A decoder computes *slots*: rows in the decoder's own order, some of them idle. `assign_slots` sets the
    row of each slot (`len(rows)` marks an idle slot). Call it again when slots are closed.

    Args:
        vocabulary: the number of logits of a row.
        by_blocks: whether `draw_by_blocks` draws; default: on a GPU, and from more than `MOST_EXACT` tokens.
    """

    def __init__(
        self, rows: Sequence[BatchRow], device: torch.device, vocabulary: int, by_blocks: bool | None = None
    ) -> None:
        self.rows, self.device = rows, device
        if by_blocks is None:
            by_blocks = device.type == "cuda" or vocabulary > MOST_EXACT
        self._by_blocks = by_blocks
        self.idle = len(rows)
        self.position = 0
        self.alive = np.ones(len(rows) + 1, dtype=bool)
        self.alive[self.idle] = False
        self._lengths = np.zeros(len(rows) + 1, dtype=np.int64)
        self._stopped = np.zeros(len(rows) + 1, dtype=bool)
        self._record: list[tuple[np.ndarray, np.ndarray, Tensor]] = []
        idle_row = BatchRow(prompt_ids=(), seed=0, limit=0, stops=())
        padded = [*rows, idle_row]
        widest = max(len(row.stops) for row in padded)
        self._all_stops = np.array(
            [[*row.stops, *[-1] * (widest - len(row.stops))] for row in padded], dtype=np.int64
        ).reshape(len(padded), widest)
        self._all_limits = np.array([row.limit for row in padded])
        self._all_seeds = np.array([row.seed % 2**64 for row in padded], dtype=np.uint64)
        self._all_temperatures = np.array([row.temperature for row in padded], dtype=np.float32)
        self._all_top = np.array([(row.top_k, row.top_p) for row in padded], dtype=np.float64)

    def assign_slots(self, slots: np.ndarray) -> None:
        """Set the row that each slot computes, int, shape (N,), and with them `settings`."""
        self._slots = slots
        self._stops, self._limits = self._all_stops[slots], self._all_limits[slots]
        top_k, top_p = self._all_top[slots].T
        self.settings = RowSettings(
            self._all_seeds[slots], self._all_temperatures[slots], top_k, top_p, self.device
        )

    def draw(self, logits: Tensor) -> Tensor:
        """Draw every slot's next token from its logits, shape (N, V). Returns ids, shape (N,)."""
        draw = draw_by_blocks if self._by_blocks else draw_exactly
        tokens, chosen = draw(logits, self.settings, self.position)
        self._write(tokens, chosen)
        return tokens

    @property
    def live(self) -> np.ndarray:
        """A mask of the slots whose row still draws; bool, shape (N,)."""
        return self.alive[self._slots]

    def drawn(self) -> list[Drawn]:
        """The tokens of every row.

        Raises:
            SystemFault: a logit is not a finite number.
        """
        steps = len(self._record)
        tokens = np.zeros((len(self.rows) + 1, steps), dtype=np.int64)
        values = np.zeros((len(self.rows) + 1, steps), dtype=np.float64)
        flat = torch.cat([logprobs for _, _, logprobs in self._record]).cpu().double().numpy()
        start = 0
        for step, (slots, ids, _) in enumerate(self._record):
            tokens[slots, step] = ids
            values[slots, step] = flat[start : start + len(slots)]
            start += len(slots)
        drawn = []
        for row, length in enumerate(self._lengths[: self.idle].tolist()):
            logprobs = values[row, :length]
            if not np.isfinite(logprobs).all():
                raise SystemFault("the model's logits are not finite: its weights are damaged")
            drawn.append(
                Drawn(
                    tuple(tokens[row, :length].tolist()),
                    tuple(logprobs.tolist()),
                    "stop" if self._stopped[row] else "length",
                )
            )
        return drawn

    def _write(self, tokens: Tensor, logprobs: Tensor) -> None:
        ids = tokens.cpu().numpy()  # the one wait for the device per token
        live = self.live
        rows = self._slots[live]
        self.position += 1
        self._record.append((self._slots, ids, logprobs))
        self._lengths[rows] = self.position
        stopped = (ids[:, None] == self._stops).any(axis=1)[live]
        self._stopped[rows] = stopped
        self.alive[rows] = ~stopped & (self.position < self._limits[live])


def _placed(array: np.ndarray, device: torch.device) -> Tensor:
    """The array on the device. To a GPU it is copied from pinned memory, so that nothing waits."""
    tensor = torch.from_numpy(np.ascontiguousarray(array))
    if device.type != "cuda":
        return tensor.to(device)
    return tensor.pin_memory().to(device, non_blocking=True)


def uniforms_on(seeds: Tensor, position: int) -> Tensor:
    """`models.uniforms.uniforms`, bit for bit, computed where the seeds are.

    Args:
        seeds: int64, shape (B,), the bits of uint64 seeds.
    """
    z = seeds + _signed((position + 1) * 0x9E3779B97F4A7C15)
    z = (z ^ _shifted(z, 30)) * _signed(0xBF58476D1CE4E5B9)
    z = (z ^ _shifted(z, 27)) * _signed(0x94D049BB133111EB)
    z = z ^ _shifted(z, 31)
    return _shifted(z, 11).double() * 2.0**-53


def _signed(value: int) -> int:
    """The int64 with the low 64 bits of `value`; products of int64 wrap like those of uint64."""
    value &= 2**64 - 1
    return value - 2**64 if value >= 2**63 else value


def _shifted(z: Tensor, bits: int) -> Tensor:
    """A logical shift to the right; torch's own repeats the sign."""
    return (z >> bits) & ((1 << (64 - bits)) - 1)


class RowSettings:
    """The sampling settings of N slots on the device; every shape is (N, ...).

    Args:
        seeds: uint64, (N,).
        temperatures: float32, (N,); 0: greedy. Greedy rows report log-probs at temperature 1.
        top_k, top_p: (N,); 0 and 1: off.
    """

    def __init__(
        self,
        seeds: np.ndarray,
        temperatures: np.ndarray,
        top_k: np.ndarray,
        top_p: np.ndarray,
        device: torch.device,
    ) -> None:
        self.device = device
        self.seeds = _placed(seeds.view(np.int64), device)
        greedy = temperatures == 0.0
        self.greedy = _placed(greedy, device) if greedy.any() else None
        self.only_greedy = bool(greedy.all())
        divisor = np.where(greedy, np.float32(1.0), temperatures)
        self.divisor = None if (divisor == 1.0).all() else _placed(divisor[:, None], device)
        self._top_k, self._top_p = top_k.astype(np.int64), top_p
        self._filtered = ((self._top_k > 0) | (top_p < 1.0)) & ~greedy
        self._filters: dict[tuple[int, int], tuple[Tensor, Tensor, Tensor, int] | None] = {}

    def filters(self, start: int, stop: int) -> tuple[Tensor, Tensor, Tensor, int] | None:
        """(rows in the part, top_k (n, 1), top_p (n, 1), largest top_k) of its filtered rows; None: none.

        The largest top_k is 0 where a row has no top-k.
        """
        if (start, stop) not in self._filters:
            rows = np.flatnonzero(self._filtered[start:stop])
            top_k, top_p = self._top_k[start:stop][rows], self._top_p[start:stop][rows]
            self._filters[start, stop] = (
                (
                    _placed(rows, self.device),
                    _placed(top_k[:, None], self.device),
                    _placed(top_p[:, None], self.device),
                    int(top_k.max()) if top_k.min() > 0 else 0,
                )
                if len(rows)
                else None
            )
        return self._filters[start, stop]


def draw_exactly(logits: Tensor, settings: RowSettings, position: int) -> tuple[Tensor, Tensor]:
    """Draw a token for each row by integer sums, which are the same in every order.

    Args:
        logits: (N, V); they may be in 16 bits.

    Returns:
        token ids (N,) and their log-probs (N,) at the row's temperature.
    """
    logits = logits.float()
    if settings.divisor is not None:
        logits = logits / settings.divisor
    logprobs = torch.log_softmax(logits, dim=-1)
    if settings.only_greedy:
        tokens = logits.argmax(dim=-1)
    else:
        mass = logprobs.exp()
        if (filters := settings.filters(0, len(mass))) is not None:
            rows, top_k, top_p, _ = filters
            mass[rows] = filtered_mass(mass[rows], top_k, top_p)
        # exp and the scaling are exact to float32; every step after them is exact.
        summed = (mass * UNIT).long().cumsum(dim=-1)
        threshold = (summed[:, -1] * uniforms_on(settings.seeds, position)).long()
        tokens = torch.searchsorted(summed, threshold[:, None], right=True)[:, 0]
        tokens = tokens.clamp_(max=logits.shape[-1] - 1)  # an index past the end occurs only for NaN logits
        if settings.greedy is not None:
            tokens = torch.where(settings.greedy, logits.argmax(dim=-1), tokens)
    return tokens, logprobs.gather(1, tokens[:, None])[:, 0]


def draw_by_blocks(
    logits: Tensor, settings: RowSettings, position: int, chunk: int | None = None
) -> tuple[Tensor, Tensor]:
    """Draw a token for each row by sums over blocks of tokens, a part of the rows at a time.

    Temporaries are float32 and bounded: a part of the rows is exponentiated once, and both the log-probs and
    the distribution function come from sums of 512 probabilities each, added in float64. A row's sums are
    formed in the same order in every batch. Nothing waits for the device.

    Args:
        logits: (N, V); they may be in 16 bits.
        chunk: most probabilities of a part; default: by the device.

    Returns:
        token ids (N,) and their log-probs (N,) at the row's temperature.
    """
    count, width = logits.shape
    if chunk is None:
        chunk = _CPU_CHUNK if logits.device.type == "cpu" else _CHUNK
    each = max(chunk // width, 1)
    blocks = -(-width // _BLOCK)
    uniform = uniforms_on(settings.seeds, position)
    # The padding stays 0: no part writes there.
    buffer = logits.new_zeros(min(each, count), blocks * _BLOCK, dtype=torch.float32)
    tokens = torch.empty(count, dtype=torch.int64, device=logits.device)
    chosen = torch.empty(count, dtype=torch.float32, device=logits.device)
    for start in range(0, count, each):
        stop = min(start + each, count)
        part = logits[start:stop].float()
        if settings.divisor is not None:
            part = part / settings.divisor[start:stop]
        largest, mass = part.amax(dim=-1, keepdim=True), buffer[: stop - start]
        torch.sub(part, largest, out=mass[:, :width])
        torch.exp(mass[:, :width], out=mass[:, :width])  # of the likeliest token: 1
        by_block = _by_block(mass)
        log_total = by_block.sum(dim=-1).log() + largest[:, 0].double()
        if settings.only_greedy:
            ids = part.argmax(dim=-1)
        else:
            if (filters := settings.filters(start, stop)) is not None:
                _filter(mass[:, :width], filters)
                by_block = _by_block(mass)
            ids = _inverse(mass, by_block, uniform[start:stop]).clamp_(max=width - 1)
            if settings.greedy is not None:
                ids = torch.where(settings.greedy[start:stop], part.argmax(dim=-1), ids)
        tokens[start:stop] = ids
        chosen[start:stop] = part.gather(1, ids[:, None])[:, 0].double() - log_total
    return tokens, chosen


def _by_block(mass: Tensor) -> Tensor:
    """Sums of each block; float64, (N, B)."""
    return mass.view(len(mass), -1, _BLOCK).sum(dim=-1).double()


def _filter(mass: Tensor, filters: tuple[Tensor, Tensor, Tensor, int]) -> None:
    rows, top_k, top_p, most = filters
    if 0 < most <= _MOST_TOP:
        mass[rows] = top_mass(mass[rows], top_k, top_p, min(most, mass.shape[1]))
    elif mass.device.type == "cpu":
        mass[rows] = likeliest_mass(mass[rows], top_k, top_p)
    else:
        mass[rows] = filtered_mass(mass[rows], top_k, top_p)


def _inverse(mass: Tensor, by_block: Tensor, uniform: Tensor) -> Tensor:
    """The token at which the distribution function passes `uniform` of its end; (N,).

    Args:
        mass: (N, B * _BLOCK), no sum of it is 0.
        by_block: of `_by_block`.
        uniform: float64, (N,).
    """
    count = len(mass)
    summed = by_block.cumsum(dim=-1)
    threshold = summed[:, -1:] * uniform[:, None].clamp(max=_BELOW_ONE)
    block = torch.searchsorted(summed, threshold, right=True).clamp_(max=by_block.shape[1] - 1)
    before = summed.gather(1, block) - by_block.gather(1, block)
    share = (threshold - before) / by_block.gather(1, block)
    inside = mass.view(count, -1, _BLOCK).gather(1, block[:, :, None].expand(-1, -1, _BLOCK))[:, 0]
    steps = inside.double().cumsum(dim=-1)
    # The sums of both levels differ in their last bits; within its bounds, the token has a probability.
    within = steps[:, -1:] * share.clamp_(min=0.0, max=_BELOW_ONE)
    return (block * _BLOCK + torch.searchsorted(steps, within, right=True))[:, 0]
