"""A relay of three roles, and a coach that scores it by rule: for process rewards in benchmarks and tests.

`fetch` copies a number from a record, `transform` adds one to what it was handed, `report` writes what is
left to the highest number. Each sees its own task and what the role before it wrote, and nothing else, so
that one wrong role makes the end wrong although the other two did their part.
"""

from __future__ import annotations

import asyncio
import json
import random
import re
from collections.abc import Mapping, Sequence
from typing import Any

from coterie import (
    TEAM,
    ChatAnswer,
    ChatRequest,
    Plugin,
    PluginConfig,
    PolicyFault,
    Step,
    Task,
    digest,
)

NUMBERS = 6
ROLES = ("fetch", "transform", "report")
TASKS = {
    "fetch": "Copy the number.",
    "transform": f"Add one to the number; after {NUMBERS - 1} comes 0.",
    "report": f"Subtract the number from {NUMBERS - 1}.",
}
"""The instruction of each role."""


def right(role: str, number: int) -> int:
    """What a role should write when it sees a number."""
    if role == "fetch":
        return number
    return (number + 1) % NUMBERS if role == "transform" else NUMBERS - 1 - number


class Relay(Plugin):
    """The state is (the record, what was written so far). The team gains 1 where the end is right."""

    class Config(PluginConfig):
        tasks: int = 48

    roles = ROLES
    components = {"right": "increment"}
    weights = {}

    def tasks(self, split: str, seed: int) -> Sequence[Task]:
        return [
            Task(
                id=f"{split}-{index}",
                payload=index % NUMBERS,
                answer=str(right("report", right("transform", index % NUMBERS))),
                stratum="low" if index % NUMBERS < NUMBERS // 2 else "high",
            )
            for index in range(self.config.tasks)
        ]

    def reset(self, task: Task, seed: int) -> Any:
        return (task.payload, ())

    def acting_roles(self, state: Any) -> tuple[str, ...]:
        return ROLES[len(state[1]) : len(state[1]) + 1]

    def observe(self, state: Any, role: str) -> str:
        return state[1][-1] if state[1] else str(state[0])

    async def step(self, state: Any, actions: Mapping[str, Any], ctx: Any) -> Step:
        ((role, action),) = actions.items()
        after = (state[0], (*state[1], action.text))
        scores = {(TEAM, "right"): self.outcome(after)["success"]} if role == ROLES[-1] else {}
        return Step(state=after, scores=scores)

    def outcome(self, state: Any) -> Mapping[str, float]:
        wanted = right("report", right("transform", state[0]))
        return {"success": float(len(state[1]) == len(ROLES) and state[1][-1] == str(wanted))}

    def vocabulary(self) -> list[str]:
        return [str(number) for number in range(NUMBERS)]


class Runner(Plugin):
    """A role of the relay: an instruction, and what it was handed."""

    def __init__(self, config: Any, build: Any) -> None:
        super().__init__(config, build)
        self.name = build.name

    def render(self, role_input: Any) -> list[dict[str, str]]:
        feedback = [f"feedback: {sentence}" for sentence in role_input.feedback]
        seen = "\n".join([str(role_input.observation), *feedback])
        return [{"role": "system", "content": TASKS[self.name]}, {"role": "user", "content": seen}]

    def parse(self, text: str, observation: Any) -> int:
        if not re.fullmatch("[0-9]", text):
            raise PolicyFault(f"{text[:20]!r} is no number")
        return int(text)

    def vocabulary(self) -> list[str]:
        return [word for task in TASKS.values() for word in task.split()]


_PART = re.compile(r"^<(role|instruction|seen|wrote|tool_output|files|answer)>\n(.*?)\n</\1>$", re.M | re.S)


def parts_of(prompt: str) -> list[dict[str, str]]:
    """The parts of every action of a coach's prompt, in their order."""
    actions: list[dict[str, str]] = []
    for name, text in _PART.findall(prompt):
        if name == "role":
            actions.append({})
        actions[-1][name] = text
    return actions


class RuleCoach(Plugin):
    """A chat model that reads the coach's prompt and scores each action by its instruction.

    An action that is right for what the role saw gets 9, a wrong number 3, anything else 1, each with normal
    noise that the texts alone decide. It answers in the form that the prompt asks for.
    """

    class Config(PluginConfig):
        structured: bool = False
        noise: float = 0.0
        """Standard deviation, in points."""
        seed: int = 0
        delay: float = 0.0
        """Seconds an answer."""

    def __init__(self, config: Any, build: Any) -> None:
        super().__init__(config, build)
        self.structured = config.structured
        self.asked: list[ChatRequest] = []

    def score(self, parts: Mapping[str, str]) -> tuple[float, str]:
        """The score and the reason of one action."""
        role, seen, wrote = parts["role"].split(",")[0], parts["seen"].split("\n")[0], parts["wrote"]
        read = re.fullmatch("[0-9]", seen)
        wanted = str(right(role, int(seen))) if read else None
        if wanted is None:
            base, reason = 6.0, "it was handed no number"
        elif wrote == wanted:
            base, reason = 9.0, f"{wrote} is right"
        else:
            number = re.fullmatch("[0-9]", wrote)
            base, reason = (3.0 if number else 1.0), f"{wanted} is right"
        noise = random.Random(f"{self.config.seed} {digest(sorted(parts.items()))}").gauss(0, 1)
        return min(10.0, max(0.0, round(base + self.config.noise * noise))), reason

    async def answer(self, request: ChatRequest) -> ChatAnswer:
        self.asked.append(request)
        if self.config.delay:
            await asyncio.sleep(self.config.delay)
        prompt = request.messages[0]["content"]
        judged = [self.score(parts) for parts in parts_of(prompt)]
        several = "every action of a team" in prompt.split("\n")[0]
        return ChatAnswer(text=self.written(judged, several), version="rules-1")

    def written(self, judged: Sequence[tuple[float, str]], several: bool) -> str:
        """The answer's text."""
        if self.structured:
            rows = [{"score": score, "reason": reason} for score, reason in judged]
            if several:
                return json.dumps({"scores": [{"action": n, **row} for n, row in enumerate(rows, 1)]})
            return json.dumps(rows[0])
        heads = [f"ACTION: {n}\n" if several else "" for n in range(1, len(judged) + 1)]
        return "\n".join(
            f"{head}PROCESS_SCORE: {score:g}\nREASONING: {reason}"
            for head, (score, reason) in zip(heads, judged, strict=True)
        )


def relay_table(policy: str = "shared") -> dict[str, Any]:
    """The tables `env` and `team` of the relay, as a configuration has them."""
    roles = {role: {"type": f"{__name__}:Runner", "policy": policy} for role in ROLES}
    return {
        "env": {"type": f"{__name__}:Relay"},
        "team": {"order": list(ROLES), "max_turns": 1, "roles": roles},
    }
