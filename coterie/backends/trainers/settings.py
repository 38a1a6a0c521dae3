"""The settings of trainer `torch`, in a module without torch: a configuration is checked without it."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Annotated, Literal

from pydantic import Field

from coterie.backends.models.minibatches import repeats
from coterie.backends.models.policy import Rate
from coterie.core.config import PolicyConfig, RunConfig
from coterie.core.errors import ConfigError
from coterie.core.plugins import MayChange, PluginConfig

OffloadInRollouts = Literal["auto", "none", "optimizer", "all"]


class ValueSettings(PluginConfig):
    """The settings of value learning."""

    coefficient: float = Field(0.5, gt=0, description="Weight of the value loss in the policy's loss.")
    clip: float | None = Field(
        0.2, gt=0, description="Largest useful change of V in one update; null: no limit."
    )
    learning_rate: Rate | None = Field(
        None, description="Learning rate of the head, with the policy's schedule; null: the policy's."
    )


class TorchConfig(PluginConfig):
    """Updates policies with plain PyTorch: `full`, `lora` on a shared base, or `none`."""

    minibatch_size: int | None = Field(None, ge=1, description="Samples of one optimiser step; null: all.")
    epochs: int = Field(1, ge=1, description="Passes over the samples of a step.")
    micro_tokens: Annotated[int, MayChange()] = Field(
        16384, ge=1, description="Most tokens of one forward; a shared prompt counts once."
    )
    packing: Annotated[bool, MayChange()] = Field(
        True, description="Compute a prompt once for all its completions."
    )
    attention: Annotated[Literal["auto", "sdpa", "flash_attention_2", "flex"], MayChange()] = Field(
        "auto",
        description="Kernel of the update's attention: PyTorch's SDPA (`auto`), FlashAttention 2 (needs the "
        "package flash-attn, a GPU and bfloat16) or FlexAttention (needs a GPU).",
    )
    gradient_checkpointing: Annotated[bool, MayChange()] = Field(
        False, description="Recompute activations: less memory, more time."
    )
    device: Annotated[str, MayChange()] = Field(
        "auto", description="`auto`, or torch's name of a device: cpu, cuda, cuda:1."
    )
    ranks: Annotated[int, MayChange()] = Field(
        1,
        ge=1,
        strict=True,
        description="Processes that share each update, each with its GPU; on a CPU they share the cores.",
    )
    patience: Annotated[float, MayChange(exact=True)] = Field(
        300.0,
        gt=0,
        description="Seconds without a sign of life of another rank's process after which it counts as dead.",
    )
    offload_in_rollouts: Annotated[OffloadInRollouts, MayChange(exact=True)] = Field(
        "auto",
        description="What leaves the GPUs of all ranks for the CPU's memory while episodes are played: "
        "`optimizer`: fp32 masters and moments; `all`: weights too, once the engine has them; `auto`: `all` "
        "with cluster.layout=colocate, else `none`. A trainer on a CPU stays.",
    )
    value: ValueSettings = ValueSettings()

    @property
    def repeats(self) -> str:
        """The setting by which an update has several optimiser steps; empty: it has one."""
        return repeats(self.minibatch_size, self.epochs)

    def is_deterministic(self, wanted: Literal["auto"] | bool) -> bool:
        """Whether results must repeat on the device of these settings."""
        from coterie.backends.models.devices import device_of, is_deterministic

        return is_deterministic(wanted, device_of(self.device, "trainer.device"))

    def check_needs(self, needs: Collection[str], path: str) -> None:
        """Refuse settings of value learning where neither the estimator nor the loss needs values."""
        if "value" in self.model_fields_set and "values" not in needs:
            raise ConfigError(
                "`value` is set and has no effect: neither the estimator nor the loss needs values",
                path=f"{path}.value",
                fix="set algorithm=gae, or drop the table",
            )

    def check_size(
        self,
        policies: Mapping[str, PolicyConfig],
        vocabulary: Sequence[str],
        tokens: Mapping[str, int],
        memory: int | None,
    ) -> None:
        """Refuse models that the device can't hold, of which each rank has a copy; warn of hours a step."""
        from coterie.backends.trainers.devices import check_fit, warn_of_hours

        check_fit(self.device, policies, vocabulary, memory)
        warn_of_hours(self.device, policies, vocabulary, tokens)


def offload_of(config: TorchConfig, run: RunConfig | None) -> Literal["none", "optimizer", "all"]:
    """What leaves the GPUs in rollouts.

    Args:
        run: None: the trainer is used by itself, where nothing asks it to leave.

    Raises:
        ConfigError: weights would leave that something computes with in rollouts.
    """
    chosen = config.offload_in_rollouts
    if chosen == "auto":
        colocated = run is not None and (run.cluster or {}).get("layout") == "colocate"
        return "all" if colocated else "none"
    if chosen != "all" or run is None:
        return chosen
    fix = "set trainer.offload_in_rollouts=optimizer"
    if run.schedule.max_staleness:
        raise ConfigError(
            "the trainer can't leave its GPUs in rollouts: it updates while they go on",
            path="trainer.offload_in_rollouts",
            why=f"schedule.max_staleness is {run.schedule.max_staleness}",
            fix=f"{fix}, or schedule.max_staleness=0",
        )
    if run.engine["type"] == "hf" and run.executor["type"] == "local":
        raise ConfigError(
            "the trainer's weights can't leave its GPU in rollouts",
            path="trainer.offload_in_rollouts",
            why="the engine `hf` generates with the trainer's own modules",
            fix=f"{fix}, or engine.type=vllm",
        )
    return chosen
