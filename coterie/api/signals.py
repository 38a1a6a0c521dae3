"""Signs in the metrics of a run that nothing is learned: a table of rules, each told once.

A rule reads the rows of the last `WINDOW` steps. Where it holds, the step's row gets `signal/<rule>` or
`signal/<rule>/<role or policy>` = 1. Rows of other steps get nothing. All state comes from the rows, so a
resumed run that has read its rows (`Signals.recall`) goes on as the first one would have.
"""

from __future__ import annotations

import logging
import math
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

log = logging.getLogger("coterie")

WINDOW = 10
"""Steps that a rule looks back on; a shorter run is told nothing."""
FLAT = 0.99
"""Least share of groups with equal rewards: fewer than one in a hundred compares anything."""
ZERO = 1e-9
"""Gradient norms and advantages below it are rounding."""
COLLAPSED = 0.01
"""Nats a token. A policy at it puts 99.8 % on one of two tokens."""
CUT_OFF = 0.9
"""Least share of actions that `max_new_tokens` cut off."""
LONG = 16
"""Tokens from which on an answer that is cut off lacks something; a move of a game may end at its limit."""
UNREADABLE = 0.9
"""Least share of a role's actions that its parser can't read."""
LEARNED = 0.9
"""Success from which on equal rewards, no gradient and low entropy are those of a team that has learned."""

Row = Mapping[str, Any]
Rows = Sequence[Row]


@dataclass(frozen=True, slots=True)
class SignalRule:
    """A sign that nothing is learned."""

    name: str
    subjects: Literal["role", "policy", "run"]
    """Whose sign it is."""
    holds: Callable[[Rows, str], bool]
    """Of the rows of `WINDOW` steps and a subject's name."""
    says: str
    helps: str
    """What usually helps."""
    unless_learned: bool = True
    """Whether a team with a success of `LEARNED` shows it too."""


def _values(rows: Rows, key: str) -> list[float | None]:
    """A metric by row; None where it is absent or no number, as NaN is null in a file."""
    values = [row.get(key) for row in rows]
    return [None if value is None or math.isnan(value) else float(value) for value in values]


def _mean(rows: Rows, key: str) -> float:
    """Mean of a metric that every row has; -1 where one lacks it."""
    values = _values(rows, key)
    return -1.0 if None in values else math.fsum(filter(None, values)) / len(values)


def _success(rows: Rows) -> float:
    """Mean success; of a step without outcomes, 0."""
    of_rows = zip(_values(rows, "success"), _values(rows, "success_committed"), strict=True)
    return math.fsum(sampled or chosen or 0.0 for sampled, chosen in of_rows) / len(rows)


def _equal_rewards(rows: Rows, _: str) -> bool:
    """Of every role. A role whose actions don't matter has equal rewards while its partners learn."""
    roles = _second_parts(rows[-1], "groups") | _second_parts(rows[-1], "advantage")
    if all(lacks_rewards(row) for row in rows):  # missing rewards are no equal ones
        return False
    return bool(roles) and all(_without_advantage(rows, role) for role in roles)


def _without_advantage(rows: Rows, role: str) -> bool:
    """Whether no more than one in a hundred groups of a role compares anything."""
    sizes = _values(rows, f"advantage/{role}/abs")  # None where flat groups are dropped
    equal, small = (_values(rows, f"groups/{role}/{name}") for name in ("zero_variance", "too_small"))
    idle = [e + s for e, s in zip(equal, small, strict=True) if e is not None and s is not None]
    if len(idle) < len(rows):  # an estimator without groups
        return all(size is not None and size < ZERO for size in sizes)
    # Without a baseline, a lone action is a group too: its rewards are equal, and its advantage is not 0.
    compares = all(share < 1.0 or (size or 0.0) < ZERO for share, size in zip(idle, sizes, strict=True))
    return compares and math.fsum(idle) / len(idle) >= FLAT


