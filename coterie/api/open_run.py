"""Opening of a run: its weights and connections, a warm start of fresh weights, external policies."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from coterie.api.external_policies import ExternalPolicy, load_policies
from coterie.api.starting_weights import begin_from
from coterie.api.warm_start import warm_start
from coterie.core.training.run import Run


async def open_run(run: Run, restore: Path | None = None, external: Sequence[ExternalPolicy] = ()) -> None:
    """Open a run; afterwards the engine has all weights, and the run can play.

    Args:
        restore: a checkpoint's folder; None: the weights that `from` names, or fresh ones, with a warm start
            where a policy has one.
        external: policies of other runs or folders, which the engine plays beside those of the team.

    Raises:
        ConfigError: the weights of a `from` can't be taken, a warm start is impossible, or an external policy
            can't be loaded.
    """
    if restore is None:
        await begin_from(run)
    await run.open(restore, extra_policies={policy.name: policy.config for policy in external})
    if restore is None:
        await warm_start(run)
    await run.sync()
    await load_policies(run, external)
