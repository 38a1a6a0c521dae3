"""Keys of remote services: configurations name their environment variables, and no text has their values."""

from __future__ import annotations

import json
import logging
import os
import re
import traceback
from collections.abc import Mapping
from typing import Annotated, Any
from urllib.parse import quote

from pydantic import BeforeValidator, ValidationInfo

from coterie.core.errors import ConfigError

NAME = re.compile(r"\$\{(\w+)\}")
"""An environment variable in a setting."""
_KEY = re.compile(
    r"\b(?:sk-|sk_|gsk_|hf_|ghp_|github_pat_|xai-|r8_|AIza|ya29\.|AKIA)[A-Za-z0-9_\-]{12,}", re.ASCII
)
"""Forms of the keys of known services."""
_HEADER = re.compile("auth|key|token|secret|cookie|password", re.IGNORECASE)
"""Headers whose values are secret."""
_SCHEME = re.compile(r"\s*([A-Za-z][A-Za-z\-]{0,15}[ =:])?\s*")
"""What may stand beside `${NAME}` in a secret header: a scheme such as Bearer."""
_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z\-]+")
"""The name of a header (RFC 9110)."""
_IDS = ("openai-organization", "openai-project")
"""Headers with long ids that are no secrets."""
SHORTEST = 6
"""Fewest characters of a value that is redacted: a shorter one would be found in ordinary words."""
REDACTED = "[redacted key]"

NOT_REPEATED = "configurations are stored in run folders and shown (the value is not repeated here)"
"""The reason of an error about a key in a setting."""

replacements: dict[str, str] = {}
"""The text that stands for each value of a key (and for its escaped forms) that this process has read."""


def looks_like_key(text: str) -> bool:
    """Whether a text has the form of a secret key: a service's prefix, or long and random."""
    text = text.strip().removeprefix("Bearer ").strip()
    if _KEY.search(text):
        return True
    random = re.fullmatch(r"[\w+/=.\-]{24,}", text, re.ASCII) is not None
    return random and bool(re.search(r"\d", text)) and bool(re.search(r"[A-Za-z]", text))


def holds_key(text: str) -> bool:
    """Whether a part of a text outside of its `${NAME}` has the form of a key.

    That is a known service's prefix, or 24 characters and more in which letters and digits alternate often:
    words, versions and dates do so rarely.
    """
    for part in NAME.split(text)[::2]:
        if _KEY.search(part):
            return True
        for run in re.findall(r"[A-Za-z0-9_+=\-]{24,}", part):
            if len(re.findall(r"[A-Za-z](?=\d)|\d(?=[A-Za-z])", run)) >= 4:
                return True
    return False


def path_of(info: ValidationInfo, field: str) -> str:
    """The dotted path of a field, in a validator."""
    return ".".join(filter(None, ((info.context or {}).get("path", ""), field)))


def _named(value: Any, info: ValidationInfo) -> Any:
    """Accept `${NAME}` alone. The error never repeats the value: it may be a key."""
    if value is None or (isinstance(value, str) and NAME.fullmatch(value.strip())):
        return value if value is None else value.strip()
    is_key = isinstance(value, str) and looks_like_key(value)
    raise ConfigError(
        "the setting holds a secret key itself" if is_key else "the setting names no environment variable",
        path=path_of(info, info.field_name or "api_key"),
        why="configurations are stored in run folders and shown; so they hold the name of a variable only"
        + (" (the value looks like a key and is not repeated here)" if is_key else ""),
        fix="export OPENAI_API_KEY=... and write api_key: ${OPENAI_API_KEY}"
        + ("; a key that was in a file or on a command line should be replaced" if is_key else ""),
    )


def _no_keys(headers: Any, info: ValidationInfo) -> Any:
    """Accept headers without keys, in the form of HTTP. An error never repeats a value."""
    path = path_of(info, "headers")
    if headers is not None and not isinstance(headers, Mapping):
        raise ConfigError("headers is a table of names and values", path=path, why=NOT_REPEATED)
    for name, value in (headers or {}).items():
        if _TOKEN.fullmatch(str(name)) is None or holds_key(str(name)):
            raise ConfigError(
                "the name of a header is no word of letters, digits and hyphens",
                path=path,
                why="it holds a key" if holds_key(str(name)) else f"got {str(name)!r}",
                fix="write headers: {X-Name: value}",
            )
        _no_key(str(name), value, f"{path}.{name}")
    return headers


