"""The table of well-known shapes: each has the parameters that the hub counts, and plans need no hub."""

from __future__ import annotations

import pytest

from coterie.backends.models.policy import TorchPolicy
from coterie.backends.models.sizes import known_config, least_size, read_config, shapes, stands_for

pytestmark = pytest.mark.torch

SHAPES = {entry["ids"][0]: entry for entry in shapes().values()}
COUNTED = {
    "Qwen/Qwen2.5-0.5B-Instruct": 494_032_768,
    "Qwen/Qwen2.5-7B-Instruct": 7_615_616_512,
    "Qwen/Qwen3-0.6B": 596_049_920,
    "Qwen/Qwen3-8B": 8_190_735_360,
    "meta-llama/Llama-3.1-8B-Instruct": 8_030_261_248,
    "meta-llama/Llama-3.2-1B-Instruct": 1_235_814_400,
    "HuggingFaceTB/SmolLM2-135M-Instruct": 134_515_008,
    "google/gemma-3-270m-it": 268_098_176,
    "google/gemma-3-4b-it": 4_300_079_472,
}
"""Of the hub's pages, written here once more."""


@pytest.mark.parametrize("name", SHAPES)
def test_a_shape_has_the_parameters_that_the_hub_counts(name):
    size = least_size(TorchPolicy(model=name), ())
    assert size is not None and size.parameters == SHAPES[name]["parameters"]


def test_the_counts_are_those_of_the_hubs_pages():
    assert {name: shapes()[name]["parameters"] for name in COUNTED} == COUNTED


def test_a_dense_shape_by_hand():
    """Qwen3-0.6B: embeddings (tied), 28 layers of attention with normed heads, an MLP and two norms."""
    attention = 1024 * 128 * (16 + 8 + 8) + 16 * 128 * 1024 + 2 * 128
    layer = attention + 3 * 1024 * 3072 + 2 * 1024
    assert 151_936 * 1024 + 28 * layer + 1024 == COUNTED["Qwen/Qwen3-0.6B"]


def test_the_table_is_read_where_the_cache_lacks_a_model_and_no_revision_is_named(monkeypatch, tmp_path):
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    config = read_config("Qwen/Qwen3-32B", None, "shared")
    assert stands_for(config) and config.num_hidden_layers == 64
    assert known_config("Qwen/Qwen3-32B", "main") is None and known_config("Qwen/Qwen3-33B", None) is None
