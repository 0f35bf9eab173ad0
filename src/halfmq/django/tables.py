"""The tables of halfmq as statements for each database. They are the tables of ``halfmq.sql``, so that a service with SQLAlchemy, ``halfmq
relay`` and ``halfmq db`` work on them as well; a test compares both.

Statements and not Django's operations: those know no table without a number of its rows (SQLite), no storage parameters (PostgreSQL), and
add indexes for LIKE. They are frozen, as a migration is; a later change is another migration.
"""

from typing import Final

MARKERS_TABLE: Final = "mq_tx"
INBOX_TABLE: Final = "mq_inbox"
OUTBOX_TABLE: Final = "mq_outbox"
LANES_TABLE: Final = "mq_outbox_lane"
#: All of them, in the order in which they are created.
TABLES: Final = (MARKERS_TABLE, INBOX_TABLE, OUTBOX_TABLE, LANES_TABLE)

#: {exact}: binary comparison of text; {rows}: how a table is stored whose key is text; {seq}, {bytes}, {body}: types of columns.
_TABLES: Final = (
    """
CREATE TABLE mq_tx (
    tx_id VARCHAR(64) {exact} NOT NULL,
    outcome VARCHAR(1) NOT NULL,
    written_at_ms BIGINT NOT NULL,
    PRIMARY KEY (tx_id),
    CONSTRAINT ck_mq_tx_outcome CHECK (outcome IN ('C', 'P', 'R'))
) {rows}""",
    "CREATE INDEX ix_mq_tx_written_at_ms ON mq_tx (written_at_ms)",
    """
CREATE TABLE mq_inbox (
    consumer_group VARCHAR(120) {exact} NOT NULL,
    message_key VARCHAR(255) {exact} NOT NULL,
    handled_at_ms BIGINT NOT NULL,
    PRIMARY KEY (consumer_group, message_key)
) {rows}""",
    "CREATE INDEX ix_mq_inbox_handled_at_ms ON mq_inbox (handled_at_ms)",
    """
CREATE TABLE mq_outbox (
    seq {seq},
    lane SMALLINT NOT NULL,
    delivery VARCHAR(1) NOT NULL,
    outcome VARCHAR(1) NOT NULL,
    order_key VARCHAR(255) {exact} NOT NULL,
    message_id VARCHAR(64) {exact} NOT NULL,
    tx_id VARCHAR(64) {exact} NOT NULL,
    topic VARCHAR(255) {exact} NOT NULL,
    properties {bytes} NOT NULL,
    body {body} NOT NULL,
    written_at_ms BIGINT NOT NULL,
    attempts INTEGER NOT NULL,
    due_at_ms BIGINT NOT NULL,
    published_at_ms BIGINT NOT NULL,
    reason VARCHAR(500) {exact} NOT NULL
)""",
    "CREATE INDEX ix_mq_outbox_next ON mq_outbox (delivery, lane, due_at_ms, seq)",
    "CREATE INDEX ix_mq_outbox_message_id ON mq_outbox (message_id)",
    """
CREATE TABLE mq_outbox_lane (
    lane SMALLINT NOT NULL,
    token VARCHAR(32) {exact} NOT NULL,
    holder VARCHAR(255) {exact} NOT NULL,
    lease_until_ms BIGINT NOT NULL,
    batch_id VARCHAR(64) {exact} NOT NULL,
    batch_seqs TEXT NOT NULL,
    one_by_one_to_seq BIGINT NOT NULL,
    PRIMARY KEY (lane)
)""",
)
_POSTGRESQL_STORAGE: Final = (
    "ALTER TABLE mq_outbox SET (autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_threshold = 1000, "
    "autovacuum_vacuum_cost_limit = 1000)",
    "ALTER TABLE mq_outbox_lane SET (fillfactor = 20)",
)

_TYPES: Final = {
    "postgresql": {
        "exact": 'COLLATE "C"',
        "rows": "",
        "seq": "BIGSERIAL NOT NULL PRIMARY KEY",
        "bytes": "BYTEA",
        "body": "BYTEA",
    },
    "sqlite": {
        "exact": 'COLLATE "BINARY"',
        "rows": "WITHOUT ROWID",
        "seq": "INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT",
        "bytes": "BLOB",
        "body": "BLOB",
    },
    "mysql": {
        "exact": "CHARACTER SET utf8mb4 COLLATE utf8mb4_bin",
        "rows": "",
        "seq": "BIGINT NOT NULL AUTO_INCREMENT PRIMARY KEY",
        "bytes": "BLOB(32767)",
        "body": "MEDIUMBLOB",
    },
}

#: ``connection.vendor`` of the databases with tables; MariaDB is ``mysql``.
VENDORS: Final = tuple(_TYPES)


def statements(vendor: str) -> list[str]:
    """What creates all tables on a database of that ``connection.vendor``."""
    made = [text.format(**_TYPES[vendor]).strip() for text in _TABLES]
    return [*made, *(_POSTGRESQL_STORAGE if vendor == "postgresql" else ())]
