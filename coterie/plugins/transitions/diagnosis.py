"""The transition mode `diagnosis`: the environment's feedback on the last action."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

from coterie.core.errors import ConfigError
from coterie.core.plugins import Plugin
from coterie.core.plugins.origin import plugin_call
from coterie.core.rollout.contracts import refuse
from coterie.core.types import HistoryEntry
from coterie.discovery.members import Diagnoses


class Diagnosis(Plugin):
    """Gives each role `environment.diagnose(state, role)` as feedback, from its second decision on."""

    def __init__(self, config: Any, build: Any) -> None:
        super().__init__(config, build)
        if not isinstance(build.environment, Diagnoses):
            raise ConfigError(
                "the environment has no diagnosis",
                path=build.path,
                why=f"{type(build.environment).__name__} has no `diagnose(state, role)`",
                fix="set transition: none, or use an environment that has one",
            )

    async def tell(
        self, role: str, state: Any, history: Sequence[HistoryEntry], environment: Any
    ) -> Sequence[str]:
        """One sentence; none before the role's first action, or where the diagnosis is empty."""
        if not history:
            return ()
        sentence = await diagnosis_of(environment, state, role)
        return (sentence,) if sentence else ()


async def diagnosis_of(environment: Any, state: Any, role: str) -> str:
    """The environment's diagnosis for a role; it may be a coroutine.

    Raises:
        PluginError: it is no text.
    """
    with plugin_call(environment, "diagnose"):
        diagnosis = environment.diagnose(state, role)
        text: Any = await diagnosis if inspect.isawaitable(diagnosis) else diagnosis
    if not isinstance(text, str):
        refuse(environment, "diagnose", text, "return a text; an empty one: nothing is wrong")
    return text
