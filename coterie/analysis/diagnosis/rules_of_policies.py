"""Sicknesses of a policy: its entropy, its updates, and the weights that the engine plays with."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np

from coterie.analysis.diagnosis.evidence import LEAST_STEPS, RunEvidence, Seen, SicknessRule, reaches, seen
from coterie.api.signals import COLLAPSED

LOW_ENTROPY = 0.1
"""Nats a token. Above it, answers still differ, whatever the entropy was at first."""
OF_START = 0.1
"""Share of the first entropy below which a fall is a collapse."""
SHARPENED = 0.6
"""Share of the first entropy below which a policy has sharpened."""
CLOSED = 0.5
"""Share of the way to full success from which on a low entropy is that of a policy that has learned."""
MISMATCH = 0.1
"""Nats a token, mean. bfloat16 in two libraries gives .01 to .03; another model, chat format or temperature,
or old weights, more than this."""
GROWN_MISMATCH = 0.02
GROWTH = 3.0
STALE_UPDATES = 3
"""Updates that the weights of an engine may lag behind, beside `schedule.max_staleness`."""
OLD = 4.0
"""Updates: mean age of the weights that drew a token."""
CLIPPED = 0.3
MOVED = 0.2
"""Nats a token between the weights that drew and those that train."""
EXPLODED = 20.0
SKIPPED = 0.2
IDLE_STEPS = 0.5
"""Share of the last steps in which a policy is not trained."""
STEADY = 0.4
"""Kendall's rank correlation with the step, of what grows steadily."""


def _entropy_collapse(evidence: RunEvidence, policy: str) -> Seen | None:
    entropy = evidence.trace(f"policy/{policy}/entropy")
    if evidence.has_learned or evidence.closed_gap >= CLOSED or not entropy.known:
        return None
    bound = min(LOW_ENTROPY, max(COLLAPSED, OF_START * max(entropy.start, entropy.first)))
    return seen(entropy, bound, below=True)


def _sharpening(evidence: RunEvidence, policy: str) -> Seen | None:
    """Entropy falls, beyond doubt, and nothing gets better."""
    entropy = evidence.trace(f"policy/{policy}/entropy")
    if len(entropy.values) < 2 * STEP_COUNT or entropy.rise > -6.0 or evidence.has_learned:
        return None
    if evidence.improves > 1.0 or evidence.reward_rise > 2.0 or evidence.levels_change:
        return None
    if _entropy_collapse(evidence, policy) is not None:  # which says it all
        return None
    bound = SHARPENED * entropy.start
    return seen(entropy, bound, below=True)


STEP_COUNT = 10
"""Half of the fewest steps of which a standstill says something."""


def _stale_weights(evidence: RunEvidence, policy: str) -> Seen | None:
    return _version_stands(evidence, policy) or _mismatch_grows(evidence, policy)


def _version_stands(evidence: RunEvidence, policy: str) -> Seen | None:
    """The versions that drew the recorded steps fall behind the updates that their rows count."""
    versions = sorted(evidence.versions.get(policy, {}).items())
    if len(versions) < 2:
        return None
    steps = evidence.trace(f"policy/{policy}/optimizer_steps")
    updated = steps.steps[steps.values > 0]
    bound = STALE_UPDATES + evidence.max_staleness
    behind, since = 0, versions[0][0]
    for (before, first), (after, second) in pairwise(versions):
        updates = int(np.count_nonzero((updated >= before) & (updated < after)))
        if second - first >= updates:  # in step again; what was played ahead catches up
            behind = max(behind - (second - first - updates), 0)
            since = after if behind == 0 else since
        else:
            behind += updates - (second - first)
    if behind < bound:
        return None
    what = f"updates that rollouts/ of step {versions[-1][0]} lack"
    return Seen(what, float(behind), float(bound), since, f"policy '{policy}' was drawn by version "
                f"{versions[-1][1]}")  # fmt: skip


def _mismatch_grows(evidence: RunEvidence, policy: str) -> Seen | None:
    """Old weights drift away from those that train, from next to nothing and at every update."""
    mismatch = evidence.trace(f"policy/{policy}/mismatch")
    if not mismatch.known or mismatch.end < GROWN_MISMATCH:
        return None
    start = min(mismatch.start, mismatch.first)
    bound = max(GROWN_MISMATCH, GROWTH * start)
    logs = mismatch.map(mismatch.name, lambda values: np.log(np.maximum(values, 1e-12)))
    if logs.rise < 4.0:
        return None
    spell = mismatch.spell(lambda medians: medians >= bound)
    if spell is None:
        return None
    # It began to grow before it was so large: where it left the first window's level for good.
    left = mismatch.spell(lambda medians: medians >= 2 * start)
    since = spell.since if left is None else min(left.since, spell.since)
    if logs.after(since).agreement < STEADY:  # a jump has another cause
        return None
    return Seen(mismatch.name, spell.value, bound, since, "it grows from step to step")


