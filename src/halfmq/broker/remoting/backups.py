"""Backup of the running broker (29034 to 29036): the bytes of the log up to one position.

The log is the truth, and everything else of a store is rebuilt from it; so these bytes are all that a backup needs. They are read on the
maintenance thread, since what a backup reads is mostly not in the page cache.
"""

import logging
from typing import Any, Final

from halfmq import limits
from halfmq.broker.remoting.gateway import Connection
from halfmq.broker.remoting.handlers import Handlers, Parts
from halfmq.broker.services.pulls import response_bytes_max
from halfmq.core.decision import Refused, Why
from halfmq.model.text_fields import write_fields
from halfmq.wire.remoting.backup import BackupBeginFields, BackupBegun, BackupReadFields
from halfmq.wire.remoting.codes import EXT_DAMAGED, ResponseCode
from halfmq.wire.remoting.header import Request

log: Final = logging.getLogger("halfmq.operators")


class BackupCommands(Handlers):
    """Serves backups."""

    def __init__(self, parts: Parts) -> None:
        super().__init__(parts)
        self._store = parts.store
        self._backups = parts.backups
        self._offload = parts.offload
        self._outgoing = parts.gateway.peers.outgoing

    def peer_gone(self, number: int) -> None:
        self._backups.end(number)

    def begin(self, connection: Connection, request: Request[Any]) -> None:
        """29034: responds when everything before the position is durable."""
        fields: BackupBeginFields = request.ext
        view = self._view
        position = view.log_end
        first = max(view.log_start, min(fields.first, position))
        refused = self._backups.begin(connection.number, first, position)
        if refused is not None:
            self._refuse(connection, request, refused)
            return
        log.info("%s begins a backup of the log from %d to %d", connection.address, first, position)
        store = self._store
        begun = BackupBegun(store.uuid, store.format, store.segment_bytes, view.log_start, position)
        self._answer_durably(connection, request, write_fields(begun))

    def read(self, connection: Connection, request: Request[Any]) -> None:
        """29035: responds when the maintenance thread has read it."""
        fields: BackupReadFields = request.ext
        bytes_max = response_bytes_max(self._outgoing, min(fields.bytes_max, limits.BACKUP_READ_BYTES_MAX))
        if isinstance(bytes_max, Refused):
            self._refuse(connection, request, bytes_max)
            return
        if fields.offset < self._view.log_start:
            text = f"the log starts at {self._view.log_start} now, after {fields.offset}: the disk was nearly full; run the backup again"
            self._refuse(connection, request, Refused(Why.NOT_FOUND, text))
            return
        lease = self._backups.read(connection.number, fields.offset)
        if isinstance(lease, Refused):
            self._refuse(connection, request, lease)
            return
        offset, length = fields.offset, min(bytes_max, lease.end - fields.offset)
        request = request.to_answer(None)

        def done(found: object) -> None:
            self._backups.done(lease)
            if isinstance(found, bytes):
                self._answer(connection, request, None, found)
            elif isinstance(found, Exception):
                text = f"log offset {offset} cannot be read: {found}"
                self._gateway.answer(connection, request, ResponseCode.SYSTEM_ERROR, text, {EXT_DAMAGED: "true"})
            self._gateway.peers.flush()

        self._offload.run(lambda: self._store.read_log(offset, length), done)

    def end(self, connection: Connection, request: Request[Any]) -> None:
        """29036."""
        self._backups.end(connection.number)
        self._answer(connection, request)
