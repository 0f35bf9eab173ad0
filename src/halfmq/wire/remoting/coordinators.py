"""Commands of halfmq for somebody else's coordinators (``model.coordinator``).

    HMQ_TAKE_EPOCH          29019  ext ``group``, ``coordinator``, ``takenBy``: a text that this process alone uses
        response  code 0, ext ``epoch``: from now on lower ones are refused; 2: no space for another coordinator
    HMQ_COORDINATORS        29020  ext ``max``, ``from``: ``next`` of the previous page
        response  code 0, ext ``total``, ``next`` (start of the next page, absent on the last one); body JSON [``CoordinatorInfo``, ...]
    HMQ_FORGET_COORDINATOR  29021  ext ``group``, ``coordinator``, ``operator``, ``reason``
        response  code 0, ext ``epoch``: its last one; 1: no such coordinator; 2: it has undecided transactions

Its undecided transactions: HMQ_TRANSACTIONS with ``coordinator`` (``operators``). Response code 29: an invalid field. RocketMQ responds with 3.
What it prepares and settles carries ``Coordinator.text``: halves in the property HMQ_COORDINATOR, END_TRANSACTION in the field of that name.
Pure functions.
"""

from typing import Final

from halfmq.model.pending import CoordinatorInfo
from halfmq.wire.remoting.json_body import JsonBody

EXT_TAKEN_BY: Final = "takenBy"
EXT_EPOCH: Final = "epoch"
#: Response body of HMQ_COORDINATORS.
COORDINATORS: Final = JsonBody(list[CoordinatorInfo], "a response to HMQ_COORDINATORS is")
