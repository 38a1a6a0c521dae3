"""`env.curriculum`: promotion through its levels, evaluation on the target, and resume."""

from __future__ import annotations

import json
import logging
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import pytest
from pydantic import Field

import coterie
from coterie import Composed, Plugin, PluginConfig
from coterie.api.open_run import Oracle
from coterie.api.rollouts import read_rollouts
from coterie.compose import compose
from coterie.core.errors import ConfigError
from coterie.core.training.curriculum import tree_success
from coterie.core.training.run import Run
from coterie.core.types import TEAM, Action, Step, Task
from coterie.estimate.prompts import first_prompts
from coterie.recipes import load
from coterie.testing import coterie_run, play_episode
from coterie.testing.support.toys import ROLE
from tests.games import stops
from tests.test_resume import rows, same

PROMPTS: list[str] = []
"""Prompts of the scripted engine; a test clears it."""


class Guess(Plugin):
    """The right answer is one of `words` words, which the prompt names."""

    class Config(PluginConfig):
        words: int = Field(5, ge=2, le=9)
        rich: bool = False
        repeats: bool = False
        inner: Annotated[Any, Composed("reward")] = None

    roles = ()
    components = {"right": "increment"}

    @property
    def weights(self) -> Mapping[str, float]:
        return {"right": 2.0 if self.config.rich else 1.0}

    @property
    def not_summable(self) -> Sequence[str]:
        return ("right",) if self.config.repeats else ()

    def tasks(self, split: str, seed: int) -> Sequence[Task]:
        return [Task(id=f"{split}-{n}", payload=n) for n in range(2 * self.config.words)]

    def reset(self, task: Task, seed: int) -> Any:
        return task.payload % self.config.words, None

    def acting_roles(self, state: Any) -> tuple[str, ...] | None:
        return None if state[1] is None else ()

    def observe(self, state: Any, role: str) -> str:
        return f"n{self.config.words} t{state[0]}"

    async def step(self, state: Any, actions: Mapping[str, Action], ctx: Any) -> Step:
        word = next(iter(actions.values())).text
        return Step(state=(state[0], word), scores={(TEAM, "right"): float(word == f"w{state[0]}")}, info={})

    def outcome(self, state: Any) -> Mapping[str, float]:
        return {"success": float(state[1] == f"w{state[0]}")}

    def vocabulary(self) -> Sequence[str]:
        prompt = [f"n{self.config.words}", "one", "turn0"]
        return [*prompt, *(f"{letter}{n}" for letter in "tw" for n in range(self.config.words))]

    def demonstrate(self, state: Any, role: str, noise: float, rng: Any) -> str:
        return f"w{state[0]}"


def numbers_of(text: str) -> tuple[int, int]:
    """(number of words, number of the right one) of a prompt."""
    match = re.search(r"n(\d) t(\d)", text)
    assert match is not None
    return int(match[1]), int(match[2])


def skilled(request: Any, text: str) -> str:
    """Right with two words, with three where the first is right, and never with more."""
    PROMPTS.append(text)
    words, right = numbers_of(text)
    return f"w{right}" if words == 2 or (words == 3 and right == 0) else "none"


def curriculum(*values: Any, field: str = "words", promote_at: float = 0.3, window: int = 6) -> dict:
    return {"field": field, "values": list(values), "promote_at": promote_at, "window": window}


def table(engine: str, **env: Any) -> dict[str, Any]:
    scripted = engine == "scripted"
    model = {"model": {"init": "none"}, "train": "none"} if scripted else {"model": {"init": "tabular"}}
    return {
        "env": {"type": "tests.core.training.test_curriculum:Guess", **env},
        "team": {
            "order": ["one"],
            "roles": {"one": {"type": ROLE, "policy": "p"}},
        },
        "policies": {"p": model},
        "sampler": {"branches": 2 if scripted else 8, "sampling": {"max_new_tokens": 1}},
        "algorithm": "at_grpo",
        "engine": {"type": "scripted", "play": "tests.core.training.test_curriculum:skilled"}
        if scripted
        else engine,
        "trainer": "none" if scripted else {"type": "tabular", "learning_rate": 5.0},
        "schedule": {"steps": 6, "tasks_per_step": 3, "evaluate_every": 2, "checkpoint_every": 1},
    }


