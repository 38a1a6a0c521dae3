"""`Example`: how a component is tried, by `coterie check` and by the fixture `coterie_check`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


class Example:
    """Settings of a component, and arguments of its kind's check.

        EXAMPLE = Example({"start": 3}, roles=["counter"], act=["2", "1", "0", "what?"])

    A plugin registers it: `register("environment", "countdown", "my_package.examples:EXAMPLE")` in the hook
    `register_examples`. The module of examples is imported by a check, and by no run.

    What an argument of the check needs as an object is made from `env`, `order` and the recipes of the
    plugin: the environment of a reward source or a transition mode, the roles that read the answers.

    Args:
        settings: the component's table in a configuration, without its `type`.
        env: the table of the environment that the component is used with, or its type; by default that of a
            recipe of the plugin, else the kit's toy game.
        order: `team.order`; by default a recipe's, else one stage for each of `roles`.
        skip: why a check can't try the component, e.g. "it needs a GPU; tested by tests/test_gpu.py": the
            report says so.
        arguments: of the kind's check, e.g. `act`, `roles`, `observations`, `good`, `calls`, `episodes`.
    """

    def __init__(
        self,
        settings: Mapping[str, Any] | None = None,
        *,
        env: str | Mapping[str, Any] | None = None,
        order: Sequence[str | Sequence[str]] | None = None,
        skip: str = "",
        **arguments: Any,
    ) -> None:
        self.settings: dict[str, Any] = dict(settings or {})
        self.env, self.order, self.skip, self.arguments = env, order, skip, arguments

    def __repr__(self) -> str:
        parts = [repr(self.settings)] if self.settings else []
        parts += [f"env={self.env!r}"] * (self.env is not None)
        parts += [f"order={self.order!r}"] * (self.order is not None)
        parts += [f"{name}={value!r}" for name, value in self.arguments.items()]
        return f"Example({', '.join(parts)})"
