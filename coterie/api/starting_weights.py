"""`policies.<name>.from`: a policy of a new run begins with weights of another run or of a folder."""

from __future__ import annotations

import logging
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

from coterie.api.addresses import address, checkpoint_of, choose_policy
from coterie.api.run_record import load_run, recall
from coterie.core.config import PolicyConfig
from coterie.core.errors import ConfigError, UserError
from coterie.core.plugins.origin import closed, origin_of, plugin_call
from coterie.core.storage.checkpoint import Checkpoint
from coterie.core.training.run import Run
from coterie.core.types import Weights
from coterie.discovery.members import TakesWeights
from coterie.discovery.optional import PolicyDefaults, with_defaults
from coterie.recipes import load

log = logging.getLogger("coterie")


@dataclass(frozen=True, slots=True)
class WeightsSource:
    """What a policy begins with."""

    folder: Path
    checkpoint: Checkpoint | None
    """None: the folder holds a model, an adapter or a table, not a run."""
    policy: str = ""
    """Its name in its run."""

    def __str__(self) -> str:
        if self.checkpoint is None:
            return str(self.folder)
        return f"policy '{self.policy}' of {self.folder}, step {self.checkpoint.step}"


def find_sources(run: Run) -> dict[str, WeightsSource]:
    """What each policy with a `from` begins with. Everything is checked that needs no weights.

    Raises:
        ConfigError: the trainer takes no weights, there is no such folder or policy, or it doesn't fit.
        RunFolderError: a run lacks the checkpoint.
    """
    sources = {}
    for name, policy in run.config.policies.items():
        if policy.from_ is None:
            continue
        if not isinstance(run.trainer, TakesWeights):
            raise ConfigError(
                f"{origin_of(run.trainer)} can't begin with other weights",
                path=f"policies.{name}.from",
                why="it has no begin_with(weights)",
                fix="leave `from` out, or choose another trainer (torch, tabular)",
            )
        if with_defaults(policy, PolicyDefaults).warm_start is not None:
            log.warning("policies.%s.warm_start has no effect: the weights of `from` are trained", name)
        sources[name] = _find(name, policy)
    return sources


def _find(name: str, policy: PolicyConfig) -> WeightsSource:
    path = f"policies.{name}.from"
    named = address(str(policy.from_), path)
    if not named.is_run:
        if named.suffix is not None:
            raise named.unread_suffix(path)
        source, settings = WeightsSource(named.folder, None), None
    else:
        checkpoint = checkpoint_of(named, "latest", path)
        recall(named.folder)
        other = load(named.folder).config
        chosen = choose_policy(other, named, path, name, f"it has no policy '{name}'")
        source, settings = WeightsSource(named.folder, checkpoint, chosen), other.policies[chosen]
    of_source = named.folder if settings is None else settings
    with_defaults(policy, PolicyDefaults).check_source(f"policies.{name}", of_source)
    return source


async def begin_from(run: Run) -> None:
    """Hand the weights of all `from` to the trainer, which is not open yet.

    The trainers of other runs are open meanwhile.

    Raises:
        UserError: as `find_sources`, or the weights can't be read.
    """
    sources = find_sources(run)
    if not sources:
        return
    weights: dict[str, Weights] = {}
    runs: dict[Path, Run] = {}
    async with AsyncExitStack() as opened:
        for name, source in sources.items():
            log.info("policy '%s' begins with %s", name, source)
            if source.checkpoint is None:
                weights[name] = Weights(policy=name, version=0, folder=str(source.folder))
                continue
            path = source.checkpoint.path
            if path not in runs:
                runs[path] = load_run(source.folder)
                opened.push_async_callback(closed, runs[path].trainer)
                try:
                    await runs[path].open_trainer(path)
                except UserError as error:
                    error.add_note(f"while reading policies.{name}.from: {source}")
                    raise
            weights[name] = runs[path].trainer.weights(source.policy)
        assert isinstance(run.trainer, TakesWeights)
        with plugin_call(run.trainer, "begin_with"):
            run.trainer.begin_with(weights)
