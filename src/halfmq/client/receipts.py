"""What the broker acknowledged, as values. Position and durability are there when a halfmq broker answered."""

from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

COMMITTED: Final = "COMMITTED"
ROLLED_BACK: Final = "ROLLED_BACK"
#: No verdict yet: the local transaction could not tell, the check will be asked.
UNDECIDED: Final = "UNDECIDED"
Verdict = Literal["COMMITTED", "ROLLED_BACK", "UNDECIDED"]


@dataclass(frozen=True, slots=True)
class Receipt:
    """One stored message.

    ``message_id``: the unique id that every copy of this message carries (UNIQ_KEY); use it to recognise duplicates.
    ``offset_id``: RocketMQ's ``offsetMsgId``, broker address and log offset. ``status``: ``SEND_OK``, or what RocketMQ
    says when it stored the message but not yet as safely as configured (``FLUSH_DISK_TIMEOUT``, ...).
    """

    message_id: str
    topic: str
    broker: str
    queue: int
    offset: int
    offset_id: str
    status: str = "SEND_OK"


class PreparedHalf(NamedTuple):
    """A half message that a broker holds, and where: what END_TRANSACTION must name."""

    message_id: str
    topic: str
    broker: str
    address: str
    log_offset: int
    half_index: int


@dataclass(frozen=True, slots=True)
class Prepared:
    """A transaction whose halves are all acknowledged, and that has no verdict yet.

    The caller must settle it with ``commit`` or ``rollback``; until then the broker asks the group (the check).
    ``atomic``: all halves share one verdict at one log position. False on an Apache RocketMQ broker with several
    messages, where each is a transaction of its own.
    """

    tx_id: str
    group: str
    name: str
    halves: tuple[PreparedHalf, ...]
    atomic: bool


@dataclass(frozen=True, slots=True)
class TransactionReceipt:
    """A settled transaction.

    ``acknowledged``: the broker said that it has the verdict. False where its answer was lost and asking again could
    do harm (Apache RocketMQ); the check is the safety net there.
    ``position``: log position of the verdict, ``durability``: how safe it is (``memory``, ``fsync``, ``replicated``);
    only a halfmq broker says these. ``repeated``: the verdict already stood. ``atomic``: see ``Prepared``.
    """

    tx_id: str
    verdict: Verdict
    message_ids: tuple[str, ...] = ()
    acknowledged: bool = True
    atomic: bool = True
    position: int | None = None
    durability: str = ""
    repeated: bool = False
