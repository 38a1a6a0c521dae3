"""Evaluation of a recipe or a run."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from coterie import logs
from coterie.api.addresses import WeightsAddress, Which, checkpoint_of, run_address
from coterie.api.at_k import ks_of
from coterie.api.changed_files import changed_files
from coterie.api.checkpoints import find_checkpoint
from coterie.api.compare import Changes, TeamEvaluation, evaluate_team
from coterie.api.external_policies import resolve_policies
from coterie.api.open_run import open_run, to_its_end
from coterie.api.run_record import (
    RunRecord,
    compose_recorded,
    configuration_digest,
    recall,
    recorded_settings,
)
from coterie.api.train import Source
from coterie.compose.evaluation_sets import first_tasks
from coterie.core.config import Resolved
from coterie.core.errors import ConfigError
from coterie.core.storage.run_folder import RunFolder
from coterie.core.training.run import Run
from coterie.core.types.splits import Split
from coterie.recipes import load

log = logging.getLogger("coterie")
MOST_TASKS = 1000
"""Most tasks of an evaluation whose number is not given."""


def evaluate(
    source: Source,
    *,
    overrides: Sequence[str] = (),
    scale: str | None = None,
    overlays: Sequence[str] = (),
    split: Literal["train", "val", "test"] = "test",
    tasks: int | None = None,
    samples: int = 1,
    greedy: bool = False,
    policies: Mapping[str, str | Path] | None = None,
    swap: tuple[str, str] | None = None,
    null: Sequence[str] = (),
    show: int = 0,
    checkpoint: Which | None = None,
    k: Sequence[int] | None = None,
) -> TeamEvaluation:
    """Evaluate a recipe's untrained team, or a checkpoint of a run.

    Args:
        source: a recipe's name, a YAML file, a table, a RunConfig, or a run's folder, with
            `@best`, `@latest` or `@STEP` if you like.
        overrides: as of `train`, and so are `scale` and `overlays`.
        tasks: number of tasks. Default: the whole split, at most 1,000.
        samples: episodes per task.
        greedy: take the likeliest token instead of sampling.
        policies: role -> its external policy: `RUN_DIR[@best|latest|N][:POLICY]`, or a folder that `export`
            wrote.
        swap: two roles whose policies are exchanged; `null` names silent roles.
        show: number of episodes that the result holds as text.
        checkpoint: `best` on val (the latest where val was never evaluated), the default, `latest`, or a
            step. It also applies to runs in `policies` that name no checkpoint.
        k: of pass@k and majority@k. Default: powers of two up to `samples`, and none for a single sample.

    Returns:
        the evaluation of the team. Where `policies`, `swap` or `null` change the team (in this order), its
        `comparison` holds the success of the changed team and the differences paired by task.

    Raises:
        UserError: something in the input is wrong.
    """
    _check_lists(policies, swap, null)
    ks = ks_of(k, samples)
    run, restore = _composed(source, overrides, scale, overlays, split, checkpoint)
    external, by_role = resolve_policies(run, policies or {}, "best" if checkpoint is None else checkpoint)
    changes = Changes(by_role, swap, tuple(dict.fromkeys(null)))
    changes.team(run)  # refuses contradictions before anything is loaded

    async def go() -> TeamEvaluation:
        try:
            await open_run(run, restore, external, split)
            most = MOST_TASKS if tasks is None else tasks
            chosen = first_tasks(run.environment, split, most, run.config.seed)
            settings: dict[str, Any] = {"samples": samples, "greedy": greedy, "show": show, "ks": ks}
            return await evaluate_team(run, changes, split, chosen, **settings)
        finally:
            await run.close()

    with nullcontext() if (folder := run_folder(source)) is None else logs.kept_in(RunFolder(folder).logs):
        return to_its_end(go())


def _composed(
    source: Any,
    overrides: Sequence[str],
    scale: str | None,
    overlays: Sequence[str],
    split: Split,
    checkpoint: Which | None,
) -> tuple[Run, Path | None]:
    """The run with the facts of its evaluation, and the folder of the checkpoint that plays."""
    source, named = run_address(source)
    if named is not None and checkpoint not in (None, named):
        fix = "name the checkpoint once"
        raise ConfigError(f"RUN_DIR says @{named}", path="--checkpoint", why=f"it says {checkpoint}", fix=fix)
    played, record, known = None, None, None
    if is_run(source):
        source = Path(str(source))  # as a string, a bare name would be a recipe's
        if named is not None:
            played = checkpoint_of(WeightsAddress(source, named), named, "RUN_DIR")
        else:
            played = find_checkpoint(source, "best" if checkpoint is None else checkpoint)
        record = recall(source)
        known = (record or RunRecord({}, {}, {})).at(played.step)
    resolved = _resolved(source, overrides, scale, overlays)
    # Nothing trains meanwhile: whatever engine plays needs one version of the weights.
    schedule = resolved.config.schedule.model_copy(update={"max_staleness": 0, "play": "auto"})
    config = resolved.config.model_copy(update={"schedule": schedule})
    run = compose_recorded(replace(resolved, config=config), record, [split])
    facts = {"checkpoint": None if played is None else played.step, **_facts(run, known)}
    if played is not None:
        settings = recorded_settings(Path(source))
        facts |= {"run_seed": settings.get("seed", 0), "configuration": configuration_digest(settings)}
    return replace(run, facts=facts), None if played is None else played.path


def _facts(run: Run, record: RunRecord | None) -> dict[str, Any]:
    """Versions and digests of files; those that differ from the record of the run are said."""
    now = RunRecord.of(run)
    if record is None:
        return now.facts
    unknown = [path for path, entry in now.files.items() if "sha256" in entry and path not in record.files]
    if unknown:
        log.warning("the run has no digests of what it read (%s): it may have changed", ", ".join(unknown))
    changed = changed_files(record, now)
    if not changed:
        return now.facts
    log.warning("the evaluation reads other contents than the run: %s", "; ".join(map(str, changed)))
    return {**now.facts, "changed_files": {change.name: [change.before, change.after] for change in changed}}


def _check_lists(policies: Any, swap: Any, null: Any) -> None:
    """Refuse one text where a list or a table belongs: its letters would be taken for names."""
    for name, value, example in (
        ("policies", policies, "policies={'planner': 'runs/other@best'}"),
        ("swap", swap, "swap=('planner', 'executor')"),
        ("null", null, f"null=[{null!r}]"),
    ):
        if isinstance(value, str) or (name == "policies" and not isinstance(value, Mapping | None)):
            raise ConfigError(f"`{name}` is {value!r}", path=name, fix=example)


def _resolved(
    source: Source, overrides: Sequence[str], scale: str | None, overlays: Sequence[str]
) -> Resolved:
    """The configuration of a recipe, or of a run whose checkpoint has the policies that it makes."""
    resolved = load(source, overrides=overrides, scale=scale, overlays=overlays)
    if not is_run(source):
        return resolved
    trained, wanted = set(load(source).config.policies), set(resolved.config.policies)
    if trained != wanted:
        raise ConfigError(
            f"the checkpoint of {source} has other policies",
            path="--with" if overlays else "policies",
            why=f"it was trained with {', '.join(sorted(trained))}, and the settings here make "
            f"{', '.join(sorted(wanted))}",
            fix="leave out what changes the policies, or train with it: coterie run RECIPE --with ...",
        )
    return resolved


def run_folder(source: Any) -> Path | None:
    """The folder of the run that a source names, with or without a checkpoint; None: it names none."""
    source, _ = run_address(source)
    return Path(str(source)) if is_run(source) else None


def is_run(source: Any) -> bool:
    """Whether a source is the folder of a run."""
    return isinstance(source, (str, Path)) and Path(source).is_dir()
