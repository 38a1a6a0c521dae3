"""A lean decoder for Llama-like models: static caches, one prefill per distinct prompt, few kernels.

The rows that share a prompt (the branches of a decision) attend to one copy of its keys and values: their
queries are the rows of one matrix product. The completion's keys are each row's own. Both parts go through
one softmax, so the result is that of ordinary attention to within rounding. Rows of several LoRA adapters may
stand in one batch: the base's products are computed for all of them, each adapter's part for its own.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from coterie.backends.engines.lean.adapters import AdapterRouting, LeanAdapter
from coterie.backends.engines.lean.cache import Bucket, Costs, Group, plan, surviving
from coterie.backends.engines.lean.weights import LeanWeights
from coterie.backends.engines.rows import Counts, Drawn, Row, siblings
from coterie.backends.engines.sampling import SamplingState
from coterie.backends.models.dense import MergedWeights

_KERNEL_FLOPS = 3e6
"""What a CPU core computes in the time of the extra kernels of a bucket (per layer, measured)."""


class LeanDecoder:
    """Draws from a copy of the weights.

    Args:
        dense: the model, with its adapter if it has one.
        dtype: of the copy and of the computation; logits are float32 in any case.
    """

    def __init__(self, dense: MergedWeights, dtype: torch.dtype) -> None:
        self.weights = LeanWeights(dense, dtype)
        self.counts = Counts()
        self._adapters: dict[str | None, LeanAdapter | None] = {None: None}
        self._occupied = 0
        w = self.weights
        width = w.heads * w.head_dim
        linear = 2.0 * w.hidden * (2 * width + 2 * w.kv_heads * w.head_dim + 3 * w.mlp)
        on_cpu = w.device.type == "cpu"
        # A GPU computes some rows more in no more time, and launches kernels slowly.
        self.costs = Costs(key=4.0 * width / linear, bucket=_KERNEL_FLOPS / linear if on_cpu else 64.0)
        self._chunk = 2048 if on_cpu else 16384

    def refresh(self, weights: MergedWeights) -> None:
        self.weights.refresh(weights)

    def adapt(self, adapter: str, weights: MergedWeights) -> None:
        self._adapters[adapter] = LeanAdapter(weights, self.weights)

    @torch.inference_mode()
    def generate(self, rows: Sequence[Row]) -> list[Drawn]:
        """Draw for all rows together; rows with one prompt and one adapter share its prefill."""
        if not rows:
            return []
        names = list(dict.fromkeys(row.adapter for row in rows))
        self._present = [self._adapters[name] for name in names]
        self._lane = np.array([names.index(row.adapter) for row in rows])
        tape = SamplingState(rows, self.weights.device)
        groups = [(len(rows[members[0]].prompt_ids), members) for members in siblings(rows)]
        longest = max(length for length, _ in groups)
        most = max(row.limit for row in rows)
        self._cos, self._sin = self.weights.rotary(longest + most)
        buckets = self._seated(groups, tape)
        logits = torch.cat([self._prefill(bucket, rows) for bucket in buckets])
        while True:
            tokens = tape.draw(logits)
            live = tape.live
            if not live.any():
                return tape.drawn()
            if live.sum() < 0.9 * self._occupied:
                self._occupied = int(live.sum())
                buckets, tokens = self._packed(buckets, tape, tokens)
            logits = self._step(buckets, tokens, tape.position - 1, most)

    # ------------------------------------------------------------------------------------ who sits where

    def _seated(self, groups: Sequence[Group], tape: SamplingState) -> list[Bucket]:
        w = self.weights

        def lane(index: int) -> int:
            return int(self._lane[groups[index][1][0]])

        buckets = [
            Bucket(
                [groups[index] for index in sorted(chosen, key=lane)],  # few runs of rows with one adapter
                tape.idle,
                layers=len(w.layers),
                heads=w.kv_heads,
                width=w.head_dim,
                dtype=w.dtype,
                device=w.device,
            )
            for chosen in plan(groups, self.costs)
        ]
        slots = np.concatenate([bucket.slots.reshape(-1) for bucket in buckets])
        starts = [np.repeat(bucket.lengths, bucket.slots.shape[1]) for bucket in buckets]
        self._starts = torch.from_numpy(np.concatenate(starts)).to(w.device)
        self._occupied = int((slots != tape.idle).sum())
        # An idle slot goes with its siblings, so that it parts no run.
        self._lanes = self._lanes_of(
            np.concatenate([np.repeat(bucket.slots[:, 0], bucket.slots.shape[1]) for bucket in buckets])
        )
        tape.seat(slots)
        return buckets

    def _packed(
        self, buckets: list[Bucket], tape: SamplingState, tokens: Tensor
    ) -> tuple[list[Bucket], Tensor]:
        """Close the slots of rows that ended, where that saves a quarter of a step or more."""
        groups = surviving(buckets, tape.alive)
        now = sum(self.costs.of(*bucket.slots.shape, bucket.keys.shape[3]) for bucket in buckets)
        parts = [[groups[index] for index in chosen] for chosen in plan(groups, self.costs)]
        then = sum(
            self.costs.of(len(part), max(len(rows) for _, rows in part), max(n for n, _ in part))
            for part in parts
        )
        if then > 0.75 * now:
            return buckets, tokens
        old_slots = np.concatenate([bucket.slots.reshape(-1) for bucket in buckets])
        packed = self._seated(groups, tape)
        filled = tape.position - 1  # the token just drawn is in no cache yet
        for bucket in packed:
            bucket.reserve(filled, filled)
            for old in buckets:
                bucket.take(old, filled)
        where = np.zeros(tape.idle + 1, dtype=np.int64)
        where[old_slots] = np.arange(len(old_slots))
        where[tape.idle] = 0  # an idle slot computes something, of no matter what
        new_slots = np.concatenate([bucket.slots.reshape(-1) for bucket in packed])
        return packed, tokens[torch.from_numpy(where[new_slots]).to(tokens.device)]

    # ------------------------------------------------------------------------------------------- prefill

    def _prefill(self, bucket: Bucket, rows: Sequence[Row]) -> Tensor:
        """Fill the bucket's prompt caches; logits after the prompts by slot, shape (G * K, V)."""
        order = np.argsort(bucket.lengths, kind="stable")
        last = torch.empty(
            len(order), self.weights.hidden, dtype=self.weights.dtype, device=self.weights.device
        )
        start = 0
        while start < len(order):
            stop = self._chunk_end(bucket.lengths[order], start)
            chosen = order[start:stop]
            chosen = chosen[np.argsort(self._lane[bucket.slots[chosen, 0]], kind="stable")]
            prompts = [rows[bucket.slots[group, 0]].prompt_ids for group in chosen]
            last[torch.from_numpy(chosen).to(last.device)] = self._prefill_chunk(bucket, chosen, prompts)
            start = stop
        self.counts.prompts += len(order)
        self.counts.prompt_tokens += int(bucket.lengths.sum())
        logits = self._logits(last, self._lanes_of(bucket.slots[:, 0]))
        return logits.repeat_interleave(bucket.slots.shape[1], dim=0)

    def _chunk_end(self, lengths: np.ndarray, start: int) -> int:
        """Ascending lengths: a chunk ends where padding passes a quarter, or where it gets too large."""
        stop, used = start, 0
        while stop < len(lengths):
            used += int(lengths[stop])
            area = (stop + 1 - start) * int(lengths[stop])
            if stop > start and (area > self._chunk or area > 1.25 * used + 512):
                break
            stop += 1
        return stop

    def _prefill_chunk(
        self, bucket: Bucket, chosen: np.ndarray, prompts: Sequence[tuple[int, ...]]
    ) -> Tensor:
        """Padding stands at the right, where a causal model's other tokens never look."""
        w = self.weights
        lengths = np.array([len(prompt) for prompt in prompts])
        count, longest = len(prompts), int(lengths.max())
        ids = np.zeros((count, longest), dtype=np.int64)
        for index, prompt in enumerate(prompts):
            ids[index, : len(prompt)] = prompt
        x = F.embedding(torch.from_numpy(ids).to(w.device).view(-1), w.embedding)
        cos, sin = (table[:longest].repeat(count, 1)[:, None] for table in (self._cos, self._sin))
        groups = torch.from_numpy(chosen).to(w.device)
        lanes = self._lanes_of(np.repeat(bucket.slots[chosen, 0], longest))
        for index in range(len(w.layers)):
            q, k, v = (
                part.reshape(count, longest, -1, w.head_dim).transpose(1, 2)
                for part in self._heads(x, index, cos, sin, lanes)
            )
            bucket.keys[index, groups, :, :longest] = k
            bucket.values[index, groups, :, :longest] = v
            k, v = self._repeated(k), self._repeated(v)
            attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            attended = attended.transpose(1, 2).reshape(count * longest, -1)
            x = self._rest_of_layer(x, attended, index, lanes)
        ends = torch.from_numpy(np.arange(count) * longest + lengths - 1).to(w.device)
        return x[ends]

    def _repeated(self, x: Tensor) -> Tensor:
        """Key/value heads as often as queries use them: (B, kv_heads, S, D) -> (B, heads, S, D)."""
        times = self.weights.heads // self.weights.kv_heads
        return x if times == 1 else x.repeat_interleave(times, dim=1)

    # -------------------------------------------------------------------------------------------- decode

    def _step(self, buckets: list[Bucket], tokens: Tensor, filled: int, most: int) -> Tensor:
        """Logits after `tokens` (N,), each row's `filled`-th drawn token; shape (N, V)."""
        w = self.weights
        for bucket in buckets:
            bucket.reserve(filled + 1, most)
        x = F.embedding(tokens, w.embedding)
        positions = self._starts + filled
        cos, sin = self._cos[positions][:, None], self._sin[positions][:, None]
        ends = np.cumsum([bucket.slots.size for bucket in buckets]).tolist()
        for index in range(len(w.layers)):
            q, k, v = self._heads(x, index, cos, sin, self._lanes)
            parts = [
                self._attend(
                    bucket,
                    index,
                    filled,
                    q[end - bucket.slots.size : end],
                    k[end - bucket.slots.size : end],
                    v[end - bucket.slots.size : end],
                )
                for bucket, end in zip(buckets, ends, strict=True)
            ]
            attended = parts[0] if len(parts) == 1 else torch.cat(parts)
            x = self._rest_of_layer(x, attended, index, self._lanes)
        self.counts.steps += 1
        self.counts.slots += len(tokens)
        return self._logits(x, self._lanes)

    def _attend(self, bucket: Bucket, index: int, filled: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Attention of one bucket's slots to their prompt and to what they drew; (G * K, heads * head_dim).

        Shapes: G groups, K slots each, h key/value heads, R queries a key/value head, P prompt keys, T own
        keys, D head_dim. Queries of a group's siblings are the K * R rows of one product.
        """
        w = self.weights
        groups, each = bucket.slots.shape
        heads, width, times = w.kv_heads, w.head_dim, w.heads // w.kv_heads
        own_keys, own_values = bucket.own_keys[index], bucket.own_values[index]  # (G, h, K, capacity, D)
        own_keys[:, :, :, filled] = k.view(groups, each, heads, width).transpose(1, 2)
        own_values[:, :, :, filled] = v.view(groups, each, heads, width).transpose(1, 2)
        total = filled + 1
        capacity = bucket.capacity
        own_keys = own_keys.view(-1, capacity, width)[:, :total]  # (G h K, T, D)
        own_values = own_values.view(-1, capacity, width)[:, :total]
        keys = bucket.keys[index].view(groups * heads, -1, width)  # (G h, P, D)
        values = bucket.values[index].view(groups * heads, -1, width)
        length = keys.shape[1]
        q = q.view(groups, each, heads, times, width).transpose(1, 2).reshape(groups * heads, -1, width)
        scale = width**-0.5
        if bucket.mask is None:
            told = torch.baddbmm(q[:1, :1, :1], q, keys.transpose(1, 2), beta=0.0, alpha=scale)
        else:
            told = torch.baddbmm(bucket.mask, q, keys.transpose(1, 2), alpha=scale)
        own_q = q.reshape(-1, times, width)
        own = torch.baddbmm(q[:1, :1, :1], own_q, own_keys.transpose(1, 2), beta=0.0, alpha=scale)
        scores = torch.cat((told, own.view(groups * heads, each * times, total)), dim=-1)
        share = torch.softmax(scores, dim=-1)  # (G h, K R, P + T)
        mixed = torch.bmm(share[..., :length], values).view(-1, times, width)
        mixed = torch.baddbmm(mixed, share[..., length:].reshape(-1, times, total), own_values)
        mixed = mixed.view(groups, heads, each, times * width).transpose(1, 2)
        return mixed.reshape(groups * each, heads * times * width)

    # --------------------------------------------------------------------------------- what both parts use

    def _lanes_of(self, rows: np.ndarray) -> AdapterRouting:
        """What the adapters add where these rows (of the batch) stand below one another."""
        return AdapterRouting(self._lane[rows], self._present)

    def _heads(
        self, x: Tensor, index: int, cos: Tensor, sin: Tensor, lanes: AdapterRouting
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Rotated queries (M, heads, D), rotated keys and values (M, kv_heads, D) of M tokens."""
        w, layer = self.weights, self.weights.layers[index]
        normed = F.rms_norm(x, (w.hidden,), layer.norm, w.eps)
        fused = lanes.add(F.linear(normed, layer.qkv, layer.qkv_bias), normed, index, "qkv")
        fused = fused.view(len(x), -1, w.head_dim)
        rotated = w.heads + w.kv_heads
        qk, v = fused[:, :rotated], fused[:, rotated:]
        if layer.qk_norm is not None:
            qk = F.rms_norm(qk, (w.head_dim,), None, w.eps) * layer.qk_norm
        half = w.head_dim // 2
        swapped = torch.cat((qk[..., half:], qk[..., :half]), dim=-1)
        qk = torch.addcmul(qk * cos, swapped, sin)
        return qk[:, : w.heads], qk[:, w.heads :], v

    def _rest_of_layer(self, x: Tensor, attended: Tensor, index: int, lanes: AdapterRouting) -> Tensor:
        """Output projection, MLP and both residuals; (M, hidden)."""
        w, layer = self.weights, self.weights.layers[index]
        x = lanes.add(torch.addmm(x, attended, layer.out.T), attended, index, "out")
        if layer.out_bias is not None:
            x = x + layer.out_bias
        normed = F.rms_norm(x, (w.hidden,), layer.mlp_norm, w.eps)
        gate_up = lanes.add(F.linear(normed, layer.gate_up, layer.gate_up_bias), normed, index, "gate_up")
        inner = F.silu(gate_up[:, : w.mlp]) * gate_up[:, w.mlp :]
        x = lanes.add(torch.addmm(x, inner, layer.down.T), inner, index, "down")
        return x if layer.down_bias is None else x + layer.down_bias

    def _logits(self, x: Tensor, lanes: AdapterRouting) -> Tensor:
        w = self.weights
        normed = F.rms_norm(x, (w.hidden,), w.norm, w.eps)
        return lanes.add_head(F.linear(normed, w.head), normed).float()
