"""Failures of calls of a remote model, and the decision whether, when and how often one is sent again.

`of_status` says what an HTTP status stands for, `retry_after` how long a server asks to wait, `attempts` how
often a call is sent and how long it waits. The numbers are settings (`RemoteSettings`). A provider's module
(`openai_wire`, `chat_models/gemini_wire`) raises `Again` for lost connections too.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from email.utils import parsedate_to_datetime

from tenacity import (
    AsyncRetrying,
    RetryCallState,
    retry_if_exception_type,
    stop_after_attempt,
    wait_random_exponential,
)

from coterie.backends.remote.secrets import redacted
from coterie.backends.remote.settings import RemoteSettings
from coterie.core.errors import ConfigError, UserError

LONGEST = 300
"""Most characters of a server's answer in an error."""
AGAIN = frozenset((408, 429))
"""Status codes below 500 that are worth another attempt."""
SPENT = ("insufficient_quota", "billing_hard_limit_reached")
"""Codes of a 429 that waiting does not repair."""


class Failed(Exception):
    """A call that gave no answer.

    Args:
        charged: whether the provider may have charged for it; a budget counts it then, with its estimate.
    """

    def __init__(self, reason: str, *, charged: bool = False) -> None:
        super().__init__(redacted(reason))
        self.charged = charged


class Again(Failed):
    """A failure that is worth another attempt.

    Args:
        wait: seconds that the server asks to wait for.
        busy: whether the server works and asks for fewer calls.
    """

    def __init__(
        self, reason: str, *, charged: bool = False, wait: float | None = None, busy: bool = False
    ) -> None:
        super().__init__(reason, charged=charged)
        self.wait, self.busy = wait, busy


class Refused(Failed):
    """A failure of this call that another attempt would repeat: its result is missing.

    Args:
        status: the HTTP status, where it was one.
    """

    def __init__(self, reason: str, *, charged: bool = False, status: int = 0) -> None:
        super().__init__(reason, charged=charged)
        self.status = status


def shown(text: str) -> str:
    """The beginning of a server's answer on one line, without keys."""
    line = " ".join(redacted(text).split())
    return line if len(line) <= LONGEST else f"{line[:LONGEST]}..."


def of_status(
    status: int, body: str, headers: Mapping[str, str], *, url: str, model: str, path: str, model_path: str
) -> Failed | UserError:
    """The failure that an HTTP status stands for.

    Args:
        path: dotted path of the settings of the endpoint, for errors.
        model_path: dotted path of the model's name.

    Returns:
        `Again` for 408, 429 and 5xx; a ConfigError for 401, 403 and 404, which no call would pass; a
        UserError for a spent quota; else `Refused`.
    """
    answer = f"{url} answered {status}: {shown(body) or 'nothing'}"
    if status in (401, 403):
        what = "the endpoint refuses the key" if status == 401 else "the endpoint denies this key access"
        fix = f"check the environment variable that {path}.api_key names, and what its key may use"
        return ConfigError(what, path=f"{path}.api_key", why=answer, fix=fix)
    if status == 404:
        fix = f"check the model's name, and that {path}.base_url ends as the provider says (often /v1)"
        what = f"the endpoint does not have the model '{model}', or is not at this address"
        return ConfigError(what, path=model_path, why=answer, fix=fix)
    if status == 429 and any(code in body for code in SPENT):
        fix = "raise the provider's limit, then resume the run: cached answers are not paid again"
        return UserError("the provider's quota is spent", path=path, why=answer, fix=fix)
    if status in AGAIN or status >= 500:
        return Again(answer, wait=retry_after(headers), busy=status == 429)
    return Refused(answer, status=status)


def retry_after(headers: Mapping[str, str], now: float | None = None) -> float | None:
    """Seconds of `retry-after-ms` or `Retry-After` (RFC 9110: seconds, or an HTTP date); None: none is named.

    Args:
        headers: with lower-case names, or of a mapping that ignores case.
        now: seconds since the epoch.
    """
    milliseconds = _number(headers.get("retry-after-ms", ""))
    if milliseconds is not None:
        return milliseconds / 1000
    text = headers.get("retry-after", "").strip()
    seconds = _number(text)
    if seconds is not None or not text:
        return seconds
    try:
        until = parsedate_to_datetime(text).timestamp()
    except ValueError:
        return None
    return max(0.0, until - (time.time() if now is None else now))


def _number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return max(0.0, value) if math.isfinite(value) else None


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
