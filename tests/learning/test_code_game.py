"""Two roles learn to agree on the parts of a function that neither sees the other write, by MAGRPO."""

from __future__ import annotations

import pytest

from coterie import evaluate, train
from coterie.stats import clustered_bootstrap

pytest.importorskip("transformers")
pytestmark = pytest.mark.learning

MODEL = (
    "{init: qwen3, hidden_size: 64, layers: 2, heads: 2, head_dim: 32, mlp_size: 128, context: 64, "
    "tokenizer: words}"
)
SMALL = (
    "env.largest=12",
    f"policies.*.model={MODEL}",
    "policies.*.warm_start={demonstrations: oracle, noise: 0.05, steps: 250, batch: 128}",
    "policies.*.optimizer.learning_rate=3.0e-4",
    "schedule.steps=50",
    "schedule.tasks_per_step=16",
)


def measured(source, **settings):
    """The team's return on 110 unseen problems, with its interval."""
    found = evaluate(source, split="test", tasks=110, samples=4, **settings)
    return clustered_bootstrap(found.returns, seed=0)


def test_the_joint_return_rises(tmp_path):
    settings = {"scale": "cpu", "overrides": SMALL}
    before = measured("magrpo_code_game", **settings)
    train("magrpo_code_game", out=tmp_path / "run", **settings)
    after = measured(tmp_path / "run")
    # Both ways of dividing the work are taught, so roles that don't agree are right half of the time.
    assert before.mean < 2.7
    assert after.lo > before.hi and after.mean > before.mean + 0.5
