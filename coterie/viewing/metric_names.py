"""The names of metrics: what each is, its unit and range, and whether higher is better.

`METRICS` lists the names in the rows of `metrics.jsonl` as patterns: `reward/<role>` stands for
`reward/planner`. Every other name was counted by a plugin (`ctx.count`, `counted()`, an estimator).
The page docs/metrics.md is made from the list, and tests hold it against the rows of real runs.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Literal

INF = math.inf
Better = Literal["higher", "lower", ""]


@dataclass(frozen=True, slots=True)
class MetricInfo:
    """A metric, or those of one pattern.

    >>> described("reward/planner").pattern
    'reward/<role>'
    """

    pattern: str
    """A name, with `<role>`, `<policy>`, `<component>`, `<set>`, ... for what depends on the run."""
    unit: str
    low: float
    high: float
    """The range; infinite where nothing bounds it."""
    meaning: str
    """One sentence."""
    better: Better = ""
    """Which direction is better; empty where neither is, or where it depends."""
    first: bool = False
    """Whether a report and `coterie watch` show it first."""
    when: str = ""
    """Which rows have it; empty: those of every run that trains a policy."""

    @property
    def plugins(self) -> bool:
        """Whether a plugin reports it under a name of its own."""
        return self.meaning in (COUNTED, REPORTED)

    @property
    def range(self) -> str:
        """`0 to 1`, `from 0`, `up to 1`, `any`."""
        low, high = f"{self.low:g}", f"{self.high:g}"
        if self.low == self.high:
            return low
        if math.isinf(self.low):
            return "any" if math.isinf(self.high) else f"up to {high}"
        return f"from {low}" if math.isinf(self.high) else f"{low} to {high}"

    def holds(self, value: float) -> bool:
        """Whether a value lies in the range, but for rounding."""
        slack = 1e-6 * max(1.0, abs(value))
        return self.low - slack <= value <= self.high + slack


COUNTED = "Counted by a plugin."
REPORTED = "Reported by the trainer or the loss of a plugin."

_AHEAD = "steps ahead (`schedule.max_staleness`)"
_TORCH = "trainers `torch` and `deepspeed`"
_VALUES = f"{_TORCH}, where the algorithm needs values"
_CORRECTION = "`loss.correction`"
_EXPERT = "transition mode `expert_edits`"
_CODE = "environments of code, where they judge programs"
_LOST = "executor `ray`, after a process was lost"
_CHOSEN = "a choice by reward goes on with the best of several (`sampler.expand: best`)"
_SIGN = "the sign holds over the last 10 steps"


def _share(pattern: str, meaning: str, better: Better = "", **more: object) -> MetricInfo:
    return MetricInfo(pattern, "share", 0.0, 1.0, meaning, better, **more)  # type: ignore[arg-type]


def _count(pattern: str, meaning: str, better: Better = "", **more: object) -> MetricInfo:
    return MetricInfo(pattern, more.pop("unit", "count"), 0.0, INF, meaning, better, **more)  # type: ignore[arg-type]


def _any(pattern: str, unit: str, meaning: str, **more: object) -> MetricInfo:
    return MetricInfo(pattern, unit, -INF, INF, meaning, **more)  # type: ignore[arg-type]


def _seconds(name: str, meaning: str, **more: object) -> MetricInfo:
    return _count(f"time/{name}", meaning, "lower", unit="seconds", **more)


_OUTCOMES = (
    _share("success", "Mean success of the sampled episodes.", "higher", first=True,
           when="no choice by reward lies on an episode's path"),
    _share("success_committed", "Mean success of the best of K, which is not the policy's own: "
           "`eval/success` is.",
           "higher", first=True, when=_CHOSEN),
    _count("turns_to_success", "Mean turns of the successful episodes.", "lower", unit="turns"),
    _any("outcome/<name>", "the environment's", "Mean of another outcome that the environment gives an "
         "episode.", when="the environment has other outcomes than success"),
    _any("outcome_committed/<name>", "the environment's", "The same of the best of K.", when=_CHOSEN),
    _share("episodes/missing", "Share of episodes that a fault left without outcome.", "lower"),
    _count("episodes/overflow", "Episodes that ended since a prompt outgrew the context.", "lower",
           when="there are any"),
    _share("missing/share", "Share of scores that are missing.", "lower", first=True),
    _share("missing/<component>", "Share of a component's scores that are missing.", "lower"),
    _count("selection/uniform", "Selections drawn at random, since every candidate's reward was missing.",
           "lower"),
    _count("faults/policy", "Actions that could not be parsed; they are scored.", "lower", unit="actions"),
    _count("faults/system", "Actions that were lost; their scores are missing.", "lower", unit="actions"),
    _count("tokens/generated", "Tokens generated in the step, by all roles on all branches.", unit="tokens"),
    _count("tokens/prompt", "Tokens of prompts as sent: a shared prompt counts for every call.",
           unit="tokens"),
    _any("score/team/<component>", "the component's",
         "Mean of a component of the team, missing scores left out.", when="the component scores the team"),
)  # fmt: skip
"""What a step and an evaluation both have."""

_EVALUATIONS = (
    _share("success", "Mean success on `val`, or on a set: the policy's own.", "higher", first=True,
           when="steps with an evaluation"),
    MetricInfo("success_ci95", "share", 0.0, 1.0, "Lower and upper bound of its 95 % interval, over tasks.",
           when="steps with an evaluation"),
    _count("tasks", "Tasks that the mean is over.", unit="tasks", when="steps with an evaluation"),
    *(replace(metric, first=False, when=metric.when or "steps with an evaluation")
      for metric in _OUTCOMES if not metric.pattern.startswith("success")),
)  # fmt: skip

_ROLES = (
    _any("reward/<role>", "reward", "Mean reward of the role's sampled actions: the weighted sum of its "
         "components and the team's.", better="higher", first=True),
    _any("score/<role>/<component>", "the component's",
         "Mean of a component of the role, missing scores left out.", when="the component scores roles"),
    _any("advantage/<role>/mean", "advantage", "Mean of the role's advantages.", when="a group compares "
         "something"),
    _count("advantage/<role>/std", "Standard deviation of the role's advantages.", unit="advantage",
           when="a group compares something"),
    _count("advantage/<role>/abs", "Mean absolute advantage.", unit="advantage", when="a group compares "
           "something"),
    _share("groups/<role>/zero_variance", "Share of groups whose rewards are all equal, so that they teach "
           "nothing.", "lower", first=True, when="algorithms with groups"),
    _share("groups/<role>/too_small", "Share of groups with fewer than two members present.", "lower",
           when="algorithms with groups"),
    _count("groups/<role>/missing_rows", "Actions that are in no group, since their reward is missing.",
           "lower", unit="actions", when="algorithms with groups"),
    _count("groups/<role>/truncated", "Actions that `max_new_tokens` cut off.", "lower", unit="actions",
           when="`reinforce_pp`"),
    _any("baseline/<role>", "reward", "The role's running mean of returns, which is its baseline.",
         when="`rae`"),
    _count("length/<role>", "Mean tokens of an action, over its calls.", unit="tokens", first=True),
    _share("empty/<role>",
           "Share of actions without text; above .1 the policy may be learning to be silent.", "lower"),
    _share("finish_length/<role>", "Share of actions that `max_new_tokens` cut off.", "lower"),
    _share("faults/<role>/policy", "Share of the role's actions that could not be parsed.", "lower",
           first=True),
)  # fmt: skip

_POLICIES = tuple(replace(metric, pattern=f"policy/<policy>/{metric.pattern}") for metric in (
    _count("entropy", "Mean entropy of the next token's distribution.", unit="nats", first=True),
    _count("approx_kl", "k3 estimate of the KL divergence from the policy whose log-probs the ratio is to.",
           unit="nats", first=True),
    _count("grad_norm", "Mean global gradient norm of the optimiser steps, before clipping.", unit="norm",
           first=True),
    _any("loss", "loss", "Mean loss of the optimiser steps."),
    _count("ratio", "Mean ratio of a token's probability to the engine's; with `correction` to that at the "
           "start of the update.", unit="ratio"),
    _count("sequence_ratio", "Mean ratio over a whole sequence, by length.", unit="ratio",
           when="loss `gspo`"),
    _share("clip_fraction", "Share of tokens whose ratio is clipped.", when="losses that clip"),
    _share("clip_fraction/staleness/<age>", "The same of the tokens that are so many updates old.",
           when=f"{_TORCH}, {_AHEAD}"),
    _count("kl_ref", "k3 estimate of the KL divergence from the reference policy.", unit="nats",
           when="`loss.kl`, or a return with a KL penalty"),
    _count("learning_rate", "Learning rate of the last optimiser step.", unit="rate", when=_TORCH),
    _count("samples", "Samples that the update trains on.", unit="samples"),
    _count("tokens", "Sampled tokens that the update trains on.", unit="tokens", when=_TORCH),
    _count("optimizer_steps", "Optimiser steps of the update.", unit="steps"),
    _count("skipped_steps", "Optimiser steps that were skipped, since the gradient was not finite.", "lower",
           unit="steps", when=_TORCH),
    _count("mismatch", "Mean absolute difference of the trainer's and the engine's log-probs on the weights "
           "that sampled.", "lower", unit="nats", when=_TORCH),
    _count("mismatch_max", "Largest such difference.", "lower", unit="nats", when=_TORCH),
    _count("mismatch_kl", "k3 estimate of the KL divergence between the two.", "lower", unit="nats",
           when=_TORCH),
    _count("mismatch/staleness/<age>", "The mean difference of the tokens that are so many updates old.",
           "lower", unit="nats", when=f"{_TORCH}, {_AHEAD}"),
    _count("stale_samples", "Samples of older weights, which the mismatch leaves out.", unit="samples",
           when=f"{_TORCH}, {_AHEAD}"),
    _count("correction", "Mean weight of the correction for other weights than the engine's.", unit="ratio",
           when=_CORRECTION),
    _share("correction_capped", "Share of tokens whose weight is capped.", "lower", when=_CORRECTION),
    _count("correction_kl", "k3 estimate of the KL divergence that it corrects.", "lower", unit="nats",
           when=_CORRECTION),
    _count("correction_mismatch", "Mean absolute difference of the log-probs that it corrects.", "lower",
           unit="nats", when=_CORRECTION),
    _any("value", "reward", "Mean value that the value head estimates.", when=_VALUES),
    _count("value_loss", "Mean loss of the values.", "lower", unit="loss", when="the algorithm needs values"),
    _share("value_clipped", "Share of values that moved past the clip.", when=_VALUES),
    MetricInfo("explained_variance", "share", -INF, 1.0, "1 - Var(target - value) / Var(target).", "higher",
           when=f"{_VALUES} and these differ"),
    _count("staleness/mean", "Mean age of the weights that drew a token.", unit="updates", when=_AHEAD),
    _count("staleness/max", "Largest age.", unit="updates", when=_AHEAD),
    _share("staleness/share/<age>", "Share of tokens that are so many updates old.", when=_AHEAD),
    _count("staleness/optimizer_steps", "Mean age in optimiser steps.", unit="steps", when=_AHEAD),
))  # fmt: skip

_SIGNS = tuple(
    MetricInfo(f"signal/{name}", "1 or absent", 1.0, 1.0, meaning, "lower", when=_SIGN)
    for name, meaning in (
        ("equal_rewards", "The rewards within a group are equal, for every role."),
        ("zero_gradient", "The gradient of every policy is 0."),
        (
            "gradient_not_finite/<policy>",
            "Every optimiser step is skipped, since its gradient is not finite.",
        ),
        ("entropy_collapse/<policy>", "The same answers are drawn again and again."),
        ("truncated/<role>", "`max_new_tokens` cuts off nearly all answers."),
        ("unreadable/<role>", "The parser can't read nearly all answers."),
        ("reward_unchanged", "Every role's mean reward is the same number in every step."),
    )
)
_RUN = (
    MetricInfo("step", "steps", 1, INF, "Completed updates, from 1."),
    _count("tokens/total", "Tokens generated in training so far; evaluations and the warm start are not "
           "counted.", unit="tokens"),
    _count("prompts/truncated", "Prompts that lost their oldest turns.", "lower", unit="prompts",
           when="`team.overflow: truncate_oldest`, and there are any"),
    _count("normaliser/unscaled", "Scopes of the normaliser whose scores were all equal, so that advantages "
           "were only centred.", "lower", when="`reinforce_pp`"),
    _any("value/target", "reward", "Mean target of the values.", when="`gae`"),
    _count("curriculum/level", "Index of the step's level.", "higher", unit="levels",
           when="`env.curriculum`"),
    _any("curriculum/value", "the setting's", "The level's value.", when="`env.curriculum` of numbers"),
    _share("curriculum/rate", "Success rate of the level's latest training episodes: a threshold and no "
           "result.", "higher", when="`env.curriculum`"),
    _count("curriculum/episodes", "Episodes that the rate is over.", unit="episodes",
           when="`env.curriculum`"),
    *_SIGNS,
)  # fmt: skip

_TIME = (
    _seconds("step", "Seconds of the step, without its evaluation.", first=True),
    _seconds("rollouts", "Of playing and scoring; with steps ahead, of waiting for the step's trees."),
    _seconds("credit", "Of annotations (such as reference log-probs) and the estimator."),
    _seconds("update", "Of the trainer; with no steps ahead, also of giving the weights to the engine."),
    _seconds("sync", "Of giving the weights to the engine.", when=_AHEAD),
    _seconds("record", "Of the rest: metrics and the rollout file."),
    _seconds("play", "From handing out the step's jobs to its last tree.", when=_AHEAD),
    _seconds("engine_waited", "In which the engine had nothing to generate.", when=_AHEAD),
    _seconds("evaluate", "Of the evaluation.", when="steps with an evaluation"),
    _share("time/long_tail", "Share of the play in which only the slowest tenth of the trees still played.",
           "lower"),
    _count("time/tokens_per_second", "Generated tokens by seconds of the step.", "higher", unit="tokens/s"),
    _count("machine/trackers/<name>/lost", "Rows and tables of episodes that a tracker has lost so far.",
           "lower", unit="rows", when="a tracker has lost some"),
)  # fmt: skip

_PLUGINS = (
    _count("expert/edits", "Prompts with an edit of the expert.", unit="prompts", when=_EXPERT),
    _count("expert/none", "Prompts that say that there is none.", unit="prompts", when=_EXPERT),
    _count("expert/malformed", "Malformed answers of the expert.", "lower", unit="answers", when=_EXPERT),
    _count("expert/failed", "Calls of the expert that failed after all attempts.", "lower", unit="calls",
           when=_EXPERT),
    _count("judging/programs", "Programs that were run on tests.", unit="programs", when=_CODE),
    _count("judging/repeated", "Programs whose verdict was known already.", unit="programs", when=_CODE),
    _count("judging/apart", "Programs whose tests were judged one by one.", unit="programs", when=_CODE),
    _count("judging/seconds", "Seconds in which a program was being judged.", "lower", unit="seconds",
           when=_CODE),
    _count("judging/share", "Those seconds by the step's.", "lower", unit="share", when=_CODE),
    _count("tests/no_reference", "Problems without a reference program.", unit="problems", when=_CODE),
    _count("tests/wrong_reference", "Problems whose reference fails a hidden test.", unit="problems",
           when=_CODE),
    _count("feedback/hidden_tests", "Prompts of training that tell of a hidden test.", unit="prompts",
           when=_CODE),
    _count("cluster/engines_lost", "Engine hosts that were lost and replaced.", "lower", when=_LOST),
    _count("cluster/hosts_lost", "Rollout hosts that were lost and replaced.", "lower", when=_LOST),
    _count("cluster/jobs_again", "Jobs that were played again.", "lower", unit="jobs", when=_LOST),
    _count("cluster/episodes_lost", "Episodes that were given up, since a plugin's method didn't return in "
           "them.", "lower", unit="episodes", when="executor `ray`, where a plugin hangs"),
    _count("cluster/replacing", "Seconds until lost processes were replaced.", "lower", unit="seconds",
           when=_LOST),
)  # fmt: skip
"""What plugins that Coterie brings count."""

GROUPS: Mapping[str, tuple[MetricInfo, ...]] = {
    "Episodes": _OUTCOMES,
    "Evaluations": tuple(replace(metric, pattern=f"eval/{metric.pattern}") for metric in _EVALUATIONS),
    "Roles": _ROLES,
    "Policies": _POLICIES,
    "The run": _RUN,
    "Time": _TIME,
    "Counted by plugins that Coterie brings": _PLUGINS,
}
"""Heading of docs/metrics.md -> its metrics."""

SETS = tuple(
    replace(m, pattern=f"eval/<set>/{m.pattern}", first=False, when="`evaluate.sets`") for m in _EVALUATIONS
)
"""Those of an evaluation, for each of `evaluate.sets`."""

METRICS: tuple[MetricInfo, ...] = (*(metric for group in GROUPS.values() for metric in group), *SETS)
"""Every metric; docs/metrics.md has them as a table."""

_FREE = ("policy",)
"""First parts of names under which a plugin's trainer or loss may report what it likes."""


