"""Services that kill themselves: ``python -m tests.outbox.killed_services DIRECTORY BROKER``, for ``test_ways``.

One process forks them all, since to import what they need takes longer than what they do.
"""

import asyncio
import os
import signal
import sys
from itertools import product
from pathlib import Path
from typing import Any

from tests.outbox.test_ways import POINTS, WAYS, Service, of_its_own


async def die(way: str, point: str, directory: Path, broker: str) -> None:
    """Place an order, and be killed ``before`` or ``after`` its COMMIT."""
    service = Service(way, *of_its_own(way, point, directory), broker)
    await service.open()
    dialect = service.engine.sync_engine.dialect
    real = dialect.do_commit

    def commit(connection: Any) -> None:
        if point == "after":
            real(connection)
        os.kill(os.getpid(), signal.SIGKILL)

    service.before_commit = lambda: setattr(dialect, "do_commit", commit)
    await service.place()


def main(directory: str, broker: str) -> int:
    """0: all of them were killed."""
    for way, point in product(WAYS, POINTS):
        child = os.fork()
        if not child:
            asyncio.run(die(way, point, Path(directory), broker))
            os._exit(1)
        _, status = os.waitpid(child, 0)
        if not (os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL):
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
