"""How many connections fit in the process's limit of open files besides the store's files."""

import logging
import resource
from typing import Final

from halfmq.errors import EnvironmentFailed
from halfmq.store.open_files import OPEN_FILES_MAX
from halfmq.store.segment import OPEN_SEGMENTS_MAX

log = logging.getLogger("halfmq.serve")

#: Maximum for the store, plus 64 for ports, pipes, locks, snapshots and directories.
RESERVED: Final = OPEN_FILES_MAX + OPEN_SEGMENTS_MAX + 64
#: With descriptors for fewer connections the broker does not start.
CONNECTIONS_MIN: Final = 16


def connections_that_fit(wanted: int, *, beside: int = 0) -> int:
    """Raise the soft limit of open files as far as ``wanted`` connections need. Returns the number of connections that fit.

    ``beside``: descriptors that are neither the store's nor in ``wanted``.

    Raises:
        EnvironmentFailed: hardly any would fit.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    reserved = RESERVED + beside
    needed = reserved + wanted
    if soft != resource.RLIM_INFINITY and soft < needed:
        soft = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        except (OSError, ValueError) as error:  # a system may have a limit of its own below the hard limit
            soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
            log.warning("the limit of open files stays at %d: %s", soft, error)
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return wanted
    left = soft - reserved
    if left < min(CONNECTIONS_MIN, wanted):
        raise EnvironmentFailed(
            f"the limit of open files is {soft}; the store alone may need {RESERVED}",
            hint=f"raise it: ulimit -n {RESERVED + 1_024}, or LimitNOFILE= of the service",
        )
    log.info("at most %d connections, since the limit of open files is %d", left, soft)
    return left
