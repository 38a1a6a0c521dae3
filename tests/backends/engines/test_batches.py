"""Batches are bounded by rows and by bytes of keys and values, and halved where memory runs out."""

from __future__ import annotations

import gc
import logging
import subprocess
import sys
import textwrap
import weakref
from types import SimpleNamespace

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from coterie.backends.engines import batches  # noqa: E402
from coterie.backends.engines.batches import (  # noqa: E402
    BatchBound,
    BatchShape,
    KvCost,
    generate,
    kv_limit,
    memory_of,
    shape_of,
    split,
)
from coterie.backends.engines.hf import HFEngine  # noqa: E402
from coterie.backends.engines.lean.cache import Bucket, CacheShape, Costs, repack  # noqa: E402
from coterie.backends.engines.lean.decode import LeanDecoder  # noqa: E402
from coterie.backends.engines.rows import BatchRow, DecoderCounts, Drawn  # noqa: E402
from coterie.backends.models.devices import is_out_of_memory, reason  # noqa: E402
from coterie.backends.models.memory import batch_of  # noqa: E402
from coterie.backends.models.merged_weights import MergedWeights  # noqa: E402
from coterie.core.errors import UserError  # noqa: E402
from tests.backends.engines.support import request, rows, tiny  # noqa: E402

pytestmark = pytest.mark.torch

GB = 10**9
GPU = SimpleNamespace(type="cuda")


def asked(prompts, branches, *, prompt=10, answer=20):
    """Requests and rows of decisions with equal siblings."""
    requests, made = [], []
    for index in range(prompts):
        ids = (index + 2, *[5] * (prompt - 1))
        for branch in range(branches):
            requests.append(request(ids, branch=branch, task=f"t{index}"))
            made.append(BatchRow(prompt_ids=ids, seed=index * 100 + branch, limit=answer, stops=()))
    return requests, made


def sizes(requests, made, bound):
    parts = split(requests, made, bound)
    assert [index for part in parts for index in part] == list(range(len(requests)))
    return [len(part) for part in parts]


# ---------------------------------------------------------------------------------------------- bytes


def test_a_batch_holds_as_many_decisions_as_its_bytes():
    requests, made = asked(10, 4)  # a decision: 10 + 4 * 20 tokens, of 3 bytes each
    assert sizes(requests, made, BatchBound(512, 270, KvCost(3, True))) == [4] * 10
    assert sizes(requests, made, BatchBound(512, 3 * 270 - 1, KvCost(3, True))) == [8] * 5
    assert sizes(requests, made, BatchBound(512, 3 * 270, KvCost(3, True))) == [12, 12, 12, 4]
    assert sizes(requests, made, BatchBound(8, 10**9, KvCost(3, True))) == [8] * 5
    # Without shared prompts a decision is 4 * (10 + 20) tokens.
    assert sizes(requests, made, BatchBound(512, 3 * 360, KvCost(3, False))) == [12, 12, 12, 4]
    assert sizes(requests, made, BatchBound(512, 3 * 360 - 1, KvCost(3, False))) == [8] * 5


def test_a_decision_that_does_not_fit_is_divided_and_a_row_never():
    requests, made = asked(3, 4)
    assert sizes(requests, made, BatchBound(512, 3 * (10 + 3 * 20), KvCost(3, True))) == [3, 1] * 3
    assert sizes(requests, made, BatchBound(512, 3 * (10 + 20), KvCost(3, True))) == [1] * 12
    assert sizes(requests, made, BatchBound(512, 1, KvCost(3, True))) == [1] * 12
    # What is left of a divided decision leaves room for the next one.
    first, other = asked(1, 3), asked(2, 1)
    requests, made = [*first[0], *other[0][1:]], [*first[1], *other[1][1:]]
    assert sizes(requests, made, BatchBound(2)) == [2, 2]


