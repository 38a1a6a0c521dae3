"""Overlays: settings that fit many recipes, because `*` stands for the names of roles, policies or rewards.

    summary: A policy of its own for each role.
    team: {roles: {"*": {policy: "{role}"}}}

`*` stands for the entries that the layers below have, `plan*` for those whose names begin so; `{role}` is the
role's name. A role that an overlay sends to a policy that isn't there takes a copy of its old policy along,
in each of the recipe's scales as well (but for one that has the new policy already); a policy that no role is
left to play is removed. Overlays that are
given together must agree: where two set one key differently, they are refused.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

from coterie.compose.tables import MAPS
from coterie.core.errors import ConfigError
from coterie.core.plugins import Table


def is_entry(path: tuple[str, ...]) -> bool:
    """Whether the path is that of a named entry, which `null` removes and `*` may stand for."""
    by_name = (*MAPS, "policies", "scales")
    return (len(path) == 2 and path[0] in by_name) or (len(path) == 3 and path[:2] == ("team", "roles"))


def matching(pattern: str, entries: Mapping[str, Any], at: tuple[str, ...]) -> list[str]:
    """The entries of the table at a path that a key of a layer sets: a name, or all that a `*` matches.

    In a block of `scales` the pattern is kept too, for entries that are there when the scale is merged.

    Raises:
        ConfigError: the pattern matches nothing.
    """
    in_scale = len(at) > 2 and at[0] == "scales"
    if "*" not in pattern or not is_entry((*at[2 if in_scale else 0 :], pattern)):
        return [pattern]
    matched = [name for name, value in entries.items() if fnmatchcase(name, pattern) and value is not None]
    if not matched and not in_scale:
        why = f"{'.'.join(at)} has {', '.join(entries) or 'no entries'}"
        raise ConfigError(f"'{pattern}' matches nothing", path=".".join((*at, pattern)), why=why)
    return list(dict.fromkeys([*matched, pattern])) if in_scale else matched


def names(overlays: str | Sequence[str]) -> list[str]:
    """Names of overlays, each once; `a,b` names two.

    Raises:
        ConfigError: something else than names.
    """
    items = [overlays] if isinstance(overlays, str) else overlays
    if not isinstance(items, Sequence) or not all(isinstance(item, str) for item in items):
        raise ConfigError(f"{items!r} names no overlays", path="with", fix="e.g. with: [per_role, l1]")
    return list(dict.fromkeys(name.strip() for item in items for name in item.split(",")))


def roles_of(table: Mapping[str, Any]) -> Mapping[str, Any]:
    """The table `team.roles`; empty where it is none."""
    team = table.get("team")
    roles = team.get("roles") if isinstance(team, Mapping) else None
    return roles if isinstance(roles, Mapping) else {}


def policy_of(table: Mapping[str, Any]) -> dict[str, Any]:
    """The policy of each role."""
    roles = roles_of(table).items()
    return {role: settings.get("policy") for role, settings in roles if isinstance(settings, Mapping)}


def carry_policies(
    table: Table, every_scale: Iterable[Table], before: Mapping[str, Any], origins: dict[str, str]
) -> None:
    """Make the new policies that overlays send roles to from the old ones, and remove what no role plays.

    Args:
        before: the policy of each role before the overlays.

    Raises:
        ConfigError: roles whose policies differ are sent to one new policy.
    """
    blocks = [table, *(table.get("scales") or {}).values(), *every_scale]
    tables = [block["policies"] for block in blocks if block and isinstance(block.get("policies"), dict)]
    after, source, sent = policy_of(table), dict[str, str](), set[str]()
    for role, old in before.items():
        new = after.get(role)
        if new in (None, old) or old is None or new in table.get("policies", {}):
            continue
        sent.add(old)
        if any(policies.get(source.setdefault(new, old)) != policies.get(old) for policies in tables):
            why = f"'{source[new]}' and '{old}' differ"
            raise ConfigError(f"roles can't share the policy '{new}'", path=f"policies.{new}", why=why)
    for policies in tables:
        copied = [(new, old) for new, old in source.items() if old in policies and new not in policies]
        policies.update({new: copy.deepcopy(policies[old]) for new, old in copied})
        for old in (sent - set(after.values())) & set(policies):
            del policies[old]
    for new, old in source.items():
        for path in [path for path in origins if path.startswith(f"policies.{old}.")]:
            origins[f"policies.{new}.{path.removeprefix(f'policies.{old}.')}"] = origins[path]
