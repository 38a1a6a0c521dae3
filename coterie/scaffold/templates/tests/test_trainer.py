"""The trainer: what every one promises, and that a good word becomes likelier."""

from coterie import train


def test_it_keeps_the_promises_of_a_trainer(coterie_check):
    coterie_check("example_name", kind="trainer")


def test_a_run_learns_the_game(tmp_path):
    run = {
        "env": {"type": "example_game:Countdown"},
        "team": {
            "order": ["solver"],
            "max_turns": 5,
            "roles": {"solver": {"type": "example_game:Counter", "policy": "table"}},
        },
        "policies": {"table": {"model": {"init": "none"}}},
        "rewards": {"environment": {"type": "environment"}},
        "sampler": {"branches": 12, "sampling": {"max_new_tokens": 2}},
        "algorithm": "at_grpo",
        "engine": "example_name",
        "trainer": {"type": "example_name", "learning_rate": 20.0},
        "schedule": {"steps": 20, "tasks_per_step": 3, "evaluate_every": 20, "evaluate_tasks": 1},
    }
    assert train(run, out=tmp_path / "run").metrics["eval/success"] == 1.0
