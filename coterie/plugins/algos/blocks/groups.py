"""Credit: groupings, baselines and normalisers. An estimator combines one of each with a return.

An estimator answers four questions. What is each action worth (*return*, `returns.py`)? Which actions share a
baseline (*grouping*)? What is each action compared with (*baseline*)? On what scale are advantages
(*normaliser*)? The last three answers are functions in this module; `estimator.py` combines them.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from pydantic import Field, field_validator, model_validator

from coterie.core.plugins import PluginConfig
from coterie.core.protocols import Batch
from coterie.core.types import Credit, Key, Tree
from coterie.plugins.algos.blocks.returns import Row, episode, immediate

Floats = np.ndarray[Any, np.dtype[np.float64]]


@dataclass(frozen=True, slots=True)
class Group:
    """Rows that share a baseline."""

    role: str
    """The role of the rows; `all` where they have several."""
    rows: tuple[Row, ...]


# ------------------------------------------------------------------------------------------- groupings


def _task(row: Row) -> Hashable:
    first = row.branches[0]
    return first.task, first.epoch, row.role


GROUPINGS: dict[str, Callable[[Row], Hashable]] = {
    "decision": lambda row: row.branches[0].decision,
    "turn": lambda row: (_task(row), row.turn),
    "task": _task,
    "role": lambda row: row.role,
    "batch": lambda row: "",
}
"""The groupings by name: the key that the rows of a group share. It is the prompt; the task, role and turn;
the task and role; the role; only the step."""


def grouped(rows: Iterable[Row], key: Callable[[Row], Hashable]) -> list[Group]:
    """Groups of the rows with equal keys, in the order of each key's first row."""
    by_key: dict[Hashable, list[Row]] = {}
    for row in rows:
        by_key.setdefault(key(row), []).append(row)
    return [
        Group(members[0].role if len({row.role for row in members}) == 1 else "all", tuple(members))
        for members in by_key.values()
    ]


def by_decision(batch: Batch) -> Iterator[Group]:
    """Groups of the K branches of one decision, each with its immediate reward (AT-GRPO's e, i, t)."""
    yield from grouped(immediate(batch), GROUPINGS["decision"])


def by_task(batch: Batch) -> Iterator[Group]:
    """Groups of the chains of one task, one value per (chain, role): the episode's return (GRPO)."""
    yield from grouped(episode(batch), GROUPINGS["task"])


# ------------------------------------------------------------------------------------------- baselines


def mean_baseline(values: Floats) -> Floats:
    """Each value minus the group's mean. Shape (n,)."""
    centred: Floats = values - values.mean()
    return centred


def loo_baseline(values: Floats) -> Floats:
    """Each value minus the mean of the others: n/(n-1) times `mean_baseline` (RLOO, arXiv 2402.14740)."""
    n = len(values)
    return mean_baseline(values) * (n / (n - 1))


def no_baseline(values: Floats) -> Floats:
    """The values themselves."""
    return values.copy()


def max_baseline(values: Floats) -> Floats:
    """Each value minus the group's largest: biased, since no action exceeds its baseline."""
    below: Floats = values - values.max()
    return below


BASELINES: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "mean": mean_baseline,
    "loo": loo_baseline,
    "none": no_baseline,
    "max": max_baseline,
}
"""The baselines by name: each maps the values of a group to the same less their baseline, shape (n,)."""


# ------------------------------------------------------------------------------------------ normaliser


