"""Reads ranges of queues with pull requests: from Apache RocketMQ, and from halfmq brokers without raw reads.

A broker returns at most 32 messages or 256 KiB unless it is halfmq, so a pull for the next messages is sent before the response is
decoded; and further ones, at the offsets that follow if each response has as many messages as the last one. A wrong guess costs a
response that nobody reads.
"""

from collections import deque
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple, Protocol

import numpy as np
import pyarrow as pa

from halfmq import limits
from halfmq.errors import ProtocolError
from halfmq.model.stored_message import (
    AT_QUEUE_OFFSET,
    AT_STORE_TIME_V4,
    AT_SYS_FLAG,
    MAGIC_V1,
    MAGIC_V2,
    SYS_BORN_HOST_V6,
    SYS_COMMITTED,
    SYS_TRANSACTION_MASK,
)
from halfmq.spark.byte_slices import Ints, as_bytes, gather
from halfmq.spark.connection import Address, Connections, Sent, check_success
from halfmq.spark.offsets import is_rocketmq
from halfmq.spark.partitions import QueueRange
from halfmq.spark.queue_lookups import pull_fields
from halfmq.spark.retry_deadline import RetryDeadline, Unavailable
from halfmq.spark.stored_rows import BATCH_BYTES, BATCH_ROWS, StoredRows
from halfmq.wire.remoting.codes import RequestCode, ResponseCode
from halfmq.wire.remoting.header import Request
from halfmq.wire.remoting.replies import PulledReply, read_reply

#: Responses are merged into record batches up to this size: a quarter of the direct reader's, for a lower latency.
_BATCH_BYTES: Final = BATCH_BYTES // 4
#: Pulls that are sent before the first of them is answered.
_IN_FLIGHT: Final = 3
_V6_MORE: Final = 12
_MESSAGE_MIN: Final = 88
_NO_MESSAGES: Final = (ResponseCode.PULL_RETRY_IMMEDIATELY, ResponseCode.PULL_OFFSET_MOVED)
#: A halfmq broker rejects a pull with this field only if the message at this offset is damaged, which waiting does not change.
_NEXT_OFFSET: Final = "nextBeginOffset"

Lost = Callable[[str], None]


class Planned(Protocol):
    """What was planned, and where it is now; both may call ``lost``. Methods raise Unavailable if that cannot be known now."""

    def address_of(self, one: QueueRange, store: str, lost: Lost) -> Address | None:
        """Address of the broker with the planned store, or broker of a cluster; None: it no longer exists, which ``lost`` was told."""

    def is_planned_topic(self, one: QueueRange, store: str, begin: int, lost: Lost) -> bool:
        """Whether what was pulled until now is of the planned topic; otherwise messages from ``begin`` on are lost."""


class _Ahead(NamedTuple):
    """A pull in flight."""

    address: Address
    range: QueueRange
    at: int
    sent: Sent


