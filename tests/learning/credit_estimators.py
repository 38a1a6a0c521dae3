"""The oracle's third part: from rows to advantages and loss weights, by algorithm, in plain float64.

Rows of one group are compared with each other. A row that is missing is in nothing. A group with fewer than
two present rows isn't trained where rows are compared. Values that are equal up to rounding have centred
advantages of exactly 0. Normalisers of scope group divide by the deviation of the group's values, those of
scope role and global by that of the advantages of all credited branches, each counted once or by its tokens.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from coterie.core.types import Key, Tree
from tests.learning.credit_oracle import Book, PlayedJoint, Voice, played
from tests.learning.credit_rows import Row, episode_rows, immediate_rows, trained, tree_rows
from tests.learning.credit_sources import SourceSpec, answer

NONE = {"type": "none"}
PIECES: dict[str, dict[str, Any]] = {
    "at_grpo": {"group": "decision", "return": "immediate", "baseline": "mean", "normalise": {}},
    "grpo": {"group": "task", "return": "episode", "baseline": "mean", "normalise": {"eps": 1e-4}},
    "dr_grpo": {"group": "task", "return": "episode", "baseline": "mean", "normalise": NONE},
    "rloo": {"group": "task", "return": "episode", "baseline": "loo", "normalise": NONE},
    "reinforce": {"group": "batch", "return": "to_go", "baseline": "none", "normalise": NONE},
    "magrpo": {"group": "decision", "return": "tree", "baseline": "mean", "normalise": NONE},
    "marloo": {"group": "decision", "return": "tree", "baseline": "loo", "normalise": NONE},
    "mareinforce": {"group": "decision", "return": "tree", "baseline": "none", "normalise": NONE},
    "maremax": {"group": "decision", "return": "tree", "baseline": "max", "normalise": NONE},
    "reinforce_pp_baseline": {
        "group": "turn",
        "return": "immediate",
        "baseline": "mean",
        "normalise": {"type": "scale", "scope": "global", "per": "token", "ddof": 0, "floor": 1e-4},
    },
    "compose": {"baseline": "mean", "normalise": {}},
}
"""The pieces of the algorithms that compare rows in groups."""
NORMALISER = {"type": "scale", "ddof": 1, "eps": 1e-6, "eps_mode": "add", "scope": "group", "per": "action"}
OVER_TURNS = ("magrpo", "marloo", "mareinforce", "maremax")
GROUPS: dict[str, Callable[[Row], Hashable]] = {
    "decision": lambda row: row.branches[0].decision,
    "turn": lambda row: (row.task, row.epoch, row.role, row.turn),
    "task": lambda row: (row.task, row.epoch, row.role),
    "role": lambda row: row.role,
    "batch": lambda row: 0,
}


@dataclass
class Expected:
    """What the oracle expects of a step."""

    advantage: dict[Key, Any]
    weight: dict[Key, float]
    state: dict[str, float] = field(default_factory=dict)
    """The running means of `rae`."""
    rows: list[Row] = field(default_factory=list)
    targets: dict[Key, np.ndarray] = field(default_factory=dict)
    """The targets of `gae`'s value head."""


def equal(values: Sequence[float]) -> bool:
    """Whether values are equal up to rounding."""
    return not values or max(values) - min(values) <= 1e-12 * max(1.0, max(map(abs, values)))


