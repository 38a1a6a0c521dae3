"""The counterfactual check: opens a run with weights and plays on from its recorded states."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from coterie.analysis.credit.component_returns import Rules
from coterie.analysis.credit.effects import CheckedAction, TurnEffect, turn_effects
from coterie.analysis.credit.playouts import Arm, ChosenAction, Player, Playout, choices
from coterie.analysis.recorded_engine import RecordedActions, learn_words
from coterie.analysis.records import RunRecords, step_row_of
from coterie.api.addresses import Which, check_role
from coterie.api.checkpoints import CheckpointStore, find_checkpoint
from coterie.api.episodes import RecordedTree, trees_of
from coterie.api.external_policies import ExternalPolicy, load_policies
from coterie.api.open_run import to_its_end
from coterie.api.run_record import load_run
from coterie.api.starting_weights import begin_from
from coterie.compose import check_hosts, check_packages
from coterie.core.concurrency.active_rollouts import together
from coterie.core.errors import ConfigError, RunFolderError, UserError, did_you_mean
from coterie.core.storage.checkpoint import Checkpoint
from coterie.core.training.run import Run
from coterie.watchdog import watching

log = logging.getLogger("coterie")
OVERRIDES = ("schedule.max_staleness=0", "schedule.play=auto", "trackers={}")
"""Nothing trains meanwhile, so that one version of the weights plays."""
HERE = ("executor={type: local}", "cluster=null")
"""Playouts are coroutines of this process."""
Against = str | int
"""`null`, `untrained`, or the step of a checkpoint."""


@dataclass(frozen=True, slots=True)
class Counterfactual:
    """The result of a check."""

    against: Against
    """What replaces an action: `null` (silence), `untrained`, or a checkpoint's step."""
    checkpoint: int
    """The step whose weights play on."""
    steps: Sequence[int]
    """The recorded steps that the states are of."""
    tasks: int
    samples: int
    effects: Sequence[TurnEffect]
    notes: list[str] = field(default_factory=list)
    checked: Sequence[CheckedAction] = field(default=(), repr=False)

    def as_dict(self) -> dict[str, Any]:
        return {
            "against": self.against,
            "checkpoint": self.checkpoint,
            "steps": list(self.steps),
            "tasks": self.tasks,
            "samples": self.samples,
            "turns": [effect.as_dict() for effect in self.effects],
            "notes": list(self.notes),
        }


def counterfactual(
    records: RunRecords,
    steps: Sequence[int],
    *,
    against: Against = "null",
    tasks: int = 16,
    samples: int = 2,
    roles: Collection[str] = (),
    checkpoint: Which | None = None,
    gamma: float = 1.0,
    progress: Callable[[int, int], None] | None = None,
) -> Counterfactual:
    """Replace recorded actions, play on, and compare.

    Args:
        steps: recorded ones; states are drawn from them.
        tasks: most tasks.
        samples: times that each arm is played on.
        roles: only these; empty: all.
        checkpoint: whose weights play on; None: the one nearest to those that played the newest step.
        progress: is called with the playouts that have ended and their number.

    Raises:
        UserError: an unknown role, no checkpoint, a policy that can't be had, or no recorded state that is
            reached again.
    """
    run = _composed(records, steps[-1])
    for role in roles:
        check_role(run, role, "--role")
    chosen = _checkpoint(records, steps[-1], checkpoint)
    rows = {step: records.rows(step) for step in steps}
    trees: dict[int, list[RecordedTree]] = {step: trees_of(rows[step], step) for step in steps}
    picked = choices(run, trees, tasks, roles)
    if not picked:
        why = "none of their tasks is one that the run would play now, or no action is left to check"
        raise UserError(f"no state of steps {_listed(steps)} can be checked", why=why, fix="name other steps")
    replacing = Replacing.of(records, run, against, {choice.state.role for choice in picked})

    def player(step: int) -> Player:
        rules = Rules.of(step_row_of(rows[step], records.files[step]), gamma)
        sampler = run.sampler.for_evaluation(False)
        return Player(run.rollout_side, sampler, run.engine_client, RecordedActions.of(rows[step]), rules)

    async def go() -> list[CheckedAction | str]:
        try:
            await replacing.open(chosen)
            learn_words(run.engine.codec, [row for of_step in rows.values() for row in of_step])
            players = {step: player(step) for step in {choice.state.tree.step for choice in picked}}
            return await _played(players, picked, replacing.arms, samples, progress)
        finally:
            await run.close()

    checked = to_its_end(watching(run.config.schedule.patience, go()))
    reached = _reached(checked, steps)
    return Counterfactual(
        against, chosen.step, steps, len({action.task for action in reached}), samples,
        turn_effects(reached, run.config.seed), _notes(checked, reached, chosen.step, steps), reached,
    )  # fmt: skip


