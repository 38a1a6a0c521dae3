"""A coach and the views that it scores, for tests."""

from __future__ import annotations

import asyncio
import re

from coterie.core.protocols import ActionView, EpisodeView
from coterie.core.types import Action, Decision, JointAction, Key, Node, Task
from coterie.testing import build

SCRIPTED = "tests.plugins.rewards.coach.models:Scripted"
PROMPT = (
    {"role": "system", "content": "Load the file and hand it over."},
    {"role": "user", "content": "train.csv has 64 rows"},
)


def coach(model=None, order=("engineer", "analyst"), env=None, **settings):
    """A coach on a scripted chat model; `model` holds its settings, and `env` is the environment's table."""
    table = {"type": "coach", "model": {"type": SCRIPTED, **(model or {})}, **settings}
    return build("reward", table, name="coach", order=list(order), env=env)


def action_of(text="print(len(df))", tools=(), thought="", fault=None):
    return Action(calls=(), text=text, tool_results=tuple(tools), thought=thought, fault=fault)


def view_of(text="print(len(df))", role="engineer", answer="64", tools=(), observation=None, **more):
    return ActionView(
        task=Task(id="t", payload=None, answer=answer),
        turn=0,
        role=role,
        observation=observation,
        messages=PROMPT,
        action=action_of(text, tools, **more),
        state=None,
    )


def episode_of(*texts, roles=("engineer", "analyst"), answer="64", faults=()):
    """An episode in which the roles act in turn."""
    key, child, path = Key("t"), None, []
    keys = [key]
    for _ in texts[1:]:
        keys.append(keys[-1].child(0))
    for index in reversed(range(len(texts))):
        role = roles[index % len(roles)]
        fault = faults[index] if index < len(faults) else None
        decision = Decision(
            role=role, policy="p", observation=None, messages=PROMPT, prompt_ids=(), prompt_sha256="",
            branches=(action_of(texts[index], fault=fault),),
        )  # fmt: skip
        joint = JointAction(branches={role: 0}, state_digest="", child=child)
        child = Node(
            key=keys[index], turn=index // len(roles), stage=index % len(roles),
            decisions={role: decision}, joints=(joint,), expanded=(0,),
        )  # fmt: skip
        path.insert(0, (child, 0))
    return EpisodeView(task=Task(id="t", answer=answer), path=tuple(path), leaf=path[-1][0].joints[0])


def scored(source, view):
    return asyncio.run(source.score(view))


def prompt_of(source, number=0):
    return source.config.model.asked[number].messages[0]["content"]


BOUNDARY = re.compile("^=== [0-9a-f]{12} ===$", re.M)


def parts_text(source, number=0):
    """The prompt from its first part on; its boundary as `===`."""
    prompt = prompt_of(source, number)
    (line,) = set(BOUNDARY.findall(prompt))
    return prompt[BOUNDARY.search(prompt).start() :].rstrip("\n").replace(line, "===")
