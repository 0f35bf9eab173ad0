"""Commands of halfmq for somebody else's coordinators (``model.coordinator``), and for participants of Try/Confirm/Cancel.

    HMQ_TAKE_EPOCH          29019  ext ``group``, ``coordinator``, ``takenBy``: a text that this process alone uses
        response  code 0, ext ``epoch``: from now on lower ones are refused; 2: no space for another coordinator
    HMQ_COORDINATORS        29020  ext ``max``, ``from``: ``next`` of the previous page
        response  code 0, ext ``total``, ``next`` (start of the next page, absent on the last one); body JSON [``CoordinatorInfo``, ...]
    HMQ_FORGET_COORDINATOR  29021  ext ``group``, ``coordinator``, ``operator``, ``reason``
        response  code 0, ext ``epoch``: its last one; 1: no such coordinator; 2: it has undecided transactions
    HMQ_FENCE               29026  ext ``group``, ``txId``, ``since``: the log position at which the transaction began
        response  code 0, ext HMQ_VERDICT (UNDECIDED, COMMITTED, ROLLED_BACK) and, of a verdict, HMQ_POSITION; 1: past retention
    HMQ_FENCE               29026  without ``txId``
        response  code 0, ext HMQ_POSITION: the log's end, as ``since`` of a transaction that begins now

The undecided transactions of a coordinator: HMQ_TRANSACTIONS with ``coordinator`` (``operators``). Response code 29: an invalid field.
RocketMQ responds with 3. What it prepares and settles carries ``Coordinator.text``: halves in the property HMQ_COORDINATOR, END_TRANSACTION
in the field of that name. Pure functions.
"""

from typing import Final

from msgspec import field

from halfmq.model.pending import CoordinatorInfo
from halfmq.model.text_fields import Count64, Fields, Int64
from halfmq.wire.remoting.codes import EXT_POSITION
from halfmq.wire.remoting.fields import JsonBody

#: Response body of HMQ_COORDINATORS.
COORDINATORS: Final = JsonBody(list[CoordinatorInfo], "a response to HMQ_COORDINATORS is")


class TakeEpochFields(Fields, gc=False):
    """HMQ_TAKE_EPOCH."""

    group: str = ""
    coordinator: str = ""
    taken_by: str = ""


class ForgetCoordinatorFields(Fields, gc=False):
    """HMQ_FORGET_COORDINATOR."""

    group: str = ""
    coordinator: str = ""
    operator: str = ""
    reason: str = ""


class EpochFields(Fields, gc=False):
    """The response to HMQ_TAKE_EPOCH and HMQ_FORGET_COORDINATOR."""

    epoch: Count64


class FenceFields(Fields, gc=False):
    """HMQ_FENCE. Without ``tx_id`` it asks where the log ends."""

    group: str = ""
    tx_id: str = ""
    since: Int64 = -1


class LogEnd(Fields, gc=False):
    """The response to HMQ_FENCE without ``tx_id``."""

    position: Count64 = field(name=EXT_POSITION)
