"""The trainer: what every one promises, and that a good word becomes likelier."""

from coterie import train
from coterie.testing import build, check_trainer
from example_module.trainer import word_id

WORDS = ("left", "right", "up", "down")


def test_it_keeps_the_promises_of_a_trainer():
    check_trainer(
        lambda: build("trainer", "example_name"),
        model={"init": "none"},
        token_ids=[word_id(word) for word in WORDS],
        vocabulary=WORDS,
        annotates=("ref_logprobs", "old_logprobs"),
    )


def test_a_run_learns_the_game(tmp_path):
    result = train("example-name-smoke", overrides=["schedule.steps=10"], out=tmp_path / "run")
    assert result.metrics["eval/success"] == 1.0
