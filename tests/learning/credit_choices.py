"""The oracle's fourth part: which joint actions a sampler must go on from, by the same rewards as credit.

`best` goes on from the joint action with the largest sum of the acting roles' rewards. `per_role` goes on
from the combination of each role's best branch, by the mean over the joint actions that contain it; a role
of which none is known may take any. Joint actions with a system fault are never gone on from; where no sum is
known, any other may be.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tests.learning.credit_oracle import Book, PlayedJoint, total
from tests.learning.credit_rows import immediate_values

CLOSE = 1e-9


def wrong_choices(every: Sequence[PlayedJoint], book: Book, sampler: Mapping[str, Any]) -> list[str]:
    """What is wrong with the expanded joint actions of these trees, in words."""
    nodes: dict[int, list[PlayedJoint]] = {}
    for one in every:
        nodes.setdefault(id(one.node), []).append(one)
    return [text for joints in nodes.values() if (text := _wrong(joints, book, sampler))]


def _wrong(joints: Sequence[PlayedJoint], book: Book, sampler: Mapping[str, Any]) -> str:
    node = joints[0].node
    chosen = [one for one in joints if one.index in node.expanded]
    sound = [one for one in joints if one.counts and not one.faulty]
    place = f"{node.key.text()} ({node.rule})"
    if any(one.faulty for one in chosen):
        return f"{place}: went on from a joint action with a fault"
    if not sound:
        return f"{place}: went on though all is lost" if chosen else ""
    if sampler.get("expand") == "all" or sampler["branches"] == 1:
        return "" if chosen == sound else f"{place}: not all were gone on from"
    if len(chosen) != 1:
        return f"{place}: {len(chosen)} were gone on from"
    if sampler.get("expand") == "sampled":
        return ""
    sums = {one.index: total(book.reward(one, role) for role in one.branches) for one in sound}
    known = [value for value in sums.values() if value is not None]
    rewards = [book.reward(one, role) for one in sound for role in one.branches]
    together = sampler.get("commit") == "per_role" and len(node.decisions) > 1
    if together and any(reward is not None for reward in rewards):
        return _wrong_combination(joints, chosen[0], book, place)
    if not known:
        return "" if node.rule.startswith("uniform") else f"{place}: no sum of rewards is known"
    value = sums.get(chosen[0].index)
    if value is None or value < max(known) - CLOSE:
        return f"{place}: went on from a joint action of {value}, and the best is {max(known)}"
    return ""


def _wrong_combination(joints: Sequence[PlayedJoint], chosen: PlayedJoint, book: Book, place: str) -> str:
    for role in chosen.branches:
        values = immediate_values(joints, role, book)
        known = [value for value in values if value is not None]
        value = values[chosen.branches[role]]
        if known and (value is None or value < max(known) - CLOSE):
            return f"{place}: took branch {chosen.branches[role]} of {role}, whose branches have {values}"
    return ""
