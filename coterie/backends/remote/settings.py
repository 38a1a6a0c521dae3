"""The settings of every component that calls a remote model, and the checks of its addresses and fields: an
address and a field hold no key, and a component's own fields can't be changed."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import BeforeValidator, Field, ValidationInfo, field_validator

from coterie.backends.remote.secrets import NAME, NOT_REPEATED, Headers, SecretName, holds_key, path_of
from coterie.core.errors import ConfigError
from coterie.core.plugins import MayChange, PluginConfig

LIMITS = ("max_tokens", "max_completion_tokens")
_KEY = "set api_key: ${NAME}, or a header with ${NAME}"
_CREDENTIAL = re.compile(r"(x[-_])?api[-_]?key|authorization|password|secret|(access|auth)[-_]token", re.I)
_UUID = re.compile(r"\b[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\b", re.I)
"""An id, as `user` and `prompt_cache_key` may be."""


def further_fields(fields: Any, info: ValidationInfo, reserved: Mapping[str, str], by: str) -> Any:
    """Accept fields that the component doesn't set. An error never repeats a value: it may be a key.

    Args:
        reserved: field -> the setting that is meant instead.
        by: the component that sets these, e.g. "the engine".

    Raises:
        ConfigError: a field is reserved, or holds a key.
    """
    path = path_of(info, "fields")
    if fields is not None and not isinstance(fields, Mapping):
        raise ConfigError("fields is a table of field names and values", path=path, why=NOT_REPEATED)
    for name, value in (fields or {}).items():
        lower = str(name).strip().lower()
        if lower in reserved:
            raise ConfigError(
                f"{by} sets the field '{name}' itself",
                path=f"{path}.{name}",
                why="a second value would override the run's settings, and the budget's bound with them",
                fix=reserved[lower],
            )
        if _holds_key({name: value}):
            where = path if holds_key(str(name)) else f"{path}.{name}"
            raise ConfigError("a field of the request holds a key", path=where, why=NOT_REPEATED, fix=_KEY)
    return fields


def omitted_fields(names: Any, info: ValidationInfo, needed: Sequence[str], limit_field: str) -> Any:
    """Accept names of fields that a request can do without.

    Args:
        needed: fields without which there is no answer that can be read.
        limit_field: dotted path of the setting that names the limit's field.

    Raises:
        ConfigError: a field is needed.
    """
    for name in names if isinstance(names, list) else ():
        if name in needed:
            raise ConfigError(
                f"a request without the field '{name}' has no answer",
                path=path_of(info, "omit"),
                fix=f"remove {name} from the list",
            )
        if name in LIMITS:
            raise ConfigError(
                "a request without a limit may generate, and cost, more than was reserved for it",
                path=path_of(info, "omit"),
                fix=f"set {limit_field}=max_completion_tokens where the endpoint refuses max_tokens",
            )
    return names


def _holds_key(value: Any) -> bool:
    """Whether a JSON value has a text in the form of a key, or a table with a key by its name."""
    if isinstance(value, Mapping):
        named = any(_CREDENTIAL.fullmatch(str(name).strip()) for name in value)
        return named or any(map(_holds_key, [*map(str, value), *value.values()]))
    if isinstance(value, list):
        return any(map(_holds_key, value))
    return isinstance(value, str) and holds_key(_UUID.sub("", value))


_LABEL = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9_\-]*[A-Za-z0-9_])?")
FIX = "set it like http://localhost:8000/v1"
NO_KEY = "set api_key: ${NAME}, a header with ${NAME}, or https://host/${NAME}/v1 where the path needs it"


def _address(value: Any, info: ValidationInfo) -> Any:
    """Accept the address of an endpoint. No error repeats it: it may hold a key."""
    if value is None:
        return None
    path = path_of(info, info.field_name or "base_url")
    what = _fault(value)
    if what:
        raise ConfigError(what, path=path, why=NOT_REPEATED, fix=FIX)
    address = urlsplit(value)
    if "@" in address.netloc or holds_key(value):
        raise ConfigError("the address holds a password or a key", path=path, why=NOT_REPEATED, fix=NO_KEY)
    if address.query or address.fragment or value.endswith(("?", "#")):
        raise ConfigError(
            "the address has a query, which can't be sent",
            path=path,
            why="the path of each request is added to the address's end (the value is not repeated here)",
            fix="remove what follows ? or #; " + NO_KEY,
        )
    return value.rstrip("/")


def _fault(value: Any) -> str:
    """What is wrong with an address; empty: nothing."""
    if not isinstance(value, str) or not value.startswith(("http://", "https://")):
        return "the address does not begin with http:// or https://"
    plain = NAME.sub("x", value)
    if not plain.isprintable() or " " in plain or "$" in plain:
        return "the address holds a blank, or a ${NAME} that is not whole"
    try:
        address = urlsplit(plain)
        host, port = address.hostname or "", address.port
    except ValueError:
        return "the address's host or port can't be read: a port is at most 65535, an IPv6 host is in [ ]"
    if not host or NAME.search(urlsplit(value).netloc):
        return "the address has no host, or a ${NAME} in its place"
    if port == 0 or address.netloc.endswith(":"):
        return "the address's port is no number from 1 to 65535"
    return "" if _is_host(host) else "the address's host is no name and no IP address"


def _is_host(host: str) -> bool:
    if ":" in host:
        try:
            ipaddress.IPv6Address(host)
        except ValueError:
            return False
        return True
    try:
        ascii_host = host if host.isascii() else host.encode("idna").decode()
    except UnicodeError:
        return False
    labels = ascii_host.removesuffix(".").split(".")
    return all(len(label) < 64 and _LABEL.fullmatch(label) for label in labels)


Address = Annotated[str, BeforeValidator(_address)]
"""The address of an endpoint, without a slash at its end; `${NAME}` in its path stands for a variable."""


class Price(PluginConfig):
    """Prices of one model per million tokens, in any currency."""

    input: float = Field(ge=0)
    output: float = Field(ge=0)


class BudgetSettings(PluginConfig):
    """The most that all calls together may spend; a null is no bound."""

    calls: int | None = Field(None, ge=0, description="Calls that are sent; answers of the cache are free.")
    tokens: int | None = Field(None, ge=0, description="Tokens of prompts and answers.")
    money: float | None = Field(None, ge=0, description="In the currency of `prices`, which it needs.")

    @property
    def bounded(self) -> bool:
        return (self.calls, self.tokens, self.money) != (None, None, None)


class RemoteSettings(PluginConfig):
    """Calls of a remote model: the endpoint, limits, retries, the cache and the budget."""

    base_url: Annotated[Address | None, MayChange()] = Field(
        None,
        description="Address of the endpoint; default: the provider's own. ${NAME} in its path stands for a "
        "variable.",
    )
    api_key: Annotated[SecretName | None, MayChange(exact=True)] = Field(
        None, description="`${NAME}` of an environment variable; a key itself is refused."
    )
    headers: Annotated[Headers, MayChange()] = Field(
        default_factory=dict, description="HTTP headers; ${NAME} in a value stands for a variable."
    )
    concurrency: Annotated[int, MayChange(exact=True)] = Field(16, ge=1, description="Most calls at once.")
    requests_per_minute: Annotated[float | None, MayChange(exact=True)] = Field(None, gt=0)
    tokens_per_minute: Annotated[float | None, MayChange(exact=True)] = Field(
        None, gt=0, description="Of prompts and answers; estimated before a call, corrected by its usage."
    )
    timeout: Annotated[float, MayChange(exact=True)] = Field(
        120.0, gt=0, description="Seconds of one attempt, to the last byte of its answer."
    )
    retries: Annotated[int, MayChange(exact=True)] = Field(
        5, ge=0, description="Further attempts after 408, 429, 5xx, a lost connection or a time-out."
    )
    backoff: Annotated[float, MayChange(exact=True)] = Field(
        1.0, ge=0, description="Seconds before the second attempt, at most; doubles each time (with jitter)."
    )
    longest_wait: Annotated[float, MayChange(exact=True)] = Field(
        60.0, ge=0, description="Most seconds between two attempts, whatever the server's Retry-After says."
    )
    cache: Annotated[str, MayChange(exact=True)] = Field(
        "auto",
        description="`auto`: a database in the run's folder; `off`; or the path of a database, which several "
        "runs may share.",
    )
    cache_errors: Annotated[Literal["warn", "stop"], MayChange(exact=True)] = Field(
        "warn", description="A damaged database or a full disk: go on without the cache, or stop."
    )
    budget: Annotated[BudgetSettings, MayChange(exact=True)] = BudgetSettings()
    prices: Annotated[dict[str, Price], MayChange(exact=True)] = Field(
        default_factory=dict, description="By model: {input, output} per million tokens."
    )

    @field_validator("cache", mode="before")
    @classmethod
    def _off(cls, value: object) -> object:
        return "off" if value is False else value  # `off` of YAML 1.1
