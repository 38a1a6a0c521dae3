"""An environment's `digest`: states that look different have different digests."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from coterie.testing.support.failure import require
from coterie.testing.support.values import fingerprint


class SeenDigests:
    """The digests of the states of one environment, each with what its roles see.

    Args:
        name: of the environment's class.
    """

    def __init__(self, name: str) -> None:
        self._where = f"{name}.digest"
        self._seen: dict[tuple[str, str, str], tuple[str, Any]] = {}

    def note(self, task: str, digest: str, observations: Mapping[str, Any]) -> None:
        """Keep a state of a task.

        Raises:
            ConformanceError: another state of the task has its digest, and shows a role something else.
        """
        for role, observation in observations.items():
            mark = fingerprint(observation)
            before, shown = self._seen.setdefault((task, digest, role), (mark, observation))
            require(
                before == mark,
                f"is {digest!r:.80} for two states of '{task}' that show '{role}' {shown!r:.80} and "
                f"{observation!r:.80}",
                self._where,
                fix="digest every value of the state that a role sees or a later step reads; without a "
                "`digest` the core makes one",
            )
