"""Ports that stay the same while a daemon is killed and started again."""

from __future__ import annotations

import random
import socket


def free_port() -> int:
    """A port of loopback where nobody listens, below those that the system hands out to outgoing connections.

    One of those might be taken while the daemon is away, by the very client that tries to reach it: connected to
    itself.
    """
    rng = random.SystemRandom()
    while True:
        port = rng.randrange(12000, 32000)
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
