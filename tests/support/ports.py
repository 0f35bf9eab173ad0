"""Ports for servers that are restarted on the same port, or that need neighbours.

Prefer port 0. It is not possible for a broker that is killed and restarted: meanwhile the system may give its port to an outgoing
connection. So these ports are below the range that the system assigns by itself, and random, so that two test processes rarely
try the same one.
"""

import random
import socket

HOST = "127.0.0.1"
_FIRST, _STOP = 12_000, 32_000
_rng = random.SystemRandom()


def free_port(*neighbours: int) -> int:
    """A free port; the ports at these distances from it are free too."""
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