def expected(
    algorithm: Mapping[str, Any],
    trees: Sequence[Tree],
    sources: Sequence[SourceSpec],
    *,
    turns: int,
    references: Mapping[Key, np.ndarray] | None = None,
    values: Mapping[Key, np.ndarray] | None = None,
    state: Mapping[str, float] | None = None,
    voice: Voice = answer,
) -> Expected:
    """The credit of a step under a table `algorithm`.

    Args:
        turns: `team.max_turns`.
        references: reference log-probs of the sampled tokens, by branch.
        values: the value head's, likewise.
        state: the running means before the step.
        voice: what the sources answer.
    """
    name = algorithm["type"]
    per_turn = 1.0 if name in ("reinforce_pp", "gae") else algorithm.get("gamma", 1.0)
    book = Book(
        sources, algorithm.get("alpha", 1.0), per_turn, algorithm.get("fill") == "repeat", max(turns, 1)
    )
    every = played(trees, sources, voice)
    tokens = {key: action for key, action in actions(trees)}
    if name == "reinforce_pp":
        return _reinforce_pp(algorithm, every, book, tokens, references or {})
    if name == "gae":
        return _gae(algorithm, every, book, tokens, values or {})
    if name == "rae":
        return _rae(algorithm, every, book, tokens, state or {})
    pieces = {**PIECES[name], **{k: v for k, v in algorithm.items() if k in ("group", "return", "baseline")}}
    normalise = {**NORMALISER, **PIECES[name]["normalise"], **algorithm.get("normalise", {})}
    rows = rows_of(pieces["return"], every, book, spans=pieces["group"] != "decision")
    groups: dict[Hashable, list[Row]] = {}
    for row in rows:
        groups.setdefault(GROUPS[pieces["group"]](row), []).append(row)
    shares: dict[Key, list[float]] = {}
    for group in groups.values():
        present = [row for row in group if row.value is not None]
        for row, advantage in zip(present, compared(present, pieces, normalise, algorithm), strict=False):
            for key in row.branches:
                shares.setdefault(key, []).append(advantage)
    advantages = {key: math.fsum(parts) / len(parts) for key, parts in shares.items()}
    if normalise["scope"] != "group":
        advantages = over_scope(advantages, normalise, tokens)
    weights = _turn_weights(advantages, trees, algorithm) if name in OVER_TURNS else {}
    return Expected(dict(advantages), weights, rows=rows)


def actions(trees: Sequence[Tree]) -> list[tuple[Key, Any]]:
    """Every branch with its action."""
    return [
        (node.key.of_branch(role, branch), action)
        for tree in trees
        for node in tree.nodes()
        for role, decision in node.decisions.items()
        for branch, action in enumerate(decision.branches)
    ]


def logprobs(action: Any) -> np.ndarray:
    """The log-probs of all sampled tokens of an action."""
    return np.array([value for call in action.calls for value in call.logprobs], dtype=np.float64)


def rows_of(name: str, every: Sequence[PlayedJoint], book: Book, spans: bool) -> list[Row]:
    if name == "immediate":
        return immediate_rows(every, book, spans)
    return episode_rows(every, book) if name == "episode" else tree_rows(every, book)


def compared(
    rows: Sequence[Row], pieces: Mapping[str, Any], normalise: Mapping[str, Any], algorithm: Mapping[str, Any]
) -> list[float]:
    """Advantages of the present rows of a group; [] where it isn't trained."""
    values = [row.value for row in rows if row.value is not None]
    own_scale = normalise["type"] != "none" and normalise["scope"] == "group"
    baseline = pieces["baseline"]
    if not values or (len(values) < 2 and (baseline != "none" or own_scale)):
        return []
    if equal(values):
        if algorithm.get("zero_variance") == "drop":
            return []
        if baseline != "none" or (own_scale and normalise["type"] == "whiten"):
            return [0.0] * len(values)
        return values
    count, sum_ = len(values), math.fsum(values)
    if baseline == "mean":
        result = [value - sum_ / count for value in values]
    elif baseline == "loo":
        result = [value - (sum_ - value) / (count - 1) for value in values]
    elif baseline == "max":
        result = [value - max(values) for value in values]
    else:
        result = list(values)
    if own_scale:
        centre = math.fsum(result) / count if normalise["type"] == "whiten" else 0.0
        scaled = result if normalise["type"] == "whiten" else values  # they differ under `loo` alone
        scale = divisor(deviation(scaled, [1.0] * count, normalise["ddof"]), normalise)
        result = [(value - centre) / scale for value in result]
    return result


def deviation(values: Sequence[float], counts: Sequence[float], ddof: int) -> float:
    """The standard deviation of values that count so often."""
    number = math.fsum(counts)
    if number <= ddof:
        return 0.0
    mean = math.fsum(c * v for c, v in zip(counts, values, strict=True)) / number
    squares = math.fsum(c * (v - mean) ** 2 for c, v in zip(counts, values, strict=True))
    return math.sqrt(squares / (number - ddof))


