"""Sicknesses of a role: what its answers look like, and what they are paid."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from coterie.analysis.diagnosis.evidence import (
    LEAST_STEPS,
    MetricTrace,
    RunEvidence,
    Seen,
    SicknessRule,
    seen,
)
from coterie.api.signals import LONG

GROWN = 1.5
"""Factor by which answers have grown."""
DECIDES = 0.8
"""Rank correlation from which on length all but decides the reward."""
BEGUN = 1.15
"""Factor from which on they have begun to grow."""
PAYS_LENGTH = 0.5
"""Rank correlation of length and reward within a step."""
CUT_OFF = 0.5
IDLE = 0.99
"""Share of a role's groups that compare nothing."""
EMPTY = 0.3
UNREADABLE = 0.5
SUCCEEDS = 0.5
"""Success from which on faults of this kind do no harm."""


def _succeeds(evidence: RunEvidence) -> bool:
    return any(trace.end >= SUCCEEDS for trace in evidence.success)


def _length_hacking(evidence: RunEvidence, role: str) -> Seen | None:
    """Answers grow, the reward with them, and success doesn't."""
    length = evidence.trace(f"length/{role}")
    start = min(length.start, length.first)
    bound = GROWN * start
    spell = length.spell(lambda medians: medians >= bound)
    begin = length.spell(lambda medians: medians >= BEGUN * start)
    if spell is None or begin is None or start <= 0 or length.rise < 4.0 or evidence.has_learned:
        return None
    since = min(begin.since, spell.since)
    rises = [rise for t in evidence.success if (rise := t.rise_since(since)) is not None]
    paid, reward = _correlation(evidence, role), evidence.trace(f"reward/{role}")
    earned, succeeds = reward.rise_since(since) or 0.0, max(rises, default=0.0)
    if paid is not None and paid < PAYS_LENGTH:
        return None
    if paid is None and (not rises or earned < 3.0):
        return None  # without rollouts and without success, an answer may well be longer and better
    # Noise may look like a rise of success; what nearly decides the reward must be better than noise.
    plain = (paid or 0.0) >= DECIDES or earned >= 4.0 * succeeds
    if succeeds > (5.0 if plain else 2.5):
        return None
    detail = f"within a step the rank correlation of length and reward is {paid:.2f}" if paid else (
        f"reward/{role} rises from {reward.start:.3g} to {reward.end:.3g}, success doesn't"
    )  # fmt: skip
    return Seen(length.name, spell.value, bound, since, detail)


