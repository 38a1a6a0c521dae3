"""Addresses of endpoints: checked where a configuration is read, and free of keys."""

from __future__ import annotations

import ipaddress
import re
from typing import Annotated, Any
from urllib.parse import urlsplit

from pydantic import BeforeValidator, ValidationInfo

from coterie.backends.remote.secrets import NAME, NOT_REPEATED, holds_key, path_of
from coterie.core.errors import ConfigError

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
