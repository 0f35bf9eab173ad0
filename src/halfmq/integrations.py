"""What a package needs that connects another framework to halfmq, beside the public names of ``halfmq``, ``halfmq.sql`` and
``halfmq.testing``. ``faststream-halfmq`` is such a package.

It is released by itself, and requires a minor version of halfmq (``>=0.1,<0.2``): what is here stays as it is in all releases of one. All
other names of halfmq may change in each; ``tests/architecture/test_packages.py`` refuses an import of them. Applications need none of this.
"""

from typing import TYPE_CHECKING, Any

from halfmq.client.arguments import (
    ClientOptions,
    PrepareOptions,
    StartFrom,
    checked_count,
    checked_seconds,
    refuse_misspelt,
)
from halfmq.client.async_client import REQUEST_TIMEOUT_S, AsyncClient
from halfmq.client.consumer import Consumer, ConsumerSpec
from halfmq.client.delivery import Handlers, work
from halfmq.client.direct_delivery import as_received
from halfmq.client.handler import Handler
from halfmq.client.message import Sends
from halfmq.client.receipts import COMMITTED
from halfmq.client.retry_policy import UNDECODABLE, NotDecoded, checked_retry
from halfmq.client.unique_ids import process_ids
from halfmq.client.user_code import end_tasks
from halfmq.model.address import parse_url
from halfmq.model.properties import REPLY_TO_CLIENT, SYSTEM, is_reserved

if TYPE_CHECKING:
    from halfmq.client.marker_table import MarkerTable

__all__ = [
    "COMMITTED",
    "REPLY_TO_CLIENT",
    "REQUEST_TIMEOUT_S",
    "SYSTEM",
    "UNDECODABLE",
    "ClientOptions",
    "ConsumerSpec",
    "Handler",
    "Handlers",
    "NotDecoded",
    "PrepareOptions",
    "Sends",
    "StartFrom",
    "as_received",
    "checked_count",
    "checked_retry",
    "checked_seconds",
    "consumer_of",
    "end_tasks",
    "is_reserved",
    "join_options",
    "parse_url",
    "process_ids",
    "refuse_misspelt",
    "work",
]


def consumer_of(client: AsyncClient, spec: ConsumerSpec) -> Consumer:
    """A consumer that reads with ``client``, not opened yet: ``keep_order`` it first, if ``work`` runs it."""
    return Consumer(spec, client._join)


def join_options(client: AsyncClient, markers: "MarkerTable", timeout_s: float | None) -> dict[str, Any]:
    """The options of ``markers.join_async(client, session, ...)``. ``timeout_s``: of each of the two calls at the commit; None: the
    client's.

    Raises:
        UsageError: the client answers no checks from ``markers``, or an argument is wrong. ConnectError: no broker answers.
    """
    return client._transaction_options(markers, None, False, timeout_s)
