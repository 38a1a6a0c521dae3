"""Learning rates of policies: what trains nothing is refused, and what trains badly is warned about."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from coterie.compose import prepare
from coterie.core.errors import ConfigError
from coterie.recipes import load

MATRIX = str(Path(__file__).parents[2] / "recipes" / "matrix.yaml")
MODEL = "{init: qwen3, hidden_size: 8, layers: 1, heads: 1, head_dim: 8, mlp_size: 8, context: 16}"


def tensors(row: str) -> list[str]:
    """Overrides that make both policies models of tensors; `row` is more of the policy `row`."""
    return [
        "engine=hf",
        "trainer={type: torch, device: cpu}",
        "chat=plain",
        f"policies.row={{model: {MODEL}, {row}}}",
        f"policies.column={{model: {MODEL}}}",
    ]


@pytest.mark.parametrize("rate", ["1e30", ".inf", "1.1e19"])
@pytest.mark.parametrize(("table", "path"), [
    ("optimizer: {learning_rate: RATE}", "policies.row.optimizer.learning_rate"),
    ("warm_start: {learning_rate: RATE}", "policies.row.warm_start.learning_rate"),
    ("train: none, optimizer: {learning_rate: RATE}", "policies.row.optimizer.learning_rate"),
])  # fmt: skip
def test_a_rate_at_which_no_model_trains_is_refused(table: str, path: str, rate: str) -> None:
    with pytest.raises(ConfigError, match="no policy trains at this learning rate") as caught:
        prepare(load(MATRIX, overrides=tensors(table.replace("RATE", rate))))
    assert caught.value.path == path and "got" in caught.value.why


@pytest.mark.parametrize("setting", ["learning_rate", "value_learning_rate"])
@pytest.mark.parametrize("rate", ["1e30", ".inf"])
def test_no_table_trains_at_such_a_rate_either(setting: str, rate: str) -> None:
    with pytest.raises(ConfigError, match="no policy trains at this learning rate") as caught:
        prepare(load(MATRIX, overrides=[f"trainer.{setting}={rate}"]))
    assert caught.value.path == f"trainer.{setting}"


def test_nor_does_the_head_of_values() -> None:
    overrides = [*tensors("train: full"), "algorithm=gae", "sampler.branches=1", "sampler.chains=2",
                 "trainer.value={learning_rate: 1e30}"]  # fmt: skip
    with pytest.raises(ConfigError, match="no policy trains at this learning rate") as caught:
        prepare(load(MATRIX, overrides=overrides))
    assert caught.value.path == "trainer.value.learning_rate"


@pytest.mark.parametrize("rate", ["0", "-1e-5", ".nan"])
def test_a_rate_is_above_0(rate: str) -> None:
    with pytest.raises(ConfigError, match="greater than 0") as caught:
        prepare(load(MATRIX, overrides=tensors(f"optimizer: {{learning_rate: {rate}}}")))
    assert caught.value.path == "policies.row.optimizer.learning_rate"


@pytest.mark.parametrize(("row", "warned"), [
    ("optimizer: {learning_rate: 1.5}", "policies.row.optimizer.learning_rate: 1.5 is far above"),
    ("optimizer: {learning_rate: 1.0}", ""),
    ("optimizer: {learning_rate: 1.0e-5}", ""),
    ("train: none, optimizer: {learning_rate: 1.5}", ""),
])  # fmt: skip
def test_a_rate_above_1_is_warned_about_once(row: str, warned: str, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "coterie"):
        prepare(load(MATRIX, overrides=tensors(row)))
    warnings = [record.getMessage() for record in caplog.records if "learning_rate" in record.getMessage()]
    assert len(warnings) == bool(warned) and all(warned in text for text in warnings)
