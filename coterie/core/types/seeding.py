"""Keyed randomness: every draw derives from (run seed, place, purpose), never from the order of draws."""

from __future__ import annotations

import hashlib

import numpy as np

from coterie.core.types.keys import Key


def seed64(seed: int, key: Key | str, purpose: str) -> int:
    """64 bits for one purpose at one place.

    They hash the place's text, so they are the same in every process and version.
    """
    place = key if isinstance(key, str) else repr(tuple(key))
    digest = hashlib.blake2b(f"{seed}|{purpose}|{place}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little")


def generator(seed: int, key: Key | str, purpose: str) -> np.random.Generator:
    """A numpy generator for one purpose at one place."""
    return np.random.Generator(np.random.PCG64(seed64(seed, key, purpose)))
