"""Commands of halfmq for producer groups: statistics, limits and policy.

    HMQ_PRODUCER   29007  ext ``group``; for a change also ``operator``, ``reason`` and a JSON body (``ProducerChange``)
        response  code 0; body JSON ``ProducerLimits``: the current settings
    HMQ_STATS      29008  ext ``group`` (empty: all), ``from``: ``next`` of the previous page
        response  code 0, ext ``next``: start of the next page, absent on the last one; body JSON [``GroupStats``, ...], those
                  with most undecided transactions first

Response code 29: an invalid field. RocketMQ responds with 3. Pure functions.
"""

from collections.abc import Iterable
from typing import Final, Literal, TypeVar

import msgspec

from halfmq.errors import ProtocolError
from halfmq.model.pending import GroupStats

T = TypeVar("T")
PastLimitName = Literal["wait", "rollback", "set-aside"]


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


_CHANGE: Final = msgspec.json.Decoder(ProducerChange)
_LIMITS: Final = msgspec.json.Decoder(ProducerLimits)
_STATS: Final = msgspec.json.Decoder(list[GroupStats])


def _decode(decoder: "msgspec.json.Decoder[T]", body: bytes | bytearray | memoryview, what: str) -> T:
    try:
        return decoder.decode(body)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise ProtocolError(f"{what} malformed: {error}") from error


def encode_change(change: ProducerChange) -> bytes:
    """Request body of HMQ_PRODUCER."""
    return msgspec.json.encode(change)


def decode_change(body: bytes | bytearray | memoryview) -> ProducerChange:
    """Request body of HMQ_PRODUCER; an empty one changes nothing. Raises ProtocolError, which names the field."""
    if not len(body):
        return ProducerChange()
    return _decode(_CHANGE, body, "limits of a producer group are")


def encode_limits(limits: ProducerLimits) -> bytes:
    """Response body of HMQ_PRODUCER."""
    return msgspec.json.encode(limits)


def decode_limits(body: bytes | bytearray | memoryview) -> ProducerLimits:
    """Response body of HMQ_PRODUCER. Raises ProtocolError."""
    return _decode(_LIMITS, body, "a response to HMQ_PRODUCER is")


def encode_stats(stats: Iterable[GroupStats]) -> bytes:
    """Response body of HMQ_STATS."""
    return msgspec.json.encode(list(stats))


def decode_stats(body: bytes | bytearray | memoryview) -> list[GroupStats]:
    """Response body of HMQ_STATS. Raises ProtocolError."""
    return _decode(_STATS, body, "a response to HMQ_STATS is")
