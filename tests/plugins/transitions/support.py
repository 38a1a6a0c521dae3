"""A mode of a team, and what it tells, without an engine."""

from __future__ import annotations

import asyncio
from typing import Any

from coterie.core.types import Action, HistoryEntry
from coterie.testing import build
from tests.plugins.transitions.toys import Work

TOYS = "tests.plugins.transitions.toys"
AUX = "```python\ndef aux(x):\n    return x  \n```"
MAIN = "<think>no</think>\n\n  def add(x, y):  # <|im_end|>\n\treturn aux(x)  #1"
SOLVER = "def add(x, y):\n    return x + y  #0 #1 #2"
EDITS = '{"aux": "return x", "main": "call aux"}'
TEAMS = {"team": (("aux", AUX), ("main", MAIN)), "solver": (("solver", SOLVER),)}


def mode(name: str, team: str = "team", env: Any = "CodeTeam", **settings: Any) -> Any:
    """A transition mode of a run with a team and a toy environment."""
    roles = [role for role, _ in TEAMS[team]]
    table = {"type": name, **settings}
    environment = {"type": f"{TOYS}:{env}"} if isinstance(env, str) else env
    return build("transition", table, order=[roles], env=environment)


def entry(role: str, text: str, turn: int = 0) -> HistoryEntry:
    messages = (
        {"role": "system", "content": f"You are {role}."},
        {"role": "user", "content": "Write add(x, y)."},
    )
    return HistoryEntry(
        turn=turn, observation=None, messages=messages, action=Action(calls=(), text=text), info={}
    )


def told(made: Any, role: str, *earlier: str, team: str = "team", state: Any = None) -> list[str]:
    """What a mode tells a role of a team after its first turn, or after these answers of the role."""
    return asyncio.run(telling(made, role, *earlier, team=team, state=state))


async def telling(made: Any, role: str, *earlier: str, team: str = "team", state: Any = None) -> list[str]:
    texts = earlier or (dict(TEAMS[team])[role],)
    history = [entry(role, text, turn) for turn, text in enumerate(texts)]
    state = state or Work(latest=TEAMS[team], turns=len(texts))
    return list(await made.tell(role, state, history, made.build.environment))


def second_node(trees: Any) -> Any:
    """The node of turn 2 of the first tree."""
    return next(joint.child for joint in trees[0].root.joints if joint.child is not None)


def expert(
    *texts: str, team: str = "team", env: Any = "CodeTeam", settings: Any = None, **model: Any
) -> tuple[Any, Any]:
    """The mode with an expert that answers these texts, and the expert."""
    table = {"type": f"{TOYS}:Expert", **({"texts": list(texts)} if texts else {}), **model}
    made = mode("expert_edits", team, env, model=table, **(settings or {}))
    return made, made.config.model.model
