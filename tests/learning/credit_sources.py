"""What plays in the oracle's configurations: reward sources whose answers are known, an engine, a tool.

A source answers by a pure function of what a view shows: the task's id, the turn, the roles, the texts, and a
salt. `answer` is that function. The plugin `Source` calls it for the framework, and the oracle calls it for a
tree, so the oracle never reads the framework's scores.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from coterie import Plugin, PluginConfig, PolicyFault, SystemFault
from coterie.backends.engines.scripted import ScriptedEngine
from coterie.backends.trainers.none import NoTrainer
from coterie.core.config import PolicyConfig
from coterie.core.protocols import StepContext
from coterie.core.types import TEAM, Action, Call, Request, Step
from coterie.testing.support.toys import NumberGame

ACTING = "acting"
"""Among a source's owners: every role that acts in the view."""
Table = dict[tuple[str, str], float | None]


def drawn(*facts: Any) -> random.Random:
    """A generator that depends on these facts alone."""
    return random.Random(hashlib.blake2b(repr(facts).encode(), digest_size=8).digest())


@dataclass(frozen=True)
class Answer:
    """What a source answers for one view."""

    failure: str = ""
    """`floor`: it raises PolicyFault. `lost`: it raises SystemFault. `bug`: it raises another exception."""
    tables: tuple[Table, ...] = ()
    """Its scores; for scope siblings one table per branch, else one table."""


@dataclass(frozen=True)
class SourceSpec:
    """One reward source of a configuration."""

    name: str
    salt: int
    scope: str
    kinds: Mapping[str, str]
    """Component -> increment, potential or counterfactual."""
    weights: Mapping[str, float]
    owners: tuple[str, ...] = (TEAM,)
    """Owners of the scores of scope joint and episode: TEAM, names of roles, or ACTING. A source of scope
    joint scores a role where it acts."""
    per_role: tuple[str, ...] = ()
    """Components of scope joint and episode that are scored for roles alone: a failure is each role's own."""
    floor: float = 0.0
    values: str = "normal"
    """Normal numbers; `ties`: one of 0, .5 and 1; `flat`: always .5; `close`: nearly .5."""
    silent: float = 0.0
    """Share of calls that are answered with an empty table."""
    failing: float = 0.08
    """Share of calls that fail: half by PolicyFault, half without a score."""

    def table(self) -> dict[str, Any]:
        """The source's table of a configuration."""
        return {
            "type": f"{__name__}:Source",
            "weights": dict(self.weights),
            "salt": self.salt,
            "scope": self.scope,
            "kinds": dict(self.kinds),
            "owners": list(self.owners),
            "per_role": list(self.per_role),
            "floor": self.floor,
            "values": self.values,
            "silent": self.silent,
            "failing": self.failing,
        }


Texts = Sequence[tuple[str, str]]
"""(role, text) of the actions of a joint action, by role."""


def answer(source: Any, task: str, turn: int, *texts: Texts) -> Answer:
    """What a source answers.

    Args:
        source: a `SourceSpec`, or the Config of a `Source`.
        texts: the view's actions. Scope action: one, of one role. Siblings: all branches, of one role. Joint:
            one of each acting role. Episode: the same of every joint action of the path, root first.
    """
    facts = (source.salt, task, turn, texts)
    chance = drawn("failure", *facts)
    fate, missing = chance.random() / max(source.failing, 1e-9), ""
    if fate < 0.5:
        return Answer("floor")
    if fate < 1.0:
        missing = chance.choice(("lost", "bug", "none", "nan", "inf"))
    if missing in ("lost", "bug"):
        return Answer(missing)
    if chance.random() < source.silent:
        return Answer("", tuple({} for _ in (texts[0] if source.scope == "siblings" else texts[-1:])))
    if source.scope == "siblings":
        views = [((role, text),) for role, text in texts[0]]
        tables = [_scores(source, view, task, turn, (view,)) for view in views]
    else:
        tables = [_scores(source, texts[-1], task, turn, texts)]
    if missing and any(tables):  # a single number, or all numbers of a table
        table = chance.choice([table for table in tables if table])
        names = list(table) if chance.random() < 0.5 else [chance.choice(list(table))]
        nothing = {"none": None, "nan": float("nan"), "inf": float("-inf")}[missing]
        table.update(dict.fromkeys(names, nothing))
    return Answer("", tuple(tables))


