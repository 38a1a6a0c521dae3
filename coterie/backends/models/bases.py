"""The sets of weights that an engine serves: which policies are one base model's. Imports no torch."""

from __future__ import annotations

from collections.abc import Mapping

from coterie.core.config import PolicyConfig


def bases_of(policies: Mapping[str, PolicyConfig]) -> dict[str, tuple[str, ...]]:
    """First policy -> all policies that its base model serves, in the configuration's order.

    LoRA and frozen policies share the base of their initial weights; a policy whose weights are all trained
    has its own.
    """
    groups: dict[object, list[str]] = {}
    for name, policy in policies.items():
        weights = policy.model_dump_json(include={"model", "revision", "dtype", "warm_start"})
        groups.setdefault((weights, policy.from_, name if policy.train == "full" else ""), []).append(name)
    return {names[0]: tuple(names) for names in groups.values()}
