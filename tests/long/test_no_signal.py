"""The quickstart with a setting that leaves nothing to learn says so; as it is, it says nothing."""

from __future__ import annotations

import pytest

import coterie

pytestmark = pytest.mark.long

SHORT = ["schedule.steps=14", "schedule.evaluate_every=0", "policies.shared.warm_start.steps=10"]


@pytest.mark.parametrize(
    ("overrides", "signs", "helps"),
    [
        (
            ["policies.shared.model.tokenizer=bytes", "policies.shared.model.context=512"],
            {"equal_rewards", "truncated/planner", "truncated/executor", "unreadable/planner"},
            "a larger sampler.sampling.max_new_tokens",
        ),
        (["sampler.sampling.temperature=0"], {"equal_rewards", "zero_gradient"}, "temperature=1"),
        (
            ["policies.shared.optimizer.learning_rate=10"],
            {"equal_rewards", "zero_gradient", "reward_unchanged", "truncated/planner"},
            "a new run with a lower learning rate",
        ),
    ],
)
def test_a_run_that_cannot_learn_is_told(overrides, signs, helps, tmp_path, caplog):
    result = coterie.train("quickstart", overrides=[*SHORT, *overrides], out=tmp_path / "run")
    assert result.finished and signs <= result.signals.keys()
    assert caplog.text.count("(signal/equal_rewards)") == 1 and helps in caplog.text


def test_the_quickstart_is_told_nothing(tmp_path, caplog):
    overrides = ["schedule.steps=30", "schedule.evaluate_every=0"]
    assert coterie.train("quickstart", overrides=overrides, out=tmp_path / "run").signals == {}
    assert "no signal" not in caplog.text
