"""Versions that an engine holds: a property test against a plain model of leases."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from coterie.backends.models.versions import Versions
from coterie.core.errors import SystemFault


@given(st.lists(st.tuples(st.sampled_from(["load", "lease", "release"]), st.integers(0, 9)), max_size=60))
def test_what_is_leased_stays_and_nothing_that_is_used_is_written_over(actions):
    spare: list[list[int]] = []
    versions: Versions[list[int]] = Versions(
        lambda policy, held: None if held is versions.newest("p") else spare.append(held)
    )
    leases: list[int] = []
    newest, made, most = -1, 0, 0
    for action, choice in actions:
        if action == "load":
            newest += 1
            held = versions.newest("p") if not versions.leased("p") else spare.pop() if spare else None
            if held is None:
                held, made = [], made + 1
            held[:] = [newest]  # written over in place, as decoders are
            versions.put("p", newest, held)
        elif action == "lease" and newest >= 0:
            versions.lease("p", newest)
            leases.append(newest)
        elif action == "release" and leases:
            versions.release("p", leases.pop(choice % len(leases)))
        most = max(most, len({*leases, newest}))
        for version in {*leases, newest} - {-1}:
            assert versions.at("p", version) == [version]
        for version in set(range(newest)) - set(leases):
            with pytest.raises(SystemFault, match=f"no version {version} of 'p'"):
                versions.at("p", version)
    assert made <= most, "copies are used again"
    if newest >= 0:
        assert versions.at("p") == [newest]


def test_what_is_not_used_again_is_not_kept():
    versions: Versions[int] = Versions()
    for version in range(50):
        versions.put("p", version, version)
        versions.lease("p", version)
        if version >= 2:
            versions.release("p", version - 2)
        assert len(versions.values()) <= 3


def test_a_version_that_is_loaded_again_takes_its_own_place():
    """Also where it is leased: whoever leased it plays what was loaded last, and what was there is freed."""
    gone: list[tuple[str, str]] = []
    versions: Versions[str] = Versions(lambda policy, held: gone.append((policy, held)))
    versions.put("p", 3, "first")
    versions.lease("p", 3)
    versions.put("p", 3, "again")
    assert gone == [("p", "first")] and versions.at("p", 3) == "again"
    versions.put("p", 4, "next")
    versions.release("p", 3)
    assert gone == [("p", "first"), ("p", "again")] and versions.values() == ["next"]


def test_nothing_is_leased_of_what_was_cleared():
    versions: Versions[str] = Versions()
    versions.put("p", 3, "first")
    versions.lease("p", 3)
    versions.clear()
    assert versions.values() == [] and "p" not in versions
    versions.put("p", 3, "after")
    assert not versions.leased("p")


def test_a_policy_without_weights():
    versions: Versions[int] = Versions()
    assert "p" not in versions and versions.newest("p") is None and not versions.leased("p")
    with pytest.raises(SystemFault, match="'p' has no weights in the engine yet"):
        versions.at("p")
