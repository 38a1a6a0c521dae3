"""What `schedule.max_staleness` asks of the engine `vllm`: room for adapters, and what it has to refuse."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from coterie.backends.engines.vllm.settings import VLLMConfig, VLLMPolicy
from coterie.core.errors import ConfigError

if TYPE_CHECKING:
    from coterie.core.protocols import EngineContext

log = logging.getLogger("coterie")


def check_ahead(policies: Mapping[str, VLLMPolicy], settings: VLLMConfig, ahead: int, pinned: bool) -> None:
    """Refuse steps ahead that vLLM can't play, before it is open.

    Raises:
        ConfigError: steps are pinned, and all weights of a policy are trained; or vLLM should sleep.
    """
    if settings.sleep is True:
        raise ConfigError(
            "vLLM can't sleep during updates",
            path="engine.sleep",
            why=f"schedule.max_staleness={ahead}: it plays further steps meanwhile",
            fix="set engine.sleep=false (or leave it out), or schedule.max_staleness=0",
        )
    if pinned:
        check_pinned(policies, ahead)


def warn_ahead(ctx: EngineContext, settings: VLLMConfig, *, inside: bool) -> None:
    """Warn of settings that have no effect, or cost time, with steps ahead.

    Args:
        inside: vLLM runs in the run's process.
    """
    if not ctx.ahead:
        return
    if ctx.pinned and settings.kv == "keep":
        log.warning("engine.kv=keep has no effect: one version of the weights draws all of a pinned step")
    if inside:
        log.warning(
            "engine vllm: inside the run's process it shares the trainer's thread, and generates nothing "
            "during an update: with schedule.max_staleness, engine.process=own is faster"
        )


def check_pinned(policies: Mapping[str, VLLMPolicy], ahead: int) -> None:
    """Refuse pinned steps ahead where vLLM holds one version of a policy.

    Raises:
        ConfigError: all weights of a policy are trained.
    """
    for name, policy in policies.items():
        if policy.train == "full":
            raise one_version(name, ahead, "all of its weights are trained", _gib(policy))


def _gib(policy: VLLMPolicy) -> float:
    """The least of a model's weights in GiB; 0: its size isn't known without asking a hub."""
    from coterie.backends.models.memory import WIDTH
    from coterie.backends.models.sizes import least_size

    if isinstance(policy.model, str) and not Path(policy.model).is_dir():
        return 0.0
    size = least_size(policy, ())
    return 0.0 if size is None else size.parameters * WIDTH.get(policy.dtype, min(WIDTH.values())) / 2**30


def keeps_versions(ctx: EngineContext) -> bool:
    """Whether steps lease older versions beside the newest."""
    return ctx.pinned and ctx.ahead > 0


def one_version(policy: str, ahead: int, why: str, gib: float = 0.0) -> ConfigError:
    """The error of a policy with one set of weights in vLLM, where several versions must be held.

    Args:
        why: it has one set.
        gib: of the model's weights, at least; 0: unknown.
    """
    versions = ahead + 1
    memory = f" ({versions} x {gib:.1f} GiB or more)" if gib >= 0.1 else ""
    return ConfigError(
        f"vLLM holds one version of policy '{policy}', and pinned steps ahead need {versions}",
        path="schedule.max_staleness",
        why=f"{why}, so that {versions} versions are {versions} times the whole model{memory}; vLLM "
        "keeps versions of LoRA adapters only",
        fix=f"set schedule.play=in_flight, schedule.max_staleness=0, policies.{policy}.train=lora (with "
        "low-rank parts alone), or engine.type=hf",
    )


def adapter_versions(ahead: int, pinned: bool) -> int:
    """The versions of an adapter that one batch may have: vLLM evicts adapters beyond that silently.

    Pinned steps lease `ahead` + 1, and an evaluation or a sync brings the newest besides. In flight, requests
    that began with one version go on beside those of the next.
    """
    if not ahead:
        return 1
    return ahead + 2 if pinned else 2
