"""The share of missing scores: by reward source, over what it was really asked; and of lost joint actions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from coterie.core.errors import TooManyMissing
from coterie.core.protocols import NamedRewardSource
from coterie.core.types import Action, Key, Scores, Tree, committed


def check_missing(
    trees: Sequence[Tree], scores: Scores, sources: Sequence[NamedRewardSource], bound: float
) -> None:
    """Stop a run whose reward sources, or whose engine, fail too often.

    The share of a source is over the scores that it was asked for. Floors don't count as asked: the output
    caused them. Nor do answers where no action could be read, since a source may answer these without a call
    of its judge. A judge that is down must not hide behind them.

    Args:
        bound: the largest share for a source without `max_missing`, and for joint actions that a system fault
            kept from being played.

    Raises:
        TooManyMissing: the share of a source, or of lost joint actions, is above its bound.
    """
    joints = [joint for tree in trees for node in tree.nodes() for joint in node.joints]
    lost = Counter(joint.fault.reason for joint in joints if joint.fault is not None and joint.lost)
    _check("joint actions were lost in this step", lost, len(joints), "schedule.max_missing", bound)
    missing: dict[str, Counter[str]] = {}
    for _, _, _, score in scores:
        if score.value is None and score.source:
            missing.setdefault(score.source, Counter())[score.reason] += 1
    if not missing:
        return
    unread = set(_unread(trees))
    answered = Counter(
        score.source
        for key, _, _, score in scores
        if score.value is not None and not score.floor and key not in unread
    )
    for source in sources:
        reasons = missing.get(source.name, Counter())
        _check(
            f"scores of the reward '{source.name}' are missing in this step",
            reasons,
            answered[source.name] + reasons.total(),
            "schedule.max_missing" if source.max_missing is None else f"rewards.{source.name}.max_missing",
            bound if source.max_missing is None else source.max_missing,
        )


def _check(what: str, reasons: Counter[str], count: int, path: str, bound: float) -> None:
    missing = reasons.total()
    if missing and missing > bound * count:
        most = "".join(f"\n  {number} x {reason}" for reason, number in reasons.most_common(3))
        raise TooManyMissing(f"{missing} of {count} {what}: above {path}={bound}{most}")


def _unread(trees: Sequence[Tree]) -> Iterator[Key]:
    """Keys of the branches that the role's parser couldn't read, and of joint actions without another."""

    def unread(action: Action) -> bool:
        return action.fault is not None and action.fault.kind == "policy"

    for tree in trees:
        for node in tree.nodes():
            for role, decision in node.decisions.items():
                for branch, action in enumerate(decision.branches):
                    if unread(action):
                        yield node.key.of_branch(role, branch)
            for index, joint in enumerate(node.joints):
                if all(map(unread, committed(node.decisions, joint.branches).values())):
                    yield node.key.of_joint(index)
