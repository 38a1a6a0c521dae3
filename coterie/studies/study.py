"""The parts of a study: methods, the claims that are checked on them, and the analysis of training runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from coterie import Interval
from coterie.studies.columns import Column


@dataclass(frozen=True, slots=True, kw_only=True)
class Method:
    """One way of making a team, evaluated on the test split: a row of the study's table."""

    id: str
    """A column's `paper` figures use this id."""
    title: str
    """The row's first cell."""
    variant: str
    """The evaluated variant of the column; `alone.planner` is the entry `planner` under the key `alone`."""
    trained: bool = False
    """True: a training run makes the team. False: the variant is evaluated with its initial weights."""
    swapped: bool = False
    """True: the column's two `swap` roles exchange their policies."""
    parts: Mapping[str, str] = field(default_factory=dict)
    """role -> the variant whose training run provides the role's policy."""
    overrides: tuple[str, ...] = ()
    """Settings of the training run, above the variant's."""
    scales: tuple[str, ...] | None = None
    """The scales at which the method is a row; None: all."""

    @property
    def variants(self) -> tuple[str, ...]:
        """All variants that the method needs."""
        return (self.variant, *self.parts.values())


Value = Literal["success", "return"]
"""What is compared: success, or the reward of an episode's last joint action."""


@dataclass(frozen=True, slots=True)
class ClaimResult:
    """The result of checking a claim on one seed."""

    holds: bool | None
    """None: the claim only reports the order of two methods."""
    summary: str
    """A few characters for the table, such as `<`."""
    numbers: Mapping[str, Any]
    """What was compared, as JSON: method -> `Interval.as_dict()`, say."""


@dataclass(frozen=True, slots=True)
class Claim:
    """A statement about methods, checked on each seed separately."""

    statement: str
    """A sentence, as the table has it."""
    methods: tuple[str, ...]
    """Ids of the methods that are compared; `check` receives their intervals in this order."""
    check: Callable[..., ClaimResult]
    """(an `Interval` for each of `methods`) -> whether it holds."""
    of: Value = "success"
    """Of what the intervals are: `success` or `return`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Analysis:
    """Further measurements, read from a method's training runs."""

    method: str
    """The id of a trained method."""
    read: Callable[[Path], Mapping[str, Any]]
    """The run directory -> plain JSON values of one seed. The optional entry `claims` is a list of
    {statement, holds, told, numbers}."""
    markdown: Callable[[Mapping[int, Mapping[str, Any]]], str]
    """{seed: values of `read`} -> a section of the table's page."""
    draw: Callable[[Any, Mapping[int, Mapping[str, Any]], str], None] | None = None
    """(matplotlib axes, {seed: values of `read`}, title): draws curves in place of bars."""
    needs: Callable[[Mapping[str, Any], str], None] = lambda config, variant: None
    """(the run's configuration, the variant): raises ConfigError if the run would not record what `read`
    needs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Study:
    """A comparison of methods."""

    summary: str
    """A sentence, for the list of studies and the head of the table."""
    methods: Callable[[Column], Sequence[Method]]
    """A column -> the methods that are compared on it."""
    claims: Sequence[Claim] = ()
    """What the table checks on each seed; `above`, `at_most_half` and `order` make such claims."""
    gain_over: str | None = None
    """The id of the method over which each row's gain is shown. None: the table has no gains."""
    refused: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    """scale -> (why the study can't run at it, what to do instead)."""
    model: str | None = None
    """Hub id or folder of the initial weights of every policy. None: the variants' own models."""
    analysis: Analysis | None = None
    """Further measurements of training runs, and a section of the table's page about them."""
    answers: bool = False
    """Whether the table also has each row's return, and the tokens and seconds of an answer."""


# ----------------------------------------------------------------------------------------------------- claims


def above(method: str, other: str, statement: str, of: Value = "success") -> Claim:
    """The whole 95 % interval of `method` lies above that of `other`."""
    return _comparison(method, other, statement, lambda a, b: a.lo > b.hi, of)


def at_most_half(method: str, other: str, statement: str) -> Claim:
    """The mean of `method` is at most half of the mean of `other`, which is above 0."""
    return _comparison(method, other, statement, lambda a, b: b.mean > 0 and a.mean <= b.mean / 2)


def order(method: str, other: str, statement: str, of: Value = "success") -> Claim:
    """Which of two methods is higher. It claims nothing, so it can't fail."""
    return _comparison(method, other, statement, lambda a, b: None, of)


def _comparison(
    method: str,
    other: str,
    statement: str,
    holds: Callable[[Interval, Interval], bool | None],
    of: Value = "success",
) -> Claim:
    def check(a: Interval, b: Interval) -> ClaimResult:
        return ClaimResult(holds(a, b), _relation(a, b), {method: a.as_dict(), other: b.as_dict()})

    return Claim(statement, (method, other), check, of)


def _relation(a: Interval, b: Interval) -> str:
    """`<` or `>` if the intervals are disjoint, otherwise `~`."""
    return ">" if a.lo > b.hi else "<" if a.hi < b.lo else "~"
