"""The files of a store on this machine, for readers beside its broker: identity, watermark page, mapped segments.

Takes no lock and writes nothing. ``DirectReader`` reads queues through it, ``TableFiles`` the transaction table.
"""

import mmap
import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Final, TypeVar

import pyarrow as pa

from halfmq.client.blocking import Unavailable
from halfmq.errors import UsageError
from halfmq.runtime.disk import RealDisk
from halfmq.spark.retry_deadline import RetryDeadline
from halfmq.spark.rows.byte_slices import Bytes, as_bytes
from halfmq.store.identity import not_permitted, read_identity
from halfmq.store.segment import segment_name
from halfmq.store.two_slots import Unreadable
from halfmq.store.watermark_page import Watermark, read_watermark_page

T = TypeVar("T")

#: Segments that stay mapped; bounds the address space of a long read.
_MAPPED_MAX: Final = 4


class StoreFiles:
    """The store in the directory ``path``. The caller must call ``close``."""

    def __init__(self, path: str, deadline: RetryDeadline) -> None:
        self._root = Path(path)
        self._shard = self._root / "shard-0"
        self._deadline = deadline
        self._disk = RealDisk()
        self._segment_bytes = 0
        self._store = ""
        self._segments: dict[int, tuple[pa.Buffer, Bytes]] = {}

    def close(self) -> None:
        """Release the mapped segments; the system unmaps each with its last record batch."""
        self._segments.clear()

    def _without_rebuild(self, look: Callable[[Watermark], T]) -> tuple[Watermark, T]:
        """(watermark page, result of ``look``), if no broker began to rebuild the indexes meanwhile.

        A broker announces a rebuild in the page before it removes the first file, so the epoch of the page must be the same
        before and after. Otherwise missing queues would appear empty, and incomplete entries complete.
        """
        page = self._page()
        try:
            found = look(page)
        except FileNotFoundError as error:
            self._check_epoch(page)
            raise Unavailable(f"{error.filename} was just removed") from error
        self._check_epoch(page)
        return page, found

    def _check_epoch(self, page: Watermark) -> None:
        if self._page().epoch != page.epoch:
            raise Unavailable("a broker has just started")

    def _identify(self) -> None:
        """Read ``store.json`` again, since the directory may contain another store by now."""
        try:
            identity = read_identity(self._disk, self._root)
        except PermissionError as error:
            raise not_permitted(error) from error
        if identity is None:
            raise UsageError(
                f"{self._root} holds no store on {socket.gethostname()}",
                hint="path is the data directory of a halfmq broker, under the same path on the driver and all executors; "
                "without a shared directory read over the network (url)",
            )
        if identity.store_id.hex() != self._store:
            self._segments.clear()
        self._store = identity.store_id.hex()
        self._segment_bytes = identity.segment_bytes

    def _page(self) -> Watermark:
        page = read_watermark_page(self._disk, self._shard / "published")
        if not isinstance(page, Watermark):
            raise Unavailable(page.why if isinstance(page, Unreadable) else "it has no high watermark yet")
        if page.rebuilding:
            raise Unavailable("its broker is rebuilding the indexes")
        if page.store.hex() != self._store:
            raise Unavailable(f"its watermark page belongs to store {page.store.hex()}")
        return page

    def _segment_path(self, start: int) -> Path:
        return self._shard / "log" / segment_name(start)

    def _segment(self, number: int) -> tuple[pa.Buffer, Bytes] | None:
        """The mapped segment; None if its file does not exist."""
        mapped = self._segments.get(number)
        if mapped is None:
            path = self._segment_path(number * self._segment_bytes)
            try:
                descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            except FileNotFoundError:
                return None
            try:
                buffer = pa.py_buffer(mmap.mmap(descriptor, 0, prot=mmap.PROT_READ))
            finally:
                os.close(descriptor)
            mapped = (buffer, as_bytes(buffer))
            while len(self._segments) >= _MAPPED_MAX:
                self._segments.pop(next(iter(self._segments)))
            self._segments[number] = mapped
        return mapped
