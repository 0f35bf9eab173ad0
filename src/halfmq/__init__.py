"""halfmq: a message is visible if and only if the local database transaction that sent it committed.

This package exports the client and the errors. Names are imported lazily, so that a service loads only what it uses. The
SQLAlchemy integration is ``halfmq.sql``, the Spark data source ``halfmq.spark``.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from halfmq.client import (
        App,
        AsyncClient,
        Batch,
        Branch,
        Client,
        Consumer,
        Coordinator,
        FetchedCheck,
        Message,
        Outcome,
        OutgoingMessage,
        Prepared,
        PreparedTransaction,
        Receipt,
        Transaction,
        TransactionListener,
        TransactionReceipt,
        Xid,
        compose,
    )
    from halfmq.errors import (
        BranchConflict,
        BranchRefused,
        ConnectError,
        CoordinatorSuperseded,
        EnvironmentFailed,
        HalfmqError,
        InvalidName,
        LateTry,
        MessageTooLarge,
        NoReply,
        NotAuthorized,
        OutcomeMixed,
        OutcomeUnknown,
        ProtocolError,
        RequestFailed,
        SendTimeout,
        ServerBusy,
        TopicNotFound,
        TransactionIncomplete,
        TransactionRefused,
        TransactionUndecided,
        TransactionUnknown,
        UnsupportedCombination,
        UsageError,
    )

__version__ = "0.1.0"

__all__ = [
    "App",
    "AsyncClient",
    "Batch",
    "Branch",
    "BranchConflict",
    "BranchRefused",
    "Client",
    "ConnectError",
    "Consumer",
    "Coordinator",
    "CoordinatorSuperseded",
    "EnvironmentFailed",
    "FetchedCheck",
    "HalfmqError",
    "InvalidName",
    "LateTry",
    "Message",
    "MessageTooLarge",
    "NoReply",
    "NotAuthorized",
    "Outcome",
    "OutcomeMixed",
    "OutcomeUnknown",
    "OutgoingMessage",
    "Prepared",
    "PreparedTransaction",
    "ProtocolError",
    "Receipt",
    "RequestFailed",
    "SendTimeout",
    "ServerBusy",
    "TopicNotFound",
    "Transaction",
    "TransactionIncomplete",
    "TransactionListener",
    "TransactionReceipt",
    "TransactionRefused",
    "TransactionUndecided",
    "TransactionUnknown",
    "UnsupportedCombination",
    "UsageError",
    "Xid",
    "__version__",
    "compose",
]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from halfmq import client, errors

    value = getattr(errors, name) if hasattr(errors, name) else getattr(client, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
