"""Whole runs on a tiny transformer: mixtures of trained and frozen policies, swaps, rollout files."""

from __future__ import annotations

import asyncio
import itertools
import json

import pytest

import coterie
from coterie.api.export import export
from coterie.api.open_run import open_run
from coterie.api.rollouts import read_rollouts
from coterie.compose import compose
from coterie.core.errors import ConfigError
from coterie.recipes import load

KINDS = ("full", "lora", "none")
TINY = {"init": "qwen3", "hidden_size": 32, "layers": 1, "heads": 2, "head_dim": 16, "mlp_size": 64}
SMOKE = ["schedule.steps=2", "schedule.tasks_per_step=4", "sampler.branches=4", "schedule.checkpoint_every=1"]


def policy(kind):
    return {
        "model": TINY,
        "train": kind,
        "optimizer": {"learning_rate": 1e-2},
        **({"lora": {"rank": 2, "alpha": 4}} if kind == "lora" else {}),
    }


def team(policies, planner, executor):
    """A configuration of the small grid with these policies."""
    return {
        "env": {"type": "plan_path", "size": 3, "wall_density": 0.1, "plan_language": "moves"},
        "team": {
            "order": ["planner", "executor"],
            "max_turns": 1,
            "roles": {
                "planner": {"type": "plan_path_planner", "policy": planner},
                "executor": {"type": "plan_path_executor", "policy": executor},
            },
        },
        "policies": {name: policy(kind) for name, kind in policies.items()},
        "rewards": {"long": {"type": "function", "function": "tests.test_teams:length", "scope": "action"}},
        "sampler": {"branches": 4, "sampling": {"max_new_tokens": 3}},
        "algorithm": {"type": "at_grpo", "normalise": {"type": "none"}},
        "trackers": {},
        "schedule": {"steps": 1, "tasks_per_step": 4},
    }


def length(view):
    """A reward that varies among the siblings of an untrained model."""
    return float(len(view.action.text) % 5)


def digests(config):
    """(weights before, weights after one step) by policy."""
    run = compose(load(config))

    async def go():
        from coterie.core.loop import train

        loaded, load_weights = {}, run.engine.load_weights

        async def loads(weights):
            loaded[weights.policy] = weights.version
            await load_weights(weights)

        run.engine.load_weights = loads
        await open_run(run)
        before = run.trainer.digest()
        engine_before = dict(loaded)
        await train(run)
        after = run.trainer.digest()
        await run.close()
        return before, after, engine_before, loaded

    return asyncio.run(go())


@pytest.mark.parametrize(("first", "second"), list(itertools.product(KINDS, KINDS)))
def test_of_all_pairs_of_policies_exactly_the_trained_ones_move(first, second):
    before, after, served, serves = digests(team({"a": first, "b": second}, "a", "b"))
    for name, kind in (("a", first), ("b", second)):
        assert (before[name] != after[name]) == (kind != "none"), name
        assert (served[name] != serves[name]) == (kind != "none"), "the engine serves the new weights"


@pytest.mark.parametrize("kind", KINDS)
def test_one_policy_may_play_both_roles(kind):
    before, after, _, _ = digests(team({"a": kind}, "a", "a"))
    assert (before["a"] != after["a"]) == (kind != "none")


def test_a_policy_whose_role_earned_equal_rewards_does_not_move():
    config = team({"a": "full", "b": "full"}, "a", "b")
    config["rewards"]["long"]["function"] = "tests.test_teams:only_the_planner"
    config["algorithm"]["zero_variance"] = "drop"
    before, after, _, _ = digests(config)
    assert before["a"] != after["a"] and before["b"] == after["b"]


def only_the_planner(view):
    return length(view) if view.role == "planner" else 0.0


@pytest.fixture(scope="module")
def per_role(tmp_path_factory):
    folder = tmp_path_factory.mktemp("per_role") / "run"
    coterie.train("plan_path", overlays=["per_role"], scale="smoke", overrides=SMOKE, out=folder)
    return folder


def test_the_per_role_recipe_trains_two_policies(per_role):
    rows = [json.loads(line) for line in (per_role / "metrics.jsonl").read_text().splitlines()]
    for name in ("planner", "executor"):
        assert all(row[f"policy/{name}/optimizer_steps"] > 0 for row in rows)


def test_a_swap_gives_paired_differences_per_task(per_role):
    comparison = coterie.evaluate(per_role, swap=("planner", "executor"), tasks=20).comparison
    assert (
        comparison.team == {"planner": "executor", "executor": "planner"} and len(comparison.per_task) == 20
    )
    mean = sum(comparison.per_task.values()) / 20
    assert comparison.difference.mean == pytest.approx(mean)
    assert comparison.changed.mean - comparison.base.mean == pytest.approx(mean)


def test_swapping_two_roles_of_one_policy_is_refused():
    config = team({"a": "none"}, "a", "a")
    with pytest.raises(ConfigError, match="played by one policy"):
        coterie.evaluate(config, swap=("planner", "executor"), tasks=2)
    with pytest.raises(ConfigError, match="did you mean 'planner'"):
        coterie.evaluate(config, swap=("planer", "executor"), tasks=2)


def test_the_rollouts_file_suffices_to_compute_the_advantages_again(per_role):
    rows = read_rollouts(per_role / "rollouts" / "step-000001.jsonl.gz")
    groups: dict[tuple[str, str], list[dict]] = {}
    for row in rows:
        if row["kind"] == "branch":
            groups.setdefault((row["node"], row["role"]), []).append(row)
    assert groups
    for members in groups.values():
        values = [row["reward"] for row in members]
        mean = sum(values) / len(values)
        deviation = (sum((value - mean) ** 2 for value in values) / (len(values) - 1)) ** 0.5
        for row, value in zip(members, values, strict=True):
            assert row["advantage"] == pytest.approx((value - mean) / (deviation + 1e-6), abs=1e-9)


def test_recorded_logprobs_are_those_of_the_weights_that_sampled(per_role):
    """Recorded log-probs equal those of a forward pass with the weights that sampled the ids."""
    import torch
    from transformers import AutoModelForCausalLM

    # Step 2 was sampled with the weights that checkpoint 1 holds.
    model = AutoModelForCausalLM.from_pretrained(
        export(per_role, "planner", per_role / "exported", checkpoint=1)
    )
    rows = read_rollouts(per_role / "rollouts" / "step-000002.jsonl.gz")
    prompts = {(row["node"], row["role"]): row["prompt_ids"] for row in rows if row["kind"] == "node"}
    branches = [row for row in rows if row["kind"] == "branch" and row["role"] == "planner"]
    assert branches
    for row in branches:
        (call,) = row["calls"]
        prompt = prompts[row["node"], row["role"]]
        with torch.no_grad():
            logits = model(torch.tensor([[*prompt, *call["token_ids"]]])).logits[0, len(prompt) - 1 : -1]
        logprobs = logits.log_softmax(-1).gather(1, torch.tensor(call["token_ids"])[:, None])[:, 0]
        assert (logprobs - torch.tensor(call["logprobs"])).abs().max() < 1e-5
