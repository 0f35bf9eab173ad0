"""Rows of a task that wait for more rows of their queue, so that few and large requests are sent, whatever the order of the rows."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final

import pyarrow as pa

from halfmq.spark.rows.byte_slices import Ints, cuts
from halfmq.spark.sink.columns import Group

#: Rows that wait, bytes; beyond it the largest queue is sent.
WAITING_BYTES_MAX: Final = 32 << 20


@dataclass(eq=False, slots=True)
class _Rows:
    """Of one queue, in order."""

    rows: list[pa.RecordBatch] = field(default_factory=list)
    bytes: int = 0
    count: int = 0


@dataclass(eq=False, slots=True)
class Waiting:
    """Collects rows by topic and queue. The caller must call ``finish`` after the last.

    ``sizes``: bytes of each row of a topic in a request; ``send``: called with topic, queue (or ANY_QUEUE) and rows for one request, all
    with delays or none, in the order of the rows of a queue. A request has at most ``request_bytes`` and ``request_rows``, or one row.
    """

    request_bytes: int
    request_rows: int
    sizes: Callable[[pa.RecordBatch, str], Ints]
    send: Callable[[str, int, pa.RecordBatch], None]
    _waiting: dict[tuple[str, int, bool], _Rows] = field(default_factory=dict)
    _waiting_bytes: int = 0

    def add(self, groups: Iterable[Group]) -> None:
        for group in groups:
            self._add_group(group)
        while self._waiting_bytes > WAITING_BYTES_MAX:
            self._send(max(self._waiting, key=lambda key: self._waiting[key].bytes), whole=True)

    def finish(self) -> None:
        for key in list(self._waiting):
            self._send(key, whole=True)

    def _add_group(self, group: Group) -> None:
        key = (group.topic, group.queue, group.is_delayed)
        waiting = self._waiting.setdefault(key, _Rows())
        size = int(self.sizes(group.rows, group.topic).sum())
        waiting.rows.append(group.rows)
        waiting.bytes += size
        waiting.count += group.rows.num_rows
        self._waiting_bytes += size
        if waiting.bytes >= self.request_bytes or waiting.count >= self.request_rows:
            self._send(key, whole=False)

    def _send(self, key: tuple[str, int, bool], *, whole: bool) -> None:
        """Send the waiting rows of a queue; without ``whole``, only full requests."""
        topic, queue, _ = key
        waiting = self._waiting.pop(key)
        self._waiting_bytes -= waiting.bytes
        rows = waiting.rows[0] if len(waiting.rows) == 1 else pa.concat_batches(waiting.rows)
        sizes = self.sizes(rows, topic)
        for begin, end in cuts(sizes, self.request_bytes, self.request_rows):
            part = rows.slice(begin, end - begin)
            if end == rows.num_rows and not whole:
                left = self._waiting[key] = _Rows([part], int(sizes[begin:].sum()), part.num_rows)
                self._waiting_bytes += left.bytes
                return
            self.send(topic, queue, part)
