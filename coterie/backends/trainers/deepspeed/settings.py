"""The settings of trainer `deepspeed`, in a module without torch and DeepSpeed."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from coterie.backends.models.policy import TorchPolicy
from coterie.backends.trainers.settings import TorchConfig
from coterie.core.config import PolicyConfig, RunConfig
from coterie.core.errors import ConfigError, MissingExtra
from coterie.core.plugins import MayChange, PluginConfig
from coterie.discovery.validation import validate


def _no_truth(value: Any) -> Any:
    if isinstance(value, bool):  # 1 == True
        raise ValueError("input should be 0, 1, 2 or 3")
    return value


Stage = Annotated[Literal[0, 1, 2, 3], BeforeValidator(_no_truth)]


class OffloadSettings(PluginConfig):
    """What lies in the host's memory instead of the GPU's."""

    optimizer: Annotated[Literal["none", "cpu"], MayChange()] = Field(
        "none", description="Moments and fp32 masters, and the step itself; needs a stage of 1 to 3."
    )
    parameters: Annotated[Literal["none", "cpu"], MayChange()] = Field(
        "none", description="Weights that no layer is computing with; needs stage 3."
    )


class DeepSpeedConfig(TorchConfig):
    """Updates policies with DeepSpeed's ZeRO: optimiser, gradients and weights divided between the ranks."""

    stage: Annotated[Stage, MayChange()] = Field(
        2,
        description="What the ranks divide: 0 nothing, 1 the optimiser, 2 also the gradients, 3 also the "
        "weights.",
    )
    offload: OffloadSettings = OffloadSettings()

    @classmethod
    def check_packages(cls) -> None:
        """Raise MissingExtra unless DeepSpeed is installed."""
        if importlib.util.find_spec("deepspeed") is None:
            raise MissingExtra("deepspeed", "deepspeed", needed_by="trainer")

    def check_size(
        self,
        policies: Mapping[str, PolicyConfig],
        vocabulary: Sequence[str],
        tokens: Mapping[str, int],
        memory: int | None,
    ) -> None:
        """Warn of hours a step. What a device must hold is left open: it is divided, and may be offloaded."""
        from coterie.backends.trainers.devices import warn_of_hours

        warn_of_hours(self.device, policies, vocabulary, tokens)

    def check_offload(self, path: str) -> None:
        """Refuse what DeepSpeed offloads at other stages only.

        Raises:
            ConfigError: with the stages that can.
        """
        if self.offload.optimizer != "none" and self.stage == 0:
            raise ConfigError(
                "ZeRO stage 0 can't offload the optimiser",
                path=f"{path}.offload.optimizer",
                why="DeepSpeed offloads a rank's part of the optimiser, and stage 0 doesn't divide it",
                fix=f"set {path}.stage=1 (or 2, 3), also on one rank",
            )
        if self.offload.parameters != "none" and self.stage != 3:
            raise ConfigError(
                f"ZeRO stage {self.stage} can't offload the weights",
                path=f"{path}.offload.parameters",
                why="DeepSpeed offloads a rank's part of the weights, and only stage 3 divides them",
                fix=f"set {path}.stage=3, also on one rank",
            )


class DeepSpeedPolicy(TorchPolicy):
    """A model that is trained by DeepSpeed: what the trainer `deepspeed` declares."""

    def check(self, path: str, run: RunConfig) -> None:
        """Refuse the combinations that DeepSpeed, or the engine, can't do."""
        super().check(path, run)
        table = {key: value for key, value in run.trainer.items() if key != "type"}
        config: DeepSpeedConfig = validate(DeepSpeedConfig, table, "trainer", also=("type",))
        config.check_offload("trainer")
        check_precision(self, path, config.stage)
        if config.stage == 3 and run.engine["type"] == "hf" and self.train != "none":
            raise ConfigError(
                "the engine `hf` can't read weights that ZeRO stage 3 divides",
                path="trainer.stage",
                why="it generates with the trainer's own modules, and no rank has a whole one",
                fix="set engine.type=vllm, or trainer.stage=2",
            )


def check_precision(policy: TorchPolicy, path: str, stage: int) -> None:
    """Refuse bf16 weights at stage 0.

    Raises:
        ConfigError: DeepSpeed keeps no fp32 sum of gradients there.
    """
    if stage == 0 and policy.dtype == "bfloat16" and policy.train == "full":
        raise ConfigError(
            "ZeRO stage 0 can't train bf16 weights with fp32 gradients",
            path=f"{path}.dtype",
            why="DeepSpeed refuses the mix at stage 0: the gradients of micro-batches would add up in bf16",
            fix="set trainer.stage=1 (or 2, 3), also on one rank, or dtype=float32",
        )
