"""`check`: what `coterie check` does, in this process, for tests."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from coterie.core.errors import UserError
from coterie.testing.checking.component import check_component
from coterie.testing.checking.report import whole
from coterie.testing.checking.results import Checked, warn_of_unchecked
from coterie.testing.checking.targets import find_target
from coterie.testing.example import Example
from coterie.testing.support.failure import ConformanceError


def check(
    name: str,
    /,
    kind: str | None = None,
    settings: Mapping[str, Any] | None = None,
    **arguments: Any,
) -> list[Checked]:
    """Check what a name stands for, as `coterie check` does, in this process.

        def test_my_plugins(coterie_check):
            coterie_check("my_package")
            coterie_check("countdown", settings={"start": 3}, roles=["counter"], act=["2", "1", "what?"])

    Args:
        name: a registered name, `KIND:NAME`, `DISTRIBUTION:NAME`, `module:Class`, a file, a module, or an
            installed distribution.
        kind: the kind of component, where a name or a class is of several.
        settings: the component's table without its `type`.
        arguments: those of `coterie.testing.Example`: `env`, `order`, and what the kind's check takes.
            Without any the registered examples are used, or what can be derived.

    Returns:
        What is kept, broken and unchecked, by component. A warning `coterie.testing.NotChecked` tells of each
        that was not checked, or not wholly.

    Raises:
        ConformanceError: a promise is broken; the message is the report.
        UserError: the name stands for nothing, or arguments are given for several components.
    """
    if not isinstance(name, str):
        module = getattr(name, "__module__", None)
        text = f"{module}:{name.__qualname__}" if module else getattr(name, "__name__", "MODULE")
        raise UserError(f"what is to be checked is {name!r:.200}", fix=f"name it: check({text!r})")
    target = find_target(name, kind)
    example = Example(settings, **arguments) if settings is not None or arguments else None
    if example is not None and len(target.entries) != 1:
        what = f"arguments are given, and '{name}' names {len(target.entries)} components"
        raise UserError(what, fix="name one, e.g. 'environment:NAME'")
    results = [*target.plugins, *(check_component(entry, example) for entry in target.entries)]
    broken = [result for result in results if not result.ok]
    if broken:
        first = broken[0].broken[0]
        raise ConformanceError(whole(broken), where=first.where or broken[0].label, fix=first.fix)
    warn_of_unchecked(results)
    return results
