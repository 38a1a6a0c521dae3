"""Keyed token sampling by inverse distribution function, for all rows of a batch at once.

A row's token depends only on its own logits, its seed and the token's position. The distribution function is
an integer sum, which is exact: its value is the same in every order and on every device. A sum of floats is
not. Of large vocabularies such sums would take longer than the forward: `device_sampling` draws.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from coterie.backends.engines import device_sampling
from coterie.backends.engines.device_sampling import RowSettings
from coterie.backends.engines.filters import UNIT, filtered_mass as filtered_mass
from coterie.backends.engines.rows import BatchRow, Drawn
from coterie.backends.models.uniforms import uniforms
from coterie.core.errors import SystemFault

MOST_EXACT = 4096
"""Most tokens of a vocabulary that are summed as integers on a CPU."""


class SamplingState:
    """The tokens that the rows of a batch have drawn so far; all rows are at the same position.

    A decoder computes *slots*: rows in the decoder's own order, some of them idle. `assign_slots` sets the
    row of each slot (`len(rows)` marks an idle slot). Call it again when slots are closed.

    Args:
        vocabulary: the number of logits of a row.
        by_blocks: whether `device_sampling` draws; default: on a GPU, and from more than `MOST_EXACT` tokens.
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
        """Set the row that each slot computes; int, shape (N,)."""
        self._slots = slots
        self._stops, self._limits = self._all_stops[slots], self._all_limits[slots]
        self._seeds = self._all_seeds[slots]
        temperatures = self._all_temperatures[slots]
        if self._by_blocks:
            top_k, top_p = self._all_top[slots].T
            self._settings = RowSettings(self._seeds, temperatures, top_k, top_p, self.device)
            return
        greedy = temperatures == 0.0
        self._greedy = self._place(greedy) if greedy.any() else None
        self._only_greedy = bool(greedy.all())
        # Greedy rows report log-probs at temperature 1.
        divisor = np.where(greedy, np.float32(1.0), temperatures)
        self._divisor = None if (divisor == 1.0).all() else self._place(divisor[:, None])
        top_k, top_p = self._all_top[slots].T
        filtered = np.flatnonzero(((top_k > 0) | (top_p < 1.0)) & ~greedy)
        self._filtered = None
        if len(filtered):
            self._filtered = (
                self._place(filtered),
                self._place(top_k[filtered, None].astype(np.int64)),
                self._place(top_p[filtered, None]),
            )

    def draw(self, logits: Tensor) -> Tensor:
        """Draw every slot's next token from its logits, shape (N, V). Returns ids, shape (N,)."""
        if self._by_blocks:
            tokens, chosen = device_sampling.draw(logits, self._settings, self.position)
            self._write(tokens, chosen)
            return tokens
        logits = logits.float()
        if self._divisor is not None:
            logits = logits / self._divisor
        logprobs = torch.log_softmax(logits, dim=-1)
        tokens = self._choose(logits, logprobs)
        self._write(tokens, logprobs.gather(1, tokens[:, None])[:, 0])
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

    def _place(self, array: np.ndarray) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(array)).to(self.device)

    def _choose(self, logits: Tensor, logprobs: Tensor) -> Tensor:
        if self._only_greedy:
            return logits.argmax(dim=-1)
        mass = logprobs.exp()
        if self._filtered is not None:
            rows, top_k, top_p = self._filtered
            mass[rows] = filtered_mass(mass[rows], top_k, top_p)
        # exp and the scaling are exact to float32; every step after them is exact.
        summed = (mass * UNIT).long().cumsum(dim=-1)
        uniform = self._place(uniforms(self._seeds, self.position))
        threshold = (summed[:, -1] * uniform).long()
        tokens = torch.searchsorted(summed, threshold[:, None], right=True)[:, 0]
        tokens = tokens.clamp_(max=logits.shape[-1] - 1)  # an index past the end occurs only for NaN logits
        return tokens if self._greedy is None else torch.where(self._greedy, logits.argmax(dim=-1), tokens)

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
