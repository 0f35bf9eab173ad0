"""Receipts: what a broker acknowledged. Only halfmq brokers report position and durability."""

from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

import msgspec

from halfmq.errors import UsageError

COMMITTED: Final = "COMMITTED"
ROLLED_BACK: Final = "ROLLED_BACK"
#: No verdict yet: the outcome was UNKNOWN, and the broker will check.
UNDECIDED: Final = "UNDECIDED"
Verdict = Literal["COMMITTED", "ROLLED_BACK", "UNDECIDED"]
#: Which way the messages of a transaction go: as half messages to the broker, or as rows of the outbox, for a relay.
HALF_MESSAGES: Final = "half messages"
OUTBOX: Final = "outbox"
Path = Literal["half messages", "outbox"]


@dataclass(frozen=True, slots=True)
class Receipt:
    """One stored message.

    ``message_id``: the unique id that every copy of this message carries (UNIQ_KEY); use it to detect duplicates.
    ``offset_id``: RocketMQ's ``offsetMsgId``, broker address and log offset. ``status``: ``SEND_OK``, or
    RocketMQ's status for a stored message with a weaker durability than configured (``FLUSH_DISK_TIMEOUT``, ...).
    """

    message_id: str
    topic: str
    broker: str
    queue: int
    offset: int
    offset_id: str
    status: str = "SEND_OK"


class PreparedHalf(NamedTuple):
    """A stored half message and its location, which END_TRANSACTION must name."""

    message_id: str
    topic: str
    broker: str
    address: str
    log_offset: int
    half_index: int


@dataclass(frozen=True, slots=True)
class Prepared:
    """An undecided transaction whose halves are all acknowledged.

    The caller must settle it with ``commit`` or ``rollback``; until then the broker sends checks to the group.
    ``atomic``: all halves share one verdict at one log position. False for several messages on an Apache RocketMQ broker,
    where each half is a separate transaction. ``timeout_s``: of the call that settles it; None: the client's. ``coordinator``: who
    settles it, and in which epoch; empty: any process of the group.
    """

    tx_id: str
    group: str
    name: str
    halves: tuple[PreparedHalf, ...]
    atomic: bool
    timeout_s: float | None = None
    coordinator: str = ""

    def to_json(self) -> str:
        """As text, for the log of a coordinator; ``from_json`` reads it, also in a later version."""
        return msgspec.json.encode(self).decode()

    @classmethod
    def from_json(cls, text: str | bytes) -> "Prepared":
        """Inverse of ``to_json``.

        Raises:
            UsageError: ``text`` is no such text.
        """
        try:
            return msgspec.json.decode(text, type=cls)
        except (msgspec.MsgspecError, UnicodeDecodeError, TypeError) as error:
            raise UsageError(
                f"this is no prepared transaction: {error}", hint="what Prepared.to_json returned"
            ) from error


@dataclass(frozen=True, slots=True)
class TransactionReceipt:
    """The result of settling a transaction.

    ``acknowledged``: the broker confirmed the verdict. False if the response was lost and END_TRANSACTION must not be
    repeated (Apache RocketMQ); the check is the fallback.
    ``position``: log position of the verdict; ``durability``: ``memory`` or ``fsync``. Only halfmq brokers report these two.
    ``repeated``: the transaction already had this verdict. ``atomic``: see ``Prepared``. ``path``: OUTBOX if the broker did not take the
    messages, which are in the outbox with the committed rows; ``tx_id`` is then the id that those rows carry.
    """

    tx_id: str
    verdict: Verdict
    message_ids: tuple[str, ...] = ()
    acknowledged: bool = True
    atomic: bool = True
    position: int | None = None
    durability: str = ""
    repeated: bool = False
    path: Path = HALF_MESSAGES
