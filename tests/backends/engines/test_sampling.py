"""Each row draws from its distribution, with its own seed alone."""

from __future__ import annotations

import math

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from hypothesis import (  # noqa: E402
    given,
    settings,
    strategies as st,
)

from coterie.backends.engines import filters, sampling  # noqa: E402
from coterie.backends.engines.filters import filtered_mass  # noqa: E402
from coterie.backends.engines.rows import BatchRow  # noqa: E402
from coterie.backends.engines.sampling import SamplingState  # noqa: E402
from coterie.backends.models.table import uniforms  # noqa: E402
from coterie.core.errors import SystemFault  # noqa: E402

pytestmark = pytest.mark.torch

LOGITS = torch.tensor([0.3, -1.0, 2.0, 0.0, -torch.inf, 1.0])


def row(seed=0, *, limit=1, stops=(), **more):
    return BatchRow(prompt_ids=(1,), seed=seed, limit=limit, stops=stops, **more)


def drawn(rows, logits, steps=1, by_blocks=False):
    state = SamplingState(rows, torch.device("cpu"), logits.shape[-1], by_blocks)
    state.assign_slots(np.arange(len(rows)))
    for _ in range(steps):
        state.draw(logits if logits.dim() == 2 else logits.expand(len(rows), -1))
    return state.drawn()


