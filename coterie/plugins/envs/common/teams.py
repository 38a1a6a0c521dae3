"""What environments check of a team, and of the actions in a step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain

from coterie.core.errors import ConfigError, SystemFault, did_you_mean
from coterie.core.types import Action


def check_not_lost(actions: Mapping[str, Action]) -> None:
    """Refuse to play on after an answer that the system lost.

    Raises:
        SystemFault: there is one.
    """
    lost = [role for role, action in actions.items() if action.fault and action.fault.kind == "system"]
    if lost:
        raise SystemFault(f"the action of '{lost[0]}' was lost")


def team_of(
    order: Sequence[Sequence[str]], forms: Sequence[tuple[str, ...]], environment: str, path: str
) -> tuple[str, ...]:
    """The roles of a team, in the order in which they act.

    Args:
        forms: the roles of each form of a team that the environment knows.
        path: of the environment in the configuration.

    Raises:
        ConfigError: they are those of no form.
    """
    roles = tuple(chain.from_iterable(order))
    known = tuple(chain.from_iterable(forms))
    unknown = [role for role in roles if role not in known]
    choices = [f"[[{', '.join(form)}]]" if len(form) > 1 else f"[{form[0]}]" for form in forms]
    fix = f"team.order: {', or '.join(choices)}"
    if unknown:
        raise ConfigError(
            f"the environment '{environment}' has no role '{unknown[0]}'",
            path=f"team.roles.{unknown[0]}",
            fix=f"{did_you_mean(unknown[0], known)} {fix}",
        )
    if sorted(roles) not in map(sorted, forms):
        raise ConfigError(f"{', '.join(roles)} are no team", path="team.order", fix=fix)
    return roles