def _zero_gradient(rows: Rows, _: str) -> bool:
    """Of every policy: no optimiser step, or steps of nothing."""
    every = _second_parts(rows[-1], "policy")  # a trainer of a plugin may not say how many steps it made
    policies = {policy for policy in every if f"policy/{policy}/optimizer_steps" in rows[-1]}
    return bool(policies) and all(_stands_still(rows, policy) for policy in policies)


def _stands_still(rows: Rows, policy: str) -> bool:
    norms, steps, skipped = (
        _values(rows, f"policy/{policy}/{name}") for name in ("grad_norm", "optimizer_steps", "skipped_steps")
    )
    return all(
        norm < ZERO if norm is not None else step == 0 and not skip
        for norm, step, skip in zip(norms, steps, skipped, strict=True)
    )


def _gradient_not_finite(rows: Rows, policy: str) -> bool:
    steps, skipped = (
        _values(rows, f"policy/{policy}/{name}") for name in ("optimizer_steps", "skipped_steps")
    )
    return all(step == 0 and skip for step, skip in zip(steps, skipped, strict=True))


def _entropy_collapse(rows: Rows, policy: str) -> bool:
    return all(value is not None and value < COLLAPSED for value in _values(rows, f"policy/{policy}/entropy"))


def _truncated(rows: Rows, role: str) -> bool:
    lost = _mean(rows, f"length/{role}") >= LONG or _success(rows) == 0.0
    return lost and _mean(rows, f"finish_length/{role}") >= CUT_OFF


def _unreadable(rows: Rows, role: str) -> bool:
    return _mean(rows, f"faults/{role}/policy") >= UNREADABLE


def _reward_unchanged(rows: Rows, _: str) -> bool:
    keys = sorted(key for key in rows[0] if key.startswith("reward/"))
    known = bool(keys) and not all(lacks_rewards(row) for row in rows)
    return known and all(len({*_values(rows, key)}) == 1 for key in keys)


def lacks_rewards(row: Row) -> bool:
    """Whether the reward of every role is missing."""
    keys = [key for key in row if key.startswith("reward/")]
    return bool(keys) and all(row[key] is None for key in keys)


RULES = (
    SignalRule("equal_rewards", "run", _equal_rewards,
         "the rewards within a group are equal, for every role, so no answer is better than another",
         "sampler.sampling.temperature=1 where it is 0; more sampler.branches or chains; easier tasks, or a "
         "reward that tells more answers apart; a lower learning rate where an update broke the policy"),
    SignalRule("zero_gradient", "run", _zero_gradient,
         "the gradient of every policy is 0, and the weights stay what they are",
         "what helps equal rewards; else a new run with a lower learning rate, since a policy that an update "
         "has driven to certainty has no gradient"),
    SignalRule("gradient_not_finite", "policy", _gradient_not_finite,
         "the gradient is not finite, and every optimiser step is skipped",
         "a lower learning rate; dtype=float32; a loss whose ratios are bounded (loss.type=ppo_clip)", False),
    SignalRule("entropy_collapse", "policy", _entropy_collapse,
         f"the entropy is below {COLLAPSED} nats a token: the same answers are drawn again and again",
         "a lower learning rate, an entropy bonus (loss.entropy=0.01) or a KL penalty (loss.kl), and a start "
         "from earlier weights (policies.<name>.from)"),
    SignalRule("truncated", "role", _truncated,
         f"max_new_tokens cuts off {CUT_OFF:.0%} of the answers or more",
         "a larger sampler.sampling.max_new_tokens and policies.<name>.context; a tokenizer of words, since "
         "`bytes` spends a token on each letter; a prompt that asks for a short answer"),
    SignalRule("unreadable", "role", _unreadable,
         f"the parser can't read {UNREADABLE:.0%} of the answers or more",
         "a prompt that shows the form of an answer; a larger max_new_tokens where answers are cut off; a "
         "warm start or a model that follows instructions; `coterie eval RUN --show 1` prints answers"),
    SignalRule("reward_unchanged", "run", _reward_unchanged,
         "every role's mean reward is the same number in every step",
         "reading an episode (`coterie eval RUN --show 1`): the reward may not depend on the answers, or no "
         "answer reaches it; then as for equal rewards"),
)  # fmt: skip
"""Every rule. The page on run folders has the table."""


