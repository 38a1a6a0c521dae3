"""The share of missing scores: by reward source, over what it was really asked; and of lost joint actions."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator, Sequence

from coterie.core.errors import PluginError, TooManyMissing
from coterie.core.plugins.origin import origin_of
from coterie.core.protocols import NamedRewardSource, Team
from coterie.core.rollout.actions import UNREADABLE
from coterie.core.types import Action, Key, Scores, Tree, committed

log = logging.getLogger("coterie")

PROGRAMMING = ("NameError", "UnboundLocalError", "TypeError", "ImportError", "ModuleNotFoundError")
"""Exceptions of a parser that doesn't work, whatever the text is."""


def check_missing(
    trees: Sequence[Tree],
    scores: Scores,
    sources: Sequence[NamedRewardSource],
    bound: float,
    where: str = "this step",
) -> None:
    """Stop a run whose reward sources, or whose engine, fail too often.

    Each call of a source counts once, by the share of its scores that are missing (`_missing_shares`). A
    source whose components all have weight 0 is left out.

    Args:
        where: the step or the evaluation, for the message.
        bound: the largest share for a source without `max_missing`, and for joint actions that a system fault
            kept from being played.

    Raises:
        TooManyMissing: the share of a source, or of lost joint actions, is above its bound.
    """
    joints = [joint for tree in trees for node in tree.nodes() for joint in node.joints]
    lost = Counter(joint.fault.reason for joint in joints if joint.fault is not None and joint.lost)
    what, setting = f"joint actions were lost in {where}", "schedule.max_missing"
    _check(what, lost, lost.total(), len(joints), setting, bound)
    if lost:
        log.warning("%d of %d %s: %s", lost.total(), len(joints), what, min(lost))
    reasons = {source.name: Counter[str]() for source in sources if any(source.weights.values())}
    for _, _, _, score in scores:
        if score.value is None and score.source in reasons:
            reasons[score.source][score.reason] += 1
    failed = [source for source in sources if reasons.get(source.name)]
    unread = set(_unread(trees)) if failed else set()
    for source in failed:
        what = f"scores of the reward '{source.name}' ({origin_of(source.plugin)}) are missing in {where}"
        shares = _missing_shares(scores, source.name, unread)
        path, most = f"rewards.{source.name}.max_missing", source.max_missing
        if most is None:
            path, most = setting, bound
        _check(what, reasons[source.name], sum(shares), len(shares), path, most)


def _missing_shares(scores: Scores, source: str, unread: set[Key]) -> list[float]:
    """By call of a source, the share of its scores that are missing.

    Floors don't count: the output caused them. Where no action could be read, a source may answer without a
    call of its judge. So these answers don't count, unless the source misses scores there too: a judge that
    is down must not hide behind them.

    Args:
        unread: keys of what no parser could read.
    """
    calls: dict[Key, list[bool]] = {}
    for key, _, _, score in scores:
        if score.source == source and not score.floor:
            calls.setdefault(key, []).append(score.value is None)
    if not any(any(calls[key]) for key in unread & calls.keys()):
        calls = {key: missing for key, missing in calls.items() if key not in unread}
    return [sum(missing) / len(missing) for missing in calls.values()]


def check_parsers(trees: Sequence[Tree], team: Team) -> None:
    """Raise a PluginError where a role's parser broke on each of a step's actions, as no text makes it."""
    for role, member in team.members.items():
        made = (node.decisions.get(role) for tree in trees for node in tree.nodes())
        actions = [act for step in made if step for act in step.branches if act.calls and act.trainable]
        texts = [act.fault.reason if act.fault else "" for act in actions]
        origin = origin_of(member.role)
        broken = tuple(f"{origin}: parse raised {error}:" for error in PROGRAMMING)
        if texts and all(text.startswith(broken) for text in texts):
            raise PluginError(texts[0], path=origin.path, why="no output could be read", fix=UNREADABLE)


def _check(what: str, reasons: Counter[str], missing: float, count: int, path: str, bound: float) -> None:
    if missing > bound * count:
        most = "".join(f"\n  {number} x {reason}" for reason, number in reasons.most_common(3))
        fix = f"repair the cause and resume the run, or set {path} higher (a resumed run may)"
        raise TooManyMissing(f"{missing:.3g} of {count} {what}: above {path}={bound}{most}\n  fix: {fix}")


def _unread(trees: Sequence[Tree]) -> Iterator[Key]:
    """Keys of the branches that the role's parser couldn't read, and of joint actions without another."""

    def unread(action: Action) -> bool:
        return action.fault is not None and action.fault.kind == "policy"

    for tree in trees:
        yield from (key for key, _, action in tree.actions() if unread(action))
        for node in tree.nodes():
            for index, joint in enumerate(node.joints):
                if all(map(unread, committed(node.decisions, joint.branches).values())):
                    yield node.key.of_joint(index)
