"""A client for services that may start while the broker is down."""

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager

from halfmq import Client
from halfmq.errors import ConnectError

log = logging.getLogger(__name__)

PAUSE_S = 0.2


@contextmanager
def connected(url: str, group: str) -> Iterator[Client]:
    """An open client, as soon as the broker answers; closed at the end."""
    mq = _connect(url, group)
    try:
        yield mq
    finally:
        mq.close()


def _connect(url: str, group: str) -> Client:
    while True:
        mq = Client(url, group=group)
        try:
            mq.connect()
        except ConnectError as error:
            log.info("%s", error)
            time.sleep(PAUSE_S)
        else:
            return mq
