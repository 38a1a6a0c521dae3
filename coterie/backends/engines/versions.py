"""The versions of weights that an engine holds: the newest of each policy, and older ones that are leased."""

from __future__ import annotations

from collections import Counter
from typing import Generic, TypeVar

from coterie.core.errors import SystemFault

T = TypeVar("T")


class Versions(Generic[T]):
    """What an engine holds of each version, such as a decoder or a table.

    Args:
        reuse: keep what nobody uses any more, for `unused` to hand out, so that it is written over: an engine
            then holds at most one more than the versions that are leased at once.
    """

    def __init__(self, *, reuse: bool = False) -> None:
        self._reuse = reuse
        self._held: dict[tuple[str, int], T] = {}
        self._newest: dict[str, int] = {}
        self._leases: Counter[tuple[str, int]] = Counter()
        self._unused: dict[str, list[T]] = {}

    def __contains__(self, policy: str) -> bool:
        return policy in self._newest

    def values(self) -> list[T]:
        """All that is held."""
        return [*self._held.values(), *(held for unused in self._unused.values() for held in unused)]

    def newest(self, policy: str) -> T | None:
        """What is held of the policy's newest version; None: it has none."""
        return self._held[policy, self._newest[policy]] if policy in self._newest else None

    def at(self, policy: str, version: int | None = None) -> T:
        """What is held of a version; None: of the newest.

        Raises:
            SystemFault: the policy has no weights, or the version is gone.
        """
        if policy not in self._newest:
            raise SystemFault(f"the policy '{policy}' has no weights in the engine yet")
        wanted = self._newest[policy] if version is None else version
        if (policy, wanted) not in self._held:
            raise SystemFault(f"the engine has no version {wanted} of '{policy}', and no lease kept it")
        return self._held[policy, wanted]

    def unused(self, policy: str) -> T | None:
        """What may be written over by a new version: the newest without a lease, or what was released."""
        newest = self._newest.get(policy)
        if newest is not None and not self._leases[policy, newest]:
            return self._held[policy, newest]
        return self._unused[policy].pop() if self._unused.get(policy) else None

    def put(self, policy: str, version: int, held: T) -> None:
        """Hold a policy's new version; the one before it goes, unless it is leased."""
        newest = self._newest.get(policy)
        if newest is not None and (newest == version or not self._leases[policy, newest]):
            del self._held[policy, newest]
        self._held[policy, version], self._newest[policy] = held, version

    def lease(self, policy: str, version: int) -> None:
        """Keep a version until `release`.

        Raises:
            SystemFault: it is not held.
        """
        self.at(policy, version)
        self._leases[policy, version] += 1

    def release(self, policy: str, version: int) -> None:
        """End a lease; a version without one is unused, unless it is the newest."""
        self._leases[policy, version] -= 1
        if self._leases[policy, version] <= 0:
            del self._leases[policy, version]
            if version != self._newest.get(policy) and (policy, version) in self._held:
                released = self._held.pop((policy, version))
                if self._reuse:
                    self._unused.setdefault(policy, []).append(released)

    def clear(self) -> None:
        """Hold nothing."""
        for held in (self._held, self._newest, self._leases, self._unused):
            held.clear()