def _gradient_explodes(evidence: RunEvidence, policy: str) -> Seen | None:
    """A norm far above the lowest level that the run had before, while nothing gets better."""
    norm = evidence.trace(f"policy/{policy}/grad_norm")
    if not norm.known or evidence.has_learned or evidence.closed_gap >= CLOSED:
        return None
    lowest = float(np.median(norm.values[: max(len(norm.values) // 2, 1)]))
    bound = EXPLODED * lowest
    if lowest <= 1e-9:
        return None
    spell = norm.spell(lambda medians: medians >= bound)
    if spell is None or any((trace.rise_since(spell.since) or 0.0) > 2.0 for trace in evidence.success):
        return None
    return Seen(norm.name, spell.value, bound, spell.since)


def _gradient_not_finite(evidence: RunEvidence, policy: str) -> Seen | None:
    skipped = evidence.trace(f"policy/{policy}/skipped_steps")
    taken = evidence.trace(f"policy/{policy}/optimizer_steps")
    lost, every = float(skipped.values.sum()), float(taken.values.sum() + skipped.values.sum())
    if not lost or lost / every < SKIPPED:
        return None
    first = int(skipped.steps[np.flatnonzero(skipped.values > 0)[0]])
    return Seen(skipped.name, lost / every, SKIPPED, first, f"{lost:.0f} of {every:.0f} optimiser steps")


def _no_gradient(evidence: RunEvidence, policy: str) -> Seen | None:
    """Of one policy, while another one has a gradient: where none has one, `no_variance` says why."""
    norm = evidence.trace(f"policy/{policy}/grad_norm")
    others = [evidence.trace(f"policy/{each}/grad_norm").end for each in evidence.policies if each != policy]
    if evidence.has_learned or not any(other > 1e-9 for other in others if not math.isnan(other)):
        return None
    return seen(norm, 1e-9, below=True)


def _few_updates(evidence: RunEvidence, policy: str) -> Seen | None:
    """A row without samples of a policy is one of a step that left it as it was."""
    rows, recent = evidence.rows, max(len(evidence.rows) // 5, LEAST_STEPS)
    idle = [at for at, row in enumerate(rows) if not row.get(f"policy/{policy}/samples")]
    share = sum(at >= len(rows) - recent for at in idle) / recent
    if len(rows) < LEAST_STEPS or share < IDLE_STEPS or evidence.has_learned:
        return None
    since = next(at for n, at in enumerate(idle) if len(idle) - n >= IDLE_STEPS * (len(rows) - at))
    return Seen(f"steps without policy/{policy}/samples", share, IDLE_STEPS, int(rows[since]["step"]))


def _values_explain_nothing(evidence: RunEvidence, policy: str) -> Seen | None:
    explained = evidence.trace(f"policy/{policy}/explained_variance")
    if len(explained.values) < 2 * STEP_COUNT:
        return None
    spell = explained.spell(lambda medians: medians <= 0.0)
    return None if spell is None else Seen(explained.name, spell.value, 0.0, spell.since)


_OF = "policy/<policy>/"

RULES = (
    SicknessRule("entropy_collapse", "policy", "fault", (f"{_OF}entropy", "eval/success", "success"),
        f"entropy below a tenth of its first level (at least {COLLAPSED}, at most {LOW_ENTROPY} nats a "
        "token), and success has not gone half of its way to 1",
        "the policy draws the same answers again and again, so that nothing better can be tried",
        "a start from an earlier checkpoint (policies.<name>.from=RUN@STEP) with loss.entropy=0.01 or a KL "
        "penalty (loss.kl), a lower policies.<name>.optimizer.learning_rate, a temperature of 1 "
        "(sampler.sampling.temperature), more sampler.branches or sampler.chains", _entropy_collapse),
    SicknessRule("sharpening", "policy", "warning", (f"{_OF}entropy", "eval/success", "success"),
        f"entropy below {SHARPENED} of its first level, in 20 steps or more, while neither success nor the "
        "reward rises",
        "the policy grows certain without getting better: what it is paid for is not what separates good "
        "answers from bad ones, or the steps' noise is all that it learns",
        "reading episodes (coterie episodes RUN); loss.entropy=0.01 or loss.kl; more tasks a step "
        "(schedule.tasks_per_step) and more sampler.branches; a lower learning rate", _sharpening),
    SicknessRule("stale_weights", "policy", "fault",
        (f"{_OF}mismatch", f"{_OF}optimizer_steps", "rollouts/: version"),
        f"versions in rollouts/ lag {STALE_UPDATES} updates (and schedule.max_staleness) or more behind; or "
        f"mismatch grows steadily to {GROWTH:g} times its first level, and {GROWN_MISMATCH} nats or more",
        "the engine plays with weights that are older than those that train: updates don't reach it",
        "engine.type=hf for a few steps, to see whether it is the engine; with vLLM a new process of it; an "
        "engine of a plugin must load what load_weights hands it (coterie check); else a resume "
        "(coterie run --resume RUN), which gives every engine its weights again", _stale_weights),
    SicknessRule("mismatch", "policy", "warning", (f"{_OF}mismatch",),
        f"mismatch of {MISMATCH} nats a token or more",
        "engine and trainer compute other log-probs for the same weights: samples are off-policy from the "
        "start",
        "the same dtype in engine and trainer (policies.<name>.dtype=float32 to see); the same temperature "
        "and "
        "no top_p or top_k (sampler.sampling); loss.correction={level: token, cap: 2}, which weights for it",
        reaches("policy/{}/mismatch", MISMATCH)),
    SicknessRule("old_weights", "policy", "warning", (f"{_OF}staleness/mean",),
        f"tokens are {OLD:g} updates old or more, on average",
        "most samples come from weights of long ago, and an update learns little of them",
        "a smaller schedule.max_staleness; schedule.play=in_flight; loss.correction={cap: 2}",
        reaches("policy/{}/staleness/mean", OLD)),
    SicknessRule("clipped", "policy", "warning", (f"{_OF}clip_fraction",),
        f"{CLIPPED:.0%} of the tokens or more are clipped",
        "an update moves so far that most of its tokens stop counting",
        "a lower learning rate; fewer trainer.epochs, a larger trainer.minibatch_size; a smaller "
        "schedule.max_staleness", reaches("policy/{}/clip_fraction", CLIPPED)),
    SicknessRule("large_updates", "policy", "warning", (f"{_OF}approx_kl",),
        f"approx_kl of {MOVED} nats a token or more",
        "the weights that train are far from those that drew the samples",
        "a lower learning rate; fewer trainer.epochs; loss.kl; a smaller schedule.max_staleness",
        reaches("policy/{}/approx_kl", MOVED)),
    SicknessRule("gradient_explodes", "policy", "warning", (f"{_OF}grad_norm",),
        f"a gradient norm {EXPLODED:g} times that of the run's first half, while nothing gets better",
        "updates are made of a few samples with huge ratios or advantages",
        "policies.<name>.optimizer.clip=1; a lower learning rate; loss.type=ppo_clip, whose ratios "
        "are bounded; a start from an earlier checkpoint (policies.<name>.from=RUN@STEP)",
        _gradient_explodes),
    SicknessRule("gradient_not_finite", "policy", "fault",
        (f"{_OF}skipped_steps", f"{_OF}optimizer_steps"),
        f"{SKIPPED:.0%} of the optimiser steps or more are skipped",
        "gradients are infinite or no numbers, and these steps train nothing",
        "policies.<name>.dtype=float32; a lower learning rate; loss.type=ppo_clip", _gradient_not_finite),
    SicknessRule("no_gradient", "policy", "fault", (f"{_OF}grad_norm",),
        "a gradient norm of 0, while another policy has one",
        "the samples of its roles compare nothing, so that it stays what it is",
        "a reward for what its roles do (rewards.<name>.weights); more sampler.branches for them; the table "
        "of coterie credit RUN says which of their groups are equal", _no_gradient),
    SicknessRule("few_updates", "policy", "warning", (f"{_OF}samples",),
        f"{IDLE_STEPS:.0%} of the last steps or more have no sample of the policy",
        "most steps leave it as it is: none of its actions has an advantage, or all are left out",
        "the role's metrics of truncated answers, missing scores and equal groups say why; a larger "
        "sampler.sampling.max_new_tokens where answers are cut off; a larger schedule.tasks_per_step",
        _few_updates),
    SicknessRule("values_explain_nothing", "policy", "warning", (f"{_OF}explained_variance",),
        "an explained variance of 0 or less, after 20 steps",
        "the value head knows no more than the mean, so that advantages are as noisy as without it",
        "a higher learning rate of the values, or an estimator without values (algorithm.type=grpo)",
        _values_explain_nothing),
)  # fmt: skip
