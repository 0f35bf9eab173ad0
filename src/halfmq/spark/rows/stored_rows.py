"""Converts stored messages in a buffer to an Arrow record batch, for all readers.

Vectorised: the fixed fields of all messages are read at once, and bodies and properties become slices of the buffer. Only
the requested columns are built.
"""

import sys
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from halfmq.model import properties
from halfmq.model.checksum import crc32
from halfmq.model.layout import STORED_MESSAGE
from halfmq.model.stored_message import (
    AT_BODY_V4,
    MAGIC_V1,
    SYS_BORN_HOST_V6,
    SYS_COMPRESSED,
    SYS_HOSTS_V6,
    SYS_STORE_HOST_V6,
    V6_MORE,
)
from halfmq.spark.rows.bodies import body_columns
from halfmq.spark.rows.byte_slices import Ints, as_bytes, binary_column, cuts, field, gather, string_column
from halfmq.spark.rows.properties_arrow import PropertyTable
from halfmq.spark.schema import arrow_schema

#: Maximum rows of a record batch: 4,000 to 64,000 are about equally fast in Spark; with fewer, the calls cost more.
BATCH_ROWS: Final = 16_384
#: Maximum stored bytes of a record batch, unless a single message is larger. Bounds the memory of a task.
BATCH_BYTES: Final = 32 << 20
#: The same with compressed bodies: text compresses to a tenth or less.
PACKED_BATCH_BYTES: Final = 2 << 20
#: Maximum decompressed bytes of a record batch, unless a single body is larger (``limits.DECOMPRESSED_BYTES_MAX``). Zeros compress to a
#: thousandth, and an Arrow column holds at most 2 GiB.
UNPACKED_BATCH_BYTES: Final = BATCH_BYTES

_MAGIC_V1_LAST: Final = MAGIC_V1 & 0xFF
_MAGIC_LAST_AT: Final = STORED_MESSAGE.at["magic"] + 3

#: CRCs of bodies are stored without their sign bit, as RocketMQ does.
_CRC_MASK: Final = np.uint32(0x7FFFFFFF)

DAMAGED_BODY: Final = (
    "its body is damaged: its CRC differs from the stored one; `halfmq store verify` names the file to restore"
)

_FROM_PROPERTIES: Final = frozenset({"key", "tag", "keys", "message_id", "transaction_id", "properties", "headers"})


@cache
def _not_in_headers() -> pa.Array:
    """Properties that are not in column ``headers``. The first array that pyarrow makes of Python's objects imports pandas, which takes
    longer than most processes that Spark starts work: not when this module is imported.
    """
    return pa.array(sorted(properties.SYSTEM), pa.string())


SysFlags = npt.NDArray[np.int32]


class StoredRows(NamedTuple):
    """Messages of a queue. ``starts`` and ``sizes``: of the stored messages in ``buffer``, bytes. ``store_times_ms``: when each
    became visible. ``transactional``: whether it was a half message.
    """

    buffer: pa.Buffer
    starts: Ints
    sizes: Ints
    queue_offsets: Ints
    store_times_ms: Ints
    transactional: npt.NDArray[np.bool_]
    topic: str
    broker: str
    queue: int
    #: The file that ``buffer`` maps, for messages about damage; "" if there is none.
    file: str = ""
    #: Whether a RocketMQ broker stored them.
    rocketmq: bool = False
    #: Whether a checksum made by the broker when it stored the bodies was found right: then those of the bodies are too.
    is_verified: bool = False


def record_batch(
    rows: StoredRows, columns: Sequence[str], bad: Callable[[int, str], None], *, verify: bool = True
) -> pa.RecordBatch:
    """The rows as a record batch with ``columns``. ``verify``: check the CRC of each body if column ``value`` is requested.

    ``bad(queue offset, why)`` is called for bodies that are damaged or cannot be decompressed; see ``body_columns``.
    """
    return _Columns(rows, _sys_flags(rows), columns, bad, verify=verify).batch()


def record_batches(
    rows: StoredRows, columns: Sequence[str], bad: Callable[[int, str], None], *, verify: bool = True
) -> Iterator[pa.RecordBatch]:
    """The rows as record batches of bounded size, also where compressed bodies become large. See ``record_batch``."""
    flags = _sys_flags(rows)
    if "value" not in columns or not (flags & SYS_COMPRESSED).any():
        yield _Columns(rows, flags, columns, bad, verify=verify).batch()
        return
    schema = arrow_schema(columns)
    for part in split_compressed(rows):
        builder = _Columns(part, _sys_flags(part), columns, bad, verify=verify)
        others = {name: builder.column(name) for name in columns if name != "value"}
        for begin, end, bodies in builder.bodies(UNPACKED_BATCH_BYTES):
            snapshot = {name: column.slice(begin, end - begin) for name, column in others.items()}
            yield pa.RecordBatch.from_arrays([snapshot.get(name, bodies) for name in columns], schema=schema)


