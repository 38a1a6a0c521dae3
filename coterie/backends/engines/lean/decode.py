"""A lean decoder for Llama-like models: static caches, one prefill per distinct prompt, few kernels.

Rows that share a prompt (the branches of a decision) attend to one copy of its keys and values; their queries
are the rows of one matrix product. Each row has its own keys for the completion. One softmax covers both
parts, so the result equals ordinary attention to within rounding. A batch may mix rows of several LoRA
adapters: the base's products are computed for all rows, each adapter's part for the adapter's rows only.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from coterie.backends.engines.lean.adapters import AdapterRouting, LeanAdapter
from coterie.backends.engines.lean.cache import Bucket, CacheShape, Costs, Group, plan, repack, surviving
from coterie.backends.engines.lean.weights import LeanWeights, attend, cache_dtype, product
from coterie.backends.engines.rows import MERGED_NUMBERS, BatchRow, DecoderCounts, Drawn, siblings
from coterie.backends.engines.sampling import SamplingState
from coterie.backends.models.merged_weights import MergedWeights

_KERNEL_FLOPS = 3e6
"""Floating-point operations of a CPU core in the time of one bucket's extra kernels, per layer (measured)."""


class LeanDecoder:
    """Draws from a copy of the weights.

    Args:
        dense: the model, with its adapter if it has one.
        dtype: of the copy and of the computation. Scores and softmax of attention are float32, and so are
            log-probs.
    """

    def __init__(self, merged: MergedWeights, dtype: torch.dtype) -> None:
        self.weights = LeanWeights(merged, dtype)
        self.counts = DecoderCounts()
        self.adapters: dict[str | None, LeanAdapter | None] = {None: None}
        """By name; those that are kept apart from the base."""
        self._occupied = 0
        w = self.weights
        width = w.heads * w.head_dim
        linear = 2.0 * w.hidden * (2 * width + 2 * w.kv_heads * w.head_dim + 3 * w.mlp)
        on_cpu = w.device.type == "cpu"
        # On a GPU a few more rows cost no time, and kernel launches are slow.
        self.costs = Costs(key=4.0 * width / linear, bucket=_KERNEL_FLOPS / linear if on_cpu else 64.0)
        self._chunk = 2048 if on_cpu else 16384
        self.turned = on_cpu and (dtype != torch.float32 or merged.base_numbers > MERGED_NUMBERS)
        """See `CacheShape.turned`."""
        self.exact = not on_cpu
        """Whether rows get room for all of their tokens at once, as the bound of a batch counts them."""

    def refresh(self, weights: MergedWeights) -> None:
        self.weights.refresh(weights)

    def adapt(self, adapter: str, weights: MergedWeights) -> None:
        self.adapters[adapter] = LeanAdapter(weights, self.weights)

    @torch.inference_mode()
    def generate(self, rows: Sequence[BatchRow]) -> list[Drawn]:
        """Draw for all rows together; rows with the same prompt and adapter share a prefill."""
        if not rows:
            return []
        state = SamplingState(rows, self.weights.device, len(self.weights.head))
        buckets, logits = self.begin(rows, state)
        most = max(row.limit for row in rows)
        while True:
            tokens = state.draw(logits)
            live = state.live
            if not live.any():
                return state.drawn()
            if live.sum() < 0.9 * self._occupied:
                self._occupied = int(live.sum())
                buckets, tokens = self._compacted(buckets, state, tokens)
            logits = self.step(buckets, tokens, state.position - 1, most)

    def begin(self, rows: Sequence[BatchRow], state: SamplingState) -> tuple[list[Bucket], Tensor]:
        """Fill the caches of the prompts; the buckets, and logits after the prompts by slot, shape (N, V)."""
        names = list(dict.fromkeys(row.adapter for row in rows))
        self._present = [self.adapters[name] for name in names]
        self._routes = np.array([names.index(row.adapter) for row in rows])
        groups = [(len(rows[members[0]].prompt_ids), members) for members in siblings(rows)]
        longest = max(length for length, _ in groups)
        most = max(row.limit for row in rows)
        self._cos, self._sin = self.weights.rotary(longest + most)
        w = self.weights
        self._cache = CacheShape(
            len(w.layers),
            w.kv_heads,
            w.head_dim,
            cache_dtype(w.dtype, w.device),
            w.device,
            most if self.exact else None,
            turned=self.turned,
        )
        buckets = self._in_buckets(groups, state)
        return buckets, torch.cat([self._prefill(bucket, rows) for bucket in buckets])

    # ------------------------------------------------------------------------------------ slots

    def _in_buckets(
        self, groups: Sequence[Group], state: SamplingState, *, empty: bool = False
    ) -> list[Bucket]:
        w = self.weights

        def route(index: int) -> int:
            return int(self._routes[groups[index][1][0]])

        buckets = [
            Bucket(
                # Sorted: rows of one adapter then form few runs.
                [groups[index] for index in sorted(indices, key=route)],
                state.idle,
                self._cache,
                empty=empty,
            )
            for indices in plan(groups, self.costs)
        ]
        slots = np.concatenate([bucket.slots.reshape(-1) for bucket in buckets])
        prompt_lengths = [np.repeat(bucket.lengths, bucket.slots.shape[1]) for bucket in buckets]
        self._prompt_lengths = torch.from_numpy(np.concatenate(prompt_lengths)).to(w.device)
        self._occupied = int((slots != state.idle).sum())
        # An idle slot has its siblings' adapter, so that it does not interrupt their run.
        self._slot_routing = self._routing_of(
            np.concatenate([np.repeat(bucket.slots[:, 0], bucket.slots.shape[1]) for bucket in buckets])
        )
        state.assign_slots(slots)
        return buckets

    def _compacted(
        self, buckets: list[Bucket], state: SamplingState, tokens: Tensor
    ) -> tuple[list[Bucket], Tensor]:
        """Close the slots of finished rows if that saves at least a quarter of a step's cost."""
        groups = surviving(buckets, state.alive)
        present_cost = sum(self.costs.of(*bucket.slots.shape, bucket.longest) for bucket in buckets)
        parts = [[groups[index] for index in indices] for indices in plan(groups, self.costs)]
        compacted_cost = sum(
            self.costs.of(len(part), max(len(rows) for _, rows in part), max(n for n, _ in part))
            for part in parts
        )
        if compacted_cost > 0.75 * present_cost:
            return buckets, tokens
        old_slots = np.concatenate([bucket.slots.reshape(-1) for bucket in buckets])
        compacted = self._in_buckets(groups, state, empty=True)
        repack(compacted, buckets, state.position - 1)  # the last drawn token is not cached yet
        old_places = np.zeros(state.idle + 1, dtype=np.int64)
        old_places[old_slots] = np.arange(len(old_slots))
        old_places[state.idle] = 0  # the token of an idle slot has no effect
        new_slots = np.concatenate([bucket.slots.reshape(-1) for bucket in compacted])
        return compacted, tokens[torch.from_numpy(old_places[new_slots]).to(tokens.device)]

    # ------------------------------------------------------------------------------------------- prefill

    def _prefill(self, bucket: Bucket, rows: Sequence[BatchRow]) -> Tensor:
        """Fill the bucket's prompt caches; logits after the prompts by slot, shape (G * K, V)."""
        order = np.argsort(bucket.lengths, kind="stable")
        last = torch.empty(
            len(order), self.weights.hidden, dtype=self.weights.dtype, device=self.weights.device
        )
        start = 0
        while start < len(order):
            stop = self._chunk_end(bucket.lengths[order], start)
            chosen = order[start:stop]
            chosen = chosen[np.argsort(self._routes[bucket.slots[chosen, 0]], kind="stable")]
            prompts = [rows[bucket.slots[group, 0]].prompt_ids for group in chosen]
            last[torch.from_numpy(chosen).to(last.device)] = self._prefill_chunk(bucket, chosen, prompts)
            start = stop
        self.counts.prompts += len(order)
        self.counts.prompt_tokens += int(bucket.lengths.sum())
        logits = self._logits(last, self._routing_of(bucket.slots[:, 0]))
        return logits.repeat_interleave(bucket.slots.shape[1], dim=0)

    def _chunk_end(self, lengths: np.ndarray, start: int) -> int:
        """The end of the chunk from `start` on, which limits its size and its share of padding.

        Args:
            lengths: ascending.
        """
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
        """Fill the chunk's prompt caches; the last hidden state of each prompt, shape (groups, hidden).

        Padding is on the right: causal attention of real tokens never reaches it.
        """
        w = self.weights
        lengths = np.array([len(prompt) for prompt in prompts])
        count, longest = len(prompts), int(lengths.max())
        ids = np.zeros((count, longest), dtype=np.int64)
        for index, prompt in enumerate(prompts):
            ids[index, : len(prompt)] = prompt
        x = F.embedding(torch.from_numpy(ids).to(w.device).view(-1), w.embedding)
        cos, sin = (table[:longest].repeat(count, 1)[:, None] for table in (self._cos, self._sin))
        groups = torch.from_numpy(chosen).to(w.device)
        routing = self._routing_of(np.repeat(bucket.slots[chosen, 0], longest))
        for index in range(len(w.layers)):
            q, k, v = (
                part.reshape(count, longest, -1, w.head_dim).transpose(1, 2)
                for part in self._heads(x, index, cos, sin, routing)
            )
            bucket.keys[index][groups, :, :longest] = k.to(bucket.shape.dtype)
            bucket.values[index][groups, :, :longest] = v.to(bucket.shape.dtype)
            k, v = self._repeated(k), self._repeated(v)
            attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            attended = attended.transpose(1, 2).reshape(count * longest, -1)
            x = self._rest_of_layer(x, attended, index, routing)
        ends = torch.from_numpy(np.arange(count) * longest + lengths - 1).to(w.device)
        return x[ends]

    def _repeated(self, x: Tensor) -> Tensor:
        """Key/value heads, repeated per query head: (B, kv_heads, S, D) -> (B, heads, S, D)."""
        times = self.weights.heads // self.weights.kv_heads
        return x if times == 1 else x.repeat_interleave(times, dim=1)

    # -------------------------------------------------------------------------------------------- decode

    def step(self, buckets: list[Bucket], tokens: Tensor, filled: int, most: int) -> Tensor:
        """Logits after `tokens` (N,), each row's `filled`-th drawn token; shape (N, V)."""
        w = self.weights
        for bucket in buckets:
            bucket.reserve(filled + 1, most)
        x = F.embedding(tokens, w.embedding)
        positions = self._prompt_lengths + filled
        cos, sin = self._cos[positions][:, None], self._sin[positions][:, None]
        ends = np.cumsum([bucket.slots.size for bucket in buckets]).tolist()
        for index in range(len(w.layers)):
            q, k, v = self._heads(x, index, cos, sin, self._slot_routing)
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
            x = self._rest_of_layer(x, attended, index, self._slot_routing)
        self.counts.steps += 1
        self.counts.slots += len(tokens)
        return self._logits(x, self._slot_routing)

    def _attend(self, bucket: Bucket, index: int, filled: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Attention of one bucket's slots to their prompt and their drawn tokens; (G * K, heads * head_dim).

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
        own_keys = own_keys.flatten(0, 2)[:, :total]  # (G h K, T, D)
        own_values = own_values.flatten(0, 2)[:, :total]
        keys = bucket.keys[index].view(groups * heads, -1, width)  # (G h, P, D)
        values = bucket.values[index].view(groups * heads, -1, width)
        length = keys.shape[1]
        q = q.view(groups, each, heads, times, width).transpose(1, 2).reshape(groups * heads, -1, width)
        q = q.to(keys.dtype)
        if keys.dtype != torch.float32:
            output = attend(q, keys, values, own_keys, own_values, bucket.mask)
            output = output.view(groups, heads, each, times * width).transpose(1, 2)
            return output.reshape(groups * each, heads * times * width)
        scale = width**-0.5
        if bucket.mask is None:
            prompt_scores = torch.baddbmm(q[:1, :1, :1], q, keys.transpose(1, 2), beta=0.0, alpha=scale)
        else:
            prompt_scores = torch.baddbmm(bucket.mask, q, keys.transpose(1, 2), alpha=scale)
        own_q = q.reshape(-1, times, width)
        own_scores = torch.baddbmm(q[:1, :1, :1], own_q, own_keys.transpose(1, 2), beta=0.0, alpha=scale)
        scores = torch.cat((prompt_scores, own_scores.view(groups * heads, each * times, total)), dim=-1)
        share = torch.softmax(scores, dim=-1)  # (G h, K R, P + T)
        output = torch.bmm(share[..., :length], values).view(-1, times, width)
        output = torch.baddbmm(output, share[..., length:].reshape(-1, times, total), own_values)
        output = output.view(groups, heads, each, times * width).transpose(1, 2)
        return output.reshape(groups * each, heads * times * width).to(w.dtype)

    # ------------------------------------------------------------------------------- prefill and decode

    def _routing_of(self, rows: np.ndarray) -> AdapterRouting:
        """The adapters of a product whose rows belong to these rows of the batch."""
        return AdapterRouting(self._routes[rows], self._present)

    def _heads(
        self, x: Tensor, index: int, cos: Tensor, sin: Tensor, routing: AdapterRouting
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Rotated queries (M, heads, D), rotated keys and values (M, kv_heads, D) of M tokens."""
        w, layer = self.weights, self.weights.layers[index]
        normed = F.rms_norm(x, (w.hidden,), layer.norm, w.eps)
        fused = routing.add(F.linear(normed, layer.qkv, layer.qkv_bias), normed, index, "qkv")
        fused = fused.view(len(x), -1, w.head_dim)
        rotated = w.heads + w.kv_heads
        qk, v = fused[:, :rotated], fused[:, rotated:]
        if layer.qk_norm is not None:
            qk = F.rms_norm(qk, (w.head_dim,), None, w.eps) * layer.qk_norm
        half = w.head_dim // 2
        swapped = torch.cat((qk[..., half:], qk[..., :half]), dim=-1)
        qk = torch.addcmul(qk * cos, swapped, sin)
        return qk[:, : w.heads], qk[:, w.heads :], v

    def _rest_of_layer(self, x: Tensor, attended: Tensor, index: int, routing: AdapterRouting) -> Tensor:
        """Output projection, MLP and both residuals; (M, hidden)."""
        w, layer = self.weights, self.weights.layers[index]
        x = routing.add(torch.addmm(x, attended, layer.out.T), attended, index, "out")
        if layer.out_bias is not None:
            x = x + layer.out_bias
        normed = F.rms_norm(x, (w.hidden,), layer.mlp_norm, w.eps)
        gate_up = routing.add(F.linear(normed, layer.gate_up, layer.gate_up_bias), normed, index, "gate_up")
        inner = F.silu(gate_up[:, : w.mlp]) * gate_up[:, w.mlp :]
        x = routing.add(torch.addmm(x, inner, layer.down.T), inner, index, "down")
        return x if layer.down_bias is None else x + layer.down_bias

    def _logits(self, x: Tensor, routing: AdapterRouting) -> Tensor:
        w = self.weights
        normed = F.rms_norm(x, (w.hidden,), w.norm, w.eps)
        if w.dtype != torch.float32 and w.device.type == "cuda":
            logits = product(normed, w.head.T)  # on a CPU, a float32 copy of the head would be read each time
        else:
            logits = F.linear(normed, w.head)
        return routing.add_head(logits, normed)
