"""A port on which nobody listens yet."""

from __future__ import annotations

import socket


def reserve_port(host: str, port: int) -> socket.socket:
    """Checks that a server can listen here (`port` 0: on any free port). Returns a socket that reserves the port for
    servers that share it. Raises `OSError`.
    """
    found = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    family, kind, protocol, _, address = found[0]
    with socket.socket(family, kind, protocol) as probe:
        # Without SO_REUSEPORT: another server of this user may share its port, too, and would get half of the requests.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind(address)
        probe.listen()
        address = probe.getsockname()
    reserved = socket.socket(family, kind, protocol)
    try:
        reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        reserved.bind(address)
    except BaseException:
        reserved.close()
        raise
    return reserved
