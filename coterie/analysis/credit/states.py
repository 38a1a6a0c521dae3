"""Which recorded states are checked: drawn by key, so that the same call checks the same ones."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from coterie.analysis.credit.playouts import RecordedState
from coterie.api.episodes import RecordedEpisode, RecordedTree, is_lost, mean_advantage
from coterie.core.training.run import Run
from coterie.core.types import Task
from coterie.core.types.seeding import seed64


@dataclass(frozen=True, slots=True)
class ChosenAction:
    """A recorded action to be checked."""

    state: RecordedState
    branch: int
    drawn: bool
    """Whether it was drawn among all of its prompt; else it was added for its advantage, of the other sign
    than the drawn one's, and counts in the comparison with advantages alone."""

    @property
    def advantage(self) -> float | None:
        return mean_advantage(self.state.node.decisions[self.state.role].branches[self.branch])


def choices(
    run: Run, trees: Mapping[int, Sequence[RecordedTree]], tasks: int, roles: Collection[str] = ()
) -> list[ChosenAction]:
    """The actions that are checked.

    Of each task that is drawn, one recorded episode is walked; at each of its states every role's action is
    drawn among those of its prompt that were played, with the others of its joint action. An action of the
    same role and turn with an advantage of the other sign joins it where there is one: a sibling of its
    prompt, else of another chain of the task.

    Args:
        trees: by step.
        tasks: most tasks.
        roles: only these; empty: all.
    """
    by_task: dict[str, list[RecordedTree]] = {}
    for of_step in trees.values():
        for tree in of_step:
            by_task.setdefault(tree.task_id, []).append(tree)
    seed = run.config.seed
    names = sorted(by_task, key=lambda name: seed64(seed, name, "credit check task"))[:tasks]
    known: dict[int, dict[tuple[str, int], tuple[Task, int | None]]] = {}
    result: list[ChosenAction] = []
    for name in names:
        ordered = sorted(by_task[name], key=lambda tree: seed64(seed, _name(tree), "credit check tree"))
        drawn = ordered[0]
        if drawn.step not in known:
            known[drawn.step] = tasks_of(run, drawn.step, trees[drawn.step])
        place = known[drawn.step].get((drawn.task_id, drawn.epoch))
        if place is None:
            continue
        first = [*_of_tree(drawn, *place, seed, roles)]
        result += first
        others = [tree for tree in ordered[1:] if (tree.step, tree.epoch) == (drawn.step, drawn.epoch)]
        result += _counterparts(first, others, *place, seed)
    return result


def _name(tree: RecordedTree) -> str:
    return f"{tree.step} {tree.root.key}"


def _of_tree(
    tree: RecordedTree, task: Task, level: int | None, seed: int, roles: Collection[str]
) -> Iterator[ChosenAction]:
    """The drawn actions on one episode of a tree, and their siblings of the other sign."""
    for state, key in _states(tree, task, level, seed):
        if roles and state.role not in roles:
            continue
        branch = state.node.joints[state.joint]["branches"][state.role]
        choice = ChosenAction(state, branch, drawn=True)
        yield choice
        siblings = state.node.decisions[state.role].branches
        others = [
            index
            for index, row in enumerate(siblings)
            if _opposite(choice.advantage, mean_advantage(row)) and not is_lost(row)
        ]
        if others:
            yield ChosenAction(
                state, others[seed64(seed, key, "credit check sibling") % len(others)], drawn=False
            )


def _states(
    tree: RecordedTree, task: Task, level: int | None, seed: int
) -> Iterator[tuple[RecordedState, str]]:
    """The states of an episode of a tree with a drawn joint action each, once a role that acts there."""
    episode = _drawn_episode(tree, seed)
    path: list[tuple[object, int]] = []
    for node, taken in episode.path:
        played = [
            index
            for index, joint in enumerate(node.joints)
            if joint["branches"] and not joint["recombined"] and not is_lost(joint)
        ]
        if played and node.decisions:
            joint = played[seed64(seed, f"{tree.step} {node.key}", "credit check joint") % len(played)]
            for role in node.decisions:
                yield RecordedState(tree, tuple(path), node, joint, role, task, level), f"{node.key} {role}"  # type: ignore[arg-type]
        if taken is None:
            return
        path.append((node, taken))


def _drawn_episode(tree: RecordedTree, seed: int) -> RecordedEpisode:
    """One path of a tree, with the probability that it has in a walk from the root."""
    share = seed64(seed, _name(tree), "credit check episode") / 2**64
    episodes = list(tree.episodes())
    for episode in episodes:
        share -= episode.share
        if share < 0:
            return episode
    return episodes[-1]


def _counterparts(
    choices: Sequence[ChosenAction], others: Sequence[RecordedTree], task: Task, level: int | None, seed: int
) -> Iterator[ChosenAction]:
    """For drawn actions without such a sibling: one of another chain."""
    paired = {id(choice.state) for choice in choices if not choice.drawn}
    for choice in choices:
        if not choice.advantage or id(choice.state) in paired:
            continue
        counterparts = (
            ChosenAction(state, state.node.joints[state.joint]["branches"][state.role], drawn=False)
            for tree in others
            for state, _ in _states(tree, task, level, seed)
            if (state.role, state.node.turn, state.node.stage)
            == (choice.state.role, choice.state.node.turn, choice.state.node.stage)
        )
        yield from [other for other in counterparts if _opposite(choice.advantage, other.advantage)][:1]


def _opposite(a: float | None, b: float | None) -> bool:
    return a is not None and b is not None and a * b < 0


def tasks_of(
    run: Run, step: int, trees: Sequence[RecordedTree]
) -> dict[tuple[str, int], tuple[Task, int | None]]:
    """(id, epoch) -> the task and the curriculum's level of a recorded step's trees, where there is one.

    Looked for among the tasks that the step plays, then among all of each level.
    """
    wanted = {(tree.task_id, tree.epoch) for tree in trees}
    result: dict[tuple[str, int], tuple[Task, int | None]] = {}
    for index, order in enumerate(run.orders):
        level = None if run.curriculum is None else index
        for task, epoch in order.step(step - 1, run.config.schedule.tasks_per_step):
            if (task.id, epoch) in wanted:
                result.setdefault((task.id, epoch), (task, level))
    missing = wanted - result.keys()
    if missing:  # tasks_per_step was another
        for index, order in enumerate(run.orders):
            level = None if run.curriculum is None else index
            for task, _ in order.step(0, len(order)):
                for name, of in [pair for pair in missing if pair[0] == task.id]:
                    result.setdefault((name, of), (task, level))
    return result
