"""Open a run: its weights and connections, the warm start of fresh ones, external policies."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from coterie.api.external_policies import ExternalPolicy, seat
from coterie.api.warm_start import warm_start
from coterie.core.training.run import Run


async def open_run(run: Run, restore: Path | None = None, external: Sequence[ExternalPolicy] = ()) -> None:
    """Open a run until it can play: the engine has all weights.

    Args:
        restore: a checkpoint's folder; None: fresh weights, warm-started where a policy asks for it.
        external: policies of other runs or folders that the engine plays beside the team's.

    Raises:
        ConfigError: a warm start or an external policy that can't be had.
    """
    await run.open(restore, extra_policies={policy.name: policy.config for policy in external})
    if restore is None:
        await warm_start(run)
    await run.sync()
    await seat(run, external)