def _sys_flags(rows: StoredRows) -> SysFlags:
    return field(as_bytes(rows.buffer), rows.starts, STORED_MESSAGE, "sys_flag").astype(np.int32)


def more_of_hosts(flags: SysFlags, hosts: int = SYS_HOSTS_V6) -> Ints | int:
    """Bytes by which fields after these ``hosts`` are moved, since hosts are IPv6."""
    if not (flags & hosts).any():
        return 0
    more: Ints = ((flags & hosts & SYS_BORN_HOST_V6) != 0).astype(np.int64)
    more += (flags & hosts & SYS_STORE_HOST_V6) != 0
    return more * V6_MORE


class _Columns:
    def __init__(
        self,
        rows: StoredRows,
        flags: SysFlags,
        columns: Sequence[str],
        bad: Callable[[int, str], None],
        *,
        verify: bool,
    ) -> None:
        self._rows = rows
        self._names = columns
        self._bad = bad
        self._data = as_bytes(rows.buffer)
        self._sys_flags = flags
        hosts = more_of_hosts(flags)
        self._body_starts: Ints = rows.starts + AT_BODY_V4 + hosts
        self._body_lengths: Ints = field(self._data, rows.starts, STORED_MESSAGE, "body_bytes", hosts).astype(np.int64)
        #: The bodies, once they are verified.
        self._as_stored: pa.BinaryArray | None = None
        #: False for damaged bodies, if ``bad`` has returned.
        self._whole: npt.NDArray[np.bool_] | None = None
        room = rows.sizes - (self._body_starts - rows.starts)
        self._exclude((self._body_lengths < 0) | (self._body_lengths > room))
        self.properties = self._property_table() if any(name in _FROM_PROPERTIES for name in columns) else None
        if verify and not rows.is_verified and "value" in columns:
            self._verify_bodies()

    def batch(self) -> pa.RecordBatch:
        return pa.RecordBatch.from_arrays([self.column(name) for name in self._names], schema=arrow_schema(self._names))

    def _verify_bodies(self) -> None:
        """Call ``bad`` for each body whose CRC differs from the stored one."""
        stated = field(self._data, self._rows.starts, STORED_MESSAGE, "body_crc").astype(np.uint32)
        # Arrow makes the objects: slices of a memoryview cost twice as much as their checksum.
        self._as_stored = binary_column(self._rows.buffer, self._body_starts, self._body_lengths)
        found = np.fromiter(map(crc32, self._as_stored.to_pylist()), np.uint32, len(stated)) & _CRC_MASK
        damaged = found != stated
        self._exclude(damaged if self._whole is None else damaged & self._whole)

    def _exclude(self, damaged: npt.NDArray[np.bool_]) -> None:
        if not damaged.any():
            return
        for row in np.flatnonzero(damaged).tolist():
            self._bad_row(row, DAMAGED_BODY)
        self._body_lengths = np.where(damaged, 0, self._body_lengths)
        self._whole = ~damaged if self._whole is None else self._whole & ~damaged

    def _property_table(self) -> PropertyTable:
        """The properties; none of a message whose lengths of topic and properties do not lead to its end, which is reported."""
        rows = self._rows
        ends = rows.starts + rows.sizes
        topic_at = np.minimum(self._body_starts + self._body_lengths, ends - 2)  # in the message, whatever it states
        version_1 = self._data[rows.starts + _MAGIC_LAST_AT] == _MAGIC_V1_LAST
        topic_bytes = self._data[topic_at].astype(np.int64)
        starts = topic_at + 1 + topic_bytes + 2
        if not version_1.all():
            long = np.flatnonzero(~version_1)
            starts[long] = topic_at[long] + 2 + gather(self._data, topic_at[long], ">u2") + 2
        damaged = starts > ends
        stated = gather(self._data, np.where(damaged, rows.starts, starts - 2), ">u2").astype(np.int64)
        # RocketMQ may append fields that it does not count.
        damaged |= (stated > ends - starts) if rows.rocketmq else (stated != ends - starts)
        if damaged.any():
            for row in np.flatnonzero(damaged if self._whole is None else damaged & self._whole).tolist():
                self._bad_row(row, "its properties are damaged")
            starts, stated = np.where(damaged, rows.starts, starts), np.where(damaged, 0, stated)
        return PropertyTable(rows.buffer, starts, stated)

    def bodies(self, unpacked_max: int) -> Iterator[tuple[int, int, pa.BinaryArray]]:
        """Column ``value`` in parts; see ``body_columns``."""
        return body_columns(
            self._rows.buffer, self._body_starts, self._body_lengths, self._sys_flags, self._bad_row, self._whole,
            unpacked_max,
        )  # fmt: skip

    def column(self, name: str) -> pa.Array:
        rows = self._rows
        count = len(rows.starts)
        match name:
            case "value":
                if self._as_stored is not None and self._whole is None and not (self._sys_flags & SYS_COMPRESSED).any():
                    return self._as_stored
                ((_, _, column),) = self.bodies(sys.maxsize)
                return column
            case "topic":
                return pa.repeat(pa.scalar(rows.topic, pa.string()), count)
            case "broker":
                return pa.repeat(pa.scalar(rows.broker or None, pa.string()), count)
            case "queue":
                return pa.repeat(pa.scalar(rows.queue, pa.int32()), count)
            case "offset":
                return pa.array(rows.queue_offsets, pa.int64())
            case "timestamp":
                return pa.array(rows.store_times_ms * 1_000, pa.int64()).cast(pa.timestamp("us", tz="UTC"))
        assert self.properties is not None
        match name:
            case "key":
                return self.properties.first_token(properties.KEYS)
            case "tag":
                return self.properties.text(properties.TAGS)
            case "keys":
                return self.properties.text(properties.KEYS)
            case "message_id":
                return self.properties.text(properties.UNIQ_KEY)
            case "transaction_id":
                return self._transaction_ids(self.properties)
            case "headers":
                return self.properties.lists(_not_in_headers())
            case _:
                return self.properties.maps()

    def _transaction_ids(self, table: PropertyTable) -> pa.StringArray:
        """The property of multi-message transactions, else the unique id of a half message; null for plain messages, and for those of a
        half batch that do not name their transaction.
        """
        starts, lengths, there = table.find(properties.HMQ_TX_ID)
        if there.all():
            return string_column(table.binary(starts, lengths, self._rows.transactional))
        own_starts, own_lengths, own = table.find(properties.UNIQ_KEY)
        own &= table.find(properties.TRAN_MSG)[2]
        starts = np.where(there, starts, own_starts)
        lengths = np.where(there, lengths, own_lengths)
        return string_column(table.binary(starts, lengths, (there | own) & self._rows.transactional))

    def _bad_row(self, row: int, why: str) -> None:
        place = f", in {self._rows.file} at byte {self._rows.starts[row]}" if self._rows.file else ""
        self._bad(int(self._rows.queue_offsets[row]), why + place)


