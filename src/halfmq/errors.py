"""All exceptions of halfmq.

The text is for people; programs use the fields. ``docs/errors.md`` describes each ``code``.
"""

from typing import ClassVar

from halfmq.printable import printable


class HalfmqError(Exception):
    """Base class. ``code``: stable name of the error. ``retriable``: the same call may succeed later. ``outcome_known``: False if
    the request may have been executed. ``hint``: what to do next."""

    code: ClassVar[str] = "halfmq"
    retriable: ClassVar[bool] = False
    outcome_known: ClassVar[bool] = True

    def __init__(self, message: str, *, hint: str = "") -> None:
        # It is shown in terminals, logs and tracebacks, and may quote a peer.
        super().__init__(printable(f"{message} ({hint})" if hint else message))
        self.hint = hint


class UsageError(HalfmqError):
    """An argument or setting is invalid; correct it."""

    code = "usage"


class InvalidName(UsageError):
    """A topic, group or transaction id has characters or a length that RocketMQ does not allow."""

    code = "invalid-name"


class MessageTooLarge(UsageError):
    """Body or properties exceed ``limits.BODY_BYTES_MAX`` or ``limits.PROPERTIES_BYTES_MAX``."""

    code = "message-too-large"


class MissingTable(UsageError):
    """A table of halfmq is not in the database; create it. The transaction that needed it is rolled back. A message whose handler raises
    this is not used up: it is handled again when the table is there."""

    code = "missing-table"


class UnsupportedCombination(UsageError):
    """Each option is valid, but they cannot be used together."""

    code = "unsupported-combination"


class BranchRefused(HalfmqError):
    """A call of a branch of Try/Confirm/Cancel that must have no effect. Nothing was written; the same call is always refused."""

    code = "branch-refused"


class LateTry(BranchRefused):
    """A try that arrives after the cancel of its branch ("suspension"): answer that it failed."""

    code = "late-try"


class BranchConflict(BranchRefused):
    """A confirm and a cancel of one branch, or a confirm of a branch that was not tried here. A person must look."""

    code = "branch-conflict"


class ConnectError(HalfmqError):
    """No connection to a server. Nothing was sent, so a retry is safe."""

    code = "connect"
    retriable = True


class LoginFailed(ConnectError):
    """The server does not accept the user of the URL, or did not prove that it knows the user's secret. Nothing was sent but the login.
    The same call fails again until an administrator, or who has the secret, changes something.
    """

    code = "login-failed"
    retriable = False


class RequestFailed(HalfmqError):
    """The server answered with an error. ``response_code`` is RocketMQ's number."""

    code = "request-failed"

    def __init__(self, message: str, *, response_code: int = 1, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.response_code = response_code


class TopicNotFound(RequestFailed):
    """The topic does not exist and is not created automatically."""

    code = "topic-not-found"


class NotAuthorized(RequestFailed):
    """A system topic, or a topic that may not be written or read; or the user has no right to this."""

    code = "not-authorized"


class ServerBusy(RequestFailed):
    """Flow control or a full disk: nothing was stored. Retry later."""

    code = "server-busy"
    retriable = True


class TransactionRefused(RequestFailed):
    """The transaction already has a verdict, which cannot change. ``standing`` names it."""

    code = "transaction-refused"

    def __init__(self, message: str, *, standing: str = "", response_code: int = 604, hint: str = "") -> None:
        super().__init__(message, response_code=response_code, hint=hint)
        self.standing = standing


class TransactionUndecided(RequestFailed):
    """A transaction with the id ``tx_id``, which the application chose, has no verdict yet. Nothing of this call was stored."""

    code = "transaction-undecided"

    def __init__(self, message: str, *, tx_id: str = "", response_code: int = 29, hint: str = "") -> None:
        super().__init__(message, response_code=response_code, hint=hint)
        self.tx_id = tx_id


class TransactionIncomplete(RequestFailed):
    """The broker received COMMIT before all half messages. There is no verdict: send the missing ones, or roll back."""

    code = "transaction-incomplete"

    def __init__(self, message: str, *, response_code: int = 604, hint: str = "") -> None:
        super().__init__(message, response_code=response_code, hint=hint)


class CoordinatorSuperseded(RequestFailed):
    """Another process of this coordinator took over, or its broker does not know this one. Nothing of this call was done; an earlier
    attempt of it may have been. Stop: only a new ``recover()`` may go on, with what it lists.
    """

    code = "coordinator-superseded"


class OutcomeUnknown(HalfmqError):
    """The request may or may not have been executed."""

    code = "outcome-unknown"
    outcome_known = False


class SendTimeout(OutcomeUnknown):
    """The request was sent, and no response arrived in time. The message may be stored."""

    code = "send-timeout"
    retriable = True


class NoReply(OutcomeUnknown):
    """The request is stored, and its reply did not come in time, or before the client was closed, or cannot be read. Its consumer may have
    handled it, or may yet: look there before you send another one, or send what it may handle twice.
    """

    code = "no-reply"


class TransactionUnknown(OutcomeUnknown):
    """The result of the local COMMIT, or the broker's response to the verdict, was lost. The back-check settles transaction
    ``tx_id``; the caller does nothing. No check settles that of a coordinator: it calls ``settle`` again, or asks ``outcome``."""

    code = "transaction-unknown"

    def __init__(self, message: str, *, tx_id: str = "", hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.tx_id = tx_id


class OutcomeMixed(HalfmqError):
    """The local transaction of ``tx_id`` **is committed**, and its messages were rolled back by somebody else (``standing``): they never
    appear. Do not repeat the transaction. Send what they said in another one, or undo the rows; ``halfmq tx damaged`` keeps the finding. Of
    ``mq.tcc``: its branches are cancelled, so that only undoing the rows is left.

    Precedent: XA_HEURMIX of X/Open, HeuristicMixedException of JTA's ``commit``, MQRC_OUTCOME_MIXED of IBM MQ.
    """

    code = "outcome-mixed"

    def __init__(self, message: str, *, tx_id: str = "", standing: str = "", hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.tx_id = tx_id
        self.standing = standing


class ProtocolError(HalfmqError):
    """The peer sent bytes that violate the protocol."""

    code = "protocol"


class EnvironmentFailed(HalfmqError):
    """The operating system, the disk or the installation is at fault."""

    code = "environment"


class StoreInUse(EnvironmentFailed):
    """Another process holds the lock of the store."""

    code = "store-in-use"
    retriable = True


class StoreDamaged(EnvironmentFailed):
    """Damage other than a torn tail. Nothing was changed; the message names file, offset and remedy."""

    code = "store-damaged"


class StoreFull(EnvironmentFailed):
    """Not enough free disk space. Free some, then retry."""

    code = "store-full"
    retriable = True


class StorePoisoned(EnvironmentFailed):
    """A write or fsync failed, so the state on disk is unknown. No more appends; restart the broker to recover."""

    code = "store-poisoned"


class PortTaken(EnvironmentFailed):
    """Another process listens on the port."""

    code = "port-taken"
    retriable = True


class WrongVersion(EnvironmentFailed):
    """The store, or a record in it, has an unsupported format version."""

    code = "wrong-version"


class MissingDependency(EnvironmentFailed):
    """A required package or program is not installed."""

    code = "missing-dependency"


class DataLost(EnvironmentFailed):
    """The next messages to read no longer exist (removed by retention, or the store was replaced) or are damaged. The text names them."""

    code = "data-lost"


class InvariantViolated(HalfmqError):
    """A bug in halfmq. Stop the process and keep its files."""

    code = "invariant-violated"
