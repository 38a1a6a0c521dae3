"""Sicknesses of a whole run: scores that are missing, groups without variance, success that doesn't come."""

from __future__ import annotations

import numpy as np

from coterie.analysis.diagnosis.evidence import MetricTrace, RunEvidence, Seen, SicknessRule, reaches, seen
from coterie.analysis.diagnosis.rules_of_roles import idle_groups
from coterie.api import signals
from coterie.api.signals import LEARNED

ALL = 0.99
MISSING = 0.05
LOST = 0.05
FLAT = 0.9
LONG_ENOUGH = 30
"""Fewest steps of a run that should have learned something."""
FALLEN = 0.15
OVERFLOWS = 0.5
"""Share of the steps in which a prompt outgrew the context."""


def _all_missing(evidence: RunEvidence, _: str) -> Seen | None:
    """Also of a run of few steps: a score that can't be had fails at once."""
    missing = evidence.trace("missing/share")
    late = missing.values[-min(len(missing.values), 3) :]
    if not len(late) or late.min() < ALL:
        return _no_reward(evidence)
    before = np.flatnonzero(missing.values < ALL)
    first = int(before[-1]) + 1 if len(before) else 0
    return Seen(missing.name, float(late[-1]), ALL, int(missing.steps[first]))


def _no_reward(evidence: RunEvidence) -> Seen | None:
    """A reward is a sum, so one source without any score takes the others' with it."""
    without = [bool(row.get("missing/share")) and signals.lacks_rewards(row) for row in evidence.rows]
    if not without or not all(without[-3:]):
        return None
    before = [at for at, lacks in enumerate(without) if not lacks]
    first = before[-1] + 1 if before else 0
    return Seen("rewards of all roles that are missing", 1.0, ALL, int(evidence.rows[first]["step"]))


def _missing(evidence: RunEvidence, component: str) -> Seen | None:
    missing, of_all = evidence.trace(f"missing/{component}"), _all_missing(evidence, "")
    if of_all is not None and of_all.metric == "missing/share":
        return None
    return seen(missing, MISSING)


def _no_variance(evidence: RunEvidence, _: str) -> Seen | None:
    """Of every role; a team that has learned has equal rewards too."""
    if evidence.has_learned:
        return None
    idle = [trace for role in evidence.roles if len((trace := idle_groups(evidence, role)).values)]
    spells = [trace.spell(lambda medians: medians >= FLAT) for trace in idle]
    if not spells or any(spell is None for spell in spells):
        return None
    since, value = max((s.since, s.value) for s in spells if s is not None)
    return Seen(", ".join(trace.name for trace in idle), value, FLAT, since)


def _learns_nothing(evidence: RunEvidence, _: str) -> Seen | None:
    """Neither success nor any reward has risen by more than noise."""
    if len(evidence.rows) < LONG_ENOUGH or evidence.has_learned or evidence.levels_change:
        return None
    trained = [
        policy for policy in evidence.policies if len(evidence.trace(f"policy/{policy}/samples").values)
    ]
    if not trained or evidence.improves > 1.0 or evidence.reward_rise > 2.0:
        return None
    if _no_variance(evidence, "") is not None or _all_missing(evidence, "") is not None:
        return None  # which say why
    trace = evidence.success[0] if evidence.success else _best_reward(evidence)
    if trace is None or not trace.known:
        return None
    return Seen(f"rise of {trace.name}, in standard errors", evidence.improves, 1.0, int(trace.steps[0]))


def _best_reward(evidence: RunEvidence) -> MetricTrace | None:
    traces = [evidence.trace(f"reward/{role}") for role in evidence.roles]
    return max(traces, key=lambda trace: trace.rise, default=None)


def _success_falls(evidence: RunEvidence, _: str) -> Seen | None:
    """Success ends far below the best level that it had."""
    if evidence.levels_change:
        return None
    for trace in evidence.success:
        if trace.end >= LEARNED or not len(trace.medians):
            continue
        at = int(trace.medians.argmax())
        best = float(trace.medians[at])
        noise = float(np.sqrt(np.mean(np.diff(trace.values) ** 2) / 2))
        bound = best - max(FALLEN, 5.0 * noise * (2 / trace.width) ** 0.5)
        spell = trace.spell(lambda medians, bound=bound: medians <= bound)  # type: ignore[misc]
        if spell is not None:
            return Seen(trace.name, spell.value, bound, spell.since, f"it was {best:.2g} before")
    return None


def _reward_without_success(evidence: RunEvidence, _: str) -> Seen | None:
    rise = evidence.success_rise
    if rise is None or rise > -3.0 or evidence.reward_rise < 3.0 or evidence.levels_change:
        return None
    reward = _best_reward(evidence)
    assert reward is not None
    return Seen(f"rise of {reward.name}, in standard errors", reward.rise, 3.0, int(reward.steps[0]),
                f"success changes by {rise:.2g}")  # fmt: skip