def divisor(spread: float, normalise: Mapping[str, Any]) -> float:
    if "floor" in normalise:
        return max(spread, normalise["floor"])
    return max(spread, normalise["eps"]) if normalise["eps_mode"] == "clamp" else spread + normalise["eps"]


def over_scope(
    advantages: Mapping[Key, float], normalise: Mapping[str, Any], tokens: Mapping[Key, Any]
) -> dict[Key, float]:
    """Advantages over the deviation of all of them, or of all of their role."""
    if normalise["type"] == "none":
        return dict(advantages)
    scopes: dict[str, list[Key]] = {}
    for key in advantages:
        scopes.setdefault(key.role if normalise["scope"] == "role" else "", []).append(key)
    result: dict[Key, float] = {}
    for keys in scopes.values():
        values = [advantages[key] for key in keys]
        counts = [float(len(logprobs(tokens[k]))) if normalise["per"] == "token" else 1.0 for k in keys]
        whitens = normalise["type"] == "whiten"
        if equal(values) and whitens:
            result |= dict.fromkeys(keys, 0.0)
            continue
        centre = math.fsum(c * v for c, v in zip(counts, values, strict=True)) / math.fsum(counts)
        scale = divisor(deviation(values, counts, normalise["ddof"]), normalise)
        for key, value in zip(keys, values, strict=True):
            centred = value - centre if whitens else value
            result[key] = 0.0 if centred == 0.0 else centred / scale
    return result


def _turn_weights(
    advantages: Mapping[Key, Any], trees: Sequence[Tree], algorithm: Mapping[str, Any]
) -> dict[Key, float]:
    """One over the credited branches of the same tree, turn and role, times the turn's weight."""
    given = algorithm.get("turn_weights", ())
    weights: dict[Key, float] = {}
    for tree in trees:
        places: dict[tuple[int, str], list[Key]] = {}
        for node in tree.nodes():
            for role, decision in node.decisions.items():
                for branch in range(len(decision.branches)):
                    if (key := node.key.of_branch(role, branch)) in advantages:
                        places.setdefault((node.turn, role), []).append(key)
        for (turn, _), keys in places.items():
            weights |= dict.fromkeys(keys, (given[turn] if given else 1.0) / len(keys))
    return weights


# ---------------------------------------------------------------------------------- estimators without groups


def _rae(
    algorithm: Mapping[str, Any],
    every: Sequence[PlayedJoint],
    book: Book,
    tokens: Mapping[Key, Any],
    state: Mapping[str, float],
) -> Expected:
    """Returns less the role's running mean before the step."""
    decay = algorithm.get("decay", 0.95)
    rows = episode_rows(every, book)
    after, shares = dict(state), {}
    for role in {row.role: 0 for row in rows}:
        present = [row for row in rows if row.role == role and row.value is not None]
        values = [row.value for row in present if row.value is not None]
        if not values:
            continue
        mean = math.fsum(values) / len(values)
        after[role] = decay * state.get(role, 0.0) + (1 - decay) * mean
        if equal(values) and algorithm.get("zero_variance") == "drop":
            continue
        for row, value in zip(present, values, strict=True):
            for key in row.branches:
                shares.setdefault(key, []).append(value - state.get(role, 0.0))
    advantages = {key: math.fsum(parts) / len(parts) for key, parts in shares.items()}
    normalise = {**NORMALISER, "type": "none", **algorithm.get("normalise", {})}
    return Expected(over_scope(advantages, normalise, tokens), {}, after, rows)