def _composed(records: RunRecords, step: int) -> Run:
    """The run of a step in this process; a warning names what has changed since."""
    away = records.config.executor["type"] != "local"
    run = records.run(step, (*OVERRIDES, *(HERE if away else ())))
    if changed := records.changed(run, step):
        log.warning("the check plays with other files or packages than the run: %s", "; ".join(changed))
    return run


def _reached(checked: Sequence[CheckedAction | str], steps: Sequence[int]) -> list[CheckedAction]:
    """The actions whose states were reached again.

    Raises:
        UserError: there are none.
    """
    reached = [action for action in checked if not isinstance(action, str)]
    if not reached:
        faults = _faults(checked)
        raise UserError(
            f"none of the {len(checked)} recorded states of steps {_listed(steps)} was reached again",
            why=faults
            or "the environment, its data or its programs give other states to the recorded actions now",
            fix="`coterie replay RUN` shows the first difference",
        )
    return reached


def _faults(checked: Sequence[CheckedAction | str]) -> str:
    """The fault that most often kept a state from being reached; empty: there was none."""
    faults = Counter(each for each in checked if isinstance(each, str) and each)
    return "; ".join(f"{fault} ({count} times)" for fault, count in faults.most_common(1))


def _notes(
    checked: Sequence[CheckedAction | str],
    reached: Sequence[CheckedAction],
    played: int,
    steps: Sequence[int],
) -> list[str]:
    notes = []
    if lost := len(checked) - len(reached):
        why = f": {faults}" if (faults := _faults(checked)) else ""
        notes.append(
            f"{lost} of {len(checked)} recorded states were not reached again, and are left out{why}"
        )
    missing = sum(len(action.recorded) - len(action.pairs) for action in reached)
    if missing:
        notes.append(f"{missing} pairs of playouts have a missing score, and are left out")
    if played != steps[-1] - 1:
        notes.append(
            f"the recorded actions are of the weights of step {steps[-1] - 1}; those of step {played} play on"
        )
    return notes


async def _played(
    players: Mapping[int, Player],
    picked: Sequence[ChosenAction],
    arms: Mapping[str, Arm],
    samples: int,
    progress: Callable[[int, int], None] | None,
) -> list[CheckedAction | str]:
    """Every choice played on; of a state that was not reached again the fault, or an empty text."""
    jobs: dict[tuple[int, int | None], tuple[ChosenAction, Arm]] = {}
    for choice in picked:  # a state's arms are played once, whatever shares them
        jobs[id(choice.state), choice.branch] = choice, Arm(branch=choice.branch)
        jobs.setdefault((id(choice.state), None), (choice, arms[choice.state.role]))
    ended = 0

    async def play(choice: ChosenAction, arm: Arm, sample: int) -> Playout:
        nonlocal ended
        played = await players[choice.state.tree.step].play(choice.state, arm, sample)
        ended += 1
        if progress is not None:
            progress(ended, len(jobs) * samples)
        return played

    each = [(place, sample) for place in jobs for sample in range(samples)]
    playouts = dict(zip(each, await together(play(*jobs[p], sample) for p, sample in each), strict=True))
    result: list[CheckedAction | str] = []
    for choice in picked:
        kept, other = (
            [playouts[(id(choice.state), branch), sample] for sample in range(samples)]
            for branch in (choice.branch, None)
        )
        checked = CheckedAction(
            task=choice.state.task.id,
            role=choice.state.role,
            turn=choice.state.node.turn,
            advantage=choice.advantage,
            drawn=choice.drawn,
            recorded=[playout.value for playout in kept],
            replaced=[playout.value for playout in other],
            successes=[(a.success, b.success) for a, b in zip(kept, other, strict=True)],
        )
        lost = [playout.fault for playout in (*kept, *other) if not playout.reached]
        result.append(max(lost) if lost else checked)
    return result


