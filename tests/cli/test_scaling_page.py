"""docs/scaling.md: its tables are those that the plan's arithmetic makes, and its keys exist."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "scaling.md").read_text(encoding="utf-8")
pytestmark = pytest.mark.torch


@pytest.fixture(scope="module")
def script():
    pytest.importorskip("torch")
    return runpy.run_path(str(DOCS / "scaling_table.py"))


def test_the_tables_are_up_to_date(script):
    assert script["page"]() == PAGE, "run `python docs/scaling_table.py`"


def test_a_figure_by_hand(script):
    """All weights of Qwen3-1.7B on one GPU: 18 bytes a parameter, and activations."""
    made = script["model"]("1.7B")
    assert made.size.parameters == 1_720_574_976 and made.adapter == 17_432_576
    bytes_ = script["update_bytes"](made, "full", 1, script["GPUS"]["`torch`, each GPU"])
    # weights, masters, two moments, gradients
    activations = bytes_ - (2 + 4 + 8 + 4) * made.size.parameters
    assert 2 * 4 * 2**26 < activations < 8e9, "the head has two blocks; the rest is recomputed"


def test_its_keys_exist():
    from coterie.backends.engines.hf import HFEngine
    from coterie.backends.engines.vllm.settings import VLLMConfig
    from coterie.backends.models.policy import TorchPolicy
    from coterie.backends.trainers.deepspeed.settings import DeepSpeedConfig
    from coterie.core.config import ScheduleConfig

    known = {
        "trainer": set(DeepSpeedConfig.model_fields),  # all of trainer `torch`'s too
        "engine": {*HFEngine.Config.model_fields, *VLLMConfig.model_fields},
        "schedule": set(ScheduleConfig.model_fields),
        "policies.<name>": {field.alias or name for name, field in TorchPolicy.model_fields.items()},
    }
    keys = re.findall(r"`(trainer|engine|schedule|policies\.<name>)\.(\w+)", PAGE)
    assert len(keys) > 15
    for table, key in keys:
        assert key in known[table], f"{table}.{key}"
