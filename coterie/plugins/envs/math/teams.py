"""The forms of a team in environment `math`, by the roles in `team.order`.

- `reasoner` and `tool` (AT-GRPO, arXiv 2510.11062): both act at once, see both histories in later turns, and
  end when their answers agree. The reasoner's answer is the team's.
- `problem_solver`, `code_executor`, `verifier` (MathChat of MAPPA, arXiv 2601.23228): one after another, each
  sees all before it. The executor acts twice: it writes a program, and goes on from its output, or repairs a
  program that did not finish. The last role's answer is the team's.
- `solver`: alone, with the same turns; it ends when it gives the same answer twice in a row.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

from coterie.core.errors import ConfigError, did_you_mean

PAIR = ("reasoner", "tool")
CHAIN = ("problem_solver", "code_executor", "verifier")
SOLO = ("solver",)
ROLES = (*PAIR, *CHAIN, *SOLO)
COMPACT_ROLES = (*CHAIN, "solver", "reasoner")
"""Roles that the compact rendering can prompt: it can't show a program."""
_TEAMS = "reasoner and tool; or problem_solver, code_executor and verifier; or solver"


def form_of(order: Sequence[Sequence[str]], path: str) -> tuple[str, ...]:
    """The form that the roles of a team belong to.

    Raises:
        ConfigError: there is no such role, they belong to two forms, or act in another order.
    """
    roles = list(chain.from_iterable(order))
    unknown = [role for role in roles if role not in ROLES]
    if unknown:
        raise ConfigError(
            f"the environment 'math' has no role '{unknown[0]}'",
            path=f"team.roles.{unknown[0]}",
            fix=f"{did_you_mean(unknown[0], ROLES)} A team has {_TEAMS}",
        )
    form = next(form for form in (PAIR, CHAIN, SOLO) if (roles and roles[0] in form) or form == SOLO)
    strange = [role for role in roles if role not in form]
    if strange:
        raise ConfigError(
            f"{roles[0]} and {strange[0]} can't be in one team",
            path="team.order",
            why="they don't see each other's messages",
            fix=f"keep {_TEAMS}",
        )
    if form == CHAIN and (sorted(roles, key=CHAIN.index) != roles or len(order) < len(roles)):
        raise ConfigError(
            f"the order {', '.join(roles)} is not that of their work",
            path="team.order",
            why="each role goes on from the one before it",
            fix=f"team.order: [{', '.join(role for role in CHAIN if role in roles)}]",
        )
    if len(set(roles)) < len(roles):
        raise ConfigError("a role is named twice", path="team.order", fix="name each role once")
    return form
