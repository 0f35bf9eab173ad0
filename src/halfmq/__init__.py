"""halfmq: a message is visible if and only if the local database transaction that sent it committed.

This package exports the client and the errors. Names are imported lazily, so that a service loads only what it uses. The
SQLAlchemy integration is ``halfmq.sql``, the Spark data source ``halfmq.spark``.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from halfmq.client.app import App as App
    from halfmq.client.async_client import AsyncClient as AsyncClient
    from halfmq.client.branch import Branch as Branch
    from halfmq.client.consumer import Batch as Batch
    from halfmq.client.consumer import Consumer as Consumer
    from halfmq.client.coordinator import Coordinator as Coordinator
    from halfmq.client.coordinator import PreparedTransaction as PreparedTransaction
    from halfmq.client.fetched_checks import FetchedCheck as FetchedCheck
    from halfmq.client.listener import TransactionListener as TransactionListener
    from halfmq.client.message import Message as Message
    from halfmq.client.outcome import Outcome as Outcome
    from halfmq.client.outgoing import OutgoingMessage as OutgoingMessage
    from halfmq.client.outgoing import compose as compose
    from halfmq.client.receipts import Prepared as Prepared
    from halfmq.client.receipts import Receipt as Receipt
    from halfmq.client.receipts import TransactionReceipt as TransactionReceipt
    from halfmq.client.retry_policy import Retry as Retry
    from halfmq.client.sync import Client as Client
    from halfmq.client.transaction_block import Transaction as Transaction
    from halfmq.client.xid import Xid as Xid
    from halfmq.errors import BranchConflict as BranchConflict
    from halfmq.errors import BranchRefused as BranchRefused
    from halfmq.errors import ConnectError as ConnectError
    from halfmq.errors import CoordinatorSuperseded as CoordinatorSuperseded
    from halfmq.errors import EnvironmentFailed as EnvironmentFailed
    from halfmq.errors import HalfmqError as HalfmqError
    from halfmq.errors import InvalidName as InvalidName
    from halfmq.errors import LateTry as LateTry
    from halfmq.errors import LoginFailed as LoginFailed
    from halfmq.errors import MessageTooLarge as MessageTooLarge
    from halfmq.errors import NoReply as NoReply
    from halfmq.errors import NotAuthorized as NotAuthorized
    from halfmq.errors import OutcomeMixed as OutcomeMixed
    from halfmq.errors import OutcomeUnknown as OutcomeUnknown
    from halfmq.errors import ProtocolError as ProtocolError
    from halfmq.errors import RequestFailed as RequestFailed
    from halfmq.errors import SendTimeout as SendTimeout
    from halfmq.errors import ServerBusy as ServerBusy
    from halfmq.errors import TopicNotFound as TopicNotFound
    from halfmq.errors import TransactionIncomplete as TransactionIncomplete
    from halfmq.errors import TransactionRefused as TransactionRefused
    from halfmq.errors import TransactionUndecided as TransactionUndecided
    from halfmq.errors import TransactionUnknown as TransactionUnknown
    from halfmq.errors import UnsupportedCombination as UnsupportedCombination
    from halfmq.errors import UsageError as UsageError

__version__ = "0.1.0"

#: Where each public name is.
MODULES = {
    "App": "client.app",
    "AsyncClient": "client.async_client",
    "Batch": "client.consumer",
    "Branch": "client.branch",
    "BranchConflict": "errors",
    "BranchRefused": "errors",
    "Client": "client.sync",
    "ConnectError": "errors",
    "Consumer": "client.consumer",
    "Coordinator": "client.coordinator",
    "CoordinatorSuperseded": "errors",
    "EnvironmentFailed": "errors",
    "FetchedCheck": "client.fetched_checks",
    "HalfmqError": "errors",
    "InvalidName": "errors",
    "LateTry": "errors",
    "LoginFailed": "errors",
    "Message": "client.message",
    "MessageTooLarge": "errors",
    "NoReply": "errors",
    "NotAuthorized": "errors",
    "Outcome": "client.outcome",
    "OutcomeMixed": "errors",
    "OutcomeUnknown": "errors",
    "OutgoingMessage": "client.outgoing",
    "Prepared": "client.receipts",
    "PreparedTransaction": "client.coordinator",
    "ProtocolError": "errors",
    "Receipt": "client.receipts",
    "RequestFailed": "errors",
    "Retry": "client.retry_policy",
    "SendTimeout": "errors",
    "ServerBusy": "errors",
    "TopicNotFound": "errors",
    "Transaction": "client.transaction_block",
    "TransactionIncomplete": "errors",
    "TransactionListener": "client.listener",
    "TransactionReceipt": "client.receipts",
    "TransactionRefused": "errors",
    "TransactionUndecided": "errors",
    "TransactionUnknown": "errors",
    "UnsupportedCombination": "errors",
    "UsageError": "errors",
    "Xid": "client.xid",
    "compose": "client.outgoing",
}

__all__ = sorted([*MODULES, "__version__"])


def __getattr__(name: str) -> Any:
    if name not in MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    value = getattr(import_module(f"halfmq.{MODULES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
