"""Packing: which tokens go where, and how forwards are filled."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from coterie.backends.trainers.packing import pack, pad, parts, plan
from tests.backends.trainers.tiny import sample, samples


def row(prompt: list[int], own: list[int], mask: list[int], branch: int = 0):
    return sample("p", "t", branch, prompt, own, [bool(m) for m in mask])


def test_a_shared_prompt_is_there_once_and_last_tokens_are_not_read() -> None:
    rows = [row([5, 6, 7], [8, 9], [1, 1]), row([5, 6, 7], [4], [1], 1), row([3], [8, 9, 4], [1, 0, 1], 2)]
    packed = pack(rows)
    #                                     prompt A  prompt B  A0  (A1 reads nothing)  B0
    np.testing.assert_array_equal(packed.ids, [[5, 6, 7, 3, 8, 8, 9]])
    np.testing.assert_array_equal(packed.positions, [[0, 1, 2, 0, 3, 1, 2]])
    np.testing.assert_array_equal(packed.targets, [8, 9, 4, 8, 4])
    np.testing.assert_array_equal(packed.select, [2, 4, 2, 3, 6])


def test_tokens_after_the_last_trained_one_are_cut() -> None:
    parts_of_row = parts(row([5, 6], [7, 8, 9], [1, 0, 0]))
    assert (len(parts_of_row.prompt), len(parts_of_row.completion)) == (2, 0)


def test_prompts_are_shared_by_content_alone() -> None:
    first = sample("p", "chain-0", 0, [5, 6, 7], [8, 9], [True, True])
    second = sample("p", "chain-1", 0, [5, 6, 7], [9, 9], [True, True])
    assert pack([first, second]).ids.shape == (1, 5)


def test_padded_rows_hold_the_same_tokens() -> None:
    rows = [row([5, 6, 7], [8, 9], [1, 1]), row([3], [8], [1], 1)]
    padded = pad(rows)
    np.testing.assert_array_equal(padded.ids, [[5, 6, 7, 8], [3, 0, 0, 0]])
    np.testing.assert_array_equal(padded.mask, [[1, 1, 1, 1], [1, 0, 0, 0]])
    np.testing.assert_array_equal(padded.select, [2, 3, 4])


def test_a_first_token_cant_be_trained() -> None:
    with pytest.raises(ValueError, match="no token comes before"):
        pack([row([], [4, 5], [1, 1])])


@pytest.mark.parametrize("packing", [True, False])
@pytest.mark.parametrize("budget", [1, 40, 120, 10_000])
def test_every_trained_row_is_planned_once_within_the_budget(packing: bool, budget: int) -> None:
    rows = [*samples(groups=5), row([3, 4], [5], [0], 99)]
    batches = plan(rows, budget, packing)
    assert sorted(index for batch in batches for index in batch) == list(range(len(rows) - 1))
    for batch in batches:
        packed = pack([rows[i] for i in batch]) if packing else pad([rows[i] for i in batch])
        assert len(batch) == 1 or packed.ids.size <= budget
    if budget == 10_000:
        assert len(batches) == 1


def test_a_group_that_fits_is_not_split() -> None:
    rows = [
        row([1] * 20 + [group], [2, 3, 4, 5], [1] * 4, branch) for group in range(6) for branch in range(4)
    ]
    for batch in plan(rows, 100, True):
        for group in {rows[index].token_ids[20] for index in batch}:
            assert sum(rows[index].token_ids[20] == group for index in batch) == 4


def test_lengths_far_apart_attend_in_blocks_of_their_own() -> None:
    short = [row([1, 2], [3, 4, 5], [1] * 3, branch) for branch in range(3)]
    long = [row([9] * 300, [3] * 200, [1] * 200, branch) for branch in range(2)]
    shapes = {block.queries.shape for block in pack([*short, *long]).blocks}
    assert shapes == {(1, 2), (1, 300), (3, 2), (2, 199)}
