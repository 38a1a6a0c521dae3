"""Environment variables of all tests, the profile of Hypothesis, and what the garbage collector leaves alone.

One thread a process, set before any import of torch: idle OpenMP threads make two test processes on two cores
ten times slower.
"""

import gc
import os
from collections.abc import Generator

for _name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_name, "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
# No test cuts the power, and a small run waits for the disk for half of its time; tests of fsync patch it.
os.fsync = lambda file: None

import pytest  # noqa: E402
from hypothesis import HealthCheck, settings  # noqa: E402

# A busy machine makes no property false. Half of Hypothesis' own number of examples, for its time.
settings.register_profile(
    "coterie", max_examples=50, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("coterie")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Look for no garbage while tests are read: there is none, and looking takes a tenth of the time."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


_ended = 0


def pytest_runtest_logfinish() -> None:
    """Keep what tests imported out of later collections, each of which takes a second with torch."""
    global _ended
    _ended += 1
    if _ended % 500 == 0:
        gc.collect()
        gc.freeze()


def pytest_collection_finish() -> None:
    """Keep the modules and the tests, which live until the end, out of every collection of garbage.

    Code that runs out of memory collects all garbage first: a second, where there are millions of objects.
    """
    gc.collect()
    gc.freeze()
