"""The transition mode `diagnosis`: the environment says what became of the last action."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

from coterie.core.errors import ConfigError
from coterie.core.plugins import Plugin
from coterie.core.types import HistoryEntry


class Diagnosis(Plugin):
    """Tells each role what `environment.diagnose(state, role)` says, from its second decision on."""

    def __init__(self, config: Any, build: Any) -> None:
        super().__init__(config, build)
        if not callable(getattr(build.environment, "diagnose", None)):
            raise ConfigError(
                "the environment gives no diagnosis",
                path=build.path,
                why=f"{type(build.environment).__name__} has no `diagnose(state, role)`",
                fix="set transition: plain, or use an environment that has one",
            )

    async def tell(
        self, role: str, state: Any, history: Sequence[HistoryEntry], environment: Any
    ) -> Sequence[str]:
        """One note; none where nothing happened yet."""
        if not history:
            return ()
        said = environment.diagnose(state, role)
        sentence = await said if inspect.isawaitable(said) else said
        return (sentence,) if sentence else ()
