"""Engine `hf` against plain transformers, at the width and vocabulary of real models."""

from __future__ import annotations

import asyncio

import pytest
import real_exactness as exactness
import real_models


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """By shape, a model of two layers; made once."""
    made = {}

    def folder(shape):
        if shape not in made:
            made[shape] = exactness.thin(shape, tmp_path_factory.mktemp("models") / shape)
        return made[shape]

    return folder


SHAPES = [
    pytest.param(shape, marks=pytest.mark.long) if shape == "qwen3-0.6b" else shape
    for shape in real_models.SHAPES
]


FEW = {"siblings": 1, "lengths": (7, 40), "new": 10}
"""Calls of each case."""


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("decoder", ["lean", pytest.param("transformers", marks=pytest.mark.long)])
def test_tokens_and_logprobs_are_those_of_plain_transformers(folders, shape, decoder):
    [row] = exactness.engine_case(folders(shape), decoder, "float32", **FEW)
    assert exactness.met(row), row


@pytest.mark.parametrize("shape", SHAPES)
def test_bfloat16_is_as_near_to_float32_as_plain_transformers_in_bfloat16(folders, shape):
    lean, plain = exactness.engine_case(folders(shape), "lean", "bfloat16", **FEW)
    assert plain["engine"] == "plain transformers"
    assert 0 < lean["mean"] < 1.5 * plain["mean"] < 0.05
    assert lean["greedy"] >= 0.9 and plain["greedy"] >= 0.9


def test_the_comparison_sees_other_weights_and_other_tokens(folders, tmp_path):
    """What it compares with is the folder's model: calls of another model differ."""
    folder = folders("smollm2-135m")
    reference = exactness.load(folder, "float32")
    other = exactness.load(folder, "float32")
    other.model.layers[1].mlp.up_proj.weight.data.mul_(1.5)
    asked = [exactness.request("p", [5, 6, 7], 0, 0.0, new=4)]

    async def calls(module):
        served = exactness.Served("lean", folder, "float32", {"p": (module, None)})
        await served.open()
        made = await served.calls(asked)
        await served.engine.close()
        return made

    same, wrong = (list(zip(asked, asyncio.run(calls(m)), strict=True)) for m in (reference, other))
    row = {"dtype": "float32", **exactness.compare(same, reference)}
    assert exactness.met(row) and row["max"] < exactness.TOLERANCE
    row = {"dtype": "float32", **exactness.compare(wrong, reference)}
    assert not exactness.met(row) and row["max"] > 10 * exactness.TOLERANCE
