"""What a study is made of: rows, the claims that are checked on them, and what is read from training."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from coterie.stats import Interval
from coterie.studies.columns import Column


@dataclass(frozen=True, slots=True, kw_only=True)
class Method:
    """One way of making a team, evaluated on the test split."""

    id: str
    """The column's `paper` figures are given by it."""
    title: str
    form: str
    """Of the column: what is evaluated; `alone.planner` is the entry `planner` of its form `alone`."""
    trained: bool = False
    """By its own training run; otherwise as the form starts."""
    swapped: bool = False
    """With the policies of the column's two `swap` roles exchanged."""
    parts: Mapping[str, str] = field(default_factory=dict)
    """role -> the form whose trained run gives the policy that plays it."""

    @property
    def forms(self) -> tuple[str, ...]:
        """Every form that the row needs."""
        return (self.form, *self.parts.values())


@dataclass(frozen=True, slots=True)
class Verdict:
    """What one seed says of a claim."""

    holds: bool | None
    """None: the claim only asks for the order."""
    told: str
    numbers: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Claim:
    """A statement about rows, checked on each seed by itself."""

    statement: str
    rows: tuple[str, ...]
    """Ids of the rows that it is about; `check` gets their intervals in this order."""
    check: Callable[..., Verdict]


@dataclass(frozen=True, slots=True, kw_only=True)
class Analysis:
    """Something else than success, read from a row's training run."""

    row: str
    read: Callable[[Path], Mapping[str, Any]]
    """The run's folder -> plain JSON values of one seed; its `claims`, if any, are a list of
    {statement, holds, told, numbers}."""
    markdown: Callable[[Mapping[int, Mapping[str, Any]]], str]
    """{seed: what `read` gave} -> a section of the table's page."""
    draw: Callable[[Any, Mapping[int, Mapping[str, Any]], str], None] | None = None
    """(matplotlib axes, {seed: what `read` gave}, title): curves in place of bars."""
    needs: Callable[[Mapping[str, Any], str], None] = lambda config, form: None
    """(the run's configuration, the form's name): raises ConfigError where the run won't write down what
    `read` needs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Study:
    """A comparison."""

    summary: str
    rows: Callable[[Column], Sequence[Method]]
    claims: Sequence[Claim] = ()
    refused: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    """scale -> (why it can't be run there, what to do instead)."""
    model: str | None = None
    """Hub id or folder that every policy starts from, in place of what the forms say."""
    analysis: Analysis | None = None


# ----------------------------------------------------------------------------------------------------- claims


def above(row: str, other: str, statement: str) -> Claim:
    """The whole 95 % interval of `row` lies above that of `other`."""
    return Claim(
        statement, (row, other), lambda a, b: _verdict(a.lo > b.hi, ((row, a), (other, b)), _relation(a, b))
    )


def at_most_half(row: str, other: str, statement: str) -> Claim:
    """The mean of `row` is at most half of that of `other`, and `other` ever succeeds."""
    return Claim(
        statement,
        (row, other),
        lambda a, b: _verdict(b.mean > 0 and a.mean <= b.mean / 2, ((row, a), (other, b)), _relation(a, b)),
    )


def order(row: str, other: str, statement: str) -> Claim:
    """Which of two rows is higher; nothing is claimed, so nothing can fail."""
    return Claim(
        statement, (row, other), lambda a, b: _verdict(None, ((row, a), (other, b)), _relation(a, b))
    )


def _verdict(holds: bool | None, rows: Sequence[tuple[str, Interval]], told: str) -> Verdict:
    return Verdict(holds, told, {name: interval.as_dict() for name, interval in rows})


def _relation(a: Interval, b: Interval) -> str:
    """`<`, `>` where the intervals are disjoint, otherwise `~`."""
    return ">" if a.lo > b.hi else "<" if a.hi < b.lo else "~"