@cache
def _pattern(pattern: str, slashes: bool) -> re.Pattern[str]:
    part = ".+?" if slashes else "[^/]+"
    pieces = re.split(r"<(\w+)>", pattern)
    return re.compile("".join(f"(?P<{p}>{part})" if i % 2 else re.escape(p) for i, p in enumerate(pieces)))


def matching(name: str) -> list[MetricInfo]:
    """The metrics whose pattern a name has: one, or none where a plugin chose the name.

    A role or a component may be called like a fixed part of another name: the pattern with fewer places
    decides, then the longer one. A policy may have slashes in its name, which counts where nothing else fits.
    """
    for slashes in (False, True):
        several = [metric for metric in METRICS if _pattern(metric.pattern, slashes).fullmatch(name)]
        if several:
            best = min(map(_vagueness, several))
            return [metric for metric in several if _vagueness(metric) == best]
    return []


def _vagueness(metric: MetricInfo) -> tuple[int, int]:
    return metric.pattern.count("<"), -metric.pattern.count("/")


@cache
def described(name: str) -> MetricInfo:
    """The metric of a name; of one that a plugin chose, a Metric that says so."""
    known = matching(name)
    if known:
        return known[0]
    whose = REPORTED if name.partition("/")[0] in _FREE else COUNTED
    return MetricInfo(name, "the plugin's", -INF, INF, whose)


def parts_of(name: str) -> dict[str, str]:
    """What a name has in the places of its pattern: {"role": "planner"} of `reward/planner`."""
    pattern = described(name).pattern
    for slashes in (False, True):
        if match := _pattern(pattern, slashes).fullmatch(name):
            return match.groupdict()
    return {}


def firsts(names: Iterable[str]) -> list[str]:
    """Those of the names that are shown first, in the order of the list, a pattern's by name."""
    place = {metric.pattern: at for at, metric in enumerate(METRICS)}
    chosen = [name for name in names if described(name).first]
    return sorted(chosen, key=lambda name: (place[described(name).pattern], name))