def test_long_prompts_count_for_every_prompt_beside_them():
    requests, made = asked(2, 2)
    _, rows_of_longer = asked(1, 2, prompt=100)
    requests = [*requests, *[request(row.prompt_ids, task="long") for row in rows_of_longer]]
    bound = BatchBound(512, 10**6, KvCost(1, True))
    size = shape_of([*made, *rows_of_longer])
    assert size == BatchShape(3, 100, 6, 20) and bound.bytes_of(size) == 3 * 100 + 6 * 20
    assert sizes(
        requests, [*made, *rows_of_longer], BatchBound(512, 3 * 100 + 6 * 20 - 1, KvCost(1, True))
    ) == [
        4,
        2,
    ]


@pytest.mark.parametrize("limit", [1, 60, 90, 91, 179, 180, 500, 10**6])
@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize(("decisions", "branches", "most"), [(10, 4, 512), (5, 1, 512), (3, 8, 6), (7, 4, 9)])
def test_the_plan_counts_the_batches_that_the_engine_makes(decisions, branches, most, shared, limit):
    requests, made = asked(decisions, branches)
    bound = BatchBound(most, limit, KvCost(1, shared))
    largest = max(
        bound.bytes_of(shape_of([made[index] for index in part])) for part in split(requests, made, bound)
    )
    planned = batch_of(
        decisions,
        branches,
        most,
        lambda prompts, rows: bound.bytes_of(BatchShape(prompts, 10, rows, 20)),
        limit,
    )
    assert bound.bytes_of(BatchShape(planned[0], 10, planned[1], 20)) == largest


def test_the_bound_follows_the_device(monkeypatch):
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (40 * GB, 80 * GB))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: 30 * GB)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: 20 * GB)
    memory = memory_of(GPU)
    assert memory == (50 * GB, 80 * GB), "what PyTorch keeps and doesn't use is free"
    assert kv_limit("auto", memory, repeats=False) == pytest.approx(0.7 * 50 * GB)
    assert kv_limit("auto", memory, repeats=False, staying=10 * GB) == pytest.approx(0.7 * 40 * GB)
    assert kv_limit("auto", memory, repeats=True) == 20 * GB, "the free memory differs from run to run"
    for device in (torch.device("cpu"), torch.device("meta")):
        assert kv_limit("auto", memory_of(device), repeats=True) == 32 * 2**30
    assert kv_limit(5 * GB, memory, repeats=False) == 5 * GB


def test_the_setting_is_a_size():
    assert HFEngine.Config.model_validate({"kv_memory": "8GB"}).kv_memory == 8 * GB
    assert HFEngine.Config.model_validate({"kv_memory": 1024}).kv_memory == 1024
    for wrong in ("many", 0):
        with pytest.raises(ValueError, match="kv_memory"):
            HFEngine.Config.model_validate({"kv_memory": wrong})


def held(buckets):
    """Bytes of the caches of these buckets."""
    return sum(
        tensor.untyped_storage().nbytes()
        for bucket in buckets
        for layers in (bucket.keys, bucket.values, bucket.own_keys, bucket.own_values)
        for tensor in layers
    )


@pytest.mark.parametrize("exact", [True, False])
def test_a_batch_allocates_what_its_bound_counts(exact, monkeypatch):
    """At every step; with room for all tokens at once, and while rows move to smaller buckets."""
    model = tiny()
    batch = rows([(30, 4)] * 6, limit=40, stops=tuple(range(2, 12)))
    decoder = LeanDecoder(MergedWeights(model), torch.float32)
    decoder.exact = exact
    decoder.costs = Costs(key=1e-3, bucket=0.1)
    buckets, peak = weakref.WeakSet(), 0
    make, step = Bucket.__init__, LeanDecoder.step

    def made(self, *args, **more):
        buckets.add(self)
        make(self, *args, **more)

    def watched(self, *args):
        nonlocal peak
        result = step(self, *args)
        peak = max(peak, held(buckets))
        return result

    monkeypatch.setattr(Bucket, "__init__", made)
    monkeypatch.setattr(LeanDecoder, "step", watched)
    drawn = decoder.generate(batch)
    assert decoder.counts.slots < 0.7 * len(batch) * decoder.counts.steps, "rows should have moved"
    token = 2 * 2 * 2 * 12 * 4  # keys and values, layers, heads, width, bytes
    bound = BatchBound(512, cost=KvCost(token, True)).bytes_of(shape_of(batch))
    assert peak == bound if exact else peak <= bound
    monkeypatch.undo()
    plain = LeanDecoder(MergedWeights(model), torch.float32).generate(batch)
    assert [result.token_ids for result in plain] == [result.token_ids for result in drawn]


