"""Which policies have weights in common: those that they begin with, and those that an engine serves.

Imports no torch.
"""

from __future__ import annotations

from collections.abc import Mapping

from coterie.core.config import PolicyConfig


def initial_weights_of(
    policies: Mapping[str, PolicyConfig], sources: Mapping[str, object] | None = None
) -> dict[str, tuple[str, ...]]:
    """First policy -> all policies with the same initial weights, in the configuration's order.

    Args:
        sources: the model of each policy with a `from`. Without them, equal values of `from` count as equal
            weights, except where all weights are trained.
    """
    begun = {name: policy for name, policy in policies.items() if policy.from_ is not None}
    return _groups(
        policies, _apart(begun) if sources is None else {name: id(sources[name]) for name in begun}
    )


def bases_of(policies: Mapping[str, PolicyConfig]) -> dict[str, tuple[str, ...]]:
    """First policy -> all policies that its base model serves, in the configuration's order.

    LoRA and frozen policies share the base of their initial weights; a policy whose weights are all trained
    has its own.
    """
    return _groups(policies, _apart(policies))


def _apart(policies: Mapping[str, PolicyConfig]) -> dict[str, object]:
    return {name: (policy.from_, name if policy.train == "full" else "") for name, policy in policies.items()}


def _groups(policies: Mapping[str, PolicyConfig], apart: Mapping[str, object]) -> dict[str, tuple[str, ...]]:
    groups: dict[object, list[str]] = {}
    for name, policy in policies.items():
        weights = policy.model_dump_json(include={"model", "revision", "dtype", "warm_start"})
        groups.setdefault((weights, apart.get(name)), []).append(name)
    return {names[0]: tuple(names) for names in groups.values()}
