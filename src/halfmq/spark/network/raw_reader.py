"""Reads ranges of queues from a halfmq broker with raw reads (``wire.remoting.raw_read``): stored messages and their queue entries.

The request for the next messages is sent when the header of a response is there, so the broker reads and sends while this process
receives, verifies, decodes, and writes to Spark. One response is one batch. Nothing is done per message in Python.

What a pull patches in a message comes from its entry, as in the direct reader: queue offset, store time, whether it was a half.
"""

import logging
from collections.abc import Callable, Generator
from typing import Final, NamedTuple, Protocol

import numpy as np
import pyarrow as pa

from halfmq.errors import ProtocolError
from halfmq.model.stored_message import MAGIC_V1, MAGIC_V2
from halfmq.spark.network.connection import Address, check_success
from halfmq.spark.network.raw_connection import RawConnection
from halfmq.spark.plan.partitions import QueueRange
from halfmq.spark.retry_deadline import RetryDeadline, Unavailable
from halfmq.spark.rows.byte_slices import Ints, as_bytes, gather
from halfmq.spark.rows.queue_entries import ENTRY
from halfmq.spark.rows.stored_rows import StoredRows
from halfmq.wire.remoting.codes import HMQ_RAW_READ, ResponseCode
from halfmq.wire.remoting.header import Request
from halfmq.wire.remoting.raw_read import (
    BETWEEN_BYTES,
    CHECKSUM_BYTES,
    EXT_NEXT,
    RawReadFields,
    decode_found,
    encode_request_fields,
    is_intact,
)

_log: Final = logging.getLogger("halfmq.spark")

#: Bytes of messages and entries in a response; the broker also limits their number. Larger ones hold up its loop for longer than 5 ms.
ANSWER_BYTES: Final = 2 << 20
#: A checksum that is wrong again on a new connection is not the network's fault.
_WRONG_CHECKSUMS_MAX: Final = 2
#: Number of messages in a run.
_COUNT: Final = np.dtype(">u4")
#: Size and magic number of a stored message.
_MESSAGE_HEAD_BYTES: Final = 8

Lost = Callable[[str], None]


class Planned(Protocol):
    """What was planned, and where it is now; see also ``pull_reader.Planned``."""

    def address_of(self, one: QueueRange, store: str, lost: Lost) -> Address | None:
        """Address of the broker with the planned store; None: it no longer exists, which ``lost`` was told."""

    def is_planned_topic(self, one: QueueRange, store: str, begin: int, lost: Lost) -> bool:
        """Whether the topic still exists; otherwise messages from ``begin`` on are lost."""

    def is_elsewhere(self, address: Address, *, broken: bool) -> None:
        """The address may no longer be that of the store: look it up again. ``broken``: nobody responds there."""


class _Sent(NamedTuple):
    """A request in flight: for the messages of ``range`` from ``first`` on."""

    store: str
    range: QueueRange
    first: int