class Normaliser(PluginConfig):
    """The scale of advantages.

    `scale` divides by the standard deviation of the group's values. `whiten` first subtracts the advantages'
    mean and then divides by their own deviation, so that the group's baseline makes no difference. With the
    scopes `role` and `global` both use the deviation of the advantages, that is, of the values after the
    group's baseline.
    """

    type: Literal["none", "scale", "whiten"] = "scale"
    ddof: int = Field(1, ge=0, le=1)
    eps: float = Field(1e-6, ge=0)
    eps_mode: Literal["add", "clamp"] = Field(
        "add", description="Divide by deviation + eps, or by the larger of the two."
    )
    scope: Literal["group", "role", "global"] = Field("group", description="Whose deviation it is.")
    per: Literal["action", "token"] = Field(
        "action", description="What counts once in a role's or the batch's mean and deviation."
    )

    @model_validator(mode="after")
    def _no_unused_settings(self) -> Normaliser:
        unused = sorted(self.model_fields_set - {"type"})
        if self.type == "none" and unused:
            raise ValueError(
                f"type none reads no {', '.join(unused)}: leave it out, or set type scale or whiten"
            )
        if self.scope == "group" and self.per == "token":
            raise ValueError("`per: token` needs scope role or global: in a group every action counts once")
        return self

    def __call__(self, advantages: np.ndarray, values: np.ndarray) -> np.ndarray:
        """Advantages of one group, shape (n,), on the scale of its values."""
        if self.type == "none":
            return advantages
        if self.type == "whiten":
            advantages = values = advantages - advantages.mean()
        deviation = float(values.std(ddof=self.ddof)) if len(values) > self.ddof else 0.0
        return self.divide(advantages, deviation)

    def scope_of(self, role: str) -> str:
        """The scope, wider than a group, in which a role's advantages are: the role, or "" for the batch."""
        return role if self.scope == "role" else ""

    def divide(self, advantages: np.ndarray, deviation: float) -> np.ndarray:
        """Advantages divided by the deviation and `eps`; 0 where both are 0."""
        scale = deviation + self.eps if self.eps_mode == "add" else max(deviation, self.eps)
        return advantages / scale if scale > 0 else np.zeros_like(advantages)


class Normalised(PluginConfig):
    """Settings with a normaliser: the configuration overrides the estimator's own normaliser key by key."""

    normalise: Normaliser = Normaliser()

    @field_validator("normalise", mode="before")
    @classmethod
    def _over_default(cls, given: Any) -> Any:
        if not isinstance(given, Mapping) or given.get("type") == "none":
            return given
        default = cls.model_fields["normalise"].get_default(call_default_factory=True)
        return {**default.model_dump(exclude_unset=True), **given}


def normalise_batch(
    advantage: Mapping[Key, Any],
    tokens: Mapping[Key, int],
    normaliser: Normaliser,
    unscaled: Collection[str] = (),
) -> dict[Key, Any]:
    """Advantages normalised over their role or over the whole batch.

    A branch counts once (`per: action`) or as often as it has tokens; with `per: action` its tokens share its
    one count.

    Args:
        advantage: by branch: a number, or an array of shape (tokens,).
        tokens: by branch: the number of sampled tokens.
        unscaled: scopes (`Normaliser.scope_of`) that are only centred, and this only by `whiten`.
    """
    scopes: dict[str, list[Key]] = {}
    for key in advantage:
        scopes.setdefault(normaliser.scope_of(key.role), []).append(key)
    normalised: dict[Key, Any] = {}
    for scope, keys in scopes.items():
        parts = [np.atleast_1d(np.asarray(advantage[key], dtype=np.float64)) for key in keys]
        counts = np.concatenate(
            [np.full(len(part), (tokens[key] if normaliser.per == "token" else 1) / max(len(part), 1))
             for key, part in zip(keys, parts, strict=True)]
        )  # fmt: skip
        values, total = np.concatenate(parts), counts.sum()
        mean = float(counts @ values / total) if total else 0.0
        degrees = total - normaliser.ddof
        deviation = math.sqrt(float(counts @ (values - mean) ** 2) / degrees) if degrees > 0 else 0.0
        shift = mean if normaliser.type == "whiten" else 0.0
        flat = len(values) > 0 and equal(values)
        for key, part in zip(keys, parts, strict=True):
            # As in a group: the mean of equal numbers can differ from them in the last bit.
            number = np.zeros_like(part) if flat and shift else part - shift
            if not (flat and shift) and scope not in unscaled:
                number = normaliser.divide(number, deviation)
            normalised[key] = number if np.ndim(advantage[key]) else float(number[0])
    return normalised


def equal(values: np.ndarray) -> bool:
    """Whether values differ by rounding only, as sums of the same rewards in another order do."""
    return bool(np.ptp(values) <= 1e-12 * max(1.0, float(np.abs(values).max())))


# ---------------------------------------------------------------------------------------------- credit


