"""Backup of a running broker, commands of halfmq: bytes of the log, up to one position.

    HMQ_BACKUP_BEGIN  29034  ext ``from``: the log offset from which the backup needs the log
                             response ext ``store`` (32 hex digits), ``format`` (of the store), ``segmentBytes``, ``logStart``,
                             ``position``: everything before it is durable, and no batch crosses it
    HMQ_BACKUP_READ   29035  ext ``offset``, ``maxBytes`` (at most 1 MiB). Response body: the bytes of the log from there on, at least
                             one and at most ``maxBytes``; fewer at the end of a segment, before ``position``, or while clients do not
                             read
    HMQ_BACKUP_END    29036  the backup is complete. Without it the broker notices that the connection closed, or that nothing is read

From BEGIN to END retention keeps the segments from ``from``, and later from the last ``offset`` that was read, on. Code 2: too many backups
or reads at a time, or no backup on this connection any more. Code 1: the log no longer has these bytes.
"""

from msgspec import field

from halfmq.model.text_fields import Count64, Fields


class BackupBeginFields(Fields, gc=False):
    """HMQ_BACKUP_BEGIN."""

    first: Count64 = field(name="from", default=0)


class BackupBegun(Fields, gc=False):
    """Ext fields of the response to HMQ_BACKUP_BEGIN."""

    store: str
    format: Count64
    segment_bytes: Count64
    log_start: Count64
    position: Count64


class BackupReadFields(Fields, gc=False):
    """HMQ_BACKUP_READ."""

    offset: Count64
    bytes_max: Count64 = field(name="maxBytes")