def _overflow(evidence: RunEvidence, _: str) -> Seen | None:
    """Rows without the metric have none of them."""
    for name in ("episodes/overflow", "prompts/truncated"):
        trace = evidence.trace(name)
        if not len(trace.values) or len(evidence.rows) < 4:
            continue
        late = [row for row in evidence.rows if row["step"] >= int(trace.steps[0])]
        having = int(np.count_nonzero(trace.values > 0))
        recent = evidence.rows[-max(len(evidence.rows) // 5, 4) :]
        share = sum(bool(row.get(name)) for row in recent) / len(recent)
        if share >= OVERFLOWS and having / len(late) >= OVERFLOWS / 2:
            return Seen(f"steps with {name}", share, OVERFLOWS, int(trace.steps[0]))
    return None


def _signal(name: str) -> SicknessRule:
    """A sign of `api/signals.py` that the rows have: the run looked for it while it lasted."""
    rule = next(rule for rule in signals.RULES if rule.name == name)

    def find(evidence: RunEvidence, _: str) -> Seen | None:
        steps = [int(row["step"]) for row in evidence.rows if row.get(f"signal/{name}")]
        if not steps or steps[-1] != evidence.rows[-1]["step"] or evidence.has_learned:
            return None
        return Seen(f"signal/{name}", 1.0, 1.0, max(steps[0] - signals.WINDOW + 1, 1))

    sees = f"the rows have signal/{name}: {rule.says}"
    return SicknessRule(name, "run", "fault", (f"signal/{name}",), sees, rule.says, rule.helps, find)


RULES = (
    SicknessRule("all_missing", "run", "fault", ("missing/share",),
        f"{ALL:.0%} of the scores or more are missing, or every role's reward is, in the last three steps",
        "no action has a reward, so that nothing can be trained",
        "reading the reasons (coterie episodes RUN has them); the key or the address of a remote judge "
        "(chat_models.<name>); coterie sandbox check where programs are judged", _all_missing),
    SicknessRule("missing", "component", "warning", ("missing/<component>",),
        f"{MISSING:.0%} of a component's scores or more are missing",
        "actions without a score are left out: of what they would have shown, nothing is learned",
        "of a judge a larger chat_models.<name>.timeout or chat_models.<name>.retries, and a smaller "
        "chat_models.<name>.concurrency; of programs a larger sandbox.limits.wall_seconds", _missing),
    SicknessRule("episodes_lost", "run", "warning", ("episodes/missing",),
        f"{LOST:.0%} of the episodes or more have no outcome",
        "the system loses them: an environment, a tool or a sandbox fails",
        "coterie episodes RUN --where 'success is None' shows them with their reasons; coterie doctor says "
        "whether the sandbox works",
        reaches("episodes/missing", LOST)),
    SicknessRule("no_variance", "run", "fault",
        ("groups/<role>/zero_variance", "groups/<role>/too_small", "advantage/<role>/abs"),
        f"{FLAT:.0%} of every role's groups compare nothing, and success is below {LEARNED}",
        "the answers to a prompt all earn the same, so none is better than another",
        "tasks of another difficulty (env.curriculum, or other tasks); more sampler.branches or "
        "sampler.chains; "
        "sampler.sampling.temperature=1; a reward that tells more answers apart (rewards.<name>.weights)",
        _no_variance),
    SicknessRule("learns_nothing", "run", "warning", ("eval/success", "success", "reward/<role>"),
        f"after {LONG_ENOUGH} steps or more neither success nor a reward has risen by more than noise",
        "the updates are too small, too noisy, or of what isn't rewarded",
        "a higher policies.<name>.optimizer.learning_rate (1e-5 to 1e-4 for adapters); more tasks a step "
        "(schedule.tasks_per_step); easier tasks (env.curriculum); coterie credit RUN --check, which says "
        "whether advantages point the right way", _learns_nothing),
    SicknessRule("success_falls", "run", "warning", ("eval/success", "success"),
        f"success ends {FALLEN:g} or more below the best level that it had, beyond noise",
        "the policy has lost what it had learned",
        "the best checkpoint (RUN@best), from which a run can start (policies.<name>.from=RUN@best); a lower "
        "policies.<name>.optimizer.learning_rate, loss.kl", _success_falls),
    SicknessRule("reward_without_success", "run", "warning", ("reward/<role>", "eval/success", "success"),
        "a reward rises and success falls, both by 3 standard errors or more",
        "what is paid is not what is wanted",
        "rewards.<name>.weights: less of what rises (coterie credit RUN has each component), more of the "
        "outcome", _reward_without_success),
    SicknessRule("overflow", "run", "warning", ("episodes/overflow", "prompts/truncated"),
        "in half of the last steps a prompt outgrows the context",
        "episodes end early, or roles forget their oldest turns",
        "a larger policies.<name>.context; fewer team.max_turns; a smaller sampler.sampling.max_new_tokens; "
        "shorter histories", _overflow),
    _signal("zero_gradient"),
    _signal("reward_unchanged"),
)  # fmt: skip
