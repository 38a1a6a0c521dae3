"""Games in which some task's step doesn't return."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from coterie.core.types import Action, Step
from tests.games import Matrix


class Hanging(Matrix):
    """The matrix game; a step of one task never returns, always or for the first who plays it."""

    class Config(Matrix.Config):
        task: str
        how: str
        """`block`: the event loop stands still; `await`: it goes on."""
        flag: str = "never"
        """A file that the first makes; `never`: none does."""

    async def step(self, state: Any, actions: Mapping[str, Action], ctx: Any) -> Step:
        config = self.config
        if ctx.task.id == config.task and not ctx.evaluation and not Path(config.flag).exists():
            if config.flag != "never":
                Path(config.flag).touch()
            if config.how == "await":
                await asyncio.get_running_loop().create_future()  # AWAIT
            while True:
                time.sleep(60)  # BLOCK
        return await super().step(state, actions, ctx)
