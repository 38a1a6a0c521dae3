"""What other ranks import with torch: a trainer of float64 models, and losses that misbehave on one rank."""

from __future__ import annotations

import os
import signal
from dataclasses import replace
from typing import Any

from coterie.backends.models.device_memory import RankDevice
from coterie.backends.models.loading import Loaded, load_model
from coterie.backends.trainers import policies as policies_module
from coterie.backends.trainers.torch_trainer import TorchTrainer
from coterie.core.errors import PluginError
from coterie.core.protocols import Surrogate, TokenBatch
from coterie.plugins.losses.ppo_clip import PPOClip
from tests.backends.trainers.tiny import really_double


def _load_double(*args: Any, **kwargs: Any) -> Loaded:
    loaded = load_model(*args, **kwargs)
    return Loaded(really_double(loaded.module), loaded.tokenizer, loaded.context)


class MisbehavingTrainer(TorchTrainer):
    """Trains until it is asked to do otherwise."""

    def rank_misbehave(self, how: str) -> None:
        """Give rank 1 a loss that raises, or that kills its process."""
        if self.place.number == 1:
            self.ctx = replace(self.ctx, loss=OnRankOne(how))


class DoubleTrainer(MisbehavingTrainer):
    """Trains float64 models, on every rank."""

    def rank_open(self, *args: Any) -> RankDevice:
        with _doubled():
            return super().rank_open(*args)

    def rank_receive(self, *args: Any) -> None:
        with _doubled():
            super().rank_receive(*args)

    def load(self, *args: Any) -> None:
        with _doubled():
            super().load(*args)

    def rank_turn_heads(self) -> None:
        """Set value heads to random weights."""
        from tests.backends.trainers.tiny import turn_heads

        turn_heads(self)


class _doubled:
    def __enter__(self) -> None:
        policies_module.load_model = _load_double  # type: ignore[assignment]

    def __exit__(self, *error: Any) -> None:
        policies_module.load_model = load_model


class OnRankOne(PPOClip):
    """PPO's loss, which misbehaves on rank 1: `how` is raise or kill."""

    def __init__(self, how: str = "raise") -> None:
        super().__init__()
        self.how = how

    def __call__(self, xp: Any, tokens: TokenBatch) -> Surrogate:
        if os.environ.get("LOCAL_RANK") == "1":
            if self.how == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            raise PluginError("the loss is wrong", path="loss.clip_low", fix="a test")
        return super().__call__(xp, tokens)