def _reinforce_pp(
    algorithm: Mapping[str, Any],
    every: Sequence[PlayedJoint],
    book: Book,
    tokens: Mapping[Key, Any],
    references: Mapping[Key, np.ndarray],
) -> Expected:
    """The score on the last token and -beta times the KL on each, summed back inside the action; whitened."""
    beta, gamma = algorithm.get("beta", 0.01), algorithm.get("gamma", 1.0)
    normalise = {"type": "whiten", "ddof": 0, "scope": "global", "per": "token", "floor": 1e-4}
    normalise |= algorithm.get("normalise", {})
    rows = rows_of(algorithm.get("return", "immediate"), every, book, spans=True)
    scored: dict[Key, float] = {}
    for row in rows:
        (key,) = row.branches
        if row.value is None:
            continue
        if algorithm.get("truncated", "drop") == "keep" or tokens[key].calls[-1].finish != "length":
            scored[key] = row.value
    sums: dict[Key, np.ndarray] = {}
    for key, score in scored.items():
        behaviour = logprobs(tokens[key])
        pays = -beta * (behaviour - references[key]) if beta else np.zeros(len(behaviour))
        pays[-1] += score
        summed, after = np.zeros(len(pays)), 0.0
        for at in reversed(range(len(pays))):
            after = float(pays[at]) + gamma * after
            summed[at] = after
        sums[key] = summed
    return Expected(whitened(sums, normalise, scored), {}, rows=rows)


def whitened(
    sums: Mapping[Key, np.ndarray],
    normalise: Mapping[str, Any],
    scores: Mapping[Key, float] | None = None,
) -> dict[Key, np.ndarray]:
    """Per-token advantages over their scope; where its `scores` are equal they are centred and not scaled."""
    if normalise["type"] == "none":
        return dict(sums)
    scopes: dict[str, list[Key]] = {}
    for key in sums:
        scopes.setdefault(key.role if normalise["scope"] == "role" else "", []).append(key)
    result = {}
    for keys in scopes.values():
        values = [float(value) for key in keys for value in sums[key]]
        each = {key: 1.0 if normalise["per"] == "token" else 1.0 / len(sums[key]) for key in keys}
        counts = [each[key] for key in keys for _ in sums[key]]
        mean = math.fsum(c * v for c, v in zip(counts, values, strict=True)) / math.fsum(counts)
        scale = divisor(deviation(values, counts, normalise["ddof"]), normalise)
        if scores is not None and equal([scores[key] for key in keys]):
            scale = 1.0
        for key in keys:
            result[key] = (sums[key] - mean) / scale
    return result


def _gae(
    algorithm: Mapping[str, Any],
    every: Sequence[PlayedJoint],
    book: Book,
    tokens: Mapping[Key, Any],
    values: Mapping[Key, np.ndarray],
) -> Expected:
    """A role's tokens on a path are one trajectory; pay until its next action falls on an action's end."""
    gamma, lam = algorithm.get("gamma", 1.0), algorithm.get("lam", 0.95)
    advantages: dict[Key, np.ndarray] = {}
    targets: dict[Key, np.ndarray] = {}
    for leaf in (one for one in every if not one.after):
        for role in {role: 0 for one in leaf.path for role in one.branches}:
            acts = [at for at, one in enumerate(leaf.path) if role in one.branches]
            keys = [leaf.path[at].key(role) for at in acts]
            pays = [book.pay(one, role) for one in leaf.path]
            if None in pays[acts[0] :] or not trained(leaf.path[acts[0]], role):
                continue
            rewards, states = [], []
            for key, start, stop in zip(keys, acts, [*acts[1:], len(pays)], strict=True):
                rewards += [0.0] * (len(values[key]) - 1)
                rewards.append(math.fsum(pay for pay in pays[start:stop] if pay is not None))
                states += [float(value) for value in values[key]]
            summed, advantage = [0.0] * len(rewards), 0.0
            for at in reversed(range(len(rewards))):
                following = states[at + 1] if at + 1 < len(states) else 0.0
                advantage = rewards[at] + gamma * following - states[at] + gamma * lam * advantage
                summed[at] = advantage
            begin = 0
            for key in keys:
                end = begin + len(values[key])
                advantages[key] = np.array(summed[begin:end])
                targets[key] = advantages[key] + np.array(states[begin:end])
                begin = end
    normalise = {**NORMALISER, "type": "whiten", "scope": "global", "per": "token", "eps": 1e-8}
    normalise |= algorithm.get("normalise", {})
    return Expected(whitened(advantages, normalise), {}, targets=targets)
