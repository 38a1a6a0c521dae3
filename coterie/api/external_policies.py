"""External policies of an evaluation: `coterie eval --policy role=CHECKPOINT`.

An external policy comes from another run, or from a folder that `coterie export` wrote. Its weights are
loaded into the engine beside those of the team, and not into the team's trainer, so that a checkpoint must
still hold exactly the team's policies.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from coterie.api.addresses import WeightsAddress, Which, address, check_role, checkpoint_of, choose_policy
from coterie.api.run_record import load_run, recall
from coterie.core.config import PolicyConfig
from coterie.core.errors import ConfigError, CoterieError
from coterie.core.storage.checkpoint import Checkpoint
from coterie.core.training.run import Run
from coterie.core.types import Weights
from coterie.discovery.members import HasTokenIds
from coterie.recipes import load


@dataclass(frozen=True, slots=True)
class ExternalPolicy:
    """A policy of another run or of an exported folder."""

    name: str
    """Its name in the engine, beside the team's policies: `runs/b@120:planner`, or the folder."""
    config: PolicyConfig
    folder: Path
    checkpoint: Checkpoint | None = None
    """None: the folder holds a model, not a run."""
    policy: str = ""
    """Its name in its run."""
    replaces: tuple[str, ...] = ()
    """Policies of the team that it replaces in some role; its vocabulary must equal theirs."""


def resolve_policies(
    run: Run, policies: Mapping[str, str | Path], checkpoint: Which = "best"
) -> tuple[tuple[ExternalPolicy, ...], dict[str, str]]:
    """Resolve the external policies of some roles. Nothing is loaded.

    Args:
        policies: role -> `RUN_DIR`, `RUN_DIR@best|latest|N`, either with `:POLICY`; or a folder that
            `coterie export` wrote.
        checkpoint: the checkpoint of runs that are named without @.

    Returns:
        the external policies, and role -> name of its external policy.

    Raises:
        ConfigError: an unknown role, folder or policy, or a model that this run's engine can't play.
        RunFolderError: a run lacks the checkpoint.
    """
    resolved: dict[str, ExternalPolicy] = {}
    plays: dict[str, str] = {}
    for role, text in policies.items():
        check_role(run, role, "--policy")
        team_policy = run.team.policies[role]
        external = _resolve(str(text), role, run.config.policies[team_policy], checkpoint)
        if external.name in run.config.policies:
            external = replace(external, name=f"./{external.name}")
        _check_weights(external, team_policy, run.config.policies[team_policy])
        known = resolved.get(external.name, external)
        resolved[external.name] = replace(
            known, replaces=tuple(dict.fromkeys((*known.replaces, team_policy)))
        )
        plays[role] = external.name
    return tuple(resolved.values()), plays


async def load_policies(run: Run, policies: Sequence[ExternalPolicy]) -> None:
    """Load external policies into the engine of an opened run.

    For policies of another run, that run's trainer is opened, and closed when their weights are loaded.

    Raises:
        ConfigError: weights can't be loaded, or were made for other tokens than the team's.
    """
    by_checkpoint: dict[Path, list[ExternalPolicy]] = {}
    for policy in policies:
        if policy.checkpoint is None:
            await _load_weights(
                run, policy, Weights(policy=policy.name, version=0, folder=str(policy.folder))
            )
        else:
            by_checkpoint.setdefault(policy.checkpoint.path, []).append(policy)
    for path, policies_of_run in by_checkpoint.items():
        other = load_run(policies_of_run[0].folder)
        try:
            await other.open_trainer(path)
            for policy in policies_of_run:
                await _load_weights(
                    run, policy, replace(other.trainer.weights(policy.policy), policy=policy.name)
                )
        finally:
            await other.trainer.close()


def _resolve(text: str, role: str, team_config: PolicyConfig, checkpoint: Which) -> ExternalPolicy:
    """The external policy at an address such as `RUN_DIR@best:POLICY`."""
    path = f"--policy {role}"
    named = address(text, path)
    if not named.is_run:
        return _resolve_model(named, path, team_config)
    folder = named.folder
    resolved = checkpoint_of(named, checkpoint, path)
    recall(folder)
    config = load(folder).config
    by_role = config.team.roles.get(role, {}).get("policy", "")
    name = choose_policy(config, named, path, str(by_role), f"that run has no role '{role}'")
    return ExternalPolicy(f"{folder}@{resolved.step}:{name}", config.policies[name], folder, resolved, name)


def _resolve_model(named: WeightsAddress, path: str, team_config: PolicyConfig) -> ExternalPolicy:
    """The external policy of a folder that holds a model, and no run."""
    folder = named.folder
    try:
        config = team_config.external(folder)
    except ConfigError as error:
        raise ConfigError(error.what, path=path, why=error.why, fix=error.fix) from None
    if named.suffix is not None:
        raise named.unread_suffix(path)
    return ExternalPolicy(str(folder), config, folder)


def _check_weights(external: ExternalPolicy, team_policy: str, team_config: PolicyConfig) -> None:
    """Refuse weights that the team's engine can't play: an engine holds tables, or tensors, or no weights.

    Raises:
        ConfigError: the external policy's weights are of another kind than the team's.
    """
    nothing = "no weights"
    external_kind, team_kind = external.config.weights_kind, team_config.weights_kind
    if not team_kind or external_kind != team_kind:
        raise ConfigError(
            f"the external policy {external.name} can't play beside '{team_policy}'",
            path="--policy",
            why=f"it has {external_kind or nothing}, and the engine here plays {team_kind or nothing}",
        )


async def _load_weights(run: Run, external: ExternalPolicy, weights: Weights) -> None:
    try:
        await run.engine.load_weights(weights)
    except CoterieError:
        raise
    except Exception as error:  # a library raises what it likes on a damaged folder
        lines = str(error).strip().splitlines()
        raise ConfigError(
            f"the weights of the external policy {external.name} can't be loaded",
            path="--policy",
            why=f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__,
            fix="check that the folder is complete and of one model",
        ) from error
    external_ids = _token_ids(run, external.name)
    for team_policy in external.replaces:
        team_ids = _token_ids(run, team_policy)
        if team_ids is not None and external_ids is not None and team_ids != external_ids:
            raise ConfigError(
                f"the external policy {external.name} was made for other tokens than '{team_policy}'",
                path="--policy",
                why=_token_differences(external_ids, team_ids),
                fix="evaluate with the environment and the tokenizer that it was trained with",
            )


def _token_ids(run: Run, policy: str) -> Mapping[str, int] | None:
    codec = run.engine.codec(policy)
    return codec.vocabulary if isinstance(codec, HasTokenIds) else None


def _token_differences(external_ids: Mapping[str, int], team_ids: Mapping[str, int]) -> str:
    """A sentence on how two vocabularies (token -> id) differ."""

    def example(tokens: Iterable[str]) -> str:
        return f"such as {min(tokens)!r}" if tokens else ""

    missing, added = team_ids.keys() - external_ids.keys(), external_ids.keys() - team_ids.keys()
    if missing or added:
        return "; ".join(
            f"it {verb} {len(tokens)} of them, {example(tokens)}"
            for verb, tokens in (("lacks", missing), ("adds", added))
            if tokens
        )
    moved = {token for token, index in team_ids.items() if external_ids[token] != index}
    return f"{len(moved)} tokens have other ids, {example(moved)}"