class Signals:
    """Watches the rows of a run; a `Watch` (`core/training/steps_in_play.py`).

    Attributes:
        signs: by name, as in `signal/<name>`, the first and the last step of each sign.
    """

    def __init__(self) -> None:
        self.signs: dict[str, tuple[int, int]] = {}
        self._rows: deque[Row] = deque(maxlen=WINDOW)

    def __call__(self, step: int, row: Row) -> dict[str, float]:
        """The metrics that the signs of this step add to its row. The first of a sign logs a line."""
        holding = self._holding(step, row)
        for rule, subjects in holding.items():
            new = [subject for subject in subjects if _name(rule, subject) not in self.signs]
            self._note(step, rule, subjects)
            if new:
                since = self.signs[_name(rule, new[0])][0]
                text = "no signal in steps %d-%d (signal/%s): %s%s; what usually helps: %s"
                log.warning(text, since, step, rule.name, _who(rule, new), rule.says, rule.helps)
        return {f"signal/{_name(rule, each)}": 1.0 for rule, subjects in holding.items() for each in subjects}

    def recall(self, rows: Iterable[Row]) -> None:
        """Read the rows that a run has already, without a word: their signs were told when they were new."""
        for row in rows:
            for rule, subjects in self._holding(row["step"], row).items():
                self._note(row["step"], rule, [s for s in subjects if f"signal/{_name(rule, s)}" in row])

    def _holding(self, step: int, row: Row) -> dict[SignalRule, list[str]]:
        """The rules that hold now, with their subjects."""
        self._rows.append({**row, "step": step})
        rows = tuple(self._rows)
        if len(rows) < WINDOW:
            return {}
        learned = _success(rows) >= LEARNED
        holding = {}
        for rule in RULES:
            if not (learned and rule.unless_learned):
                subjects = [subject for subject in _subjects(rule, row) if rule.holds(rows, subject)]
                if subjects:
                    holding[rule] = subjects
        return holding

    def _note(self, step: int, rule: SignalRule, subjects: Iterable[str]) -> None:
        for subject in subjects:
            name = _name(rule, subject)
            first, _ = self.signs.get(name, (self._rows[0]["step"], step))
            self.signs[name] = (first, step)


def _name(rule: SignalRule, subject: str) -> str:
    return f"{rule.name}/{subject}" if subject else rule.name


def _who(rule: SignalRule, subjects: Sequence[str]) -> str:
    """`roles 'solver', 'checker': `; empty where the sign is the whole run's."""
    word = {"role": ("role", "roles"), "policy": ("policy", "policies"), "run": ("", "")}[rule.subjects]
    names = ", ".join(f"'{subject}'" for subject in subjects)
    return f"{word[len(subjects) > 1]} {names}: " if word[0] else ""


def _subjects(rule: SignalRule, row: Row) -> list[str]:
    """Roles or policies that a row tells of; of a rule on the whole run, "" alone."""
    if rule.subjects == "run":
        return [""]
    return sorted(_second_parts(row, "reward" if rule.subjects == "role" else "policy"))


def _second_parts(row: Row, head: str) -> set[str]:
    """`solver` of `reward/solver`: the roles or policies with a metric of that head."""
    return {key.split("/")[1] for key in row if key.startswith(f"{head}/")}


def summary(signs: Mapping[str, tuple[int, int]], step: int) -> str:
    """`no signal: equal_rewards (planner, executor) since step 3; truncated (planner) in steps 5-20`.

    Args:
        signs: as `Signals.signs`, not empty.
        step: the last one of the run.
    """
    together: dict[tuple[str, int, int], list[str]] = {}
    for name, (first, last) in signs.items():
        rule, _, subject = name.partition("/")
        together.setdefault((rule, first, last), []).append(subject)
    parts = []
    for (rule, first, last), subjects in together.items():
        whose = f" ({', '.join(subjects)})" if any(subjects) else ""
        parts.append(f"{rule}{whose} {f'since step {first}' if last == step else f'in steps {first}-{last}'}")
    return f"no signal: {'; '.join(parts)}"
