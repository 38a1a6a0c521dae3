"""What each role did in a step, over all actions that were sampled for it: where a role fails, and how."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from coterie.api.coach_statistics import rank_correlation
from coterie.api.episodes import (
    RecordedNode,
    RecordedTree,
    Row,
    answer_text,
    is_lost,
    mean_advantage,
    tokens_of,
)

FAULT = 200
"""Most characters of a reason that a table has."""
LEAST = 8
"""Fewest actions for which a correlation is shown."""


@dataclass(frozen=True, slots=True)
class RoleInStep:
    """One role in one step. Shares are of its actions; None where there is nothing to say."""

    step: int
    role: str
    actions: int
    """Actions that were sampled, those that the system lost left out."""
    success: float | None
    """Mean success of the step's episodes, each with its share of its tree; None: none has an outcome."""
    reward: float | None
    """Mean of those that have one."""
    advantage: float | None
    """Mean absolute advantage of the trained ones."""
    tokens: float | None
    """Mean length."""
    missing: float
    """Share without a reward, since a score is missing."""
    unparsed: float
    """Share that its parser could not read."""
    empty: float
    finish_length: float
    """Share that `max_new_tokens` cut off."""
    repeats: float | None
    """Share that repeats the last action of another role before it, which wrote the text first; of the
    actions with one before them."""
    repeats_pay: float | None
    """Mean reward of those that repeat, less that of the others, in standard deviations of the role's
    rewards; None: there are only one or the other, or all rewards are equal."""
    distinct: float | None
    """Different texts among the siblings of a prompt, as a share of them; mean over prompts with several."""
    length_reward: float | None
    """Rank correlation of length and reward, from -1 to 1; None: fewer than 8 actions, or all equal."""
    lost: int
    """Actions that the system lost."""
    fault: str
    """Reason of the first action that could not be parsed, at most 200 characters; empty: none."""


def roles_in_step(trees: Sequence[RecordedTree]) -> list[RoleInStep]:
    """One entry a role, in the order in which they first acted. The trees are those of one step."""
    groups: dict[str, list[list[Row]]] = {}
    repeats: dict[str, dict[int, bool]] = {}
    outcomes: list[tuple[float, float]] = []
    """(share, success) of the episodes that have one."""
    for tree in trees:
        for node, before in _with_texts_before(tree):
            for role, decision in node.decisions.items():
                groups.setdefault(role, []).append(decision.branches)
                others = [text for other, text in before if other != role]
                writer = {text: other for other, text in reversed(before)}  # the first one of each text
                if others:
                    texts = {id(row): answer_text(row) for row in decision.branches}
                    same = {
                        row: bool(text) and text == others[-1] and writer[text] != role
                        for row, text in texts.items()
                    }
                    repeats.setdefault(role, {}).update(same)
        outcomes += [(e.share, float(e.success)) for e in tree.episodes() if e.success is not None]
    step, weight = trees[0].step if trees else 0, math.fsum(share for share, _ in outcomes)
    success = math.fsum(share * value for share, value in outcomes) / weight if weight else None
    return [_role(step, success, role, of, repeats.get(role, {})) for role, of in groups.items()]


def _with_texts_before(tree: RecordedTree) -> Iterator[tuple[RecordedNode, tuple[tuple[str, str], ...]]]:
    """Every node, with (role, text) of the committed actions on its path, in the order of play."""
    stack: list[tuple[RecordedNode, tuple[tuple[str, str], ...]]] = [(tree.root, ())]
    while stack:
        node, before = stack.pop()
        yield node, before
        for index, child in reversed(node.children.items()):
            taken = node.joints[index]["branches"].items()
            texts = [(role, answer_text(node.decisions[role].branches[branch])) for role, branch in taken]
            stack.append((child, (*before, *texts)))


def _role(
    step: int, success: float | None, role: str, groups: Sequence[Sequence[Row]], repeats: dict[int, bool]
) -> RoleInStep:
    every = [row for group in groups for row in group]
    rows = [row for row in every if not is_lost(row)]
    faults = [row["fault"]["reason"] for row in rows if row["fault"] is not None]
    fault = faults[0] if faults else ""
    rewarded = [row for row in rows if row["reward"] is not None]
    texts = [[*map(answer_text, group)] for group in groups if len(group) > 1]
    return RoleInStep(
        step=step,
        role=role,
        actions=len(rows),
        success=success,
        reward=_mean(row["reward"] for row in rewarded),
        advantage=_mean(abs(value) for row in rows if (value := mean_advantage(row)) is not None),
        tokens=_mean(map(tokens_of, rows)),
        missing=_share(len(rows) - len(rewarded), rows),
        unparsed=_share(len(faults), rows),
        empty=_share(sum(not answer_text(row) for row in rows), rows),
        finish_length=_share(
            sum(bool(r["calls"]) and r["calls"][-1]["finish"] == "length" for r in rows), rows
        ),
        repeats=_mean(float(repeats[id(row)]) for row in rows if id(row) in repeats),
        repeats_pay=_pay(rewarded, repeats),
        distinct=_mean(len(set(group)) / len(group) for group in texts),
        length_reward=_correlation(
            [float(tokens_of(row)) for row in rewarded], [row["reward"] for row in rewarded]
        ),
        lost=len(every) - len(rows),
        fault=fault if len(fault) <= FAULT else f"{fault[: FAULT - 3]}...",
    )


