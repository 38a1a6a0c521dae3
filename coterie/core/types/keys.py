"""Keys: names of the places in a rollout."""

from __future__ import annotations

from typing import Any, NamedTuple

from coterie.core.types.digest import digest

TEAM = "team"
"""The role name of scores that all roles share."""

LONG = 500
"""Stages from which on a path is a `_LongPath`."""


class _LongPath(tuple[int, ...]):
    """A path of many stages, with its hash and `repr`: making each takes time in proportion to its length."""

    written: str
    hashed: int

    def __repr__(self) -> str:
        return self.written

    def __hash__(self) -> int:
        return self.hashed

    def __reduce__(self) -> tuple[Any, ...]:
        return tuple, (list(self),)


class Key(NamedTuple):
    """The name of a place in a step's rollouts. Ids, records and random draws derive from it.

    The fields narrow the place from left to right. A node sets the fields up to `path`; a decision adds
    `role`, a branch adds `branch`, a call adds `call`. A joint action is its node's key with `joint` set.
    """

    task: str
    """Id of the task."""
    epoch: int = 0
    """Number of earlier visits to the task."""
    chain: int = 0
    """Index of the tree among the task's `sampler.chains` trees."""
    path: tuple[int, ...] = ()
    """Index of the joint action taken at each stage, from the root on."""
    role: str = ""
    branch: int = -1
    """Index of the sampled action; -1 in the keys of nodes, decisions and joint actions."""
    joint: int = -1
    """Index of the joint action at the node; -1 in all other keys."""
    call: int = -1
    """Index of the model call within the action; -1 in all other keys."""

    @property
    def node(self) -> Key:
        """Key of the node that contains this place."""
        return Key(self.task, self.epoch, self.chain, self.path)

    @property
    def decision(self) -> Key:
        """Key of the decision (one role's prompt) that contains this branch or call."""
        return Key(self.task, self.epoch, self.chain, self.path, self.role)

    def of_role(self, role: str) -> Key:
        return Key(self.task, self.epoch, self.chain, self.path, role)

    def of_branch(self, role: str, branch: int) -> Key:
        return Key(self.task, self.epoch, self.chain, self.path, role, branch)

    def of_joint(self, joint: int) -> Key:
        return Key(self.task, self.epoch, self.chain, self.path, "", -1, joint)

    def of_call(self, call: int) -> Key:
        return self._replace(call=call)

    def child(self, joint: int) -> Key:
        path: tuple[int, ...] = (*self.path, joint)
        if len(path) >= LONG:
            path = _LongPath(path)
            path.written, path.hashed = f"{repr(self.path)[:-1]}, {joint})", tuple.__hash__(path)
        return Key(self.task, self.epoch, self.chain, path)

    def text(self) -> str:
        """A stable, readable id, e.g. `train-7/e0/c1/n0.3/planner/b2`.

        A long path is written as its length and a digest: rollout files would grow with its square.
        """
        size = len(self.path)
        path = ".".join(map(str, self.path)) if size < LONG else f"{size}:{digest(repr(self.path))}"
        parts = [self.task, f"e{self.epoch}", f"c{self.chain}", f"n{path}"]
        if self.role:
            parts.append(self.role)
        indices = (("b", self.branch), ("j", self.joint), ("k", self.call))
        return "/".join([*parts, *(f"{letter}{index}" for letter, index in indices if index >= 0)])
