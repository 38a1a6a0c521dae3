"""What `schedule.max_staleness` asks of the engine `vllm`: room for adapters, and what it has to refuse."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING

from coterie.backends.engines.vllm import servers
from coterie.backends.engines.vllm.settings import VLLMConfig, VLLMPolicy
from coterie.core.errors import ConfigError

if TYPE_CHECKING:
    from coterie.core.protocols import EngineContext

log = logging.getLogger("coterie")


def check_ahead(ctx: EngineContext, policies: Mapping[str, VLLMPolicy], settings: VLLMConfig) -> None:
    """Refuse steps ahead that vLLM can't play; nothing is refused without them.

    Raises:
        ConfigError: steps are pinned, and all weights of a policy are trained; or vLLM should sleep.
    """
    if not ctx.ahead:
        return
    if settings.sleep is True:
        raise ConfigError(
            "vLLM can't sleep during updates",
            path="engine.sleep",
            why=f"schedule.max_staleness={ctx.ahead}: it plays further steps meanwhile",
            fix="set engine.sleep=false (or leave it out), or schedule.max_staleness=0",
        )
    if ctx.pinned:
        for name, policy in policies.items():
            if policy.train == "full":
                raise one_version(name, ctx, "all of its weights are trained")
    if servers.inside(settings):
        log.warning(
            "engine vllm: inside the run's process it shares the trainer's thread, and generates nothing "
            "during an update: with schedule.max_staleness, engine.process=own is faster"
        )


def keeps_versions(ctx: EngineContext) -> bool:
    """Whether steps lease older versions beside the newest."""
    return ctx.pinned and ctx.ahead > 0


def one_version(policy: str, ctx: EngineContext, why: str) -> ConfigError:
    """The error of a policy with one set of weights in vLLM, where several versions must be held.

    Args:
        why: it has one set.
    """
    return ConfigError(
        f"vLLM holds one version of policy '{policy}', and pinned steps ahead need {ctx.ahead + 1}",
        path="schedule.max_staleness",
        why=f"{why}, so that {ctx.ahead + 1} versions are {ctx.ahead + 1} times the whole model; vLLM keeps "
        "versions of LoRA adapters only",
        fix=f"set schedule.play=in_flight, schedule.max_staleness=0, policies.{policy}.train=lora (with "
        "low-rank parts alone), or engine.type=hf",
    )


def adapter_versions(ctx: EngineContext) -> int:
    """The versions of an adapter that one batch may have: vLLM evicts adapters beyond that silently.

    Pinned steps lease `ahead` + 1, and an evaluation or a sync brings the newest besides. In flight, requests
    that began with one version go on beside those of the next.
    """
    if not ctx.ahead:
        return 1
    return ctx.ahead + 2 if ctx.pinned else 2
