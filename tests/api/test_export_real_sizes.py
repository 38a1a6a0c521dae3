"""An exported adapter, at the width and vocabulary of a real model: the same text in other programs."""

from __future__ import annotations

import pytest
import real_exactness as exactness
import real_exports as exports


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return exactness.thin("smollm2-135m", tmp_path_factory.mktemp("models") / "base")


@pytest.mark.long  # a run, two exports and five models: about ten seconds
def test_an_exported_adapter_and_its_merged_weights_write_the_engine_s_text(folder, tmp_path):
    result = exports.export_case(folder, tmp_path, vllm=False)
    assert result["changed"], "the adapter changes no text, so the test shows nothing"
    assert set(result["equal"]) == {"coterie", "transformers + peft", "merged, transformers"}
    assert result["met"], result