def test_moving_rows_holds_one_layer_twice_at_most(monkeypatch):
    shape = CacheShape(8, 2, 4, torch.float32, torch.device("cpu"))
    groups = [(10, np.arange(0, 4)), (10, np.arange(4, 8))]
    old = [Bucket(groups, 8, shape)]
    old[0].reserve(64, 64)
    new = [Bucket([(length, members[:2]) for length, members in groups], 8, shape, empty=True)]
    whole, peak, take = held(old), 0, Bucket.take

    def watched(self, *args):
        nonlocal peak
        peak = max(peak, held([*old, *new]))
        take(self, *args)

    monkeypatch.setattr(Bucket, "take", watched)
    repack(new, old, 64)
    assert held(old) == 0 and held(new) < whole
    assert whole < peak <= whole + held(new) / 8


# ------------------------------------------------------------------------------------------ out of memory


def test_the_reason_of_a_memory_error_ends_with_the_bytes_that_are_free():
    """An H100's message goes on for 700 characters."""
    text = (
        "CUDA out of memory. Tried to allocate 1.16 GiB. GPU 0 has a total capacity of 79.18 GiB of which "
        "69.89 GiB is free. Process 455 has 4.39 GiB memory in use. 8.38 GiB allowed; Of the allocated memory"
    )
    assert reason(torch.OutOfMemoryError(text)).endswith("of which 69.89 GiB is free")
    assert reason(torch.OutOfMemoryError("CUDA out of memory.\nMore.")) == "CUDA out of memory."
    assert reason(MemoryError()) == "MemoryError"


class Faulty:
    """A decoder whose memory holds `most` rows; a row's tokens are its seed's digits."""

    def __init__(self, most, error=None):
        self.most, self.counts, self.batches = most, DecoderCounts(), []
        self.error = error or torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.\nMore.")

    def generate(self, rows):
        self.batches.append(len(rows))
        if len(rows) > self.most:
            raise self.error
        return [Drawn((row.seed,), (0.0,), "length") for row in rows]


def run(decoder, requests, made, halved=lambda size: None):
    return generate(decoder, requests, made, BatchBound(512, cost=KvCost(1, True)), halved)


def test_a_batch_out_of_memory_is_halved_and_the_answers_keep_their_order(caplog):
    requests, made = asked(6, 4)
    decoder, sizes_seen = Faulty(most=7), []
    with caplog.at_level(logging.WARNING, logger="coterie"):
        drawn = run(decoder, requests, made, halved=sizes_seen.append)
    assert [result.token_ids[0] for result in drawn] == [row.seed for row in made]
    assert decoder.batches == [24, 12, 4, 4, 4, 12, 4, 4, 4], "siblings stay together"
    assert decoder.counts.halved == len(sizes_seen) == sum(size > 7 for size in decoder.batches)
    assert sizes_seen[0] == 6 * 10 + 24 * 20
    first = caplog.records[0].getMessage()
    assert "24 rows" in first and "1st time" in first and "Tried to allocate 2.00 GiB" in first
    assert "engine.kv_memory" in first


