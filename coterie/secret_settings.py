"""Which values of a configuration are secrets. Trackers and reports hide them. Imports nothing of Coterie.

Coterie's own settings name the environment variables of keys, as `${NAME}`, and hold none. A plugin's may.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

HIDDEN = "(hidden)"
TABLES = ("headers", "env", "credentials", "secrets", "passwords", "api_keys")
"""Tables of secrets: each of their values is one."""
ENVIRONMENTS = ("env", "evaluate.sets.*.env")
"""Tables of these paths describe an environment of the run, not a process's variables."""
_SECRET = re.compile(
    r"(^|_)((api|access|auth|private|secret)_?(keys?|tokens?)|key|token|secrets?|pass(word|wd|phrase)s?|pwd"
    r"|authorization|credentials?|cookie)$"
)
_EVEN_NUMBERS = re.compile(r"(^|_)(secrets?|pass(word|wd|phrase)s?|pwd|credentials?)$")
"""Names under which a number is a secret too; under `token`, it counts something."""
_NAMES_A_VARIABLE = re.compile(r"_(env|env_var|var|variable)$")
_VARIABLE = re.compile(r"\$\{\w+\}")
_USER = re.compile(r"(?<=://)[^/\s?#]*(?=@)")
_PART = re.compile(r"(?<=[?&;#])([^=&;#\s]+)=([^&;#\s]+)")
"""A named part of an address's query."""
_SIGNATURES = re.compile(r"(^|_)(sig|signature|auth|code)$")


def without_secrets(value: Any, path: Sequence[str] = ()) -> Any:
    """The value of a setting, or a table of settings, in which `(hidden)` stands for secrets.

    Secret is a text under a name such as `api_key`, `password` or `service_token`, and any value in a table
    such as `headers`. What names an environment variable stays: `${NAME}`, and a name under `api_key_env`. In
    any text the user and password of an address, and parts of its query with such names, are hidden.

    Args:
        path: the names under which the value stands, the outermost first.
    """
    if isinstance(value, Mapping):
        return {str(name): without_secrets(inner, (*path, str(name))) for name, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [without_secrets(inner, path) for inner in value]
    if value is None or (isinstance(value, str) and _VARIABLE.fullmatch(value.strip())):
        return value
    if _in_table(path) or (path and _is_secret(_snake(path[-1]), value)):
        return HIDDEN
    if not isinstance(value, str):
        return value
    return _PART.sub(_part, _USER.sub(lambda match: _unless_variables(match[0]), value))


def _in_table(path: Sequence[str]) -> bool:
    for depth, name in enumerate(path[:-1]):
        place = (*path[:2], "*", name) if depth == 3 else path[: depth + 1]
        if name.lower() in TABLES and not (name == "env" and ".".join(place) in ENVIRONMENTS):
            return True
    return False


def _is_secret(name: str, value: Any) -> bool:
    if isinstance(value, str):
        stem = _NAMES_A_VARIABLE.sub("", name)
        if stem != name:  # it names a variable, and holds a secret where it can't be a name
            return _SECRET.search(stem) is not None and re.fullmatch(r"[A-Za-z_]\w*", value) is None
        return _SECRET.search(name) is not None
    return not isinstance(value, bool) and _EVEN_NUMBERS.search(name) is not None


def _part(match: re.Match[str]) -> str:
    name = _snake(match[1])
    secret = _SECRET.search(name) or _SIGNATURES.search(name)
    return f"{match[1]}={_unless_variables(match[2])}" if secret else match[0]


def _unless_variables(text: str) -> str:
    return text if not _VARIABLE.sub("", text).strip(":") else HIDDEN


def _snake(name: str) -> str:
    """`X-Api-Key` and `apiKey` as `x_api_key` and `api_key`."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|[-. ]", "_", name).lower()
