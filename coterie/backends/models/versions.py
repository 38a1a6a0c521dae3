"""The versions of weights that are held: the newest of each policy, and older ones that are leased."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from typing import Generic, TypeVar

from coterie.core.errors import SystemFault

T = TypeVar("T")


class Versions(Generic[T]):
    """What is held of each version: in an engine a decoder, a table or an adapter; elsewhere what makes one.

    Methods may be called from several threads: weights are loaded in the trainer's, and requests name
    versions in the event loop's.

    Args:
        gone: takes (policy, what was held of a version) once it is neither the newest nor leased.
    """

    def __init__(self, gone: Callable[[str, T], None] = lambda policy, held: None) -> None:
        self._gone = gone
        self._held: dict[tuple[str, int], T] = {}
        self._newest: dict[str, int] = {}
        self._leases: Counter[tuple[str, int]] = Counter()
        self._lock = threading.RLock()

    def __contains__(self, policy: str) -> bool:
        return policy in self._newest

    def values(self) -> list[T]:
        """All that is held."""
        with self._lock:
            return [*self._held.values()]

    def items(self) -> list[tuple[str, int, T, int]]:
        """(policy, version, what is held, leases) of each; a policy's older versions come first."""
        with self._lock:
            return [(*key, held, self._leases[key]) for key, held in self._held.items()]

    def newest(self, policy: str) -> T | None:
        """What is held of the policy's newest version; None: it has none."""
        with self._lock:
            return self._held[policy, self._newest[policy]] if policy in self._newest else None

    def version(self, policy: str) -> int:
        """The policy's newest version.

        Raises:
            SystemFault: it has no weights.
        """
        if policy not in self._newest:
            raise SystemFault(f"the policy '{policy}' has no weights in the engine yet")
        return self._newest[policy]

    def at(self, policy: str, version: int | None = None) -> T:
        """What is held of a version; None: of the newest.

        Raises:
            SystemFault: the policy has no weights, or the version is gone.
        """
        with self._lock:
            newest = self.version(policy)
            wanted = newest if version is None else version
            if (policy, wanted) not in self._held:
                raise SystemFault(f"the engine has no version {wanted} of '{policy}', and no lease kept it")
            return self._held[policy, wanted]

    def leased(self, policy: str) -> bool:
        """Whether the newest version is leased, so that nothing may be written over it."""
        with self._lock:
            return policy in self._newest and self._leases[policy, self._newest[policy]] > 0

    def put(self, policy: str, version: int, held: T) -> None:
        """Hold a policy's new version; the one before it goes, unless it is leased."""
        with self._lock:
            newest = self._newest.get(policy)
            leaves = newest is not None and (newest == version or not self._leases[policy, newest])
            old = self._held.pop((policy, newest)) if newest is not None and leaves else None
            self._held[policy, version], self._newest[policy] = held, version
        if old is not None:
            self._gone(policy, old)

    def lease(self, policy: str, version: int) -> None:
        """Keep a version until `release`.

        Raises:
            SystemFault: it is not held.
        """
        with self._lock:
            self.at(policy, version)
            self._leases[policy, version] += 1

    def release(self, policy: str, version: int) -> None:
        """End a lease; a version without one goes, unless it is the newest."""
        with self._lock:
            self._leases[policy, version] -= 1
            if self._leases[policy, version] > 0:
                return
            del self._leases[policy, version]
            if version == self._newest.get(policy):
                return
            old = self._held.pop((policy, version), None)
        if old is not None:
            self._gone(policy, old)

    def clear(self) -> None:
        """Hold nothing."""
        with self._lock:
            for held in (self._held, self._newest, self._leases):
                held.clear()