def _scores(source: Any, texts: Texts, task: str, turn: int, shown: Any) -> Table:
    acting = [role for role, _ in texts]
    if source.scope in ("action", "siblings"):
        owners = acting
    else:
        named = [role for owner in source.owners for role in (acting if owner == ACTING else [owner])]
        known = [TEAM, *acting] if source.scope == "joint" else named
        owners = [owner for owner in dict.fromkeys(named) if owner in known]
    chance = drawn("value", source.salt, task, turn, shown)

    def number() -> float:
        if source.values == "normal":
            return chance.gauss(0.0, 1.0)
        if source.values == "close":
            return 0.5 + chance.gauss(0.0, 1e-5)
        return chance.choice((0.0, 0.5, 1.0)) if source.values == "ties" else 0.5

    return {(owner, component): number() for owner in owners for component in source.kinds}


class Source(Plugin):
    """A reward source that answers by `answer`."""

    class Config(PluginConfig):
        salt: int
        scope: str
        kinds: dict[str, str]
        owners: list[str]
        per_role: list[str]
        floor: float
        values: str
        silent: float
        failing: float

    config: Config

    def __init__(self, config: Config, build: Any) -> None:
        super().__init__(config, build)
        self.scope: Any = config.scope
        self.components: Any = config.kinds
        self.weights: Mapping[str, float] = {}
        self.policy_fault = config.floor
        self.per_role = config.per_role

    async def score(self, view: Any) -> Any:
        if self.scope == "action":
            turn, shown = view.turn, [[(view.role, view.action.text)]]
        elif self.scope == "siblings":
            turn, shown = view.turn, [[(view.role, action.text) for action in view.actions]]
        elif self.scope == "joint":
            turn, shown = view.turn, [[(role, view.actions[role].text) for role in sorted(view.actions)]]
        else:
            turn = view.path[-1][0].turn
            shown = [
                [(role, node.decisions[role].branches[branch].text) for role, branch in sorted(taken.items())]
                for node, taken in ((node, node.joints[index].branches) for node, index in view.path)
            ]
        said = answer(self.config, view.task.id, turn, *map(tuple, shown))
        if said.failure == "floor":
            raise PolicyFault("the output is at fault")
        if said.failure == "lost":
            raise SystemFault("the judge is down")
        if said.failure == "bug":
            raise ZeroDivisionError("a bug")
        return list(said.tables) if self.scope == "siblings" else said.tables[0]


# ------------------------------------------------------------------------------------------------ who plays


class Writer(ScriptedEngine):
    """Writes a few digits by the request's seed; some calls are cut off, some are lost, some use a tool."""

    class Config(PluginConfig):
        texts: int = 4
        """Number of different digits."""
        aborts: float = 0.06
        stops: float = 0.1
        cuts: float = 0.1
        tools: float = 0.0
        breaks: float = 0.0
        """Share of calls that bring the game down."""
        play: Any = "tests.games:keyed"

    async def generate(self, request: Request) -> Call:
        chance = random.Random(request.seed)
        config: Any = self.config
        finish: Any = "length" if chance.random() < config.cuts else "stop"
        text = str(chance.randrange(config.texts))
        if chance.random() < config.stops:
            text = chance.choice(("stop", "bad"))
        if chance.random() < config.breaks:
            text = chance.choice(("break", "crash"))
        if chance.random() < 0.4:
            text += " and so on"[: 2 + 4 * chance.randrange(3)]
        if chance.random() < config.tools:
            text = f"use {text}"
        if chance.random() < config.aborts:
            finish = "abort"
        ids = (*self._codec.ids(text), 0)
        return Call(
            prompt_ids=request.prompt_ids,
            token_ids=ids,
            logprobs=tuple(-2.0 * chance.random() for _ in ids),
            version=self._versions.newest(request.policy) or 0,
            finish=finish,
            continues=request.continues,
        )


class Game(NumberGame):
    """A game that some texts bring down: `break` by the output's fault, `crash` by the system's."""

    async def step(self, state: Any, actions: Mapping[str, Action], ctx: StepContext) -> Step:
        texts = [action.text for action in actions.values()]
        if "crash" in texts:
            raise SystemFault("the game crashed")
        if "break" in texts:
            raise PolicyFault("the output broke the game")
        return await super().step(state, actions, ctx)


class Echo(Plugin):
    """A tool that answers a text that begins with `use`."""

    name = "echo"
    description = "echoes"

    def find(self, text: str) -> Any | None:
        return text if text.startswith("use") else None

    async def run(self, call: Any) -> str:
        return "well"


class Idle(NoTrainer):
    """A trainer without weights, whose policies count as trained."""

    Policy = PolicyConfig

    async def open(self, ctx: Any) -> None:
        pass
