"""What an evaluation says of each task: outcomes, categories, contents, answers."""

from __future__ import annotations

import json
import math

import pytest

import coterie
from coterie.api.compare import content_of
from coterie.core.errors import PluginError, SystemFault
from coterie.core.types import Task
from examples.signals import WORDS, Signals
from tests.api.test_compare import signals


class Described(Signals):
    """Outcomes with a gap, categories, and answers; the world breaks on the word for 1."""

    def tasks(self, split, seed):
        return [
            Task(
                id=task.id,
                payload=task.payload,
                answer=task.answer,
                stratum="even" if index % 2 == 0 else "odd",
            )
            for index, task in enumerate(super().tasks(split, seed))
        ]

    async def step(self, state, actions, ctx):
        if any(action.text == WORDS[1] for action in actions.values()):
            raise SystemFault("the world broke")
        return await super().step(state, actions, ctx)

    def outcome(self, state):
        outcome = super().outcome(state)
        return {**outcome, "sometimes": math.nan if outcome["success"] else 2.0, "always": 3.0}

    def final_answer(self, task, played):
        return "/".join(action.text for actions, _ in played for action in actions.values())


class Wrong(Signals):
    def final_answer(self, task, played):
        return 7


def evaluated(name, **settings):
    config = signals(schedule={"steps": 1, "max_missing": 1.0})
    config["env"] = {"type": f"tests.api.test_evaluated_tasks:{name}", "numbers": 3}
    return coterie.evaluate(config, **settings)


def test_what_the_file_says_of_each_task(tmp_path):
    evaluation = evaluated("Described", samples=2)
    evaluation.write(tmp_path / "e.json")
    written = json.loads((tmp_path / "e.json").read_text())
    assert written["per_task"] == {"test-0": [1.0, 1.0], "test-2": [1.0, 1.0]}, "the world broke on test-1"
    assert written["strata"] == {"test-0": "even", "test-1": "odd", "test-2": "even"}
    assert len(set(written["contents"].values())) == 3, "the task that was never finished was played, too"
    assert written["outcomes"]["sometimes"] == {"test-0": [None, None], "test-2": [None, None]}
    assert written["outcomes"]["always"]["test-2"] == [3.0, 3.0] and "success" not in written["outcomes"]
    assert written["answers"] == {"test-0": [f"{WORDS[0]}/0"] * 2, "test-2": [f"{WORDS[2]}/2"] * 2}
    assert written["at_k"]["majority@2"]["mean"] == 1.0
    assert written["by_category"]["even"]["success"]["n"] == 2
    assert written["by_category"]["odd"]["success"]["n"] == 0, "none was finished"


def test_an_answer_that_is_no_text_names_its_plugin():
    with pytest.raises(PluginError, match="final_answer of Wrong returned 7"):
        evaluated("Wrong")


def test_the_content_of_a_task_is_its_problem_and_its_answer():
    task = Task(id="a", payload={"n": 1}, answer=2)
    assert content_of(None, task) == content_of(None, Task(id="b", payload={"n": 1}, answer=2, stratum="x"))
    assert content_of(None, task) != content_of(None, Task(id="a", payload={"n": 2}, answer=2))
    assert content_of(None, task) != content_of(None, Task(id="a", payload={"n": 1}, answer=3))
    assert content_of(None, Task(id="a", payload=object())) == "", (
        "it can't be digested, and has no fingerprint"
    )


class Marks:
    def fingerprints(self, task):
        return {"content": task.id}


def test_what_cant_be_digested_has_its_fingerprint():
    one, two = (content_of(Marks(), Task(id=name, payload=object())) for name in "ab")
    assert one and two and one != two
