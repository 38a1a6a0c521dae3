"""The budget: what calls have spent, whether another one may be sent, and the report of a run on both."""

from __future__ import annotations

import json
import logging
import sqlite3
from collections.abc import Mapping
from dataclasses import asdict, astuple, dataclass, field, fields, replace
from operator import add, neg
from pathlib import Path
from typing import Any

from coterie.backends.remote.answers import Usage
from coterie.backends.remote.settings import BudgetSettings, Price
from coterie.core.errors import ConfigError, UserError, WriteError
from coterie.core.storage.atomic import write_atomic

log = logging.getLogger("coterie.usage")
MILLION = 1_000_000


@dataclass(frozen=True, slots=True)
class Spent:
    """What the calls of one model have spent."""

    calls: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    money: float = 0.0
    assumed_calls: int = 0
    """Of `calls`: those without a reported usage. They count with an estimate, or their reservation."""
    assumed_tokens: int = 0
    """Of the tokens: what those calls count with."""
    assumed_money: float = 0.0

    def __add__(self, other: Spent) -> Spent:
        return Spent(*map(add, astuple(self), astuple(other)))

    def __neg__(self) -> Spent:
        return Spent(*map(neg, astuple(self)))

    @property
    def tokens(self) -> int:
        return self.input_tokens + self.output_tokens

    def text(self, money: bool = True) -> str:
        parts = f"{self.calls} calls, {self.input_tokens} + {self.output_tokens} tokens"
        cost, assumed = (f", cost {value:.6g}" if money else "" for value in (self.money, self.assumed_money))
        if not self.assumed_calls:
            return parts + cost
        part = f"{self.assumed_calls} calls, {self.assumed_tokens} tokens{assumed}"
        return f"{parts}{cost} (of these assumed, as no usage came back: {part})"


COLUMNS = tuple(part.name for part in fields(Spent))
"""Of the table `spending`, beside `model`."""


@dataclass(slots=True)
class Budget:
    """Counts what is spent, by model. A call reserves the most that it may spend before it is sent.

    The reservation is stored as spent. A call's end replaces it by what the call used; of a killed process it
    stays, because the call may have been paid.
    """

    settings: BudgetSettings
    prices: Mapping[str, Price]
    path: str
    """Dotted path of the component, for errors."""
    by_model: dict[str, Spent] = field(default_factory=dict)
    """As of the last transaction; of this process alone where no database works."""

    def check(self, models: Mapping[str, str]) -> None:
        """Raise ConfigError where money is bounded and a model has no price; `models`: {model: its path}."""
        lacking = [model for model in models if model not in self.prices]
        if self.settings.money is not None and lacking:
            raise ConfigError(
                f"the budget bounds money, and the model '{lacking[0]}' has no price",
                path=f"{self.path}.budget.money",
                fix=f'set {self.path}.prices: {{"{lacking[0]}": {{input: 0.40, output: 1.60}}}}, per million '
                "tokens",
            )

    def cost(self, model: str, usage: Usage, *, assumed: bool = False) -> Spent:
        """One call of this usage; `assumed`: the server didn't report it."""
        price = self.prices.get(model) or Price(input=0.0, output=0.0)
        money = (usage.input_tokens * price.input + usage.output_tokens * price.output) / MILLION
        spent = Spent(1, usage.input_tokens, usage.output_tokens, money)
        if not assumed:
            return spent
        return replace(spent, assumed_calls=1, assumed_tokens=spent.tokens, assumed_money=money)

    @property
    def total(self) -> Spent:
        return total(self.by_model)

    def fits(self, spent: Spent, more: Spent) -> bool:
        """Whether this much more stays within the budget."""
        after, bound = spent + more, self.settings
        return (
            (bound.calls is None or after.calls <= bound.calls)
            and (bound.tokens is None or after.tokens <= bound.tokens)
            and (bound.money is None or after.money <= bound.money * (1 + 1e-12))
        )

    def add(self, model: str, more: Spent) -> None:
        """Count in this process, where no database works."""
        self.by_model[model] = self.by_model.get(model, Spent()) + more

    def exhausted(self, most: Spent) -> UserError:
        """The error that ends the run."""
        bound = self.settings
        given = ((bound.calls, "{} calls"), (bound.tokens, "{} tokens"), (bound.money, "cost {}"))
        bounds = ", ".join(text.format(number) for number, text in given if number is not None)
        money = bound.money is not None or bool(self.prices)
        most = replace(most, assumed_calls=0)  # nothing of it was asked yet
        return UserError(
            f"the budget is spent: {self.total.text(money)} of {bounds}",
            path=f"{self.path}.budget",
            why=f"the next call may need up to {most.text(money)}; nothing was sent beyond the budget",
            fix=f"raise {self.path}.budget and resume the run: cached answers are not paid again",
        )


def total(by_model: Mapping[str, Spent]) -> Spent:
    return sum(by_model.values(), Spent())


def read(connection: sqlite3.Connection) -> dict[str, Spent]:
    """What all processes have spent, by model."""
    rows = connection.execute(f"SELECT model, {', '.join(COLUMNS)} FROM spending").fetchall()
    return {model: Spent(*numbers) for model, *numbers in rows}


def store(connection: sqlite3.Connection, model: str, more: Spent) -> dict[str, Spent]:
    """Add to what is stored; returns the sums, by model."""
    connection.execute(
        f"INSERT INTO spending (model, {', '.join(COLUMNS)}) VALUES (?{', ?' * len(COLUMNS)}) ON CONFLICT "
        f"(model) DO UPDATE SET {', '.join(f'{name} = {name} + excluded.{name}' for name in COLUMNS)}",
        (model, *astuple(more)),
    )
    return read(connection)


@dataclass(slots=True)
class CallCounts:
    """What one process did with its calls."""

    asked: int = 0
    """Calls that the component made."""
    cached: int = 0
    """Of these: answered by the cache."""
    joined: int = 0
    """Of these: answered with an identical call that was under way."""
    sent: int = 0
    """Attempts that were sent."""
    again: int = 0
    """Of these: further attempts of a call."""
    missing: int = 0
    """Calls without an answer."""

    def text(self) -> str:
        return (
            f"{self.asked} calls: {self.cached} from the cache, {self.joined} joined an identical call, "
            f"{self.sent} sent ({self.again} of them again), {self.missing} without an answer"
        )


def report_usage(
    name: str, counts: CallCounts, spent: Mapping[str, Spent], folder: Path | None, money: bool, stored: bool
) -> None:
    """Log the usage, and write it to `usage-<name>.json` in `folder`.

    Args:
        spent: by model, over all processes of the run where it is `stored`.
        money: whether prices are known.
    """
    if not counts.asked:
        return
    since = "so far" if stored else "in this process"
    log.info("%s: %s; spent %s: %s", name, counts.text(), since, total(spent).text(money))
    if folder is None:
        return
    table: dict[str, Any] = {
        "this_process": asdict(counts),
        "spent": {model: asdict(part) for model, part in sorted(spent.items())},
        "total": asdict(total(spent)),
        "over_all_processes": stored,
    }
    try:
        folder.mkdir(parents=True, exist_ok=True)  # the database may be elsewhere
        write_atomic(folder / f"usage-{name}.json", json.dumps(table, indent=2) + "\n")
    except (WriteError, OSError) as error:
        log.warning("%s", error)
