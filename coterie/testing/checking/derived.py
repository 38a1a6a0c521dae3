"""The cases of a component: from its examples, else from recipes of its distribution, else from its defaults.

What an example leaves out is filled in the same way, so that an example names only what nobody could know.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from coterie.core.plugins import as_table
from coterie.core.protocols.tool import HasSchemas
from coterie.core.types import as_tuple
from coterie.discovery import Entry, plugins
from coterie.discovery.members import Demonstrates, HasVocabulary
from coterie.testing.checking.cases import Built, Case, refuse_wrong
from coterie.testing.checking.uses import RecipeUse, reference, uses
from coterie.testing.example import Example
from coterie.testing.support.episodes import unreadable
from coterie.testing.support.opening import opened
from coterie.testing.support.toys import GAME

TEAMED = ("environment", "reward", "transition")
"""Kinds that are checked along episodes."""


@dataclass(slots=True)
class EpisodeTeam:
    """Who plays in the episodes of a check."""

    env: Any
    order: list[Any]
    plugins: dict[str, Built] = field(default_factory=dict)
    """The roles that read the answers."""
    turns: int = 3
    toy: bool = False
    """Whether the environment is the kit's, since nothing names another one."""
    tables: Mapping[str, Any] = field(default_factory=dict)

    @property
    def roles(self) -> list[str]:
        return [role for stage in as_tuple(self.order) for role in stage]

    def environment(self) -> Built:
        """The environment, to be made."""
        return Built("environment", as_table(self.env), order=self.order, tables=self.tables)


def cases(entry: Entry, examples: Sequence[Example]) -> Iterator[Case]:
    """The cases of a component, one for each example, or one that is derived.

    Raises:
        PluginError: an example has an argument that the kind's check lacks, or of another type.
    """
    use = next(uses(entry), RecipeUse())
    for number, example in enumerate(examples):
        refuse_wrong(example, entry.kind, entry.label)
        if example.skip:
            subject = Built(entry.kind, {"type": reference(entry)})
            yield Case(entry.kind, subject, given=True, unchecked=(example.skip,), runs=False)
            continue
        source = "its example" + (f" {number + 1}" if len(examples) > 1 else "")
        yield replace(_case(entry, example, use), source=source, given=True, guessed=())
    if not examples:
        source = f"the recipe '{use.recipe}'" if use.recipe else "its defaults"
        yield replace(_case(entry, Example(use.settings), use), source=source)


def _case(entry: Entry, example: Example, use: RecipeUse) -> Case:
    table = {"type": reference(entry), **example.settings}
    if entry.kind in TEAMED:
        return _teamed(entry, table, example, use)
    if entry.kind == "role":
        return _role(entry, table, example, use)
    env = example.env if example.env is not None else use.env
    order = _order(example, use)
    built = Built(entry.kind, table, name=use.name, order=order, env=env, tables=use.tables)
    case = Case(entry.kind, built, arguments=dict(example.arguments))
    if entry.kind == "trainer":
        case = replace(case, subject=replace(built, name="", later=True))
        lacks = [name for name in ("model", "token_ids") if name not in case.arguments]
        needs = f"a trainer is checked on a small model: Example({', '.join(f'{n}=...' for n in lacks)})"
        return replace(case, unchecked=(needs,), runs=False) if lacks else case
    if entry.kind == "engine" and use.recipe and "model" not in example.arguments:
        return case.with_arguments(model=_model(use) or {"init": "none"})
    if entry.kind == "tool" and "calls" not in example.arguments:
        calls = calls_of(built)
        if not calls:
            needs = "a tool is checked with replies that call it: Example(calls=[...])"
            return replace(case, unchecked=(needs,), runs=False)
        return case.with_arguments(calls=calls)
    return case


# ---- kinds that are checked along episodes -------------------------------------------------------------


