"""Runs in which a role fails in a known way from a known step on: what a report must show.

`make(failure, folder)` trains a planner and an executor on sums for 45 steps with a scripted engine.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import coterie
from coterie import TEAM, Plugin, PolicyFault, Step, Task
from coterie.backends.engines.scripted import ScriptedEngine
from coterie.backends.trainers.tabular import TabularTrainer
from coterie.core.types import Call, Request

HERE = __name__
SINCE = {"repeats": 30, "unparsed": 25, "length": 20}
"""Failure -> the step after which it begins."""
NUMBERS = [
    "zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve",
]  # fmt: skip


class Sums(Plugin):
    """The planner sees a sum, the executor the sum and the plan, and answers; two tries."""

    roles = ("planner", "executor")
    components = {"correct": "increment"}
    weights = {}

    def tasks(self, split: str, seed: int) -> list[Task]:
        return [Task(id=f"{split}-{a}+{b}", payload=(a, b)) for a in range(2, 6) for b in range(2, 6)]

    def reset(self, task: Task, seed: int) -> dict[str, Any]:
        return {"sum": task.payload, "plan": "", "answer": None, "done": False}

    def acting_roles(self, state: Any) -> tuple[str, ...] | None:
        return () if state["done"] else None

    def observe(self, state: Any, role: str) -> str:
        a, b = state["sum"]
        shown = f"What is {NUMBERS[a]} plus {NUMBERS[b]} ?"
        return shown if role == "planner" else f"{shown} Plan : {state['plan']}"

    async def step(self, state: Any, actions: Mapping[str, Any], ctx: Any) -> Step:
        if "planner" in actions:
            return Step(state={**state, "plan": actions["planner"].text})
        right = NUMBERS[sum(state["sum"])] in (actions["executor"].parsed or "").split()
        after = {**state, "answer": actions["executor"].text, "done": right}
        return Step(state=after, scores={(TEAM, "correct"): float(right)})

    def outcome(self, state: Any) -> Mapping[str, float]:
        return {"success": float(state["done"])}


class Speaker(Plugin):
    """A role whose prompt is what it sees."""

    def render(self, seen: Any) -> list[dict[str, str]]:
        return [{"role": "user", "content": seen.observation}]

    def parse(self, text: str, observation: Any) -> str:
        return text


class Strict(Speaker):
    """It reads an answer that begins with `answer`."""

    def parse(self, text: str, observation: Any) -> str:
        if not text.startswith("answer "):
            raise PolicyFault(f"no line 'answer ...' in {text[:40]!r}")
        return text


class Wordy(Plugin):
    """Pays a tenth for each word of the executor."""

    scope = "action"
    components = {"words": "increment"}
    weights: Mapping[str, float] = {"words": 1.0}
    policy_fault = 0.0

    async def score(self, view: Any) -> Mapping[tuple[str, str], float]:
        count = len(view.action.text.split()) if view.role == "executor" else 0
        return {(view.role, "words"): count / 10}


class Script(ScriptedEngine):
    """Roles that do well until `SINCE`, and then fail as `play` says."""

    async def generate(self, request: Request) -> Call:
        call = await super().generate(request)
        step, draws = call.version + 1, random.Random(request.seed)
        seen = self._codec.text(request.prompt_ids)
        text = _answer(self.config.play.rpartition(":")[2], request.key.role, seen, step, draws)
        ids = (*self._codec.ids(text), *call.token_ids[-1:])
        return replace(call, token_ids=ids, logprobs=tuple(-draws.expovariate(2.0) for _ in ids))


def _answer(failure: str, role: str, seen: str, step: int, draws: random.Random) -> str:
    words = seen.split()
    a, b = (NUMBERS.index(word) for word in (words[words.index("is") + 1], words[words.index("plus") + 1]))
    fails = step > SINCE[failure] and draws.random() < 0.9
    if role == "planner":
        return f"add {NUMBERS[b]} to {NUMBERS[a]} step by step"
    right = draws.random() < 0.8
    answer = f"answer {NUMBERS[a + b if right else (a + b + 1) % 13]}"
    if fails and failure == "repeats":
        return seen.partition("Plan : ")[2].strip()
    if fails and failure == "unparsed":
        return f"I think that it is {NUMBERS[a + b]}"
    if failure == "length":
        more = draws.randint(0, 4) + (draws.randint(0, 3 * (step - 20)) if step > 20 else 0)
        return answer if not more else f"answer well {'and so on ' * more}".strip()
    return answer


def repeats(request: Request, text: str) -> str:
    return ""


unparsed = length = repeats


class Counts(TabularTrainer):
    """Counts updates alone: the words of a script are no rows of a table."""

    def _update(self, name: str, policy: Any, samples: Any, step: int) -> dict[str, float]:
        policy.version += 1
        return {"optimizer_steps": 1.0, "entropy": 1.0, "loss": 0.0, "grad_norm": 1.0}


def table(failure: str) -> dict[str, Any]:
    """The configuration of a planted run."""
    wordy = {"wordy": {"type": f"{HERE}:Wordy"}} if failure == "length" else {}
    executor = "Strict" if failure == "unparsed" else "Speaker"
    return {
        "name": f"planted_{failure}",
        "env": {"type": f"{HERE}:Sums"},
        "team": {
            "order": ["planner", "executor"],
            "max_turns": 2,
            "roles": {
                "planner": {"type": f"{HERE}:Speaker", "policy": "planner"},
                "executor": {"type": f"{HERE}:{executor}", "policy": "executor"},
            },
        },
        "policies": {name: {"model": {"init": "tabular"}} for name in ("planner", "executor")},
        "rewards": {"environment": {"type": "environment"}, **wordy},
        "sampler": {"branches": 4, "sampling": {"max_new_tokens": 64}},
        "algorithm": "at_grpo",
        "engine": {"type": f"{HERE}:Script", "play": f"{HERE}:{failure}"},
        "trainer": {"type": f"{HERE}:Counts"},
        "schedule": {"steps": 45, "tasks_per_step": 8, "evaluate_every": 0, "record_every": 5},
    }


def make(failure: str, folder: Path) -> Path:
    """Train a planted run; returns its folder."""
    coterie.train(table(failure), out=folder)
    return folder
