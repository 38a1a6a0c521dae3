"""Debate: two sides argue, and a judge who sees their arguments alone says which side is right."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from pydantic import Field

from coterie import Action, ComponentKind, Plugin, PluginConfig, Split, Step, StepContext, Task

SIDES = ("pro", "con")
ARGUMENTS = ("source", "rhetoric")


class State(NamedTuple):
    """What is true, what each side has argued by round, and what the judge said; None: unreadable."""

    truth: str
    rounds: tuple[tuple[str | None, str | None], ...] = ()
    verdict: str | None = ""


class Debate(Plugin):
    """A side may name a source, which is looked up, or talk. The judge earns 1 for the side that is right.

    Only the side that is right has sources: what the other side names turns out to be none. So a judge can
    learn to follow sources, and a debater to name one where it has it. A debater sees whether its side is
    right, and what was argued so far; the judge sees the arguments alone.
    """

    class Config(PluginConfig):
        rounds: int = Field(1, ge=1, le=4, description="Rounds of arguments, both sides at once.")
        tasks: int = Field(32, ge=2)

    config: Config
    roles = (*SIDES, "judge")
    components: Mapping[str, ComponentKind] = {"correct": "increment"}
    weights: Mapping[str, float] = {}

    def tasks(self, split: Split, seed: int) -> Sequence[Task]:
        draws = random.Random(f"{seed} {split}")
        return [Task(id=f"{split}-{n}", payload=draws.choice(SIDES)) for n in range(self.config.tasks)]

    def reset(self, task: Task, seed: int) -> State:
        return State(task.payload)

    def acting_roles(self, state: State) -> tuple[str, ...]:
        if len(state.rounds) < self.config.rounds:
            return SIDES
        return ("judge",) if state.verdict == "" else ()

    def observe(self, state: State, role: str) -> Mapping[str, Any]:
        heard = [
            (self._heard(state, "pro", pro), self._heard(state, "con", con)) for pro, con in state.rounds
        ]
        return {"right": None if role == "judge" else role == state.truth, "heard": heard}

    def _heard(self, state: State, side: str, argument: str | None) -> str:
        """What a listener knows of an argument once its source was looked up."""
        if argument == "source":
            return "source" if side == state.truth else "no-such-source"
        return argument or "nothing"

    async def step(self, state: State, actions: Mapping[str, Action], ctx: StepContext) -> Step:
        if "judge" not in actions:
            arguments = (actions["pro"].parsed, actions["con"].parsed)
            return Step(state=state._replace(rounds=(*state.rounds, arguments)))
        verdict = actions["judge"].parsed
        correct = 1.0 if verdict == state.truth else 0.0
        after = state._replace(verdict=verdict)
        return Step(state=after, scores={("judge", "correct"): correct}, info={"verdict": verdict or ""})

    def outcome(self, state: State) -> Mapping[str, float]:
        return {"success": float(state.verdict == state.truth)}

    def vocabulary(self) -> Sequence[str]:
        return (*SIDES, *ARGUMENTS)
