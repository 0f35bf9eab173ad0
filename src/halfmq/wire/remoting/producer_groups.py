"""Commands of halfmq for producer groups: statistics, limits and policy.

    HMQ_PRODUCER   29007  ext ``group``; for a change also ``operator``, ``reason`` and a JSON body (``ProducerChange``)
        response  code 0; body JSON ``ProducerLimits``: the current settings
    HMQ_STATS      29008  ext ``group`` (empty: all), ``from``: ``next`` of the previous page
        response  code 0, ext ``next``: start of the next page, absent on the last one; body JSON [``GroupStats``, ...], those
                  with most undecided transactions first

Response code 29: an invalid field. RocketMQ responds with 3. Pure functions.
"""

from typing import Final, Literal

import msgspec

from halfmq.model.pending import GroupStats
from halfmq.model.text_fields import Fields
from halfmq.wire.remoting.fields import JsonBody

PastLimitName = Literal["wait", "rollback", "set-aside"]


class ProducerFields(Fields, gc=False, omit_defaults=True):
    """HMQ_PRODUCER."""

    group: str = ""
    operator: str = ""
    reason: str = ""


class ProducerLimits(msgspec.Struct, frozen=True):
    """Limits and policy of a producer group, as in ``model.settings.ProducerSettings``, and the limits of the broker."""

    group: str
    check_limit: int
    past_limit: PastLimitName
    skip_age_ms: int
    #: -1: the limit of the broker, in the last two fields.
    undecided_max: int
    undecided_bytes_max: int
    set_by: str
    broker_undecided_max: int
    broker_undecided_bytes_max: int


class ProducerChange(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A change of limits and policy; None: unchanged."""

    check_limit: int | None = None
    past_limit: PastLimitName | None = None
    skip_age_ms: int | None = None
    undecided_max: int | None = None
    undecided_bytes_max: int | None = None

    @property
    def is_empty(self) -> bool:
        """Whether nothing changes."""
        return self == ProducerChange()


_CHANGE: Final = JsonBody(ProducerChange, "limits of a producer group are")
#: Response body of HMQ_PRODUCER.
LIMITS: Final = JsonBody(ProducerLimits, "a response to HMQ_PRODUCER is")
#: Response body of HMQ_STATS.
STATS: Final = JsonBody(list[GroupStats], "a response to HMQ_STATS is")


def encode_change(change: ProducerChange) -> bytes:
    """Request body of HMQ_PRODUCER."""
    return _CHANGE.encode(change)


def decode_change(body: bytes | bytearray | memoryview) -> ProducerChange:
    """Request body of HMQ_PRODUCER; an empty one changes nothing. Raises ProtocolError, which names the field."""
    return _CHANGE.decode(body) if len(body) else ProducerChange()
