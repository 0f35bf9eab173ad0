"""What runs as a process of its own until a signal ends it, whichever command line has started it: ``halfmq relay``, ``halfmq worker``, and
the commands of ``manage.py``."""

from typing import Final

#: Where a port of HTTP listens by default: it has no password.
LOOPBACK: Final = "127.0.0.1"
