"""The names of places: every id, record and random draw derives from a `Key`."""

from __future__ import annotations

from typing import NamedTuple

TEAM = "team"
"""The role under which a score that belongs to everybody is kept."""


class Key(NamedTuple):
    """Names a place in a step's rollouts; every id, record and random draw derives from it.

    The fields narrow from left to right: a node has `path`; a decision adds `role`, a branch
    `branch`, a call `call`; a joint action adds `joint` to its node.
    """

    task: str
    """Id of the task."""
    epoch: int = 0
    """How often the task was visited before."""
    chain: int = 0
    """Which of the task's `sampler.chains` trees."""
    path: tuple[int, ...] = ()
    """Joints taken from the root; its length is the number of stages played before this place."""
    role: str = ""
    branch: int = -1
    joint: int = -1
    call: int = -1

    @property
    def node(self) -> Key:
        """The node this place lies in."""
        return Key(self.task, self.epoch, self.chain, self.path)

    @property
    def decision(self) -> Key:
        """The decision (one role's prompt) this branch or call lies in."""
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
        return Key(self.task, self.epoch, self.chain, (*self.path, joint))

    def text(self) -> str:
        """A stable, readable id, e.g. `train-7/e0/c1/n0.3/planner/b2`."""
        parts = [self.task, f"e{self.epoch}", f"c{self.chain}", "n" + ".".join(map(str, self.path))]
        if self.role:
            parts.append(self.role)
        parts += [
            f"{mark}{number}"
            for mark, number in (("b", self.branch), ("j", self.joint), ("k", self.call))
            if number >= 0
        ]
        return "/".join(parts)