class PullReader:
    """Reads ranges. ``connections`` are the caller's, who closes them."""

    def __init__(self, planned: Planned, connections: Connections, deadline: RetryDeadline, group: str) -> None:
        self._planned = planned
        self._connections = connections
        self._deadline = deadline
        self._group = group
        #: Pulls in flight, all of one range, in the order of their offsets.
        self._ahead: deque[_Ahead] = deque()

    def read_range(self, one: QueueRange, store: str, lost: Lost) -> Iterator[StoredRows]:
        """The messages of the range: pull responses, merged into batches. ``lost`` is called with a sentence about missing messages; if it
        returns, reading continues after them.
        """
        # ``parts`` contains the messages from ``begin`` to ``at``, except skipped ones.
        parts: list[bytes] = []
        size = 0
        begin = at = one.start
        while at < one.end:
            body, after = self._pull(one, at, store, lost)
            if body:
                parts.append(body)
                size += len(body)
                at = after
            if parts and (not body or size >= _BATCH_BYTES or at - begin >= BATCH_ROWS or at >= one.end):
                if not self._is_planned_topic(one, store, begin, lost):
                    return
                found = pulled_rows(b"".join(parts), one, rocketmq=is_rocketmq(store))
                _report_gaps(one, found.queue_offsets, begin, min(at, one.end), lost)
                if len(found.starts):
                    yield found
                parts, size, begin = [], 0, at
            if not body:
                begin = at = after

    def _is_planned_topic(self, one: QueueRange, store: str, begin: int, lost: Lost) -> bool:
        return self._deadline.until(lambda: self._planned.is_planned_topic(one, store, begin, lost), one.topic)

    def _pull(self, one: QueueRange, at: int, store: str, lost: Lost) -> tuple[bytes, int]:
        """(stored messages from ``at`` on, next offset). The last messages may be beyond the range."""
        what = one.in_words()
        stock = is_rocketmq(store)

        def attempt() -> tuple[bytes, int]:
            address = self._planned.address_of(one, store, lost)
            if address is None:
                return b"", one.end
            answer = self._answer(address, one, at)
            if answer.code == ResponseCode.TOPIC_NOT_EXIST:
                lost(f"topic {one.topic} no longer exists")
                return b"", one.end
            if answer.code != 0 and not self._planned.is_planned_topic(one, store, at, lost):
                return b"", one.end
            if answer.code == ResponseCode.PULL_NOT_FOUND:
                raise Unavailable(f"offset {at} was planned, but does not exist")
            damaged = not stock and answer.code == ResponseCode.SYSTEM_ERROR and _NEXT_OFFSET in answer.ext
            if not damaged and answer.code not in (0, *_NO_MESSAGES):
                check_success(answer, f"a pull from {what}")
            after = read_reply(answer, PulledReply).next_begin_offset
            if answer.code == 0:
                if after <= at:
                    raise ProtocolError(f"a pull from {what} at {at} returned next offset {after}")
                if stock:  # of an older halfmq broker, each batch is first checked to be of the planned topic
                    self._pull_ahead(address, one, at, after)
                return answer.body, after
            if damaged and after <= at:
                lost(f"message {at} of {what} cannot be read: {answer.remark}")
                return b"", at + 1
            if after <= at:
                raise Unavailable(f"the queue ends at {after}, before the planned offset {at}")
            lost(f"messages {at} to {min(after, one.end) - 1} of {what} are past retention")
            return b"", min(after, one.end)

        return self._deadline.until(attempt, what)

    # --- pulls in flight

    def _answer(self, address: Address, one: QueueRange, at: int) -> Request[dict[str, str]]:
        """The response to a pull at ``at``, which may have been sent before."""
        ahead = self._ahead.popleft() if self._ahead else None
        if ahead is not None and (ahead.address, ahead.range, ahead.at) == (address, one, at):
            try:
                return self._connections.receive(ahead.sent)
            except (Unavailable, ProtocolError):
                self._ahead.clear()
                raise
        if ahead is not None:
            self._ahead.appendleft(ahead)
            self._forget_all()
        return self._connections.receive(self._send(address, one, at))

    def _pull_ahead(self, address: Address, one: QueueRange, at: int, after: int) -> None:
        """Send the next pulls. The response to the pull at ``at`` ended at ``after``."""
        right = not self._ahead or self._ahead[0].at == after
        if not right:
            self._forget_all()
        following = after
        if self._ahead:
            following = self._ahead[-1].at + after - at
        # After a wrong guess only what is known is sent.
        in_flight = _IN_FLIGHT if right else 1
        try:
            while len(self._ahead) < in_flight and following < one.end:
                self._ahead.append(_Ahead(address, one, following, self._send(address, one, following)))
                following += after - at
        except Unavailable:
            self._ahead.clear()  # the next pull reports it

    def _forget_all(self) -> None:
        for ahead in self._ahead:
            ahead.sent.connection.forget(ahead.sent.opaque)
        self._ahead.clear()

    def _send(self, address: Address, one: QueueRange, at: int) -> Sent:
        messages_max = min(one.end - at, limits.PULL_MESSAGES_MAX)
        fields = pull_fields(self._group, one.topic, one.queue, at, messages_max)
        return self._connections.send(address, RequestCode.PULL_MESSAGE, fields)


def pulled_rows(data: bytes, one: QueueRange, *, rocketmq: bool = False) -> StoredRows:
    """The messages of one or more pull responses that are within the range.

    Raises:
        ProtocolError: ``data`` is not a sequence of complete stored messages.
    """
    starts, sizes = _walk(data)
    buffer = pa.py_buffer(data)
    content = as_bytes(buffer)
    offsets: Ints = gather(content, starts + AT_QUEUE_OFFSET, ">i8").astype(np.int64)
    inside = (offsets >= one.start) & (offsets < one.end)
    if not inside.all():
        starts, sizes, offsets = starts[inside], sizes[inside], offsets[inside]
    flags = gather(content, starts + AT_SYS_FLAG, ">i4").astype(np.int32)
    v6 = _V6_MORE * ((flags & SYS_BORN_HOST_V6) != 0).astype(np.int64)
    return StoredRows(
        buffer=buffer,
        starts=starts,
        sizes=sizes,
        queue_offsets=offsets,
        store_times_ms=gather(content, starts + AT_STORE_TIME_V4 + v6, ">i8").astype(np.int64),
        transactional=(flags & SYS_TRANSACTION_MASK) == SYS_COMMITTED,
        topic=one.topic,
        broker=one.broker,
        queue=one.queue,
        rocketmq=rocketmq,
    )


def _report_gaps(one: QueueRange, offsets: Ints, begin: int, end: int, lost: Callable[[str], None]) -> None:
    """Call ``lost`` if messages of [begin, end) are missing: a broker skips what it can no longer read.

    Raises:
        ProtocolError: the messages are not in queue order.
    """
    if not (np.diff(offsets) > 0).all():
        raise ProtocolError(f"messages of {one.in_words()} arrived out of order or twice")
    if len(offsets) < end - begin:
        missing = np.setdiff1d(np.arange(begin, end), offsets)
        lost(
            f"{len(missing)} of the messages {missing[0]} to {missing[-1]} of {one.in_words()} are "
            "missing: the broker skipped them"
        )


def _walk(data: bytes) -> tuple[Ints, Ints]:
    """(starts, sizes) of consecutive stored messages, bytes."""
    starts = []
    at = 0
    end = len(data)
    while at + _MESSAGE_MIN <= end:
        size = int.from_bytes(data[at : at + 4], "big")
        magic = int.from_bytes(data[at + 4 : at + 8], "big")
        if size < _MESSAGE_MIN or magic not in (MAGIC_V1, MAGIC_V2):
            break
        starts.append(at)
        at += size
    if at != end:
        raise ProtocolError(
            f"a pull response of {end} bytes is not a sequence of stored messages: invalid at byte {at}"
        )
    places = np.array(starts, dtype=np.int64)
    return places, np.diff(np.append(places, end))
