"""Which charts the page has, and the columns that they are drawn from."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from coterie.viewing.metric_names import described


@dataclass(frozen=True, slots=True)
class Chart:
    """A chart of metrics whose names match a pattern."""

    id: str
    title: str
    view: str
    """`overview` or `roles`."""
    patterns: tuple[tuple[str, str], ...]
    """(regular expression of a metric's name, label): `\\1` in a label is what the name has there."""
    kind: str = "lines"
    """`lines`, or `stack`: values on top of each other."""
    interval: str = ""
    """Suffix of the metric that has the interval of a line."""
    note: str = ""
    noted: str = ""
    """Pattern of a metric without which the note says nothing; empty: any."""
    notes: tuple[tuple[str, str], ...] = ()
    """(metric, sentence): said where there is the metric."""


PHASES = ("rollouts", "credit", "update", "sync", "record", "evaluate")
"""Parts of a step in their order."""
ROLE, POLICY = r"([^/]+)", r"(.+)"
CHARTS = (
    Chart("success", "Success", "overview",
          (("eval/success", "val"), ("eval/([^/]+)/success", r"val \1"), ("success", "training"),
           ("success_committed", "training, best of K")),
          interval="_ci95", note="val: with its 95 % interval over tasks.", noted="eval/.+",
          notes=(("success_committed", "The best of K is no success of the policy."),)),
    Chart("reward", "Reward by role", "overview", ((f"reward/{ROLE}", r"\1"),)),
    Chart("lost", "Missing scores and lost episodes", "overview",
          (("missing/share", "missing scores"), ("episodes/missing", "lost episodes"))),
    Chart("zero", "Groups with equal rewards", "overview", ((f"groups/{ROLE}/zero_variance", r"\1"),),
          note="A group whose rewards are all equal teaches nothing."),
    Chart("entropy", "Entropy", "overview", ((f"policy/{POLICY}/entropy", r"\1"),)),
    Chart("kl", "Change of the policy in a step", "overview",
          ((f"policy/{POLICY}/approx_kl", r"\1: KL of the update"),
           (f"policy/{POLICY}/kl_ref", r"\1: KL to the start"))),
    Chart("gradient", "Gradient norm", "overview", ((f"policy/{POLICY}/grad_norm", r"\1"),)),
    Chart("mismatch", "Trainer against engine", "overview", ((f"policy/{POLICY}/mismatch", r"\1"),),
          note="Mean difference of the trainer's and the engine's log-probs on equal weights."),
    Chart("faults", "Answers that could not be parsed", "overview", ((f"faults/{ROLE}/policy", r"\1"),)),
    Chart("length", "Length of an action", "overview", ((f"length/{ROLE}", r"\1"),)),
    Chart("time", "Time of a step by phase", "overview", ((f"time/({'|'.join(PHASES)})", r"\1"),),
          kind="stack"),
    Chart("tokens", "Tokens of a step", "overview",
          (("tokens/generated", "generated"), ("tokens/prompt", "prompts")), kind="stack"),
    Chart("role-reward", "Reward", "roles", ((f"reward/{ROLE}", r"\1"),)),
    Chart("role-advantage", "Advantage, mean of its size", "roles", ((f"advantage/{ROLE}/abs", r"\1"),),
          note="Where it is near zero, the role is given no signal."),
    Chart("role-spread", "Advantage, standard deviation", "roles", ((f"advantage/{ROLE}/std", r"\1"),)),
    Chart("role-length", "Length of an action", "roles", ((f"length/{ROLE}", r"\1"),)),
    Chart("role-entropy", "Entropy of the role's policy", "roles", ((f"policy/{POLICY}/entropy", r"\1"),)),
    Chart("role-zero", "Groups with equal rewards", "roles", ((f"groups/{ROLE}/zero_variance", r"\1"),)),
    Chart("role-missing", "Groups' rows that are missing", "roles",
          ((f"groups/{ROLE}/missing_rows", r"\1"),)),
    Chart("role-components", "Missing scores by component", "roles",
          ((r"missing/(?!share$)([^/]+)", r"\1"),)),
    Chart("role-faults", "Answers that could not be parsed", "roles", ((f"faults/{ROLE}/policy", r"\1"),)),
    Chart("role-empty", "Answers without text", "roles", ((f"empty/{ROLE}", r"\1"),)),
    Chart("role-cut", "Answers that max_new_tokens cut off", "roles", ((f"finish_length/{ROLE}", r"\1"),)),
)  # fmt: skip
"""In the order of the page; one without metrics in any run is left out."""


def columns(rows: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """Each metric's values by row; None where the row has none."""
    names = dict.fromkeys(name for row in rows for name in row if name != "step")
    return {name: [row.get(name) for row in rows] for name in names}


def gaps(rows: Sequence[Mapping[str, Any]]) -> dict[str, list[int]]:
    """Steps at which a row names a metric without a value: there its line breaks."""
    steps: dict[str, list[int]] = {}
    for row in rows:
        for name, value in row.items():
            if value is None:
                steps.setdefault(name, []).append(int(row["step"]))
    return steps


def charts_of(names: Iterable[str], roles: Sequence[str] = ()) -> list[dict[str, Any]]:
    """The charts whose metrics are among the names, with their series.

    Args:
        roles: in the order of the team, which is that of their lines.
    """
    known, order = [*names], [*roles, *PHASES]
    charts = []
    for chart in CHARTS:
        series = []
        for pattern, label in chart.patterns:
            matches = [(name, match) for name in known if (match := re.fullmatch(pattern, name))]
            for name, match in sorted(matches, key=lambda pair: _place(pair[1], order)):
                entry = {"metric": name, "label": match.expand(label)}
                if chart.interval and f"{name}{chart.interval}" in known:
                    entry["interval"] = f"{name}{chart.interval}"
                series.append(entry)
        if series:
            table = asdict(chart)
            note = chart.note if any(re.fullmatch(chart.noted or ".*", of["metric"]) for of in series) else ""
            more = [text for name, text in chart.notes if name in known]
            table["note"] = " ".join(filter(None, (note, *more)))
            del table["patterns"], table["interval"], table["noted"], table["notes"]
            charts.append({**table, "series": series, "unit": described(series[0]["metric"]).unit})
    return charts


def descriptions(names: Iterable[str]) -> dict[str, dict[str, str]]:
    """Unit, range and meaning of each metric."""
    known = {}
    for name in names:
        metric = described(name)
        known[name] = {"unit": metric.unit, "range": metric.range, "meaning": metric.meaning}
    return known


def _place(match: re.Match[str], order: Sequence[str]) -> tuple[int, str]:
    name = match[1] if match.re.groups else ""
    return order.index(name) if name in order else len(order), match.string
