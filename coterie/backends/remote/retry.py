"""Further attempts of a call."""

from __future__ import annotations

from collections.abc import Callable

from tenacity import (
    AsyncRetrying,
    RetryCallState,
    retry_if_exception_type,
    stop_after_attempt,
    wait_random_exponential,
)

from coterie.backends.remote.faults import Again
from coterie.backends.remote.settings import RemoteSettings


def attempts(settings: RemoteSettings, hopeless: Callable[[], bool] = lambda: False) -> AsyncRetrying:
    """The attempts of one call: after `Again` only, with exponential jitter, or as long as a server asks.

    Args:
        hopeless: whether no further attempt should begin.
    """
    most = settings.longest_wait
    jitter = wait_random_exponential(multiplier=settings.backoff, max=most)
    enough = stop_after_attempt(settings.retries + 1)

    def wait(state: RetryCallState) -> float:
        fault = state.outcome.exception() if state.outcome is not None else None
        asked = fault.wait if isinstance(fault, Again) else None
        return jitter(state) if asked is None else min(asked, most)

    def stop(state: RetryCallState) -> bool:
        return hopeless() or enough(state)

    return AsyncRetrying(wait=wait, stop=stop, retry=retry_if_exception_type(Again), reraise=True)