def _no_key(name: str, value: Any, path: str) -> None:
    if not isinstance(value, str):
        raise ConfigError("a header's value is a text", path=path, why=NOT_REPEATED, fix=f'{name}: "text"')
    literal = "".join(NAME.split(value)[::2])
    named = _HEADER.search(name) is not None and not (NAME.search(value) and _SCHEME.fullmatch(literal))
    if named or (holds_key(value) and name.lower() not in _IDS) or _KEY.search(literal):
        raise ConfigError(
            f"the header '{name}' holds a secret key itself",
            path=path,
            why=NOT_REPEATED,
            fix=f'export MY_KEY=... and write headers: {{{name}: "${{MY_KEY}}"}}',
        )
    check_header(value, path)


def check_header(value: str, path: str, what: str = "the value of a header") -> None:
    """Raise ConfigError for a value that HTTP can't send as a header: one that is not printable ASCII."""
    if not (value.isascii() and value.isprintable()):
        raise ConfigError(
            f"{what} holds a character that can't be sent",
            path=path,
            why="headers are printable ASCII, without line ends (the value is not repeated here)",
            fix="remove it",
        )


SecretName = Annotated[str, BeforeValidator(_named)]
"""A setting `${NAME}`: the name of the environment variable with a key."""
Headers = Annotated[dict[str, str], BeforeValidator(_no_keys)]
"""HTTP headers; `${NAME}` in a value stands for an environment variable, a literal key is refused."""


def key_of(setting: str, path: str) -> str:
    """The value of a `SecretName`; from now on it is redacted in logs and in `redacted`.

    Raises:
        ConfigError: the variable is not set.
    """
    name = setting[2:-1]
    value = os.environ.get(name, "").strip()
    if not value:
        raise ConfigError(
            f"the environment variable {name} is not set", path=path, fix=f"export {name}=YOUR_KEY"
        )
    check_header(value, path, f"the environment variable {name}")
    _use(name, value)
    return value


def secrets_in(settings: Mapping[str, str], path: str) -> dict[str, str]:
    """The settings with every `${NAME}` replaced; from now on the values of these variables are redacted.

    Raises:
        ConfigError: a variable is not set, is empty, or holds what HTTP can't send.
    """
    return {
        key: NAME.sub(lambda match: key_of(match[0], f"{path}.{key}"), setting)  # noqa: B023
        for key, setting in settings.items()
    }


def redacted(text: str) -> str:
    """The text without the value of any used key, and without texts that have the form of a key."""
    for value in sorted(replacements, key=len, reverse=True):
        if value in text:
            text = text.replace(value, replacements[value])
    return _KEY.sub(REDACTED, text)


def without_keys(table: Any) -> Any:
    """A JSON value without the value of any used key in its texts."""
    text = json.dumps(table, ensure_ascii=False)
    present = [value for value in replacements if value in text]
    for value in sorted(present, key=len, reverse=True):
        text = text.replace(value, replacements[value])
    return json.loads(text) if present else table


def _use(name: str, value: str) -> None:
    if len(value) < SHORTEST:
        return
    if not replacements:
        _redact_logs()
    for form in (value, quote(value, safe=""), json.dumps(value)[1:-1]):
        replacements[form] = f"${{{name}}}"


def _redact_logs() -> None:
    """Redact every log record of the process: the libraries below (HTTP clients, SDKs) log too."""
    make = logging.getLogRecordFactory()

    def redacting(*args: Any, **kwargs: Any) -> logging.LogRecord:
        record = make(*args, **kwargs)
        try:
            text = record.getMessage()
            if redacted(text) != text:
                record.msg, record.args = redacted(text), None
            if record.exc_info and record.exc_info[0] is not None:
                record.exc_text = redacted("".join(traceback.format_exception(*record.exc_info)).rstrip())
        except Exception:  # a wrong format is reported by logging itself
            return record
        return record

    logging.setLogRecordFactory(redacting)


def filled(settings: Mapping[str, str], path: str) -> dict[str, str]:
    """The settings with every `${NAME}` replaced, whose values may be no secrets: they are not redacted.

    The environment of a tool's server may hold `${HOME}`, whose value stands in many texts.

    Raises:
        ConfigError: a variable is not set.
    """
    for key, value in settings.items():
        for name in NAME.findall(value):
            if name not in os.environ:
                raise ConfigError(
                    f"the environment variable {name} is not set",
                    path=f"{path}.{key}",
                    fix=f"export {name}=...",
                )
    return {key: NAME.sub(lambda match: os.environ[match[1]], value) for key, value in settings.items()}