def _teamed(entry: Entry, table: dict[str, Any], example: Example, use: RecipeUse) -> Case:
    given = dict(example.arguments)
    team = _team(entry, table, example, use)
    given["roles"] = list(given.get("roles", team.roles))
    given["role_plugins"] = _plugins(given.get("role_plugins"), team)
    if any(not isinstance(stage, str) for stage in team.order) or team.roles != given["roles"]:
        given["order"] = team.order
    given.setdefault("turns", team.turns)
    unchecked: list[str] = []
    if "act" not in given and not (entry.kind == "reward" and "views" in given):
        readers = team.plugins or given["role_plugins"]
        given["act"], lacks = answers(team.environment(), readers, team.roles, toy=team.toy)
        unchecked += [lacks] * bool(lacks)
    if not given["role_plugins"]:
        del given["role_plugins"]
    if entry.kind == "environment":
        return Case("environment", team.environment(), arguments=given, unchecked=tuple(unchecked))
    built = Built(entry.kind, table, name=use.name, order=team.order, env=team.env, tables=team.tables)
    guessed = ("score", "tell") if team.toy else ()
    if entry.kind == "transition":
        given.setdefault("roles", team.roles)
        return Case(
            "transition", built, (team.environment(),), given, guessed=guessed, unchecked=tuple(unchecked)
        )
    if "views" not in given or "act" in given:
        given.setdefault("environment", team.environment())
    return Case("reward", built, arguments=given, guessed=guessed, unchecked=tuple(unchecked))


def _team(entry: Entry, table: Mapping[str, Any], example: Example, use: RecipeUse) -> EpisodeTeam:
    """The environment and the team: the example's, a recipe's, a sole neighbour's, or the kit's."""
    is_game = entry.kind == "environment"
    env: Any = table if is_game else example.env
    for other in (use.env, _sole(entry, "environment")):
        env = other if env is None else env
    toy = env is None
    env = {"type": GAME} if toy else as_table(env)
    if use.env is not None and env.get("type") != use.env.get("type") and not is_game:
        use = RecipeUse()
    order = None if example.order is None and "roles" in example.arguments else _order(example, use)
    order = order or [*example.arguments.get("roles", ())] or _roles_of(env) or ["solver"]
    team = EpisodeTeam(env, order, turns=min(use.turns, 5), toy=toy, tables=use.tables)
    for role in team.roles:
        if reads := use.roles.get(role) or _neighbour(entry, env, role):
            team.plugins[role] = Built("role", reads, name=role, order=order, env=env, tables=use.tables)
    return team


def _plugins(given: Mapping[str, Any] | None, team: EpisodeTeam) -> dict[str, Any]:
    """The roles that read the answers; an example may name them by their tables."""
    if given is None:
        return dict(team.plugins)
    return {
        role: Built("role", as_table(value), name=role, order=team.order, env=team.env, tables=team.tables)
        if isinstance(value, (str, Mapping))
        else value
        for role, value in given.items()
    }


def _roles_of(env: Any) -> list[str]:
    """The roles that an environment knows; none where it takes any, or can't be made."""
    try:
        return list(Built("environment", as_table(env)).make().roles)
    except Exception:  # told when the case is run
        return []


def _neighbour(entry: Entry, env: Any, role: str) -> dict[str, Any] | None:
    """The table of the role of the same distribution that reads a role's answers in this environment."""
    of_author, games = _of(entry, "role"), _of(entry, "environment")
    game = [other.name for other in games if reference(other) == as_table(env).get("type")]
    for name in (*(f"{name}_{role}" for name in game), role):
        for other in of_author:
            if other.name == name:
                return {"type": reference(other)}
    if game and len(of_author) == 1 and len(games) == 1:
        return {"type": reference(of_author[0])}
    return None


def _sole(entry: Entry, kind: str) -> dict[str, Any] | None:
    """The table of the only component of a kind that a distribution has."""
    others = _of(entry, kind)
    return {"type": reference(others[0])} if len(others) == 1 else None


def _of(entry: Entry, kind: str) -> list[Entry]:
    entries = plugins().registry.qualified(kind)
    return [other for other in entries if other.distribution == entry.distribution]


# ---- other kinds ---------------------------------------------------------------------------------------


def _role(entry: Entry, table: dict[str, Any], example: Example, use: RecipeUse) -> Case:
    given = dict(example.arguments)
    name = str(given.get("name") or use.name or "solver")
    env = example.env if example.env is not None else use.env or _sole(entry, "environment")
    order = _order(example, use) or [name]
    built = Built("role", table, name=name, order=order, env=env, tables=use.tables)
    given["name"] = name
    if "observations" in given:
        return Case("role", built, arguments=given)
    if env is not None:
        game = Built("environment", as_table(env), order=order, tables=use.tables)
        given["observations"], good = observations(game, name)
        if good and "good" not in given:
            given["good"] = good
        if given["observations"]:
            return Case("role", built, arguments=given)
    given["observations"] = [""]
    needs = "prompts of its own observations: Example(observations=[...]), or the env={...} whose they are"
    return Case("role", built, arguments=given, guessed=("render",), unchecked=(needs,))


