"""What docs/kinds says of errors: what becomes of an exception, by the method that raises it."""

from __future__ import annotations

from typing import Any

import pytest

from coterie.core.errors import PolicyFault, SystemFault, UserError
from coterie.testing import coterie_run, play_episode

ROLE = "coterie.testing.support.toys:EchoRole"


class Adder:
    """A tool whose calls are `add`."""

    def __init__(self, config: Any, build: Any) -> None:
        self.name = "adder"

    def find(self, text: str) -> str | None:
        return "add" if text == "add" else None

    async def run(self, call: str) -> str:
        return "2"


class Judge:
    """A reward source of scope action."""

    scope, components, weights, policy_fault = "action", {"good": "increment"}, {}, -1.0

    def __init__(self, config: Any, build: Any) -> None:
        pass

    async def score(self, view: Any) -> dict[tuple[str, str], float]:
        return {(view.role, "good"): 1.0}


def component(run: Any, kind: str) -> Any:
    side = run.rollout_side
    return {
        "environment": side.environment,
        "role": side.team.members["one"].role,
        "reward": side.reward_sources[0].plugin,
        "transition": side.team.transition,
        "tool": side.team.members["one"].tools[0],
        "sampler": side.sampler,
        "engine": run.engine,
    }[kind]


def broken(kind: str, method: str, error: Exception) -> Any:
    """A run of two turns, in which a method of a kind raises."""
    run = coterie_run(
        "add" if kind == "tool" else "1",
        order=["one"],
        roles={"one": {"type": ROLE, "tools": ["adder"]}},
        max_turns=2,
        tools={"adder": {"type": "tests.test_kinds_errors:Adder"}},
        rewards={"judge": {"type": "tests.test_kinds_errors:Judge"}},
        transition={"type": "plain"},
        sampler={"branches": 1},
        algorithm="reinforce",
        schedule={"max_missing": 1.0},
    )

    def fails(*arguments: Any, **named: Any) -> Any:
        raise error

    async def fails_later(*arguments: Any, **named: Any) -> Any:
        raise error

    plain = method in ("render", "parse", "find", "observe", "outcome", "reset")
    setattr(component(run, kind), method, fails if plain else fails_later)
    return run


def seen(run: Any) -> tuple[set[str], set[float | None]]:
    """Kinds of the faults of actions and joint actions, and the values of the judge's scores."""
    trees, scores = play_episode(run)
    faults: set[str] = set()
    for node in (node for tree in trees for node in tree.nodes()):
        actions = [action for decision in node.decisions.values() for action in decision.branches]
        faults |= {each.fault.kind for each in (*actions, *node.joints) if each.fault is not None}
    return faults, {score.value for _, _, component, score in scores if component == "good"}


FAULTS = [
    ("environment", "step", PolicyFault("no"), "policy"),
    ("environment", "step", SystemFault("no"), "system"),
    ("environment", "step", ValueError("no"), "system"),
    ("role", "parse", PolicyFault("no"), "policy"),
    ("role", "parse", ValueError("no"), "policy"),
    ("role", "parse", SystemFault("no"), "system"),
    ("transition", "tell", SystemFault("no"), "system"),
    ("tool", "find", ValueError("no"), "system"),
    ("tool", "run", ValueError("no"), "system"),
    ("tool", "run", SystemFault("no"), "system"),
    ("tool", "run", PolicyFault("no"), "policy"),
    ("engine", "generate", SystemFault("no"), "system"),
]
ENDS = [
    ("environment", "reset"),
    ("environment", "observe"),
    ("environment", "outcome"),
    ("role", "render"),
    ("transition", "tell"),
    ("sampler", "play"),
    ("engine", "generate"),
]


def named(value: Any) -> str:
    return type(value).__name__ if isinstance(value, Exception) else str(value)


@pytest.mark.parametrize("kind, method, error, fault", FAULTS, ids=named)
def test_a_failure_is_the_outputs_or_the_systems(kind, method, error, fault):
    faults, _ = seen(broken(kind, method, error))
    assert faults == {fault}


@pytest.mark.parametrize(
    "error, value",
    [(PolicyFault("no"), -1.0), (SystemFault("no"), None), (ValueError("no"), None)],
    ids=named,
)
def test_a_source_has_the_floor_or_no_score(error, value):
    assert seen(broken("reward", "score", error)) == (set(), {value})


@pytest.mark.parametrize(
    "kind, method", [("reward", "score"), ("transition", "tell"), ("engine", "generate")]
)
def test_what_no_call_escapes_ends_the_run(kind, method):
    with pytest.raises(UserError, match="the budget is spent"):
        play_episode(broken(kind, method, UserError("the budget is spent")))


@pytest.mark.parametrize("kind, method", ENDS)
def test_a_bug_ends_the_run_and_names_the_plugin(kind, method):
    with pytest.raises(ValueError, match="a bug") as raised:
        play_episode(broken(kind, method, ValueError("a bug")))
    assert any(note.startswith(f"in {kind} ") and f": {method}" in note for note in raised.value.__notes__)


def test_what_is_opened_last_is_closed_first():
    run, events = (
        coterie_run("1", order=["one"], rewards={"judge": {"type": "tests.test_kinds_errors:Judge"}}),
        [],
    )

    def recorded(name: str, plugin: Any, method: str) -> None:
        inner = getattr(plugin, method, None)

        async def call(*arguments: Any) -> Any:
            events.append(f"{name}.{method}")
            return None if inner is None else await inner(*arguments)

        setattr(plugin, method, call)

    parts = {"engine": run.engine, "executor": run.executor, "trainer": run.trainer}
    parts["reward"] = run.rollout_side.reward_sources[0].plugin
    for name, plugin in parts.items():
        recorded(name, plugin, "open")
        recorded(name, plugin, "close")
    recorded("engine", run.engine, "load_weights")
    play_episode(run)
    assert events == [
        *("engine.open", "executor.open", "reward.open", "trainer.open", "engine.load_weights"),
        *("trainer.close", "executor.close", "reward.close", "engine.close"),
    ]