def _correlation(evidence: RunEvidence, role: str) -> float | None:
    """The median rank correlation of length and reward, over the recorded steps of the run's second half."""
    tables = sorted(evidence.roles_by_step.items())
    late = [table for _, table in tables[len(tables) // 2 :]]
    every = [of.length_reward for table in late for of in table if of.role == role]
    known = [value for value in every if value is not None]
    return float(np.median(known)) if len(known) >= 2 else None


def idle_groups(evidence: RunEvidence, role: str) -> MetricTrace:
    """The share of a role's groups that compare nothing, by step; without groups, 1 where advantages are "
    "0."""
    equal, small = (evidence.trace(f"groups/{role}/{name}") for name in ("zero_variance", "too_small"))
    if len(equal.values):
        if len(small.values) == len(equal.values):
            return MetricTrace(equal.name, equal.steps, equal.values + small.values)
        return equal
    sizes = evidence.trace(f"advantage/{role}/abs")
    return sizes.map(sizes.name, lambda values: (values < 1e-9).astype(np.float64))


def _dead_role(evidence: RunEvidence, role: str) -> Seen | None:
    """Nothing of a role is compared, while another role is; where none is, `no_variance` says so."""
    if not evidence.trained(role) or evidence.has_learned:
        return None
    idle = idle_groups(evidence, role)
    others = [idle_groups(evidence, each) for each in evidence.roles if each != role]
    if not any(other.end < IDLE for other in others if other.known):
        return None
    if not len(idle.values) and len(evidence.rows) >= LEAST_STEPS:
        first = int(evidence.rows[0]["step"])
        return Seen(f"advantage/{role}/abs", 0.0, 0.0, first, "no row has an advantage of it")
    return None if _better_than_at_first(evidence, role) else seen(idle, IDLE)


def _better_than_at_first(evidence: RunEvidence, role: str) -> bool:
    """Whether a role has nothing left to learn rather than nothing to learn from."""
    reward = evidence.trace(f"reward/{role}")
    return idle_groups(evidence, role).start < IDLE and reward.rise > 2.0


def _empty(evidence: RunEvidence, role: str) -> Seen | None:
    return None if _succeeds(evidence) else seen(evidence.trace(f"empty/{role}"), EMPTY)


def _truncation(evidence: RunEvidence, role: str) -> Seen | None:
    """A short answer, as a move of a game, may end at its limit, unless no episode succeeds."""
    length, never = evidence.trace(f"length/{role}").end, [trace.end == 0.0 for trace in evidence.success]
    may_end = length < LONG and not (never and all(never))
    return None if _succeeds(evidence) or may_end else seen(evidence.trace(f"finish_length/{role}"), CUT_OFF)


def _unreadable(evidence: RunEvidence, role: str) -> Seen | None:
    faults = evidence.trace(f"faults/{role}/policy")
    spell = faults.spell(lambda medians: medians >= UNREADABLE)
    if spell is None or faults.rise < -3.0:  # it learns to be read
        return None
    faulty = [
        of.fault for _, table in sorted(evidence.roles_by_step.items()) for of in table if of.role == role
    ]
    reason = next((fault for fault in reversed(faulty) if fault), "")
    return Seen(faults.name, spell.value, UNREADABLE, spell.since, f"the parser: {reason}" if reason else "")


def _of_credit(kind: str) -> Callable[[RunEvidence, str], Seen | None]:
    """What `coterie credit` finds of a role or a component."""

    def find(evidence: RunEvidence, subject: str) -> Seen | None:
        every = [each for each in evidence.credit if each.kind == kind]
        if kind == "dead_component" and len(evidence.rows) < LEAST_STEPS:
            return None  # a penalty that nobody has incurred yet
        if kind == "free_rider" and {each.subject for each in every} >= {*evidence.roles}:
            return None  # nobody whom they could ride on: rewards are noise, or all the same
        of = next(each for each in every if each.subject == subject)
        return Seen(of.metric, of.value, of.threshold, of.since, of.says)

    return find


RULES = (
    SicknessRule("length_hacking", "role", "fault",
        ("length/<role>", "reward/<role>", "eval/success", "success", "rollouts/: tokens and rewards"),
        f"answers have grown to {GROWN:g} times their first length, longer ones earn more (in rollouts/ a "
        f"rank correlation of {PAYS_LENGTH}; else reward/<role> rises), and success doesn't rise",
        "the reward pays length and not the answer: it grows while the team gets no better",
        "rewards.<name>.weights without what pays length (coterie credit RUN has the share of each "
        "component); a smaller sampler.sampling.max_new_tokens;  a judge's question that doesn't ask for "
        "detail", _length_hacking),
    SicknessRule("dead_role", "role", "fault",
        ("groups/<role>/zero_variance", "groups/<role>/too_small", "advantage/<role>/abs"),
        f"{IDLE:.0%} of a role's groups compare nothing (all rewards equal, or a single action), while "
        "another role's do",
        "nothing that the role does changes what it is paid, so it trains on nothing",
        "a component that scores this role (rewards.<name>.weights); more sampler.branches; "
        "policies.<name>.train=none where it is meant to stay as it is",
        _dead_role),
    SicknessRule("free_rider", "credit", "warning", ("rollouts/: values of a role's answers",),
        "a role's answers hardly change what it is paid, while its partner's do (coterie credit RUN)",
        "the role is paid for what others do, so that it learns nothing of its own",
        "a reward that tells its answers apart: a component of its role alone, or algorithm.alpha below 1; "
        "credit over turns (a return `tree` or `to_go`) where what it does pays later; `coterie credit RUN "
        "--check` shows whether the team needs the role",
        _of_credit("free_rider")),
    SicknessRule("dead_component", "credit", "warning", ("rollouts/: scores of a component",),
        "a component that counts has the same score in every recorded step (coterie credit RUN), of a run "
        f"of {LEAST_STEPS} steps or more",
        "it pays every answer the same, and so teaches nothing",
        "reading an episode (coterie episodes RUN): the source may look at the wrong part of an answer; a "
        "weight of 0 (rewards.<name>.weights) where it isn't needed; nothing, where it is a penalty that "
        "nobody incurs", _of_credit("dead_component")),
    SicknessRule("empty", "role", "warning", ("empty/<role>",),
        f"{EMPTY:.0%} of a role's answers or more have no text, and success is below {SUCCEEDS}",
        "the policy has learned to be silent, or its end of text comes first",
        "a floor or a component for empty answers (rewards.<name>.weights); a prompt that asks for an "
        "answer; policies.<name>.warm_start", _empty),
    SicknessRule("truncation", "role", "warning", ("finish_length/<role>", "length/<role>"),
        f"max_new_tokens cuts off {CUT_OFF:.0%} or more of a role's answers, and success is below "
        f"{SUCCEEDS}; where answers are shorter than {LONG} tokens, it is 0",
        "most answers end before they say anything that can be scored",
        "a larger sampler.sampling.max_new_tokens and policies.<name>.context; a prompt that asks for a "
        "short answer; a tokenizer of words in place of bytes", _truncation),
    SicknessRule("unreadable", "role", "warning", ("faults/<role>/policy",),
        f"the parser can't read {UNREADABLE:.0%} of a role's answers or more, and it gets no better",
        "most samples say that the form is wrong, and none what the answer is worth",
        "a prompt that shows the form of an answer; policies.<name>.warm_start, or a model that follows "
        "instructions; a larger sampler.sampling.max_new_tokens where answers are cut off; "
        "coterie episodes RUN prints them", _unreadable),
)  # fmt: skip
