"""Clients for halfmq and Apache RocketMQ. The public names are those of ``halfmq``.

    async_client.py  AsyncClient         sync.py  Client, the blocking facade over it      app.py  App: decorators
    shapes.py handler.py key_order.py    what is decorated, and how it is called
    producer.py request_reply.py         plain sends, requests     prepare.py transaction.py verdicts.py   halves and verdicts
    coordinator.py xid.py                somebody else's coordinator
    consumer.py group_member.py start_position.py queue_puller.py offset_tracker.py allocation.py   consuming
    check_listener.py fetched_checks.py listener.py transaction_block.py marker_table.py                  checks; seams for users and sql
    connection.py pending.py connection_pool.py membership.py routing.py retry.py refusals.py connector.py      the network
    forks.py                                                                               what a forked child may do

Importing this package imports nothing else; names are loaded when they are asked for.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from halfmq.client.app import App
    from halfmq.client.async_client import AsyncClient
    from halfmq.client.branch import Branch
    from halfmq.client.consumer import Batch, Consumer
    from halfmq.client.coordinator import Coordinator, PreparedTransaction
    from halfmq.client.fetched_checks import FetchedCheck
    from halfmq.client.listener import TransactionListener
    from halfmq.client.message import Message
    from halfmq.client.outcome import Outcome
    from halfmq.client.outgoing import OutgoingMessage, compose
    from halfmq.client.receipts import Prepared, Receipt, TransactionReceipt
    from halfmq.client.sync import Client
    from halfmq.client.transaction_block import Transaction
    from halfmq.client.xid import Xid

_WHERE = {
    "App": "app",
    "AsyncClient": "async_client",
    "Batch": "consumer",
    "Branch": "branch",
    "Client": "sync",
    "Consumer": "consumer",
    "Coordinator": "coordinator",
    "FetchedCheck": "fetched_checks",
    "Message": "message",
    "Outcome": "outcome",
    "OutgoingMessage": "outgoing",
    "Prepared": "receipts",
    "PreparedTransaction": "coordinator",
    "Receipt": "receipts",
    "Transaction": "transaction_block",
    "TransactionListener": "listener",
    "TransactionReceipt": "receipts",
    "Xid": "xid",
    "compose": "outgoing",
}

__all__ = [
    "App",
    "AsyncClient",
    "Batch",
    "Branch",
    "Client",
    "Consumer",
    "Coordinator",
    "FetchedCheck",
    "Message",
    "Outcome",
    "OutgoingMessage",
    "Prepared",
    "PreparedTransaction",
    "Receipt",
    "Transaction",
    "TransactionListener",
    "TransactionReceipt",
    "Xid",
    "compose",
]


def __getattr__(name: str) -> Any:
    module = _WHERE.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    value = getattr(import_module(f"{__name__}.{module}"), name)
    globals()[name] = value
    return value
