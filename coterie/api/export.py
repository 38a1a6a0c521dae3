"""Export of a policy as a Hugging Face folder or a PEFT adapter."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Literal

from coterie.api.checkpoints import find_checkpoint
from coterie.api.run_record import load_run
from coterie.core.errors import ConfigError, did_you_mean
from coterie.core.plugins.origin import plugin_call


def export(
    run_dir: Path | str,
    policy: str,
    out: Path | str,
    *,
    merge: bool = False,
    checkpoint: Literal["best", "latest"] | int = "best",
) -> Path:
    """Write a policy of a run as a Hugging Face folder, or as a PEFT adapter where it is one.

    Args:
        merge: merge an adapter into the weights it was trained on, and write a whole model.

    Returns:
        the folder `out`.

    Raises:
        UserError: the run, the checkpoint or the policy does not exist.
    """
    folder = Path(run_dir)
    restore = find_checkpoint(folder, checkpoint)
    run = load_run(folder)
    if policy not in run.config.policies:
        raise ConfigError(
            f"unknown policy '{policy}'", path="--policy", fix=did_you_mean(policy, run.config.policies)
        )

    async def go() -> None:
        try:
            await run.open(restore=restore.path)
            with plugin_call(run.trainer, "export"):
                run.trainer.export(policy, Path(out), merge=merge)
        finally:
            await run.close()

    asyncio.run(go())
    return Path(out)