def credit_groups(
    groups: Sequence[Group],
    baseline: Callable[[np.ndarray], np.ndarray],
    normalise: Normaliser,
    *,
    drop_zero_variance: bool = False,
    tokens: Mapping[Key, int] | None = None,
) -> Credit:
    """Credit of groups: advantage = normalise(baseline(values)) over the rows whose value is present.

    A group with fewer than two present rows compares nothing and is not trained on, unless neither a baseline
    nor a normaliser of scope `group` is set. A branch in several rows (the shared start of two paths) gets
    the mean of their advantages.

    Args:
        tokens: by branch; needed where the normaliser's scope is wider than a group.
    """
    wide = normalise.scope != "group"
    in_group = Normaliser(type="none") if wide else normalise
    least = 1 if baseline is no_baseline and in_group.type == "none" else 2
    rows: list[Row] = []
    advantages: list[float] = []
    counts: dict[str, GroupCounts] = {}
    for group in groups:
        present = [row for row in group.rows if row.value is not None]
        values = np.array([row.value for row in present], dtype=np.float64)
        small = len(present) < least
        flat = not small and equal(values)
        counts.setdefault(group.role, GroupCounts()).add(small, flat, len(group.rows) - len(present))
        if not (small or (flat and drop_zero_variance)):
            rows += present
            advantages += _group_advantages(values, baseline, in_group, flat).tolist()
    advantage = by_branch(rows, advantages)
    if wide and normalise.type != "none":
        advantage = normalise_batch(advantage, tokens or {}, normalise)
    return Credit(
        advantage=advantage,
        returns=by_branch(rows, [float(row.value) for row in rows]),  # type: ignore[arg-type]
        metrics=metrics_of(counts),
    )


def _group_advantages(
    values: Floats, baseline: Callable[[np.ndarray], np.ndarray], normalise: Normaliser, flat: bool
) -> Floats:
    """normalise(baseline(values)); 0 for equal values (`flat`), unless neither compares them.

    The mean of equal numbers can differ from them in the last bit; divided by a tiny deviation, that
    difference would become an advantage of order 1.
    """
    if flat and (baseline is not no_baseline or normalise.type == "whiten"):
        return np.zeros_like(values)
    return normalise(baseline(values), values)


def by_branch(rows: Sequence[Row], values: Sequence[Any]) -> dict[Key, Any]:
    """By branch, the mean of what its rows give it (the shared start of two paths has several rows).

    Args:
        values: by row: a number for each of its branches, or a sequence of what each gets; None: nothing.
    """
    parts: dict[Key, list[Any]] = {}
    for row, value in zip(rows, values, strict=True):
        if value is not None:
            several = (value,) * len(row.branches) if isinstance(value, float) else value
            for key, part in zip(row.branches, several, strict=True):
                parts.setdefault(key, []).append(part)
    return {key: _mean(several) for key, several in parts.items()}


def _mean(several: Sequence[Any]) -> Any:
    if len(several) == 1:
        return several[0]
    numbers = all(np.ndim(value) == 0 for value in several)
    return math.fsum(several) / len(several) if numbers else np.mean(several, axis=0)


@dataclass(slots=True)
class GroupCounts:
    """Counts of one role's groups, by how they were used."""

    groups: int = 0
    small: int = 0
    flat: int = 0
    missing: int = 0

    def add(self, small: bool, flat: bool, missing: int) -> None:
        self.groups, self.small = self.groups + 1, self.small + small
        self.flat, self.missing = self.flat + flat, self.missing + missing


def metrics_of(counts: Mapping[str, GroupCounts]) -> dict[str, float]:
    """By role, the shares of groups with equal rewards and of groups that are too small; and missing rows."""
    metrics: dict[str, float] = {}
    for role, count in counts.items():
        metrics[f"groups/{role}/zero_variance"] = count.flat / max(count.groups, 1)
        metrics[f"groups/{role}/too_small"] = count.small / max(count.groups, 1)
        metrics[f"groups/{role}/missing_rows"] = float(count.missing)
    return metrics


def turn_weights(
    trees: Sequence[Tree], credited: Iterable[Key], weights: Sequence[float]
) -> dict[Key, float]:
    """By branch: weights[turn] / (the role's credited branches of that turn in the tree).

    Every turn of a tree that forks has K times as many branches as the turn before. Without these weights the
    last turn would get nearly all of the gradient (MAGRPO, arXiv 2508.04652).

    Args:
        weights: by turn; empty: 1 for every turn.
    """
    turns = {node.key: node.turn for tree in trees for node in tree.nodes()}
    layers = {key: (key.task, key.epoch, key.chain, key.role, turns[key.node]) for key in credited}
    count = Counter(layers.values())
    return {key: (weights[layer[-1]] if weights else 1.0) / count[layer] for key, layer in layers.items()}
