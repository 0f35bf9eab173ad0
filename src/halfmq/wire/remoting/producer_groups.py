"""Commands of ours about producer groups: figures, limits and policy, and asking about one transaction now.

    HMQ_ASK        29006  ext ``group`` (empty: whichever has it), ``txId``
        answer  code 0, ext ``group``, ``clientId`` (whom; empty: whoever fetches next), ``checks``; 2 when nobody can or may
                be asked now; 604 with HMQ_VERDICT when it is settled; 1 not found
    HMQ_PRODUCER   29007  ext ``group``; to change it ``operator``, ``reason`` and a body: JSON of what changes
                (``ProducerChange``)
        answer  code 0; body JSON ``ProducerLimits``: what was set, or what stands
    HMQ_STATS      29008  ext ``group`` (empty: all), ``from``: the ``next`` of the answer before, or none
        answer  code 0, ext ``next``: where there are more groups, none behind the last; body JSON [``GroupStats``, ...], the ones
                with most undecided first

HMQ_ASK_PARKED  29010  ext ``group``, ``max``: ask about what a policy parked, so many at most
        answer  code 0, ext ``left``: how many others are parked still; body JSON [id, ...]: of which checks go out, 256
                at most, none where too many wait for answers; 2 when nobody can be asked

29 for a field that cannot be. A stock broker answers 3. Pure.
"""

from collections.abc import Iterable
from typing import Final, Literal

import msgspec

from halfmq.errors import ProtocolError
from halfmq.model.pending import GroupStats

HMQ_ASK: Final = 29_006
HMQ_PRODUCER: Final = 29_007
HMQ_STATS: Final = 29_008
HMQ_ASK_PARKED: Final = 29_010

EXT_CLIENT: Final = "clientId"
EXT_CHECKS: Final = "checks"
EXT_LEFT: Final = "left"

PastLimitName = Literal["wait", "rollback", "set-aside"]


class ProducerLimits(msgspec.Struct, frozen=True):
    """Limits and policy of a producer group; fields as in ``model.settings.ProducerSettings``."""

    group: str
    check_limit: int
    past_limit: PastLimitName
    skip_age_ms: int
    #: -1: as the broker's, which are the two last ones.
    undecided_max: int
    undecided_bytes_max: int
    set_by: str
    broker_undecided_max: int
    broker_undecided_bytes_max: int


class ProducerChange(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """What shall change; None: stays."""

    check_limit: int | None = None
    past_limit: PastLimitName | None = None
    skip_age_ms: int | None = None
    undecided_max: int | None = None
    undecided_bytes_max: int | None = None

    @property
    def is_empty(self) -> bool:
        return self == ProducerChange()


_CHANGE: Final = msgspec.json.Decoder(ProducerChange)
_LIMITS: Final = msgspec.json.Decoder(ProducerLimits)
_STATS: Final = msgspec.json.Decoder(list[GroupStats])
#: What a decoder raises for bytes that somebody made up.
_UNREADABLE: Final = (msgspec.MsgspecError, ValueError, RecursionError)


def encode_change(change: ProducerChange) -> bytes:
    return msgspec.json.encode(change)


def decode_change(body: bytes | bytearray | memoryview) -> ProducerChange:
    """An empty body changes nothing.

    Raises:
        ProtocolError: not such a request; the text says which field.
    """
    if not len(body):
        return ProducerChange()
    try:
        return _CHANGE.decode(body)
    except _UNREADABLE as error:
        raise ProtocolError(f"limits of a producer group cannot be read: {error}") from error


def encode_limits(limits: ProducerLimits) -> bytes:
    return msgspec.json.encode(limits)


def decode_limits(body: bytes | bytearray | memoryview) -> ProducerLimits:
    """
    Raises:
        ProtocolError: not such an answer.
    """
    try:
        return _LIMITS.decode(body)
    except _UNREADABLE as error:
        raise ProtocolError(f"the answer to HMQ_PRODUCER cannot be read: {error}") from error


def encode_stats(stats: Iterable[GroupStats]) -> bytes:
    return msgspec.json.encode(list(stats))


def decode_stats(body: bytes | bytearray | memoryview) -> list[GroupStats]:
    """
    Raises:
        ProtocolError: not such an answer.
    """
    try:
        return _STATS.decode(body)
    except _UNREADABLE as error:
        raise ProtocolError(f"the answer to HMQ_STATS cannot be read: {error}") from error
