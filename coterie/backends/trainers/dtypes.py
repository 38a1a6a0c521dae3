"""What `dtype: auto` is in a trainer: chosen once when it opens, and kept by the run's checkpoints."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from coterie.backends.models.policy import TensorFields, TorchPolicy
from coterie.backends.models.precision import choices, chosen, with_dtype
from coterie.backends.trainers import torch_state
from coterie.backends.trainers.devices import device_of
from coterie.backends.trainers.policies import InitialWeights, PolicyWeights
from coterie.core.config import PolicyConfig
from coterie.core.protocols import TrainerContext

log = logging.getLogger("coterie")


class Setup(NamedTuple):
    """What the weights of a checkpoint are set up from."""

    configs: dict[str, TorchPolicy]
    groups: list[tuple[str, ...]]
    """The policies with the same initial weights."""


class OpenDtypes:
    """The part of a trainer that fills in dtypes which the configuration leaves open."""

    config: Any
    _left_open: tuple[str, ...] = ()
    """The policies whose dtype is `auto`, which a checkpoint's replaces."""

    def _with_dtypes(self, ctx: TrainerContext) -> TrainerContext:
        """The context with `dtype: auto` resolved, by rank 0 for all ranks; logs what was measured."""
        open_ = left_open(ctx.policies)
        self._left_open, device = tuple(open_), device_of(self.config.device).type
        fixed = self.required_dtypes(open_)
        for sentence in choices({**open_, **fixed}, device):
            chosen.info("%s", sentence)
        return replace(ctx, policies={**ctx.policies, **with_dtype({**open_, **fixed}, device)})

    def required_dtypes(self, open_: Mapping[str, TorchPolicy]) -> Mapping[str, TorchPolicy]:
        """Policies with `dtype: auto` for which the trainer has one dtype only, with that one."""
        return {}

    def _saved_setup(
        self, folder: Path, initial_weights: Sequence[InitialWeights], policies: Mapping[str, PolicyWeights]
    ) -> Setup | None:
        """The setup of a checkpoint's run where it isn't that of these policies; None: it is, or can't be.

        A run's dtypes stay those with which it began. A `from` may give some policies equal weights, or not.

        Raises:
            RunFolderError: the state can't be read.
        """
        here = {name: policy.config for name, policy in policies.items()}
        configs = kept(here, self._left_open, torch_state.dtypes(folder))
        if configs == here and all(config.from_ is None for config in configs.values()):
            return None
        groups = torch_state.groups(folder)
        if sorted(name for group in groups for name in group) != sorted(configs):
            return None
        same = sorted(groups) == sorted(initial.policies for initial in initial_weights)
        return None if same and configs == here else Setup(configs, groups)


def left_open(policies: Mapping[str, PolicyConfig]) -> dict[str, Any]:
    """The policies whose dtype is `auto`."""
    return {
        name: policy
        for name, policy in policies.items()
        if isinstance(policy, TensorFields) and policy.dtype == "auto"
    }


def kept(
    configs: Mapping[str, TorchPolicy], open_: Collection[str], saved: Mapping[str, str | None]
) -> dict[str, TorchPolicy]:
    """The policies with the dtypes with which a checkpoint's run began, where the configuration has none.

    Args:
        configs: with dtypes that were chosen here.
        open_: the policies whose `dtype` is `auto`.
        saved: by policy, the dtype in the checkpoint; None: it doesn't say.
    """
    chosen = dict(configs)
    for name in open_:
        began = saved.get(name)
        if name in chosen and began is not None and began != configs[name].dtype:
            log.warning(
                "policies.%s.dtype: stays %s, with which the run began; auto is %s on this machine",
                *(name, began, configs[name].dtype),
            )
            chosen[name] = configs[name].model_copy(update={"dtype": began})
    return chosen
