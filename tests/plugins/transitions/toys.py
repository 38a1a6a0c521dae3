"""Environments for tests of transition modes: a code team with findings, a game with a diagnosis alone."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from coterie import TEAM, ChatAnswer, Finding, Plugin, PluginConfig, Step, SystemFault, Task

TESTS = ("assert add(1, 1) == 2", "assert add(2, 2) == 4", "assert add(0, 5) == 5")


@dataclass(frozen=True)
class Work:
    """A state: the latest answer of each role, and the turn."""

    latest: tuple[tuple[str, str], ...] = ()
    turns: int = 0


class CodeTeam(Plugin):
    """`aux` and `main` (or `solver` alone) write code; test n passes where the code holds `#n`."""

    class Config(PluginConfig):
        broken: bool = False
        """`findings` raises SystemFault."""
        wrong: bool = False
        """`findings` returns texts, and `latest` numbers."""

    config: Config
    roles: tuple[str, ...] = ()
    components: Mapping[str, Any] = {"done": "potential"}
    weights: Mapping[str, float] = {}

    def tasks(self, split: str, seed: int) -> list[Task]:
        return [Task(id=f"{split}-{index}", payload="Write add(x, y).") for index in range(8)]

    def reset(self, task: Task, seed: int) -> Work:
        return Work()

    def acting_roles(self, state: Work) -> None:
        return None

    def observe(self, state: Work, role: str) -> dict[str, str]:
        return {"task": "Write add(x, y)."}

    async def step(self, state: Work, actions: Mapping[str, Any], ctx: Any) -> Step:
        latest = {**dict(state.latest), **{role: action.text for role, action in actions.items()}}
        after = replace(state, latest=tuple(latest.items()), turns=state.turns + 1)
        return Step(state=after, scores={(TEAM, "done"): 0.0})

    def outcome(self, state: Work) -> dict[str, float]:
        return {"success": 0.0}

    def latest(self, state: Work) -> dict[str, str]:
        return {role: 5 if self.config.wrong else text for role, text in state.latest}  # type: ignore[misc]

    async def findings(self, state: Work, role: str, tests: int) -> tuple[Finding, ...]:
        if self.config.broken:
            raise SystemFault("the sandbox is gone")
        if self.config.wrong:
            return ("all well",)  # type: ignore[return-value]
        texts = dict(state.latest)
        main = texts.get("main", texts.get("solver", ""))
        own = [_definition("add", main)]
        if "aux" in texts:
            aux = _definition("aux", texts["aux"])
            own = [aux, *own] if role == "aux" else [*own, aux]
        usage = [*_usage(main)] if "aux" in texts and role == "main" else []
        return (*own, _tests(main, tests), *usage)


class Talker(CodeTeam):
    """It has a diagnosis and no findings: what the last answer says, but for `right`."""

    findings = None  # type: ignore[assignment]
    latest = None  # type: ignore[assignment]

    def diagnose(self, state: Work, role: str) -> str:
        text = dict(state.latest)[role]
        return "" if text == "right" else f"{role} wrote {text}"


def _definition(name: str, text: str) -> Finding:
    state = "FOUND" if f"def {name}" in text else "MISSING"
    return Finding(
        name=name,
        passed=state == "FOUND",
        summary=f"Definition of {name}: {'found' if state == 'FOUND' else 'not found'}",
        details=(f"Definition of {name}: {state}",),
    )


def _tests(text: str, tests: int) -> Finding:
    chosen = [*range(3)][tests:] if tests < 0 else [*range(3)][: tests or None]
    failed = [TESTS[number] for number in chosen if f"#{number}" not in text]
    passed = len(chosen) - len(failed)
    return Finding(
        name="tests",
        passed=not failed,
        summary=f"Tests: {passed} of {len(chosen)} passed",
        details=(f"Tests: {passed}/{len(chosen)} passed", *(f"  Failed: {test}" for test in failed)),
    )


def _usage(text: str) -> tuple[Finding, ...]:
    if not re.search(r"\baux\(", text):
        return (Finding(name="usage", passed=None, summary="Use of aux: not called"),)
    thin = Finding(name="thin", passed=None, details=("Warning: the function does nothing but call aux",))
    return (Finding(name="usage", passed=None, summary="Use of aux: called"), thin)


class Expert(Plugin):
    """A chat model that answers with the texts in turn, from the start again; `FAULT` is a SystemFault."""

    class Config(PluginConfig):
        texts: tuple[str, ...] = ('{"aux": "return x", "main": "call aux"}',)
        structured: bool = True
        finish: str = "stop"

    config: Config

    def __init__(self, config: Any, build: Any) -> None:
        super().__init__(config, build)
        self.structured = self.config.structured
        self.asked: list[Any] = []
        self.gate: Any = None
        """An event that answers wait for."""

    async def answer(self, request: Any) -> ChatAnswer:
        text = self.config.texts[len(self.asked) % len(self.config.texts)]
        self.asked.append(request)
        if self.gate is not None:
            await self.gate.wait()
        if text == "FAULT":
            raise SystemFault("the server is gone")
        return ChatAnswer(text=text, version="expert-1", finish=self.config.finish)
