"""How roles fail, read off the role tables of a run's recorded steps: a sentence a failure, with its rule."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from coterie.analysis.diagnosis.role_table import RoleInStep

LEAST_ACTIONS = 4
"""Steps in which a role acted less often say nothing."""


@dataclass(frozen=True, slots=True)
class RoleFailure:
    """A way in which a role fails in a step."""

    step: int
    role: str
    kind: str
    """Name of the rule."""
    value: float
    """What the rule compares with its threshold."""
    since: int
    """The first recorded step of the unbroken series of steps, up to this one, in which the rule holds."""
    text: str
    """What fails, in a sentence."""


@dataclass(frozen=True, slots=True)
class RoleRule:
    """When a role fails: `value` reaches `threshold`."""

    kind: str
    threshold: float
    value: Callable[[RoleInStep], float | None]
    text: str
    """With `{share}` in percent, `{value}` and the fields of the role's table."""
    grown: float = 0.0
    """Least factor by which the mean length has grown since the first recorded step; 0: any."""
    unless: Callable[[RoleInStep], bool] = lambda of: False
    """What shows that it is no failure."""


def _succeeds(of: RoleInStep) -> bool:
    return of.success is not None and of.success >= 0.5


RULES = (
    RoleRule("unparsed", 0.5, lambda of: of.unparsed,
             "its parser could not read {share} of its answers (the first: {fault})"),
    RoleRule("empty", 0.3, lambda of: of.empty, "{share} of its answers have no text"),
    RoleRule("finish_length", 0.5, lambda of: of.finish_length,
             "max_new_tokens cut off {share} of its answers",
             unless=_succeeds),
    RoleRule("missing", 0.2, lambda of: of.missing,
             "{share} of its actions have no reward, since a score is missing"),
    RoleRule("repeats", 0.5, lambda of: of.repeats,
             "{share} of its answers repeat the last one of another role, and earn less than the others do",
             unless=lambda of: _succeeds(of) if of.repeats_pay is None else of.repeats_pay > -0.5),
    RoleRule("length", 0.8, lambda of: of.length_reward, "its reward grows with the length of its answers "
             "(rank correlation {value}), and they have grown to {tokens} tokens", grown=1.5),
)  # fmt: skip
"""In the order in which they are shown."""


def role_failures(tables: Sequence[Sequence[RoleInStep]]) -> list[RoleFailure]:
    """What fails in each recorded step, in the order of steps, roles and rules.

    Args:
        tables: of the recorded steps, in order (`roles_in_step`).
    """
    first_tokens: dict[str, float] = {}
    since: dict[tuple[str, str], int] = {}
    result: list[RoleFailure] = []
    for table in tables:
        for role in table:
            if role.actions < LEAST_ACTIONS:
                continue
            if role.tokens is not None:
                first_tokens.setdefault(role.role, role.tokens)
            for rule in RULES:
                place, value = (role.role, rule.kind), rule.value(role)
                grown = (role.tokens or 0.0) >= rule.grown * first_tokens.get(role.role, 0.0)
                if value is None or value < rule.threshold or not grown or rule.unless(role):
                    since.pop(place, None)
                    continue
                begin = since.setdefault(place, role.step)
                text = rule.text.format(
                    share=f"{value:.0%}",
                    value=f"{value:.2f}",
                    tokens=f"{role.tokens or 0:.0f}",
                    fault=role.fault,
                )
                result.append(RoleFailure(role.step, role.role, rule.kind, value, begin, text))
    return result