def split_compressed(rows: StoredRows) -> Iterator[StoredRows]:
    """``rows``, in smaller batches if bodies are compressed, since few stored bytes may become many."""
    if not (_sys_flags(rows) & SYS_COMPRESSED).any():
        yield rows
        return
    for begin, end in cuts(rows.sizes, PACKED_BATCH_BYTES, BATCH_ROWS):
        yield chosen_rows(rows, slice(begin, end))


def chosen_rows(rows: StoredRows, chosen: Ints | slice) -> StoredRows:
    """Some of the rows, by number."""
    return rows._replace(
        starts=rows.starts[chosen],
        sizes=rows.sizes[chosen],
        queue_offsets=rows.queue_offsets[chosen],
        store_times_ms=rows.store_times_ms[chosen],
        transactional=rows.transactional[chosen],
    )


def property_table(rows: StoredRows, bad: Callable[[int, str], None]) -> PropertyTable:
    """The properties of the rows. ``bad(queue offset, why)`` is called for damaged ones, which have none."""
    table = _Columns(rows, _sys_flags(rows), ("properties",), bad, verify=False).properties
    assert table is not None
    return table


def with_tags(rows: StoredRows, tags: Sequence[str], bad: Callable[[int, str], None]) -> StoredRows:
    """The rows whose tag is one of ``tags``; without ``tags`` all of them. A message with damaged properties has no tag:
    ``bad(queue offset, why)`` is called for it.
    """
    if not tags:
        return rows
    table = property_table(rows, bad)
    found = pc.is_in(
        table.binary(*table.find(properties.TAGS)), value_set=pa.array([tag.encode() for tag in tags], pa.binary())
    )
    chosen = np.flatnonzero(found.to_numpy(zero_copy_only=False))
    return rows if len(chosen) == len(rows.starts) else chosen_rows(rows, chosen)
