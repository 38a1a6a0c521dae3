"""Engine `vllm` and exports in plain vLLM, at the width and vocabulary of real models."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.scale, pytest.mark.xdist_group("vllm")]
pytest.importorskip("vllm", reason="runs in the venv of `make test-scale`")

import real_exactness as exactness  # noqa: E402

SMALL, LARGE = "smollm2-135m", "qwen3-0.6b"


def case(folder: Path, *words: str) -> object:
    """The result of a case in a process of its own, as the benchmark runs it."""
    command = [sys.executable, exactness.__file__, "--case", *words, "--models", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


FEW = {"siblings": 1, "lengths": (7, 40), "new": 10}
"""Calls of each case."""


@pytest.mark.parametrize("shape", [SMALL, pytest.param(LARGE, marks=pytest.mark.long)])
def test_tokens_and_logprobs_are_those_of_plain_transformers(tmp_path, shape):
    folder = exactness.thin(shape, tmp_path / "model")
    [row] = exactness.engine_case(folder, "vllm", "float32", **FEW)
    assert exactness.met(row), row


def test_bfloat16_is_near_plain_transformers_in_float32(tmp_path):
    folder = exactness.thin(SMALL, tmp_path / "model")
    [row] = exactness.engine_case(folder, "vllm", "bfloat16", **FEW)
    assert 0 < row["mean"] < 0.05 and row["greedy"] >= 0.9


@pytest.mark.long  # starts vLLM twice
def test_an_exported_adapter_and_its_merged_weights_write_the_same_text_in_vllm(tmp_path):
    folder = exactness.thin(SMALL, tmp_path / "model")
    result = case(folder, "export", "-", "-")
    assert {"vllm, lora", "vllm, merged", "transformers + peft"} < set(result["equal"])
    assert result["met"], result
