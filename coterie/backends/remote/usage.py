"""What a component's remote calls have used: counted, logged at the end, and written to the run's folder."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from coterie.backends.remote.budget import Spent, total
from coterie.core.errors import WriteError
from coterie.core.storage.atomic import write_atomic

log = logging.getLogger("coterie.usage")


@dataclass(slots=True)
class Counts:
    """Counts of one process."""

    asked: int = 0
    """Calls that the component made."""
    cached: int = 0
    """Of these: answered by the cache."""
    joined: int = 0
    """Of these: answered with an identical call that was under way."""
    sent: int = 0
    """Attempts that were sent."""
    again: int = 0
    """Of these: further attempts of a call."""
    missing: int = 0
    """Calls without an answer."""

    def text(self) -> str:
        return (
            f"{self.asked} calls: {self.cached} from the cache, {self.joined} joined an identical call, "
            f"{self.sent} sent ({self.again} of them again), {self.missing} without an answer"
        )


def report(
    name: str, counts: Counts, spent: Mapping[str, Spent], folder: Path | None, money: bool, stored: bool
) -> None:
    """Log the usage, and write it to `usage-<name>.json` in `folder`.

    Args:
        spent: by model, over all processes of the run where it is `stored`.
        money: whether prices are known.
    """
    if not counts.asked:
        return
    since = "so far" if stored else "in this process"
    log.info("%s: %s; spent %s: %s", name, counts.text(), since, total(spent).text(money))
    if folder is None:
        return
    table: dict[str, Any] = {
        "this_process": asdict(counts),
        "spent": {model: asdict(part) for model, part in sorted(spent.items())},
        "total": asdict(total(spent)),
        "over_all_processes": stored,
    }
    try:
        folder.mkdir(parents=True, exist_ok=True)  # the database may be elsewhere
        write_atomic(folder / f"usage-{name}.json", json.dumps(table, indent=2) + "\n")
    except (WriteError, OSError) as error:
        log.warning("%s", error)