def chi_square(counts, expected):
    seen = expected > 0
    assert counts[~seen].sum() == 0, "a token of probability 0 was drawn"
    return float(((counts[seen] - expected[seen]) ** 2 / expected[seen]).sum()), int(seen.sum()) - 1


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"temperature": 0.6},
        {"temperature": 2.5},
        {"top_k": 3},
        {"top_p": 0.8},
        {"temperature": 1.3, "top_k": 4, "top_p": 0.9},
    ],
)
def test_draws_follow_the_distribution(more):
    count = 20_000
    rows = [row(seed, limit=10, **more) for seed in range(count // 10)]
    tokens = [token for result in drawn(rows, LOGITS, steps=10) for token in result.token_ids]
    mass = torch.softmax(LOGITS.double() / more.get("temperature", 1.0), -1)[None]
    if "top_k" in more or "top_p" in more:
        mass = filtered_mass(
            mass, torch.tensor([[more.get("top_k", 0)]]), torch.tensor([[more.get("top_p", 1.0)]])
        )
    expected = (mass / mass.sum())[0].numpy() * count
    statistic, freedom = chi_square(np.bincount(tokens, minlength=6).astype(float), expected)
    # 99.99 % quantile of chi-square (Wilson and Hilferty)
    assert statistic < freedom * (1 - 2 / (9 * freedom) + 3.72 * math.sqrt(2 / (9 * freedom))) ** 3


def test_a_token_is_where_the_distribution_function_passes_the_uniform():
    seeds = np.arange(500, dtype=np.uint64)
    tokens = [
        result.token_ids for result in drawn([row(int(seed), limit=3) for seed in seeds], LOGITS, steps=3)
    ]
    summed = torch.softmax(LOGITS.double(), -1).cumsum(-1).numpy()
    for position in range(3):
        expected = np.searchsorted(summed, uniforms(seeds, position), side="right")
        assert [token[position] for token in tokens] == expected.tolist()


def test_the_largest_uniform_draws_a_possible_token(monkeypatch):
    largest = np.nextafter(1.0, 0.0)
    monkeypatch.setattr(
        sampling, "uniforms_on", lambda seeds, _: torch.full((len(seeds),), largest, dtype=torch.float64)
    )
    logits = torch.randn(200, 64, generator=torch.Generator().manual_seed(0)).sub_(3.0)
    logits[:, -3:] = -torch.inf
    assert max(result.token_ids[0] for result in drawn([row()] * 200, logits)) == 60


@pytest.mark.parametrize("temperature", [1.0, 0.5, 0.0])
def test_logprobs_are_untruncated_at_the_sampling_temperature(temperature):
    rows = [row(seed, temperature=temperature, top_k=2, top_p=0.9) for seed in range(50)]
    expected = torch.log_softmax(LOGITS / (temperature or 1.0), -1)
    for result in drawn(rows, LOGITS):
        assert result.logprobs[0] == pytest.approx(expected[result.token_ids[0]].item(), abs=1e-6)


def test_rows_with_different_settings_do_not_disturb_one_another():
    kinds = [{}, {"temperature": 0.0}, {"top_k": 1}, {"temperature": 3.0}, {"top_p": 0.5}]
    rows = [row(seed, **kinds[seed % len(kinds)]) for seed in range(200)]
    together = drawn(rows, LOGITS)
    assert together == [drawn([row], LOGITS)[0] for row in rows]


def test_greedy_takes_the_first_of_equals():
    logits = torch.tensor([[0.0, 3.0, 1.0, 3.0], [2.0, 2.0, 2.0, 2.0]])
    assert [result.token_ids for result in drawn([row(1, temperature=0.0)] * 2, logits)] == [(1,), (0,)]


def test_top_k_one_is_greedy_and_ties_go_to_the_lower_id():
    logits = torch.tensor([[0.0, 3.0, 1.0, 3.0]]).expand(300, -1)
    assert {result.token_ids for result in drawn([row(seed, top_k=1) for seed in range(300)], logits)} == {
        (1,)
    }


@settings(deadline=None, max_examples=100)
@given(
    st.lists(st.integers(0, 100), min_size=2, max_size=12).filter(any),
    st.integers(0, 12),
    st.floats(0.01, 1.0),
)
def test_truncation_keeps_the_smallest_likeliest_set(values, top_k, top_p):
    mass = torch.tensor([values], dtype=torch.float64)
    mass = mass / mass.sum()
    kept = filtered_mass(mass, torch.tensor([[top_k]]), torch.tensor([[top_p]]))[0].numpy()
    order = sorted(range(len(values)), key=lambda index: (-mass[0, index].item(), index))
    pool = order[: top_k or len(order)]
    total, share, expected = sum(mass[0, index].item() for index in pool), 0.0, set()
    for index in pool:
        if share >= top_p * total + 1e-9:
            break
        expected.add(index)
        share += mass[0, index].item()
    positive = {index for index in expected if mass[0, index] > 0}
    found = set(np.flatnonzero(kept).tolist())
    # At the edge of top_p rounding may decide; everywhere else it is exact.
    assert found <= positive and len(positive - found) <= 1
    assert all(kept[index] == mass[0, index].item() for index in found)


def test_a_row_ends_on_its_own_stop_and_the_others_go_on():
    state = SamplingState(
        [row(limit=5, stops=(2,), temperature=0.0), row(limit=3, stops=(4, 5), temperature=0.0)],
        torch.device("cpu"),
        6,
    )
    state.assign_slots(np.array([0, 1, 2]))  # the third slot is idle
    logits = torch.eye(6)[[2, 2, 2]]
    state.draw(logits)
    assert state.live.tolist() == [False, True, False]
    state.assign_slots(np.array([1]))
    state.draw(logits[:1])
    state.draw(logits[:1])
    first, second = state.drawn()
    assert (first.token_ids, first.finish) == ((2,), "stop")
    assert (second.token_ids, second.finish) == ((2, 2, 2), "length")


def test_a_stop_token_at_the_limit_is_a_stop():
    (result,) = drawn([row(limit=1, stops=(2,), temperature=0.0)], LOGITS)
    assert (result.token_ids, result.finish) == ((2,), "stop")


def test_logits_that_are_not_numbers_are_a_system_fault():
    with pytest.raises(SystemFault, match="not finite"):
        drawn([row()], torch.full((6,), torch.nan))


# ------------------------------------------------------------- sums over blocks: GPUs, and large vocabularies


MIXED = [
    {},
    {"temperature": 0.7},
    {"temperature": 0.0},
    {"top_k": 5},
    {"top_p": 0.8},
    {"top_k": 40, "top_p": 0.9},
]


def varied(count):
    return [row(seed * 7919, **MIXED[seed % len(MIXED)]) for seed in range(count)]


def test_uniforms_on_the_device_are_bit_equal():
    seeds = np.array([0, 1, 2**63, 2**64 - 1, 0x9E3779B97F4A7C15, *range(5, 500)], dtype=np.uint64)
    for position in (0, 1, 77, 2**40):
        on_device = sampling.uniforms_on(torch.from_numpy(seeds.view(np.int64)), position)
        assert np.array_equal(on_device.numpy(), uniforms(seeds, position))


@pytest.mark.parametrize("width", [6, 511, 512, 513, 3000])
def test_the_path_of_gpus_draws_the_same_tokens(width):
    rng = np.random.default_rng(width)
    rows = varied(400)
    logits = torch.from_numpy(rng.normal(size=(400, width)).astype(np.float32)) * 3
    logits[::7] = logits[::7].bfloat16().float()  # equal probabilities at the borders of top-k
    assert [result.token_ids for result in drawn(rows, logits, by_blocks=True)] == [
        result.token_ids for result in drawn(rows, logits)
    ]
    here, there = (
        [result.logprobs[0] for result in drawn(rows, logits, by_blocks=path)] for path in (True, False)
    )
    assert here == pytest.approx(there, abs=2e-6)


def test_the_path_of_gpus_never_draws_what_has_no_probability(monkeypatch):
    logits = torch.full((1, 2000), -torch.inf)
    logits[0, [3, 700, 1999]] = torch.tensor([0.0, -30.0, 1.0])
    for uniform in (0.0, 2.0**-53, 0.2689, 0.269, 0.5, 1 - 2.0**-53):
        monkeypatch.setattr(
            sampling,
            "uniforms_on",
            lambda seeds, position, value=uniform: torch.full((1,), value).double(),
        )
        ((token,), _, _) = drawn([row()], logits, by_blocks=True)[0]
        assert token in (3, 700, 1999) and (token == 3) == (uniform < 0.26894)


@given(data=st.data())
@settings(max_examples=60, deadline=None)
def test_top_k_without_a_sort_keeps_the_same_tokens(data):
    width = data.draw(st.integers(1, 30))
    values = data.draw(
        st.lists(st.sampled_from([0.0, 0.125, 0.25, 0.5, 1.0]), min_size=width, max_size=width)
    )
    mass = torch.tensor([values])
    if float(mass.sum()) == 0:
        mass[0, 0] = 1.0
    mass = mass / mass.sum()
    top_k, top_p = data.draw(st.integers(1, 40)), data.draw(st.sampled_from([0.1, 0.5, 0.9, 1.0]))
    arguments = torch.tensor([[top_k]]), torch.tensor([[top_p]], dtype=torch.float64)
    kept = filters.top_mass(mass, *arguments, min(top_k, width))
    assert torch.equal(kept, filtered_mass(mass, *arguments))


@given(data=st.data())
@settings(max_examples=100, deadline=None)
def test_top_p_sorts_only_rows_that_keep_many_tokens_and_keeps_the_same_tokens(data):
    width, count = data.draw(st.integers(1, 30)), data.draw(st.integers(1, 4))
    weights = st.lists(st.sampled_from([0.0, 0.125, 0.25, 0.5, 1.0]), min_size=width, max_size=width)
    mass = torch.tensor([data.draw(weights) for _ in range(count)])
    mass[mass.sum(dim=1) == 0, -1] = 1.0
    mass = mass / mass.sum(dim=1, keepdim=True)
    top_k = torch.tensor([[data.draw(st.integers(0, 40))] for _ in range(count)])
    top_p = torch.tensor([[data.draw(st.sampled_from([0.1, 0.5, 0.9, 1.0]))] for _ in range(count)])
    kept = filters.likeliest_mass(mass, top_k, top_p, most=data.draw(st.integers(1, 8)))
    assert torch.equal(kept, filtered_mass(mass, top_k, top_p))


WIDE = sampling.MOST_EXACT + 1


@pytest.mark.parametrize("width", [WIDE, 49_152, 151_936])
def test_a_row_of_a_large_vocabulary_draws_the_same_in_every_batch(width):
    """Tokens, and log-probs to the last bit, whatever rows are beside it."""
    rows = varied(13)
    logits = 3 * torch.randn(13, width, generator=torch.Generator().manual_seed(2))
    together = drawn(rows, logits, by_blocks=None)
    for index in (0, 1, 5, 12):
        assert drawn([rows[index]], logits[index : index + 1], by_blocks=None) == [together[index]]
    some = [7, 3, 11]
    assert drawn([rows[i] for i in some], logits[some], by_blocks=None) == [together[i] for i in some]


def test_draws_of_a_large_vocabulary_are_where_the_distribution_function_passes_the_uniform():
    rows = [row(seed) for seed in range(40)]
    logits = 2 * torch.randn(40, 49_152, generator=torch.Generator().manual_seed(3))
    results = drawn(rows, logits, by_blocks=None)
    exact = torch.log_softmax(logits.double(), -1)
    summed = exact.exp().cumsum(-1).numpy()
    for index, uniform in enumerate(uniforms(np.arange(40, dtype=np.uint64), 0)):
        (token,), (logprob,), _ = results[index]
        before = summed[index, token - 1] if token else 0.0
        assert before - 1e-6 <= uniform <= summed[index, token] + 1e-6
        assert logprob == pytest.approx(exact[index, token].item(), abs=2e-6)


@pytest.mark.parametrize(("width", "exact"), [(sampling.MOST_EXACT, True), (WIDE, False)])
def test_small_vocabularies_are_summed_as_integers(monkeypatch, width, exact):
    monkeypatch.setattr(sampling, "draw_by_blocks", lambda *_: pytest.fail("sums over blocks"))
    draw = lambda: drawn([row()], torch.zeros(width), by_blocks=None)  # noqa: E731
    if exact:
        draw()
    else:
        with pytest.raises(pytest.fail.Exception, match="over blocks"):
            draw()


def test_parts_of_rows_bound_the_temporaries_and_change_nothing(monkeypatch):
    rows, width = varied(50), 1000
    logits = torch.randn(50, width, generator=torch.Generator().manual_seed(1))
    state = SamplingState(rows, torch.device("cpu"), 1000, by_blocks=True)
    state.assign_slots(np.arange(50))
    whole = sampling.draw_by_blocks(logits, state.settings, 0)
    largest = 0
    original = torch.exp

    def watched(part, *, out):
        nonlocal largest
        largest = max(largest, part.numel())
        return original(part, out=out)

    monkeypatch.setattr(torch, "exp", watched)
    parts = sampling.draw_by_blocks(logits, state.settings, 0, chunk=7 * width)
    assert largest == 7 * width
    assert all(torch.equal(first, second) for first, second in zip(whole, parts, strict=True))


def test_one_wait_a_token(monkeypatch):
    """Copies to the host are what waits for a device; nothing else of a draw may read a value."""
    waits = []
    for name in ("cpu", "item", "tolist", "numpy", "__bool__", "__int__", "__float__", "nonzero"):
        original = getattr(torch.Tensor, name)

        def counted(self, *args, name=name, original=original, **more):
            waits.append(name)
            return original(self, *args, **more)

        monkeypatch.setattr(torch.Tensor, name, counted)
    monkeypatch.setattr(sampling, "likeliest_mass", filtered_mass)  # the former: on CPUs alone
    state = SamplingState(varied(30), torch.device("cpu"), 1000, by_blocks=True)
    state.assign_slots(np.arange(30))
    state.draw(torch.zeros(30, 700))
    waits.clear()
    state.draw(torch.zeros(30, 700))
    assert waits == ["cpu", "numpy"]  # one copy of the tokens
