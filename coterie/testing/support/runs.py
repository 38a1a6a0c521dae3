"""A small run on a scripted engine, and one step of it: `coterie_run`, `play_episode`, `scripted_engine`."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Mapping, Sequence
from typing import Any

from coterie.api.open_run import open_run
from coterie.backends.engines.scripted import Script, ScriptedEngine, resolved
from coterie.compose import compose
from coterie.core.errors import UserError, did_you_mean, type_text
from coterie.core.plugins import PluginConfig, as_table
from coterie.core.training.run import Run
from coterie.core.types import Request, Scores, Tree, as_tuple
from coterie.recipes import load
from coterie.testing.support.toys import GAME, ROLE

Texts = str | Sequence[str] | Script
Answers = Texts | Mapping[str, Texts]


_LOCAL: list[Script] = []
"""Functions that no other module can import, such as lambdas, by their number in a table."""


class AnsweringEngine(ScriptedEngine):
    """The engine of `scripted_engine`."""

    class Config(PluginConfig):
        answers: Any
        """A text, a list of texts, `{"function": reference}`, or `{"roles": {role: any of these}}`."""

        def play(self, request: Request, text: str) -> str | Awaitable[str]:
            answers, role = self.answers, request.key.role
            if isinstance(answers, dict) and "roles" in answers:
                by_role = answers["roles"]
                if role not in by_role:
                    raise UserError(
                        f"the scripted engine has no answer for the role '{role}'",
                        fix=f"add it to the answers; {did_you_mean(role, by_role)}",
                    )
                answers = by_role[role]
            if isinstance(answers, dict):
                return _function(answers["function"])(request, text)
            if isinstance(answers, str):
                return answers
            return str(answers[(request.key.chain + request.key.branch) % len(answers)])


def _function(reference: str | int) -> Script:
    if isinstance(reference, str):
        return resolved(reference)
    if reference >= len(_LOCAL):
        raise UserError(
            "the scripted engine's function is of another process",
            fix="answer with a function at the top of a module that this process can import",
        )
    return _LOCAL[reference]


def _encoded(answers: Texts) -> Any:
    """Answers as a configuration holds them."""
    if not callable(answers):
        return answers if isinstance(answers, str) else list(answers)
    module, name = getattr(answers, "__module__", ""), getattr(answers, "__qualname__", "")
    if name and getattr(sys.modules.get(module), name, None) is answers:
        return {"function": f"{module}:{name}"}
    _LOCAL.append(answers)
    return {"function": len(_LOCAL) - 1}


def scripted_engine(answers: Answers) -> dict[str, Any]:
    """The table of an engine that answers without a model.

    Args:
        answers: one text for every call; or a list, of which chain c's branch b writes item c + b, from the
            start again after the last; or a function `(request, prompt) -> text`, which may be async; or a
            dict from roles to any of these.

    Raises:
        UserError: the answers are none of these, or empty.
    """
    parts = answers.items() if isinstance(answers, Mapping) else [("", answers)]
    if not parts:
        raise UserError("the answers are empty", fix="one entry a role: {'solver': 'yes'}")
    for role, part in parts:
        _check_texts(part, f"the answers of '{role}'" if role else "the answers")
    encoded: Any = (
        {"roles": {role: _encoded(texts) for role, texts in answers.items()}}
        if isinstance(answers, Mapping)
        else _encoded(answers)
    )
    return {"type": f"{__name__}:{AnsweringEngine.__name__}", "answers": encoded}


def _check_texts(answers: Any, name: str) -> None:
    if isinstance(answers, str) or callable(answers):
        return
    if not isinstance(answers, Sequence):
        raise UserError(
            f"{name} are {answers!r}, of the type {type(answers).__name__}",
            fix="a text, a list of texts, a function (request, prompt) -> text, or a dict by role of these",
        )
    if not answers:
        raise UserError(f"{name} are empty", fix="a list of at least one text")
    for index, item in enumerate(answers):
        if not isinstance(item, str):
            raise UserError(
                f"{name}: item {index} is {item!r}, of the type {type(item).__name__}", fix="a text"
            )


def branch_number(request: Request, text: str) -> str:
    """Branch b writes b."""
    return str(request.key.branch)


def coterie_run(
    answers: Answers | None = None,
    *,
    env: str | Mapping[str, Any] | None = None,
    order: Sequence[str | Sequence[str]] | None = None,
    roles: Mapping[str, Mapping[str, Any]] | None = None,
    max_turns: int = 1,
    **tables: Any,
) -> Run:
    """A composed run without a run folder: a toy game, a scripted engine, AT-GRPO with three branches.

    Args:
        answers: what the engine answers, as `scripted_engine` takes it; by default branch b writes b.
        env: the table of the environment, or its type; by default (and where the table has no `type`) the
            kit's toy game, in which each role writes a number and the team earns the sum.
        order: `team.order`; by default the keys of `roles`, else `["one", "two"]`.
        roles: keys of `team.roles` by role. A role has the kit's type, whose prompt is the observation, and
            the run's only policy `p` where the keys don't say otherwise.
        max_turns: `team.max_turns`.
        tables: other top-level tables. One with a `type` replaces the default; one without is laid over it.

    Raises:
        UserError: the arguments contradict each other, or the error that a run raises for its configuration.
    """
    names, order = _order(order, roles or {})
    if answers is not None and "engine" in tables:
        raise UserError("both `answers` and `engine` are given", fix="leave one of them out")
    if isinstance(answers, Mapping) and set(answers) != set(names):
        wrong = sorted(set(answers) ^ set(names))[0]
        lacks = wrong in names
        raise UserError(
            f"the answers {'lack' if lacks else 'name'} the role '{wrong}'"
            + ("" if lacks else ", which is not in the team"),
            fix=f"one entry a role: {', '.join(sorted(names))}",
        )
    if answers is None:
        answers = branch_number
    table: dict[str, Any] = {
        "env": {"type": GAME, **as_table(env or {})},
        "team": {
            "order": order,
            "max_turns": max_turns,
            "roles": {name: {"policy": "p", "type": ROLE, **(roles or {}).get(name, {})} for name in names},
        },
        "policies": {"p": {"model": {"init": "none"}, "train": "none"}},
        "sampler": {"branches": 3},
        "algorithm": {"type": "at_grpo"},
        "engine": None if "engine" in tables else scripted_engine(answers),
        "trainer": {"type": "none"},
        "schedule": {"steps": 1, "tasks_per_step": 2},
    }
    for name, value in tables.items():
        laid_over = isinstance(value, Mapping) and isinstance(table.get(name), dict) and "type" not in value
        table[name] = {**table[name], **value} if laid_over else value
    return compose(load(table))


def _order(order: Any, roles: Mapping[str, Any]) -> tuple[list[str], list[Any]]:
    """The names of the roles in their order, and `team.order`."""
    if order is None:
        order = list(roles) or ["one", "two"]
    if isinstance(order, str):
        raise UserError(f"`order` is the text {order!r}", fix=f"a list: order=[{order!r}]")
    names = list(dict.fromkeys(role for stage in as_tuple(list(order)) for role in stage))
    for role in roles:
        if role not in names:
            raise UserError(f"`roles` names '{role}', which `order` lacks", fix=did_you_mean(role, names))
    return names, [stage if isinstance(stage, str) else list(stage) for stage in order]


def play_episode(run: Run, tasks: int = 1) -> tuple[list[Tree], Scores]:
    """One step of a run without its update: all chains of the tasks, and their scores.

    The run is opened before and closed afterwards.

    Args:
        run: a run that isn't open, as `coterie_run` or `coterie.compose.compose` makes it.
        tasks: number of training tasks that are played.

    Returns:
        The trees, by task and chain, and the table of all scores.

    Raises:
        UserError: the arguments are wrong, or the call is made inside a coroutine.
    """
    if not isinstance(run, Run):
        raise UserError(
            f"play_episode received {type_text(run)}, not a run", fix="play_episode(coterie_run())"
        )
    if isinstance(tasks, bool) or not isinstance(tasks, int) or tasks < 1:
        raise UserError(f"play_episode: tasks is {tasks!r}", fix="a whole number from 1")
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(_step(run, tasks))
    raise UserError(
        "play_episode is called inside a coroutine", fix="call it in a plain function: it runs an event loop"
    )


async def _step(run: Run, tasks: int) -> tuple[list[Tree], Scores]:
    try:
        await open_run(run)
        rollouts = await run.play(run.jobs(1, tasks))
        return rollouts.trees, await run.score(rollouts)
    finally:
        await run.close()
