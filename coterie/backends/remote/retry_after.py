"""The pause that a server asks for."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from email.utils import parsedate_to_datetime


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
