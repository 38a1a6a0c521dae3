"""Which class of server the settings choose."""

from __future__ import annotations

import logging
import sys
from dataclasses import replace
from typing import TYPE_CHECKING

from coterie.backends.engines.vllm.server import ServerSpec, VLLMServer
from coterie.backends.engines.vllm.settings import VLLMConfig, may_be_inside

if TYPE_CHECKING:
    from coterie.backends.cluster.actors import Actors

log = logging.getLogger("coterie")


def inside(settings: VLLMConfig) -> bool:
    """Whether vLLM runs in the run's process, beside what is in it now.

    Raises:
        ConfigError: `process: inside` with what needs other processes.
    """
    return may_be_inside(settings) and (settings.process == "inside" or not _group_of_ranks())


def _group_of_ranks() -> bool:
    """Whether torch's default process group has several ranks: vLLM makes a group of its own there."""
    torch = sys.modules.get("torch")  # a trainer that made a group has imported it
    group = None if torch is None else torch.distributed
    return (
        group is not None and group.is_available() and group.is_initialized() and group.get_world_size() > 1
    )


def make(spec: ServerSpec, actors: Actors | None = None) -> list[VLLMServer]:
    """The servers of a base, not yet open: one for each replica.

    Args:
        actors: starts an actor for each, on any node of a cluster; None: they run on this machine.
    """
    settings: VLLMConfig = spec.settings
    if actors is not None:
        if not spec.ways:
            log.info(
                "engine vllm: base weights go to the replicas of '%s' through Ray's object store", spec.name
            )
        from coterie.backends.engines.vllm.actor_server import actor_servers

        return actor_servers(spec, actors)
    if inside(settings):
        from coterie.backends.engines.vllm.in_process import InProcessServer

        return [InProcessServer(spec)]
    from coterie.backends.engines.vllm.own_process import OwnProcessServer

    return [OwnProcessServer(replace(spec, replica=index)) for index in range(settings.replicas)]
