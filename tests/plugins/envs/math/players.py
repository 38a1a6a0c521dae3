"""Teams of environment `math`, and messages as a model writes them."""

from __future__ import annotations

from typing import Any

from coterie.core.types import Action, Task
from coterie.plugins.agents import math as agents
from coterie.plugins.envs.math.env import Math
from coterie.plugins.envs.math.state import Problem
from tests.plugins.envs.programs import Inline
from tests.plugins.support import Build, action, context, make, wait

PAIR = [["reasoner", "tool"]]
CHAIN = ["problem_solver", "code_executor", "verifier"]
SOLO = ["solver"]
FORMS: dict[str, list[Any]] = {"pair": PAIR, "chain": CHAIN, "solo": SOLO}
TASK = Task(
    id="train-0",
    payload=Problem(text="What is 7 + 5 - 3?", words="has 7 gets 5 loses 3", expression="7 + 5 - 3"),
    answer="9",
)


def env_of(order: list[Any], **settings: Any) -> Any:
    """The environment; in prose with a sandbox and without workers."""
    if settings.get("rendering") != "compact":
        settings = {"sandbox": Inline(), "verify": "numbers", **settings}
    return make(Math, Build(order=order), **settings)


def role_of(name: str, **settings: Any) -> Any:
    plugin = getattr(agents, "Math" + "".join(part.title() for part in name.split("_")))
    return make(plugin, Build(name=name, path=f"team.roles.{name}"), **settings)


def box(answer: Any) -> str:
    return rf"I think so: \boxed{{{answer}}}"


def program(code: str) -> str:
    return f"We compute it.\n```python\n{code}\n```\n"


def act(env: Any, state: Any, turn: int = 0, /, **texts: str) -> Any:
    """The step in which roles write these texts, each read by its own role."""
    actions: dict[str, Action] = {
        role: action(text, role_of(role), env.observe(state, role)) for role, text in texts.items()
    }
    return wait(env.step(state, actions, context(TASK, turn)))


def play(env: Any, *turns: dict[str, str]) -> Any:
    """The last step of an episode of these turns."""
    state, step = env.reset(TASK, 0), None
    for turn, texts in enumerate(turns):
        step = act(env, state, turn, **texts)
        state = step.state
    return step


def chained(env: Any, *texts: str) -> list[Any]:
    """The steps of a chain in which the acting roles write these texts."""
    state, steps = env.reset(TASK, 0), []
    for text in texts:
        [role] = env.acting_roles(state)
        steps.append(act(env, state, **{role: text}))
        state = steps[-1].state
    return steps
