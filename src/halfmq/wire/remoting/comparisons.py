"""Commands of halfmq that compare verdicts with what the applications' databases did.

    HMQ_COMPARISONS    29022  ext ``group``, ``from``: ``next`` of the previous page; from a client that reads markers
        response  code 0, ext ``next`` (absent on the last page); body JSON [``AwaitedComparison``, ...]
    HMQ_COMPARED       29023  ext ``group`` (empty: any), ``txId``, ``outcome`` COMMIT | ROLLBACK of the local transaction, ``source``,
                              ``isMarker`` "true": read from the marker of the transaction, which may end the comparison
        response  code 0 with HMQ_VERDICT, ``agrees``; 29 with HMQ_VERDICT UNDECIDED; 1: not known here; 2: no space for a finding
    HMQ_DAMAGED        29024  ext ``max``, ``from``
        response  code 0, ext ``total``, ``waiting``: to be compared, ``next``; body JSON [``DamagedTransaction``, ...]
    HMQ_FORGET_DAMAGE  29025  ext ``group`` (empty: any), ``txId``, ``operator``, ``reason``
        response  code 0 with HMQ_VERDICT and ``group``; 1: nothing is known of it; 2: it may still be compared

Response code 29: an invalid field. RocketMQ responds with 3. Pure functions.
"""

from typing import Final

from halfmq.model.pending import AwaitedComparison, DamagedTransaction
from halfmq.wire.remoting.json_body import JsonBody

EXT_OUTCOME: Final = "outcome"
EXT_SOURCE: Final = "source"
EXT_IS_MARKER: Final = "isMarker"
EXT_AGREES: Final = "agrees"
EXT_WAITING: Final = "waiting"
#: Response body of HMQ_COMPARISONS.
AWAITED: Final = JsonBody(list[AwaitedComparison], "a response to HMQ_COMPARISONS is")
#: Response body of HMQ_DAMAGED.
DAMAGED: Final = JsonBody(list[DamagedTransaction], "a response to HMQ_DAMAGED is")
