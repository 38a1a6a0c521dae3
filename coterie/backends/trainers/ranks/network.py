"""The network between ranks: where gloo listens, and the end of connections that no kernel closes."""

from __future__ import annotations

import fcntl
import os
import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager, suppress

_SETTING = "GLOO_SOCKET_IFNAME"
_SIOCGIFADDR = 0x8915
_SOCKETS = "/proc/self/fd"


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


def hang_up(address: str) -> None:
    """End all TCP connections of this process to an address.

    A node that loses its power closes none, and gloo would wait for it as long as for a slow rank.
    """
    for entry in os.listdir(_SOCKETS) if os.path.isdir(_SOCKETS) else ():
        with suppress(OSError), socket.socket(fileno=os.dup(int(entry))) as peer:  # most are no sockets
            if peer.type == socket.SOCK_STREAM and _host(peer.getpeername()) == address:
                peer.shutdown(socket.SHUT_RDWR)


def _host(name: object) -> str:
    """The address of a peer; an IPv4 address that is written as IPv6 is the same."""
    return str(name[0]).removeprefix("::ffff:") if isinstance(name, tuple) else ""
