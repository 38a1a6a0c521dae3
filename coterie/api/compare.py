"""A team beside the same team with one thing changed: other policies, two swapped, a silent role.

Both play the same tasks with the same keyed draws, so that a difference is the change's doing and is paired
task by task.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from coterie.core.errors import ConfigError, UserError, did_you_mean
from coterie.core.training.evaluation import Comparison, Evaluation, evaluate
from coterie.core.training.run import Run
from coterie.stats import paired_difference

log = logging.getLogger("coterie")


@dataclass(frozen=True, slots=True)
class Changes:
    """What makes the changed team, in this order: policies, then the swap, then silence."""

    policies: Mapping[str, str] = field(default_factory=dict)
    """role -> a guest's name (`api/external_policies.py`)."""
    swap: tuple[str, str] | None = None
    """Two roles whose policies change places."""
    null: Sequence[str] = ()
    """Roles that say nothing: every action is an empty message, and no token is generated."""

    def __bool__(self) -> bool:
        return bool(self.policies or self.swap or self.null)

    def as_list(self) -> list[dict[str, Any]]:
        """One entry a change, in the order in which they were made."""
        found: list[dict[str, Any]] = [
            {"change": "policy", "role": role, "policy": policy} for role, policy in self.policies.items()
        ]
        if self.swap is not None:
            found.append({"change": "swap", "roles": list(self.swap)})
        return found + [{"change": "null", "role": role} for role in self.null]

    def team(self, run: Run) -> dict[str, str | None]:
        """Who plays each role of the changed team; None: nobody.

        Raises:
            ConfigError: an unknown role; a swap of one policy; silence of everybody; a change without effect.
        """
        self._check_roles(run)
        played: dict[str, str | None] = {**run.team.policies, **self.policies}
        if self.swap is not None:
            one, other = self.swap
            if played[one] == played[other]:
                raise ConfigError(
                    f"roles '{one}' and '{other}' are played by one policy, '{played[one]}'",
                    path="--swap",
                    why="swapping them changes nothing",
                    fix="swap roles of two policies",
                )
            played[one], played[other] = played[other], played[one]
        played |= dict.fromkeys(self.null)
        if not any(played.values()):
            raise ConfigError(
                "nobody is left to say anything",
                path="--null",
                why="every role of the team would be silent",
                fix="leave one of them out",
            )
        places = dict([self.swap, self.swap[::-1]]) if self.swap is not None else {}
        for role in self.policies:
            if places.get(role, role) in self.null:
                raise ConfigError(
                    f"nothing uses the policy for '{role}'",
                    path="--policy",
                    why=f"'{places.get(role, role)}', who would be played by it, is silent",
                )
        if self.swap is not None and not any(played[role] for role in self.swap):
            raise ConfigError("nothing uses this", path="--swap", why="both of its roles are silent")
        return played

    def _check_roles(self, run: Run) -> None:
        for option, roles in (("--swap", self.swap or ()), ("--null", self.null)):
            for role in roles:
                if role not in run.team.roles:
                    raise ConfigError(
                        f"unknown role '{role}'", path=option, fix=did_you_mean(role, run.team.roles)
                    )


async def compare(
    run: Run,
    changes: Changes,
    split: Literal["train", "val", "test"],
    tasks: int,
    *,
    samples: int = 1,
    greedy: bool = False,
    keep: int = 0,
) -> Evaluation:
    """Evaluate the team and the changed team, on the same tasks and draws.

    Returns:
        the team's own evaluation, with the `comparison` in it.

    Raises:
        ConfigError: changes that make no sense.
    """
    team = changes.team(run)
    base = await evaluate(run, split, tasks, samples=samples, greedy=greedy, keep=keep)
    changed = await evaluate(run, split, tasks, samples=samples, greedy=greedy, policies=team)
    both = [task for task in base.per_task if task in changed.per_task]
    lost = len(base.per_task.keys() | changed.per_task.keys()) - len(both)
    if lost:
        log.warning(
            "%d tasks were finished by one of the two teams only: the difference leaves them out", lost
        )
    try:
        difference = paired_difference(
            {task: changed.per_task[task] for task in both},
            {task: base.per_task[task] for task in both},
            seed=run.config.seed,
        )
    except ValueError as error:
        raise UserError(
            "the two teams can't be compared",
            why=str(error),
            fix="evaluate both on the same split with the same seed and number of tasks",
        ) from error
    return replace(
        base,
        comparison=Comparison(
            changes=changes.as_list(),
            team=team,
            base=base.success,
            changed=changed.success,
            difference=difference,
            per_task={task: _mean(changed.per_task[task]) - _mean(base.per_task[task]) for task in both},
            changed_per_task=changed.per_task,
        ),
    )


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
