"""Access to the Hugging Face Hub: one quick question before a download.

Where nothing answers, `huggingface_hub` tries again and again, for a minute a file. Retries within a download
stay: they help where a server is busy, and the library prints each of them.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from coterie.core.errors import ConfigError

log = logging.getLogger("coterie")
_REMEMBERED = 60.0
"""Seconds for which a failure counts for later files too."""
_BUSY = (429, 503)
"""Answers of a server that works: the library's retries help."""
_failed: dict[str, tuple[float, str]] = {}
"""By endpoint: when it failed, and why."""


@contextmanager
def hub(part: str, source: str) -> Iterator[str]:
    """Download something from the hub, or use the cache alone where the hub can't be reached.

    Args:
        part: what is fetched, for the warning: `model`, `tokenizer`, `dataset`.
        source: its id.

    Yields:
        the reason why the hub can't be reached; empty: it can.
    """
    from huggingface_hub import constants

    if constants.HF_HUB_OFFLINE:
        yield "HF_HUB_OFFLINE is set"
        return
    problem = _problem(constants)
    if not problem:
        yield ""
        return
    log.warning("%s; looking for the %s '%s' in the cache alone", problem, part, source)
    modules: list[Any] = [constants]  # both libraries read the setting at import, and ask their module for it
    if part == "dataset":
        from datasets import config

        modules.append(config)
    before = [module.HF_HUB_OFFLINE for module in modules]
    try:
        for module in modules:
            module.HF_HUB_OFFLINE = True
        yield problem
    finally:
        for module, value in zip(modules, before, strict=True):
            module.HF_HUB_OFFLINE = value


def reason_of(error: Exception) -> str:
    """The class of an exception, and the first line of its text."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__


def unfetched(part: str, source: str, problem: str, path: str, error: Exception) -> ConfigError:
    """The error of something that neither the hub nor the cache gave.

    Args:
        problem: what `hub` yielded.
        path: the key that names the source.
    """
    why = reason_of(error)
    if not problem:
        return ConfigError(
            f"the {part} '{source}' can't be fetched from the hub",
            path=path,
            why=why,
            fix="check the id and the network, or fetch it elsewhere and name its folder",
        )
    from huggingface_hub import constants

    dataset = " --repo-type dataset" if part == "dataset" else ""
    return ConfigError(
        f"the {part} '{source}' is not in the cache ({constants.HF_HUB_CACHE}), and can't be fetched",
        path=path,
        why=f"{problem}; no folder here has this name",
        fix=f"where there is a network: `hf download {source}{dataset} --local-dir DIR`, then name the "
        "folder DIR; or copy that machine's cache, and set HF_HUB_CACHE to it and HF_HUB_OFFLINE=1",
    )


def _problem(constants: Any) -> str:
    """Why the hub can't be reached; empty: it can."""
    endpoint = str(constants.ENDPOINT)
    when, why = _failed.get(endpoint, (-_REMEMBERED, ""))
    if time.monotonic() - when < _REMEMBERED:
        return why
    why = _ask(endpoint, float(constants.HF_HUB_ETAG_TIMEOUT))
    if why:
        _failed[endpoint] = (time.monotonic(), why)
    return why


def _ask(endpoint: str, seconds: float) -> str:
    from huggingface_hub.utils import get_session

    try:
        status = get_session().head(endpoint, timeout=seconds).status_code
    except Exception as error:  # the library's client may be of requests or httpx
        if "timeout" in type(error).__name__.lower():
            return f"the hub {endpoint} does not answer (waited {seconds:g} s, HF_HUB_ETAG_TIMEOUT)"
        return f"the hub {endpoint} can't be reached ({error or type(error).__name__})"
    return f"the hub {endpoint} answers {status}" if status >= 500 and status not in _BUSY else ""