def _pay(rewarded: Sequence[Row], repeats: dict[int, bool]) -> float | None:
    same = _mean(row["reward"] for row in rewarded if repeats.get(id(row)))
    other = _mean(row["reward"] for row in rewarded if not repeats.get(id(row), True))
    spread = float(np.std([row["reward"] for row in rewarded])) if rewarded else 0.0
    return None if same is None or other is None or spread == 0 else (same - other) / spread


def _correlation(lengths: Sequence[float], rewards: Sequence[float]) -> float | None:
    if len(lengths) < LEAST or len(set(lengths)) < 2 or len(set(rewards)) < 2:
        return None
    return rank_correlation(np.asarray(lengths), np.asarray(rewards))


def _share(count: int, rows: Sequence[Row]) -> float:
    return count / len(rows) if rows else 0.0


def _mean(values: Iterable[float]) -> float | None:
    every = list(values)
    return math.fsum(every) / len(every) if every else None


# ------------------------------------------------------------------------------------ how roles fail

LEAST_ACTIONS = 4
"""Steps in which a role acted less often say nothing."""


@dataclass(frozen=True, slots=True)
class RoleFailure:
    """A way in which a role fails in a step."""

    step: int
    role: str
    kind: str
    """Name of the rule."""
    value: float
    """What the rule compares with its threshold."""
    since: int
    """The first recorded step of the unbroken series of steps, up to this one, in which the rule holds."""
    text: str
    """What fails, in a sentence."""


@dataclass(frozen=True, slots=True)
class RoleRule:
    """When a role fails: `value` reaches `threshold`."""

    kind: str
    threshold: float
    value: Callable[[RoleInStep], float | None]
    text: str
    """With `{share}` in percent, `{value}` and the fields of the role's table."""
    grown: float = 0.0
    """Least factor by which the mean length has grown since the first recorded step; 0: any."""
    unless: Callable[[RoleInStep], bool] = lambda of: False
    """What shows that it is no failure."""


def _succeeds(of: RoleInStep) -> bool:
    return of.success is not None and of.success >= 0.5


RULES = (
    RoleRule("unparsed", 0.5, lambda of: of.unparsed,
             "its parser could not read {share} of its answers (the first: {fault})"),
    RoleRule("empty", 0.3, lambda of: of.empty, "{share} of its answers have no text"),
    RoleRule("finish_length", 0.5, lambda of: of.finish_length,
             "max_new_tokens cut off {share} of its answers",
             unless=_succeeds),
    RoleRule("missing", 0.2, lambda of: of.missing,
             "{share} of its actions have no reward, since a score is missing"),
    RoleRule("repeats", 0.5, lambda of: of.repeats,
             "{share} of its answers repeat the last one of another role, and earn less than the others do",
             unless=lambda of: _succeeds(of) if of.repeats_pay is None else of.repeats_pay > -0.5),
    RoleRule("length", 0.8, lambda of: of.length_reward, "its reward grows with the length of its answers "
             "(rank correlation {value}), and they have grown to {tokens} tokens", grown=1.5),
)  # fmt: skip
"""In the order in which they are shown."""


def role_failures(tables: Sequence[Sequence[RoleInStep]]) -> list[RoleFailure]:
    """What fails in each recorded step, in the order of steps, roles and rules.

    Args:
        tables: of the recorded steps, in order (`roles_in_step`).
    """
    first_tokens: dict[str, float] = {}
    since: dict[tuple[str, str], int] = {}
    result: list[RoleFailure] = []
    for table in tables:
        for role in table:
            if role.actions < LEAST_ACTIONS:
                continue
            if role.tokens is not None:
                first_tokens.setdefault(role.role, role.tokens)
            for rule in RULES:
                place, value = (role.role, rule.kind), rule.value(role)
                grown = (role.tokens or 0.0) >= rule.grown * first_tokens.get(role.role, 0.0)
                if value is None or value < rule.threshold or not grown or rule.unless(role):
                    since.pop(place, None)
                    continue
                begin = since.setdefault(place, role.step)
                text = rule.text.format(
                    share=f"{value:.0%}",
                    value=f"{value:.2f}",
                    tokens=f"{role.tokens or 0:.0f}",
                    fault=role.fault,
                )
                result.append(RoleFailure(role.step, role.role, rule.kind, value, begin, text))
    return result
