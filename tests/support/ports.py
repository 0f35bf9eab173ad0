"""Ports for servers that are started again on the same port, or that need neighbours.

Port 0 is better where it will do. It will not for a broker that is killed and started again: what the system gave out
once it may give to any outgoing connection in between. So these lie below the range that the system gives out by itself,
and are drawn, so that two test processes seldom look at the same one.
"""

import random
import socket

HOST = "127.0.0.1"
_FIRST, _STOP = 12_000, 32_000
_rng = random.SystemRandom()


def free_port(*neighbours: int) -> int:
    """A port that is free, and so are those at these distances from it."""
    for _ in range(1_000):
        port = _rng.randrange(_FIRST, _STOP)
        if all(_is_free(port + step) for step in (0, *neighbours)):
            return port
    raise AssertionError(f"no free ports between {_FIRST:,} and {_STOP:,}")


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
        return True
