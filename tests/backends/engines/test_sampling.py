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

from coterie.backends.engines import sampling  # noqa: E402
from coterie.backends.engines.rows import Row  # noqa: E402
from coterie.backends.engines.sampling import SamplingState, filtered_mass  # noqa: E402
from coterie.backends.models.uniforms import uniforms  # noqa: E402
from coterie.core.errors import SystemFault  # noqa: E402

pytestmark = pytest.mark.torch

LOGITS = torch.tensor([0.3, -1.0, 2.0, 0.0, -torch.inf, 1.0])


def row(seed=0, *, limit=1, stops=(), **more):
    return Row(prompt_ids=(1,), seed=seed, limit=limit, stops=stops, **more)


def drawn(rows, logits, steps=1):
    state = SamplingState(rows, torch.device("cpu"))
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
    tokens = [result.token_ids[0] for result in drawn([row(seed, **more) for seed in range(count)], LOGITS)]
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
    monkeypatch.setattr(sampling, "uniforms", lambda seeds, position: np.full(len(seeds), largest))
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