@dataclass(slots=True)
class Replacing:
    """The policies that replace, and the run that plays them."""

    run: Run
    folder: Path
    external: tuple[ExternalPolicy, ...] = ()
    fresh: tuple[ExternalPolicy, ...] = ()
    """Those with the weights that a new run of the configuration begins with."""
    arms: dict[str, Arm] = field(default_factory=dict)
    """By role."""

    @classmethod
    def of(cls, records: RunRecords, run: Run, against: Against, roles: Collection[str]) -> Replacing:
        """The replacement of each role's actions.

        Raises:
            UserError: there is no such checkpoint, or no untrained weights.
        """
        folder = records.folder.path
        if against == "null":
            return cls(run, folder, arms={role: Arm() for role in roles})
        checkpoint = _replaced_by(folder, against)
        if checkpoint is None:
            _check_untrained(run, roles)
        made: dict[str, ExternalPolicy] = {}
        for role in roles:
            policy = run.team.policies[role]
            name = f"{folder}@{0 if checkpoint is None else checkpoint.step}:{policy}"
            config = run.config.policies[policy]
            if not config.weights_kind:
                raise ConfigError(
                    f"policy '{policy}' of role '{role}' has no weights here",
                    path="--against", fix="--against null, or --role to leave the role out",
                )  # fmt: skip
            made[role] = ExternalPolicy(name, config, folder, checkpoint, policy, (policy,))
        distinct = tuple({policy.name: policy for policy in made.values()}.values())
        arms = {role: Arm(policy=policy.name) for role, policy in made.items()}
        external, fresh = (distinct, ()) if checkpoint is not None else ((), distinct)
        return cls(run, folder, external, fresh, arms)

    async def open(self, checkpoint: Checkpoint) -> None:
        """Open the run with the weights that play on, and load those that replace."""
        check_packages(self.run.config)
        check_hosts(self.run)
        policies = {policy.name: policy.config for policy in (*self.external, *self.fresh)}
        await self.run.open(checkpoint.path, extra_policies=policies)
        await self.run.sync()
        await load_policies(self.run, self.external)
        if self.fresh:
            await self._load_fresh()

    async def _load_fresh(self) -> None:
        other = load_run(self.folder)
        try:
            await begin_from(other)
            await other.open_trainer()
            for policy in self.fresh:
                weights = replace(other.trainer.weights(policy.policy), policy=policy.name)
                await self.run.engine.load_weights(weights)
        finally:
            await other.trainer.close()


def _replaced_by(folder: Path, against: Against) -> Checkpoint | None:
    """The checkpoint whose policies replace; None: fresh weights."""
    if against == "untrained":
        store = CheckpointStore(folder / "checkpoints", keep=1)
        return store.load(0) if 0 in store.steps() else None
    if isinstance(against, str) and not against.isdecimal():
        fix = did_you_mean(against, ("null", "untrained")) or "null, untrained, or the step of a checkpoint"
        raise ConfigError(f"'{against}' replaces no action", path="--against", fix=fix)
    try:
        return find_checkpoint(folder, int(against))
    except RunFolderError as error:
        raise RunFolderError(error.what, why=error.why, fix=error.fix, path="--against") from error


def _check_untrained(run: Run, roles: Collection[str]) -> None:
    for role in roles:
        if run.config.policies[run.team.policies[role]].warm_started:
            raise ConfigError(
                f"the untrained policy of role '{role}' is not kept",
                path="--against",
                why="it had a warm start, and the checkpoint of step 0 is gone (schedule.keep_checkpoints)",
                fix="--against null, or the step of a checkpoint that is kept",
            )


def _checkpoint(records: RunRecords, newest: int, which: Which | None) -> Checkpoint:
    """The checkpoint that plays on."""
    folder = records.folder
    if which is not None:
        return find_checkpoint(folder.path, which)
    store = CheckpointStore(folder.checkpoints, keep=1)
    steps = store.steps()
    if not steps:
        raise RunFolderError(
            f"{folder.path} has no checkpoint",
            why="the check plays on with the run's weights",
            fix="without --check, the table needs none; or train on with `coterie run --resume`",
        )
    return store.load(min(steps, key=lambda step: (abs(step - (newest - 1)), step)))


def _listed(steps: Sequence[int]) -> str:
    return ", ".join(map(str, steps)) if len(steps) < 6 else f"{steps[0]} to {steps[-1]}"
