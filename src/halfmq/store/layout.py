"""Bytes on disk: every file of a store, its fields and its name. The text for people is ``docs/storage-format.md``.

Big-endian throughout. Change a line here only with a new ``STORE_FORMAT`` and a page in ``docs/decisions/``.

    DIR/store.json                                  format version, store UUID, segment size
    DIR/lock                                        flock of the process that owns the store
    DIR/shard-0/log/<20 digits>.seg                 segments, named by their first log offset
    DIR/shard-0/queues/<topic id>/<queue id>/<20 digits>.q   queue entries, named by their first queue offset
    DIR/shard-0/transactions/<20 digits>.tx         transaction table, named by its first half index
    DIR/shard-0/keys/<20 digits>.key                key index, one file per segment
    DIR/shard-0/snapshots/<20 digits>.snap          durable state at a log offset
    DIR/shard-0/topics.json                         names, ids and queues of topics, for readers beside the broker
    DIR/shard-0/checkpoint                          two slots
    DIR/shard-0/published                           two slots, mapped by readers
"""

import struct
from typing import Final

#: Of the store as a whole, in ``store.json``. 2: starts, bases and snapshots say the epoch's grace period.
STORE_FORMAT: Final = 2
#: Of checkpoint, snapshot and watermark page.
FORMAT_VERSION: Final = 1

# --- batch -----------------------------------------------------------------------------------------------------
#: "HMQB"; version; flags; records; length (header and padding included); own log offset; position known durable
#: when written; broker time, ms; epoch; length without padding; checksum of this header with the checksum as zero,
#: then of every record's bytes but the message bodies (their CRCs are in the bytes that are summed); 12 reserved.
BATCH_MAGIC: Final = b"HMQB"
BATCH_VERSION: Final = 1
BATCH_HEADER: Final = struct.Struct(">4sBBHIIqqqIII12x")
BATCH_CHECKSUM_AT: Final = 48

# --- indexes ---------------------------------------------------------------------------------------------


class Row:
    """A row of fixed size: its fields in order, each with its place. Whoever writes a part of it, or reads a column, asks here.

    ``fields``: ``struct`` formats of one value each, by name.
    """

    def __init__(self, row_bytes: int, **fields: str) -> None:
        self.fields: Final = fields
        #: Bytes from the row's start to each field.
        self.at: Final[dict[str, int]] = {}
        place = 0
        for name, form in fields.items():
            self.at[name] = place
            place += struct.calcsize(">" + form)
        #: All of it, in the order of ``fields``.
        self.whole: Final = struct.Struct(f">{''.join(fields.values())}{row_bytes - place}x")

    def part(self, *names: str) -> struct.Struct:
        """These fields, which stand in this order, from the first to the last; what lies between is skipped, and written as 0."""
        return struct.Struct(">" + self._padded(self.at[names[0]], names))

    def only(self, *names: str) -> struct.Struct:
        """A whole row in which the others are skipped, and written as 0."""
        form = self._padded(0, names)
        return struct.Struct(f">{form}{self.whole.size - struct.calcsize('>' + form)}x")

    def _padded(self, place: int, names: tuple[str, ...]) -> str:
        parts = []
        for name in names:
            form = self.fields[name]
            parts.append(f"{self.at[name] - place}x{form}")
            place = self.at[name] + struct.calcsize(">" + form)
        return "".join(parts)


#: Message offset (start of the record that holds the body), message bytes, tag hash, visible-at position (the
#: record that made it visible), store time ms (of that record's batch), half index (``NO_HALF``, ``DELAYED``), hash of
#: its UNIQ_KEY (0 without one).
#: The stored message lies ``message_at`` after the message offset; see ``record_codec.message_at``.
QUEUE_ENTRY: Final = struct.Struct(">qiiqqqq")
QUEUE_ENTRY_BYTES: Final = 48
#: Half index of an entry whose message was never a half; and of one that was delayed: what leaves is patched, but there is no half.
NO_HALF: Final = -1
DELAYED: Final = -2
QUEUE_FILE_ENTRIES: Final = 65_536

TRANSACTION_ROW_BYTES: Final = 128
#: One half message; what each field says is at ``transaction_table.TransactionRow``. What a verdict sets stands in one piece, from
#: ``state`` on; 16 bytes are reserved. Every field stands on a multiple of its width, so that a reader can take columns as they
#: are.
TRANSACTION_ROW: Final = Row(
    TRANSACTION_ROW_BYTES,
    first_half="q", original_offset="q", current_offset="q", message_bytes="i", topic_id="i", queue_id="i", number="h",
    halves="h", group_hash="q", id_hash="q", prepared_at_ms="q", next_check_at_ms="q", checks="i", state="B",
    decided_by="B", flags="H", verdict_position="q", settled_at_ms="q", queue_offset="q", due_ms="q",
)  # fmt: skip
TRANSACTION_FILE_ROWS: Final = 32_768
ROW_EMPTY: Final = 0
ROW_UNDECIDED: Final = 1
ROW_COMMITTED: Final = 2
ROW_ROLLED_BACK: Final = 3

#: Two slots of WATERMARK_SLOT_BYTES; the one with the higher sequence and a right checksum counts. "HMQP"; version 4;
#: sequence; store UUID; epoch 4; state 4; high watermark; log start; broker time ms; durable position; CRC-32 of what
#: precedes 4. State 1 says that indexes are being made again: a reader waits and takes its position anew.
WATERMARK: Final = struct.Struct(">4sIq16sIIqqqqI")
WATERMARK_VERSION: Final = 2
WATERMARK_MAGIC: Final = b"HMQP"
WATERMARK_SLOT_BYTES: Final = 4_096
WATERMARK_OPEN: Final = 0
WATERMARK_REBUILDING: Final = 1

#: Two slots of CHECKPOINT_SLOT_BYTES; same choice. "HMQC"; version 4; sequence; store UUID; epoch 4; reserved 4; log offset of
#: the snapshot (redo starts there; indexes are whole below it); CRC-32 of the snapshot file 4; CRC-32 of what precedes 4.
CHECKPOINT: Final = struct.Struct(">4sIq16sIIqII")
CHECKPOINT_MAGIC: Final = b"HMQC"
CHECKPOINT_SLOT_BYTES: Final = 4_096

#: hash of ``topic#key`` for one token of KEYS, log offset of the record that holds the message. A message is found by
#: its UNIQ_KEY through the key hash of its queue entry, so the index holds KEYS only.
KEY_ENTRY: Final = struct.Struct(">Qq")

#: Snapshot: "HMQS"; version 4; store UUID; epoch 4; reserved 4; log offset. Then chunks, each with its length 4 and
#: CRC-32 4 before it; then a length of 0 with the CRC-32 of all before it as the end.
SNAPSHOT: Final = struct.Struct(">4sI16sIIq")
SNAPSHOT_MAGIC: Final = b"HMQS"
SNAPSHOT_CHUNK: Final = struct.Struct(">II")

assert QUEUE_ENTRY.size == QUEUE_ENTRY_BYTES
assert TRANSACTION_ROW.whole.size == TRANSACTION_ROW_BYTES, TRANSACTION_ROW.whole.size
assert all(at % struct.calcsize(">" + TRANSACTION_ROW.fields[name]) == 0 for name, at in TRANSACTION_ROW.at.items())
assert BATCH_HEADER.size == 64, BATCH_HEADER.size
