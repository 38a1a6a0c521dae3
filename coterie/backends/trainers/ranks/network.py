"""The network interface by which ranks reach each other."""

from __future__ import annotations

import fcntl
import os
import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager

_SETTING = "GLOO_SOCKET_IFNAME"
_SIOCGIFADDR = 0x8915


@contextmanager
def gloo_by(host: str) -> Iterator[None]:
    """Let gloo listen where this process reaches `host`, rank 0's address, unless the user has chosen.

    By default it listens at the address of the host's name. That is often a loopback address, at which ranks
    of other hosts look in vain.
    """
    interface = _interface(host) if _SETTING not in os.environ else ""
    if not interface:
        yield
        return
    os.environ[_SETTING] = interface
    try:
        yield
    finally:
        del os.environ[_SETTING]


def _interface(host: str) -> str:
    """The interface of the IPv4 address from which packets to a host leave; empty: none is known."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as peer:
        try:
            peer.connect((host, 9))  # a port of UDP sends nothing yet
            address = peer.getsockname()[0]
        except OSError:
            return ""
        for _, name in socket.if_nameindex():
            try:
                answer = fcntl.ioctl(peer, _SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))
            except OSError:  # it has no IPv4 address
                continue
            if socket.inet_ntoa(answer[20:24]) == address:
                return name
    return ""