def test_a_decision_out_of_memory_is_divided_too():
    requests, made = asked(1, 8)
    decoder = Faulty(most=3)
    assert [result.token_ids[0] for result in run(decoder, requests, made)] == [row.seed for row in made]
    assert decoder.batches == [8, 4, 2, 2, 4, 2, 2]


def test_a_row_out_of_memory_alone_ends_the_run_with_what_to_lower():
    requests, made = asked(2, 1)
    with pytest.raises(UserError, match="one answer of policy 'p' does not fit in memory") as caught:
        run(Faulty(most=0), requests, made)
    assert "10 tokens of prompt and up to 20 new" in caught.value.why
    assert "policies.p.context" in caught.value.fix


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (torch.OutOfMemoryError("CUDA out of memory."), True),
        (RuntimeError("CUDA error: out of memory"), True),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"), True),
        (
            RuntimeError(
                "[enforce fail at alloc_cpu.cpp:119] err == 0. DefaultCPUAllocator: can't allocate memory: "
                "you tried to allocate 8 bytes. Error code 12 (Cannot allocate memory)"
            ),
            True,
        ),
        (MemoryError(), True),
        (RuntimeError("mat1 and mat2 shapes cannot be multiplied"), False),
        (ValueError("out of memory"), False),
    ],
)
def test_only_out_of_memory_halves_a_batch(error, expected):
    assert is_out_of_memory(error) is expected
    requests, made = asked(2, 2)
    if expected:
        assert len(run(Faulty(2, error), requests, made)) == 4
    else:
        with pytest.raises(type(error)):
            run(Faulty(2, error), requests, made)


def test_the_caches_are_freed_before_the_halves(monkeypatch):
    model = tiny()
    decoder = LeanDecoder(MergedWeights(model), torch.float32)
    alive = []
    original = LeanDecoder.step

    def failing(self, buckets, tokens, filled, most):
        if filled == 3 and len(tokens) > 4:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return original(self, buckets, tokens, filled, most)

    def released():
        gc.collect()
        alive.append(sum(type(thing) is Bucket for thing in gc.get_objects()))

    monkeypatch.setattr(LeanDecoder, "step", failing)
    monkeypatch.setattr(batches, "release", released)
    requests, made = asked(4, 2, answer=12)
    drawn = run(decoder, requests, made)
    assert alive and set(alive) == {0}
    monkeypatch.undo()
    whole = LeanDecoder(MergedWeights(model), torch.float32).generate(made)
    assert [result.token_ids for result in drawn] == [result.token_ids for result in whole]


@pytest.mark.long
def test_a_real_allocation_that_fails_halves_the_batch():
    """The address space is limited while the process generates: what fails is the CPU's allocator."""
    script = """
        import dataclasses, logging, resource, sys
        logging.basicConfig(level=logging.WARNING, stream=sys.stdout, format="%(message)s")
        from tests.backends.engines.test_batches import *

        decoder = LeanDecoder(MergedWeights(tiny(max_position_embeddings=8192)), torch.float32)
        decoder.exact = True  # room for all tokens at once: 32 rows of 4,000 tokens take 49 MB
        requests, made = asked(8, 4, prompt=20, answer=4000)
        made = [dataclasses.replace(row, stops=tuple(range(2, 20))) for row in made]
        expected = [drawn.token_ids for drawn in decoder.generate(made)]
        taken = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (taken + 30 * 2**20, resource.RLIM_INFINITY))
        bound = Bound(512, cost=KvCost(2 * 2 * 2 * 12 * 4, True))
        drawn = generate(decoder, requests, made, bound, lambda size: None)
        print(decoder.counts.halved, [result.token_ids for result in drawn] == expected)
    """
    command = [sys.executable, "-c", textwrap.dedent(script)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    halved, same = done.stdout.strip().splitlines()[-1].split()
    assert int(halved) >= 1 and same == "True", done.stdout
    assert "allocate memory" in done.stdout and "32 rows with up to 0.05 GB" in done.stdout