class RawReader:
    """Reads ranges. The caller must call ``close``."""

    def __init__(self, planned: Planned, deadline: RetryDeadline, group: str) -> None:
        self._planned = planned
        self._deadline = deadline
        self._group = group
        self._connection: RawConnection | None = None
        self._sent: _Sent | None = None
        #: Responses in a row with a wrong checksum.
        self._wrong_checksums = 0
        #: False once the broker did not know the command.
        self.is_supported = True

    def close(self) -> None:
        """Close the connection."""
        self._sent = None
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def read_range(self, one: QueueRange, store: str, lost: Lost) -> Generator[StoredRows, None, int]:
        """The messages of the range. ``lost`` is called with a sentence about missing ones; if it returns, reading continues after them.

        Returns where it ended: before the end of the range only if the broker does not support raw reads. The next step overwrites
        the memory of the rows.
        """
        at = one.start
        what = one.in_words()
        while at < one.end and self.is_supported:
            rows, at = self._deadline.until(lambda: self._attempt(one, at, store, lost), what)  # noqa: B023
            if rows is not None and len(rows.starts):
                yield rows
        return at

    def _attempt(self, one: QueueRange, at: int, store: str, lost: Lost) -> tuple[StoredRows | None, int]:
        """(messages from ``at`` on, next offset)."""
        address = self._planned.address_of(one, store, lost)
        if address is None:
            return None, one.end
        while True:
            try:
                answer, body = self._receive(address, _Sent(store, one, at))
            except Unavailable:
                self.close()
                self._planned.is_elsewhere(address, broken=True)
                raise
            except ProtocolError:
                self.close()
                raise
            if answer.code != ResponseCode.SUCCESS:
                return None, self._nothing(answer, address, one, at, store, lost)
            if is_intact(body):
                self._wrong_checksums = 0
                return self._rows(answer, body, one, at, lost)
            self.close()
            self._wrong_checksums += 1
            if self._wrong_checksums >= _WRONG_CHECKSUMS_MAX:
                raise ProtocolError(f"a response for {one.in_words()} at {at} has a wrong checksum")
            _log.warning("halfmq: a response of %s:%d has a wrong checksum; reading it again", *address)

    def _receive(self, address: Address, wanted: _Sent) -> tuple[Request[dict[str, str]], memoryview]:
        """The response, after the next request was sent."""
        connection = self._connection
        if connection is None or connection.address != address or self._sent not in (None, wanted):
            self.close()
            connection = self._connection = RawConnection.open(address)
        if self._sent is None:
            self._send(connection, wanted)
        answer = connection.head()
        self._sent = None
        if answer.code == ResponseCode.SUCCESS:
            after = decode_found(answer.ext).next_offset
            if wanted.first < after < wanted.range.end:
                self._send(connection, wanted._replace(first=after))
        return answer, connection.body()

    def _send(self, connection: RawConnection, wanted: _Sent) -> None:
        one = wanted.range
        fields = RawReadFields(
            self._group, wanted.store, one.topic, one.topic_id, one.queue, wanted.first, one.end, ANSWER_BYTES
        )
        connection.send(HMQ_RAW_READ, encode_request_fields(fields))
        self._sent = wanted

    def _nothing(
        self, answer: Request[dict[str, str]], address: Address, one: QueueRange, at: int, store: str, lost: Lost
    ) -> int:
        """Where to continue after a response without messages.

        Raises:
            Unavailable: ask again.
        """
        what = one.in_words()
        match answer.code:
            case ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
                self.is_supported = False
                self.close()
                return at
            case ResponseCode.QUERY_NOT_FOUND:
                self._planned.is_elsewhere(address, broken=False)
                raise Unavailable("another store is at the address of the broker")
            case ResponseCode.TOPIC_NOT_EXIST:
                if self._planned.is_planned_topic(one, store, at, lost):
                    raise Unavailable(f"topic {one.topic} is there again")
                return one.end
            case ResponseCode.PULL_NOT_FOUND:
                raise Unavailable(f"offset {at} was planned, but does not exist")
        after = int(answer.ext.get(EXT_NEXT, -1))
        if answer.code == ResponseCode.PULL_OFFSET_MOVED and after > at:
            lost(f"messages {at} to {min(after, one.end) - 1} of {what} are past retention")
            return min(after, one.end)
        if answer.code == ResponseCode.SYSTEM_ERROR and after == at:
            lost(f"message {at} of {what} cannot be read: {answer.remark}")
            return at + 1
        check_success(answer, f"a raw read from {what}")
        raise ProtocolError(f"a raw read from {what} at {at} returned next offset {after}")

    def _rows(
        self, answer: Request[dict[str, str]], body: memoryview, one: QueueRange, at: int, lost: Lost
    ) -> tuple[StoredRows, int]:
        number, number_of_runs, after = decode_found(answer.ext)
        runs_at = CHECKSUM_BYTES + number * ENTRY.itemsize
        messages_at = runs_at + number_of_runs * _COUNT.itemsize
        if after != at + number or after > one.end or messages_at > len(body):
            raise ProtocolError(f"a response with {number} entries from {at} to {after} in {len(body)} bytes")
        entries = np.frombuffer(body, ENTRY, number, CHECKSUM_BYTES)
        runs: Ints = np.frombuffer(body, _COUNT, number_of_runs, runs_at).astype(np.int64)
        if int(runs.min()) < 1 or int(runs.sum()) != number:
            raise ProtocolError(f"a response with {number} entries, and {runs.sum()} in its runs")
        sizes: Ints = entries["size"].astype(np.int64)
        first: Ints = np.cumsum(runs) - runs
        between = np.full(number, BETWEEN_BYTES)
        between[first] = 0
        ends: Ints = messages_at + np.cumsum(sizes + between)
        if int(sizes.min()) < _MESSAGE_HEAD_BYTES or int(ends[-1]) != len(body):
            raise ProtocolError(f"a response of {len(body)} bytes; its entries and their messages have {ends[-1]}")
        buffer = pa.py_buffer(body)
        starts = ends - sizes
        heads = gather(as_bytes(buffer), starts, ">u8")
        # Messages with long topic names have another magic number.
        good = (heads == (sizes << 32 | MAGIC_V1)) | (heads == (sizes << 32 | MAGIC_V2))
        # In a run, messages are as far from each other as their records.
        from_first = entries["offset"].astype(np.int64) - starts
        good &= from_first == np.repeat(from_first[first], runs)
        offsets = np.arange(at, after)
        if not good.all():
            bad = offsets[~good]
            lost(
                f"{len(bad)} of the messages {bad[0]} to {bad[-1]} of {one.in_words()} cannot be read: "
                "what is stored there is no message; run `halfmq store verify`, and do not delete the directory"
            )
            entries, sizes, starts, offsets = entries[good], sizes[good], starts[good], offsets[good]
        rows = StoredRows(
            buffer=buffer,
            starts=starts,
            sizes=sizes,
            queue_offsets=offsets,
            store_times_ms=entries["store_time_ms"].astype(np.int64),
            transactional=entries["half_index"] >= 0,
            topic=one.topic,
            broker=one.broker,
            queue=one.queue,
        )
        return rows, after
