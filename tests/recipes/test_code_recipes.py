"""The recipes of code, on a small file in the form of their set, with a model made on the spot."""

from __future__ import annotations

import json

import pytest

from coterie.api.train import train
from coterie.compose import compose
from coterie.core.errors import ConfigError
from coterie.recipes import load, recipes
from coterie.testing import play_episode
from tests.plugins.envs.code.support import fenced

RECIPES = sorted(info.name for info in recipes() if "humaneval" in info.name or "mbpp" in info.name)
SOLVED = ("grpo_humaneval", "magrpo_humaneval", "magrpo_coop_humaneval", "magrpo_mbpp", "mt_magrpo_mbpp")
"""Each set, and each kind of team."""
MODES = ("plain", "passed", "level_passed", "level_feedback")
TINY = (
    "{init: qwen3, hidden_size: 16, layers: 1, heads: 2, head_dim: 8, mlp_size: 16, context: 4096, "
    "tokenizer: bytes}"
)
HERE = "tests.recipes.test_code_recipes"


def row(number):
    """A problem in the form of HumanEval and, by other fields, of MBPP."""
    code = f"def f{number}(x):\n    return x * x + {number}\n"
    return {
        "task_id": f"T/{number}",
        "prompt": f'def f{number}(x):\n    """The square of x plus {number}."""\n',
        "canonical_solution": f"    return x * x + {number}\n",
        "entry_point": f"f{number}",
        "test": f"def check(candidate):\n    assert candidate(2) == {number + 4}\n"
        f"    assert candidate(0) == {number}\n",
        "code": code,
        "test_list": [f"assert f{number}(2) == {number + 4}", f"assert f{number}(0) == {number}"],
        "test_imports": [],
    }


def play(request, prompt, draws=None):
    """Parts that fit for most branches; the first branch of `main` forgets what is added."""
    name = f"f{request.key.task.partition('/')[2]}"
    if request.key.role == "aux":
        return fenced("def aux(x):\n    return x * x\n")
    rest = "" if request.key.branch == 0 else f" + {name[1:]}"
    called = "aux(x)" if request.key.role == "main" else "x * x"
    return fenced(f"def {name}(x):\n    return {called}{rest}\n")


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(row(number)) + "\n" for number in range(40)))
    return str(path)


def settings(file, *more):
    splits = ["data.train='test[10:]'", "data.val='test[:5]'", "data.test='test[5:10]'"]
    policy = [f"model={TINY}", "train=full", "lora=null", "dtype=float32"]
    return [f"data.file={file}", *splits, *(f"policies.*.{setting}" for setting in policy), *more]


def scripted(name, file, *more):
    """The composed recipe with scripted answers and without weights."""
    table = load(name, overrides=[*settings(file)[:4], *more]).table
    policies = {policy: {"model": {"init": "none"}, "train": "none"} for policy in table["policies"]}
    parts = {
        "policies": policies,
        "engine": {"type": "scripted", "play": f"{HERE}:play"},
        "trainer": {"type": "none"},
    }
    return compose(load({**table, **parts, "schedule": {"steps": 1, "tasks_per_step": 2}}))


def test_there_is_a_recipe_for_each_experiment():
    sets = ("humaneval", "coop_humaneval", "mbpp")
    assert sorted(f"{kind}_{name}" for kind in ("grpo", "magrpo", "mt_magrpo") for name in sets) == RECIPES


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_composes_with_each_overlay_of_levels(name, file):
    more = ["transition=plain"] if name.startswith("mt") else []
    for overlays in ((), ("l0",), ("l1", "one_gpu"), ("l2", "gpu_80gb")):
        run = compose(load(name, overlays=overlays, overrides=[*settings(file)[:4], *more]))
        assert set(run.team.policies.values()) == set(run.config.policies)


@pytest.mark.parametrize("name", SOLVED)
def test_a_team_of_references_solves_its_set(name, file):
    more = ["transition=level_feedback"] if name.startswith("mt") else []
    trees, scores = play_episode(scripted(name, file, *more), tasks=2)
    leaves = [leaf for tree in trees for _, leaf in tree.leaves()]
    solved = [leaf.outcome["success"] for leaf in leaves]
    # Of four branches one forgets a part, which f0 doesn't have.
    assert 0.5 < sum(solved) / len(solved) < 1.0
    values = {score.value for _, _, component, score in scores if component == "code_structure"}
    assert max(values) == (2.1 if name.startswith("grpo") else 4.0)


@pytest.mark.parametrize("mode", MODES)
def test_the_second_turn_is_told_by_the_mode(mode, file):
    trees, _ = play_episode(scripted("mt_magrpo_humaneval", file, f"transition={mode}"), tasks=1)
    prompts = [
        decision.messages[-1]["content"]
        for node in trees[0].nodes()
        if node.turn == 1
        for decision in node.decisions.values()
    ]
    assert len(prompts) == 2 * 4  # two roles, and four joint actions go on
    assert all("Revise your answer" in text for text in prompts)
    told = {"plain": "", "passed": "levels passed", "level_passed": "Tests: ", "level_feedback": "/2 passed"}
    assert all(told[mode] in text for text in prompts)


def test_without_its_key_the_expert_is_refused_before_the_first_step(file, tmp_path, monkeypatch):
    monkeypatch.delenv("DEEPSEEK_API_KEY", raising=False)
    with pytest.raises(ConfigError, match="DEEPSEEK_API_KEY is not set") as refused:
        train("mt_magrpo_humaneval", overrides=settings(file), out=tmp_path / "run")
    assert "plain, passed, level_passed, level_feedback" in refused.value.fix


def test_two_turns_are_trained_from_end_to_end(file, tmp_path):
    """A script writes most answers of the tiny model, so that every part of the reward is met."""
    engine = f"{{type: 'coterie.testing.support.oracles:OracleEngine', play: '{HERE}:play'}}"
    more = ["transition=level_feedback", f"engine={engine}", "sampler.branches=2"]
    more += ["schedule={steps: 2, tasks_per_step: 1}", "schedule.evaluate_every=0"]
    more += ["sampler.sampling.max_new_tokens=80"]
    result = train("mt_magrpo_humaneval", overrides=settings(file, *more), out=tmp_path / "run")
    assert result.finished and result.step == 2
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert all(row["judging/programs"] >= 1 for row in rows)
    assert any(row["score/team/code_structure"] > 1.5 for row in rows)