def _model(use: RecipeUse) -> Any:
    """The model of the first policy of a recipe, as a table."""
    for policy in use.policies.values():
        model: Any = getattr(policy, "model", None)
        return model.model_dump(exclude_none=True) if hasattr(model, "model_dump") else model
    return None


def _order(example: Example, use: RecipeUse) -> list[Any] | None:
    """The stages that an example names, else those of the recipe; None: neither says."""
    order = example.order if example.order is not None else use.order
    return None if order is None else [stage if isinstance(stage, str) else list(stage) for stage in order]


NOISE = ("", "what?", "1", "no parser reads this")
"""Texts of which a parser reads few or none."""
_TASKS = 4
_WORDS = 12


def answers(
    game: Built, plugins: Mapping[str, Any], roles: Sequence[str], *, toy: bool = False
) -> tuple[list[Any], str]:
    """Answers of roles: those that the environment demonstrates, its words, and some that no parser reads.

    Without roles that read them, a text could be anything to the environment: then every action is one that
    its role's parser could not read, as in a run.

    Args:
        toy: whether the environment is the kit's, which reads any text.

    Returns:
        The answers, and what stays unchecked with them; empty: nothing.
    """
    if toy:
        return ["2", "stop", *NOISE], ""
    if not plugins:
        lacks = "steps with actions that were read: Example(act=[...]) with what a parser returns, or a "
        return [unreadable()], lacks + "recipe whose roles read the answers"
    try:
        env = game.make()
        texts = _demonstrated(env, roles)
        words = list(env.vocabulary())[:_WORDS] if isinstance(env, HasVocabulary) else []
    except Exception:  # told when the case is run
        texts, words = [], []
    understood = [*texts, *words, " ".join(words[:3])] if words else texts
    lacks = "" if understood else "steps with answers that it understands: Example(act=[...])"
    return list(dict.fromkeys([*understood, *NOISE])), lacks


def observations(game: Built, role: str) -> tuple[list[Any], list[str]]:
    """What a role observes at the start of a task, and a demonstrated answer; none where that fails."""

    async def first() -> tuple[list[Any], list[str]]:
        env = game.make()
        async with opened(env):
            tasks = env.tasks("train", 0)
            seen = [env.observe(env.reset(tasks[0], 0), role)]
        return seen, _demonstrated(env, [role], tasks=1)  # an answer to this observation

    try:
        return asyncio.run(first())
    except Exception:  # an environment that can't be made, or doesn't know the role
        return [], []


def _demonstrated(env: Any, roles: Sequence[str], tasks: int = _TASKS) -> list[str]:
    """What the environment's oracle writes at the start of a few tasks."""
    if not isinstance(env, Demonstrates):
        return []
    all_tasks, texts = env.tasks("train", 0), list[str]()  # type: ignore[attr-defined]
    for index in range(min(tasks, len(all_tasks))):
        state = env.reset(all_tasks[index], index)  # type: ignore[attr-defined]
        for role in roles:
            try:
                texts.append(env.demonstrate(state, role, 0.0, np.random.default_rng(index)))
            except Exception:  # a role that doesn't act yet
                continue
    return list(dict.fromkeys(text for text in texts if isinstance(text, str)))


def calls_of(tool: Built) -> list[str]:
    """Replies that call a tool, made of its name and schemas; none where it finds no call in them."""
    try:
        made: Any = tool.make()
        find, name = made.find, made.name
        texts = [f"```{name}\n1 + 1\n```"]
        for schema in made.schemas if isinstance(made, HasSchemas) else ():
            function = schema["function"]
            call = {"name": function["name"], "arguments": _arguments(function.get("parameters") or {})}
            texts.append(f"<tool_call>\n{json.dumps(call)}\n</tool_call>")
        return [text for text in texts if find(text) is not None]
    except Exception:  # told when the case is run
        return []


_VALUES: dict[str, Any] = {
    "string": "a text", "integer": 1, "number": 1.5, "boolean": True, "array": [], "object": {}, "null": None
}  # fmt: skip


def _arguments(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Values for the properties that a JSON schema requires."""
    properties = schema.get("properties") or {}
    values = {}
    for name in schema.get("required", properties):
        of_name = properties.get(name) or {}
        values[name] = of_name["enum"][0] if of_name.get("enum") else _VALUES.get(str(of_name.get("type")))
    return values
