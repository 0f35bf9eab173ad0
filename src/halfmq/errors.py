"""Everything that halfmq raises, as a tree.

    HalfmqError
      UsageError                    the caller misused us; raised at once, nothing was done
        InvalidName, MessageTooLarge, UnsupportedCombination
      ConnectError                  no server answered; nothing was sent
      RequestFailed                 the server refused; nothing was done
        TopicNotFound, NotAuthorized, ServerBusy, TransactionRefused, TransactionIncomplete
      OutcomeUnknown                it may or may not have happened: do not resend blindly
        SendTimeout, TransactionUnknown
      ProtocolError                 the peer broke the protocol; the connection is closed
      EnvironmentFailed             the machine failed us
        StoreInUse, StoreDamaged, StoreFull, StorePoisoned, PortTaken, WrongVersion, MissingDependency, DataLost
      InvariantViolated             a bug of ours: stop, keep the evidence

Text is for people, fields for programs. An outcome that a caller must expect (conflict, unknown, full) is a value in
a reply, not an exception; the client turns such replies into these at its border.
"""

from typing import ClassVar


class HalfmqError(Exception):
    """Root of all errors of this package.

    ``code``: stable name, also in the documentation. ``retriable``: the same call may succeed later.
    ``outcome_known``: False means that it may have happened. ``hint``: what to do next.
    """

    code: ClassVar[str] = "halfmq"
    retriable: ClassVar[bool] = False
    outcome_known: ClassVar[bool] = True

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(f"{message} ({hint})" if hint else message)
        self.hint = hint


class UsageError(HalfmqError):
    code = "usage"


class InvalidName(UsageError):
    code = "invalid-name"


class MessageTooLarge(UsageError):
    code = "message-too-large"


class UnsupportedCombination(UsageError):
    code = "unsupported-combination"


class ConnectError(HalfmqError):
    code = "connect"
    retriable = True


class RequestFailed(HalfmqError):
    """The server answered with an error. ``response_code`` is RocketMQ's number."""

    code = "request-failed"

    def __init__(self, message: str, *, response_code: int = 1, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.response_code = response_code


class TopicNotFound(RequestFailed):
    code = "topic-not-found"


class NotAuthorized(RequestFailed):
    code = "not-authorized"


class ServerBusy(RequestFailed):
    """Flow control or a full disk: nothing was stored."""

    code = "server-busy"
    retriable = True


class TransactionRefused(RequestFailed):
    """The opposite verdict stands, or the transaction is settled. ``standing`` names the verdict that counts."""

    code = "transaction-refused"

    def __init__(self, message: str, *, standing: str = "", response_code: int = 604, hint: str = "") -> None:
        super().__init__(message, response_code=response_code, hint=hint)
        self.standing = standing


class TransactionIncomplete(RequestFailed):
    """COMMIT came while halves are missing at the broker. There is no verdict: send them under the same id, or roll back."""

    code = "transaction-incomplete"

    def __init__(self, message: str, *, response_code: int = 604, hint: str = "") -> None:
        super().__init__(message, response_code=response_code, hint=hint)


class OutcomeUnknown(HalfmqError):
    code = "outcome-unknown"
    outcome_known = False


class SendTimeout(OutcomeUnknown):
    code = "send-timeout"
    retriable = True


class TransactionUnknown(OutcomeUnknown):
    """The local COMMIT or the verdict's answer was lost. The check settles it; ``tx_id`` says which one."""

    code = "transaction-unknown"

    def __init__(self, message: str, *, tx_id: str = "", hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.tx_id = tx_id


class ProtocolError(HalfmqError):
    code = "protocol"


class EnvironmentFailed(HalfmqError):
    code = "environment"


class StoreInUse(EnvironmentFailed):
    code = "store-in-use"
    retriable = True


class StoreDamaged(EnvironmentFailed):
    """Damage that is not a torn tail. Nothing was changed; the message names file, place and remedy."""

    code = "store-damaged"


class StoreFull(EnvironmentFailed):
    code = "store-full"
    retriable = True


class StorePoisoned(EnvironmentFailed):
    """A write or fsync failed, so what is on disk is not known: no more appends, restart to recover."""

    code = "store-poisoned"


class PortTaken(EnvironmentFailed):
    code = "port-taken"
    retriable = True


class WrongVersion(EnvironmentFailed):
    code = "wrong-version"


class MissingDependency(EnvironmentFailed):
    code = "missing-dependency"


class DataLost(EnvironmentFailed):
    """Messages that a reader should have read next are gone (retention, another store, an older copy): the text names them."""

    code = "data-lost"


class InvariantViolated(HalfmqError):
    code = "invariant-violated"