def composed(engine: str = "scripted", **env: Any) -> Run:
    return compose(load(table(engine, **env)))


def column(metrics: list[dict[str, Any]], name: str) -> list[Any]:
    return [row[f"curriculum/{name}"] for row in metrics]


# ---------------------------------------------------------------------------------------------- promotion


def test_levels_by_hand(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    PROMPTS.clear()
    caplog.set_level(logging.INFO, "coterie")
    coterie.train(table("scripted", curriculum=curriculum(2, 3, 4)), out=tmp_path / "run")
    metrics = rows(tmp_path / "run")
    # Two steps fill a window of six. With three words steps 3 and 4 are one pass over six tasks, in two of
    # which the first word is right; with four words every answer is wrong, so the last level stays.
    assert column(metrics, "level") == [0, 0, 1, 1, 2, 2]
    assert column(metrics, "value") == [2, 2, 3, 3, 4, 4]
    assert column(metrics, "episodes") == [3, 6, 3, 6, 3, 6]
    step_3 = metrics[2]["success_committed"]
    assert column(metrics, "rate") == pytest.approx([1, 1, step_3, 1 / 3, 0, 0])
    assert caplog.text.count("curriculum: words goes from") == 2

    played = [
        {row["task_id"] for row in read_rollouts(path) if row["kind"] == "node"}
        for path in sorted((tmp_path / "run" / "rollouts").glob("*.jsonl.gz"))
    ]
    values = [{task.partition("@")[2] for task in tasks} for tasks in played]
    assert values == [{f"words={n}"} for n in (2, 2, 3, 3, 4, 4)]
    # The step gives the place in the order: steps 3 and 4 are one pass over the second level's tasks.
    assert len(played[2] | played[3]) == 6 and not played[2] & played[3]


def test_evaluation_is_on_the_target(tmp_path: Path) -> None:
    PROMPTS.clear()
    coterie.train(table("scripted", curriculum=curriculum(2, 3)), out=tmp_path / "run")
    per_task = json.loads((tmp_path / "run" / "eval" / "step-000002.json").read_text())["per_task"]
    assert set(per_task) == {f"val-{n}" for n in range(10)}
    trained = PROMPTS.copy()
    PROMPTS.clear()
    coterie.evaluate(tmp_path / "run", split="test")
    assert {numbers_of(text)[0] for text in PROMPTS} == {5}
    assert {numbers_of(text)[0] for text in trained} == {2, 3, 5}


@pytest.mark.parametrize(
    ("settings", "levels"),
    [
        ({"promote_at": 1.0, "window": 3}, [0, 1, 1, 1, 1, 1]),  # with three words the rate is a third
        ({"promote_at": 1.0, "window": 4}, [0, 0, 1, 1, 1, 1]),
        ({"promote_at": 0.01, "window": 18}, [0, 0, 0, 0, 0, 0]),  # the window is full at the last step
        ({"promote_at": 0.01, "window": 15}, [0, 0, 0, 0, 0, 1]),
    ],
)
def test_a_full_window_and_a_rate_promote(tmp_path: Path, settings: dict, levels: list[int]) -> None:
    coterie.train(table("scripted", curriculum=curriculum(2, 3, **settings)), out=tmp_path / "run")
    assert column(rows(tmp_path / "run"), "level") == levels


def test_the_last_level_stays_and_none_comes_back(tmp_path: Path) -> None:
    settings = curriculum(4, 2, promote_at=0.5, window=3)
    coterie.train(table("scripted", curriculum=settings), out=tmp_path / "hard first")
    assert column(rows(tmp_path / "hard first"), "level") == [0] * 6
    coterie.train(table("scripted", curriculum=curriculum(2, 4, window=3)), out=tmp_path / "easy first")
    assert column(rows(tmp_path / "easy first"), "level") == [0, 1, 1, 1, 1, 1]
    assert column(rows(tmp_path / "easy first"), "rate")[1:] == [0.0] * 5


def test_a_step_of_a_level_that_was_left_has_no_rate(tmp_path: Path) -> None:
    """Steps ahead were handed out before: a rate and a count of the next level would be another level's."""
    source = table("tabular", curriculum=curriculum(2, 3, promote_at=1e-9, window=1))
    settings = ["schedule.max_staleness=2", "schedule.steps=5"]
    coterie.train(source, overrides=settings, out=tmp_path / "run")
    written = rows(tmp_path / "run")
    assert [row["curriculum/level"] for row in written] == [0, 0, 0, 1, 1]
    assert ["curriculum/rate" in row for row in written] == [True, False, False, True, True]
    assert ["curriculum/episodes" in row for row in written] == [True, False, False, True, True]


def test_a_trees_success_leaves_out_what_a_fault_lost() -> None:
    def trees(**env: Any) -> Sequence[Any]:
        run = coterie_run(
            answers=stops,
            env=env,
            order=("one",),
            sampler={"branches": 4, "expand": "all"},
            algorithm={"type": "magrpo"},
            schedule={"max_missing": 1.0},
        )
        return play_episode(run)[0]

    # Of four branches the second writes `stop`, which is success; with fail_on the one that writes 2 is lost.
    assert [tree_success(tree) for tree in trees()] == [pytest.approx(1 / 4)]
    assert [tree_success(tree) for tree in trees(fail_on="2")] == [pytest.approx(1 / 3)]
    lost = coterie_run(answers="1", env={"fail_on": "1"}, order=("one",), schedule={"max_missing": 1.0})
    assert [tree_success(tree) for tree in play_episode(lost)[0]] == [None]


# ------------------------------------------------------------------------------------------------- resume


def test_n_steps_are_k_steps_and_resume_across_promotions(tmp_path: Path) -> None:
    source = table("tabular", curriculum=curriculum(2, 3, 4, promote_at=0.5, window=4))
    longer = ["schedule.steps=12", "schedule.stratify=true"]
    coterie.train(source, overrides=longer, out=tmp_path / "whole")
    levels = column(rows(tmp_path / "whole"), "level")
    assert levels[0] == 0 and levels[-1] > 0, "nothing was promoted"
    coterie.train(source, overrides=[*longer, "schedule.steps=1"], out=tmp_path / "part")
    for steps in (3, 4, 7, 12):
        coterie.train(resume=tmp_path / "part", overrides=[f"schedule.steps={steps}"])
    same(tmp_path / "whole", tmp_path / "part")


# --------------------------------------------------------------------------------------------- warm start


def test_demonstrations_are_of_every_level_in_equal_shares() -> None:
    run = composed("tabular", curriculum=curriculum(2, 3, 4))
    oracle = Oracle(run, ("p",), 0.0)
    total: Counter[int] = Counter()
    for step in range(3):
        batch = oracle.batch(step, 10)
        shares = Counter(numbers_of(row.messages[0]["content"])[0] for row in batch)
        assert sorted(shares.values()) == [3, 3, 4]
        total += shares
        assert all(row.completion == f"w{numbers_of(row.messages[0]['content'])[1]}" for row in batch)
        assert batch == oracle.batch(step, 10)
    assert total == {2: 10, 3: 10, 4: 10}


def test_demonstrations_without_a_curriculum_are_of_the_target() -> None:
    batch = Oracle(composed("tabular"), ("p",), 0.0).batch(0, 10)
    assert {numbers_of(row.messages[0]["content"])[0] for row in batch} == {5} and len(batch) == 10


# ------------------------------------------------------------------------------------------------ the rest


def test_the_vocabulary_is_of_all_levels_and_the_target() -> None:
    plain, levels = composed(words=3), composed(words=3, curriculum=curriculum(2, 6))
    assert plain.curriculum is None and "w5" not in plain.vocabulary
    assert {"n2", "n3", "n6", "w5"} <= set(levels.vocabulary)
    assert list(levels.vocabulary) == sorted(set(levels.vocabulary))


def test_null_is_no_curriculum() -> None:
    assert composed(curriculum=None).curriculum is None


def test_components_of_the_target_are_shared_by_the_levels() -> None:
    reward = {"type": "function", "function": "tests.compose.test_run:always_one"}
    run = composed(inner=reward, curriculum=curriculum(2, 3))
    target: Any = run.environment
    levels: list[Any] = [level.environment for level in run.curriculum.levels]
    assert target.config.inner is not None
    assert all(level.config.inner is target.config.inner for level in levels)


def test_a_plan_measures_the_prompts_of_all_levels() -> None:
    class Words:
        """As many tokens as the prompt's number of words, so that the hardest level has the longest."""

        context = None

        def encode(self, messages: Any, *more: Any) -> Any:
            from coterie.core.types import Prompt

            return Prompt(ids=(0,) * numbers_of(messages[0]["content"])[0])

    assert first_prompts(composed(words=3, curriculum=curriculum(2, 7)), {"p": Words()}) == {"one": 7}
    assert first_prompts(composed(words=9, curriculum=curriculum(2, 7)), {"p": Words()}) == {"one": 9}


@pytest.mark.parametrize(
    ("settings", "path", "why"),
    [
        (curriculum(2, 3, field="word"), "env.curriculum.field", "did you mean 'words'"),
        (curriculum(2, 3, field="type"), "env.curriculum.field", "known"),
        (curriculum(2, 3, 1), "env.curriculum.values.2", "greater than or equal to 2"),
        (curriculum(2, "many"), "env.curriculum.values.1", "many"),
        (curriculum(2), "env.curriculum.values", "at least 2"),
        (curriculum(2, 3, 2), "env.curriculum.values.2", "twice"),
        (curriculum(False, True, field="rich"), "env.curriculum.values.1", "weights"),
        (curriculum(2, 3, promote_at=0), "env.curriculum.promote_at", "greater than 0"),
        (curriculum(2, 3, promote_at=1.5), "env.curriculum.promote_at", "less than or equal to 1"),
        (curriculum(2, 3, window=0), "env.curriculum.window", "greater than or equal to 1"),
        ({**curriculum(2, 3), "demote_at": 0.1}, "env.curriculum.demote_at", "unknown key"),
        ({"field": "words", "values": [2, 3]}, "env.curriculum.promote_at", "missing"),
        ("words", "env.curriculum", "words"),
    ],
)
def test_an_error_names_its_path(settings: Any, path: str, why: str) -> None:
    with pytest.raises(ConfigError) as error:
        composed(curriculum=settings)
    assert error.value.path == path and why in str(error.value)


def test_a_misspelt_curriculum_is_refused_with_a_suggestion() -> None:
    with pytest.raises(ConfigError, match="curriculum"):
        composed(curiculum=curriculum(2, 3))


def test_epochs_are_refused() -> None:
    source = table("scripted", curriculum=curriculum(2, 3))
    with pytest.raises(ConfigError, match="no passes") as error:
        compose(load(source, overrides=["schedule.steps=null", "schedule.epochs=1"]))
    assert error.value.path == "schedule.epochs"


def test_a_level_with_components_that_are_not_summable_is_refused() -> None:
    settings = curriculum(False, True, field="repeats")
    composed(curriculum=settings)  # immediate credit
    source = table("scripted", curriculum=settings) | {
        "algorithm": "magrpo",
        "sampler": {"branches": 2, "expand": "all"},
    }
    with pytest.raises(ConfigError, match="summed over turns"):
        compose(load(source))
