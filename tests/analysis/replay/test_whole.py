"""Replays of runs that nobody changed: every digest, score, missing mark, advantage and state is equal."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import coterie
from coterie.testing.support.toys import GAME, ROLE
from tests.analysis.replay.support import SCRIPTED, Counter, table, trained
from tests.core.training.test_curriculum import curriculum, table as guesses


def test_20_steps_of_at_grpo(tmp_path: Path) -> None:
    source = table(schedule={"steps": 20, "tasks_per_step": 1, "max_missing": 1, "checkpoint_every": 10})
    result = coterie.replay(trained(tmp_path / "run", source), every=True)
    assert result.same and result.first is None, result.first
    equal = result.equal
    assert equal["steps"] == equal["trees"] == 20
    assert 200 < equal["advantages"] < equal["actions"] == 240  # of an action without a score there is none
    assert equal["digests"] > 100 and equal["missing"] > 10 and equal["scores"] > 1000
    assert equal["states"] == 20 + 2 and not result.changed  # of two checkpoints too
    assert len(result.taken) == 1 and result.taken[0].startswith("sampled tokens, with their log-probs")


ALGORITHMS = {
    "magrpo": ({"type": "magrpo"}, {"branches": 2, "expand": "all"}),
    "grpo": ({"type": "grpo"}, {"chains": 3, "branches": 1}),
    "rae": ({"type": "rae"}, {"chains": 3, "branches": 1}),
    "sampled": ({"type": "at_grpo"}, {"branches": 3, "expand": "sampled"}),
    "reinforce_pp": ({"type": "reinforce_pp", "beta": 0.1}, {"chains": 2, "branches": 1}),
    "gae": ({"type": "gae"}, {"chains": 2, "branches": 1}),
}


@pytest.mark.parametrize("name", ALGORITHMS)
def test_samplers_and_estimators(name: str, tmp_path: Path) -> None:
    """A tree that forks everywhere, chains, a state of the estimator, and annotations."""
    algorithm, sampler = ALGORITHMS[name]
    source = table(
        algorithm=algorithm,
        engine=SCRIPTED,
        sampler={**sampler, "sampling": {"max_new_tokens": 2}},
    )
    result = coterie.replay(trained(tmp_path / "run", source), every=True)
    assert result.same, result.first
    assert result.equal["steps"] == 3 and result.equal["advantages"] > 3
    annotated = any("annotations" in text for text in result.taken)
    assert annotated == (name in ("reinforce_pp", "gae"))


def test_roles_that_act_at_once_frozen_policies_and_steps_ahead(tmp_path: Path) -> None:
    source = table(
        policies={
            "planner": {"model": {"init": "tabular"}},
            "executor": {"model": {"init": "tabular"}, "train": "none"},
        },
        schedule={"steps": 4, "tasks_per_step": 2, "max_missing": 1, "max_staleness": 1},
    )
    for role, settings in source["team"]["roles"].items():
        settings["policy"] = role
    result = coterie.replay(trained(tmp_path / "run", source), every=True)
    assert result.same, result.first
    assert 0 < result.equal["advantages"] < result.equal["actions"]


def test_a_curriculum_and_an_engine_that_writes_texts(tmp_path: Path) -> None:
    """The level of a step is that of its tasks."""
    result = coterie.replay(
        trained(tmp_path / "run", guesses("scripted", curriculum=curriculum(2, 3))), every=True
    )
    assert result.same, result.first
    rows = coterie.read_rollouts(tmp_path / "run" / "rollouts" / f"step-{result.steps[-1]:06d}.jsonl.gz")
    assert rows[1]["task_id"].endswith("@words=3") and result.equal["prompts"] > 10


def test_tools_answer_from_the_record(tmp_path: Path) -> None:
    """A tool that never answers alike, that fails, and whose calls are at fault."""
    where = "tests.analysis.replay.support"
    source = table(
        engine={"type": "scripted", "play": f"{where}:counting"},
        tools={"counter": {"type": f"{where}:Counter"}},
    )
    source["team"]["roles"]["planner"]["tools"] = ["counter"]
    folder = trained(tmp_path / "run", source)
    before = Counter.calls
    result = coterie.replay(folder, every=True)
    assert result.same, result.first
    assert before == Counter.calls > 20 and any(
        line.startswith("results of tools: ") for line in result.taken
    )
    rows = [
        row
        for step in (1, 2, 3)
        for row in coterie.read_rollouts(folder / "rollouts" / f"step-00000{step}.jsonl.gz")
    ]
    reasons = {row["fault"]["reason"] for row in rows if row["kind"] == "branch" and row["fault"]}
    assert any("counter is down" in reason for reason in reasons) and any(
        "nothing to count" in r for r in reasons
    )
    called = [row["calls"][0] for row in rows if row["kind"] == "branch" and row["tool_results"]]
    assert called and all(call["text"] == "r0c0" for call in called)


@pytest.mark.parametrize("sampler", [
    {"branches": 3, "commit": "per_role", "pairing": "cross"},
    {"branches": 3, "expand": "all"},
])  # fmt: skip
def test_lost_calls_and_recombined_actions(sampler: dict[str, object], tmp_path: Path) -> None:
    """Joint actions that a fault of the system lost; roles that act at once, and their best branches."""
    source = table(
        engine={"type": "scripted", "play": "tests.analysis.replay.support:lossy"},
        sampler={**sampler, "sampling": {"max_new_tokens": 2}},
    )
    if "commit" in sampler:
        source["team"]["order"] = [["planner", "executor"]]
    result = coterie.replay(trained(tmp_path / "run", source), every=True)
    assert result.same, result.first
    assert any(line.startswith("joint actions that a fault of the system lost") for line in result.taken)


def test_an_estimator_that_counts_its_steps_on_itself(tmp_path: Path) -> None:
    """Each step gets an estimator of its own, so that no step but the first has the run's credit."""
    source = table(engine=SCRIPTED, algorithm={"type": "tests.analysis.replay.support:Counting"})
    result = coterie.replay(trained(tmp_path / "run", source), every=True)
    assert {each.step for each in result.differences} == {2, 3}
    assert result.first is not None and result.first.field == "advantage"


@pytest.mark.parametrize(("overflow", "metric"), [
    ("floor", "episodes/overflow"), ("truncate_oldest", "prompts/truncated"),
])  # fmt: skip
def test_prompts_that_outgrow_the_context(overflow: str, metric: str, tmp_path: Path) -> None:
    role = {"type": ROLE, "policy": "p", "remembers": True}
    source = {
        "env": {"type": GAME},
        "team": {
            "order": ["one", "two"],
            "max_turns": 5,
            "overflow": overflow,
            "roles": {"one": role, "two": role},
        },
        "policies": {"p": {"model": {"init": "none"}, "train": "none"}},
        "sampler": {"branches": 2, "sampling": {"max_new_tokens": 12}},
        "algorithm": "at_grpo",
        "engine": {"type": "tests.games:SmallContext", "context": 80, "play": f"{__name__}:words"},
        "trainer": "none",
        "schedule": {"steps": 2, "tasks_per_step": 1},
    }
    result = coterie.replay(trained(tmp_path / "run", source), every=True)
    assert result.same and result.equal["actions"] > 10, result.first
    assert metric in (tmp_path / "run" / "metrics.jsonl").read_text()


def words(request: Any, text: str) -> str:
    """A long answer: the prompts of a role that remembers outgrow 80 words in the third turn."""
    return "1 b c d e f"
