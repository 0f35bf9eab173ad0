"""Format on disk: every file of a store, its fields and its name. ``docs/storage-format.md`` describes it for people.

Big-endian throughout. Kinds of records may be added within a format (a program without them refuses the start); any other change here
requires a page in ``docs/decisions/`` and a new version: ``STORE_FORMAT`` if other versions must not open the store; the version of the
file if it is only rebuilt or redone (checkpoint and snapshot: ``FORMAT_VERSION``; watermark page: ``WATERMARK_VERSION``). A batch of
another ``BATCH_VERSION`` is no batch, so that change needs a new ``STORE_FORMAT`` as well.

"""

import struct
from collections.abc import Iterator
from typing import Final

from halfmq.model.layout import Layout

#: Format of the store as a whole, in ``store.json``. 2: starts, bases and snapshots contain the epoch's grace period. 3: half batches,
#: decisions and bases contain the topic and the stream of a query, and bases more settings of topics and groups.
STORE_FORMAT: Final = 3
#: Formats that this version reads. A start rewrites ``store.json`` before it writes anything else, so that no earlier version passes over
#: what it does not know.
STORE_FORMATS_READ: Final = frozenset({2, STORE_FORMAT})
#: Format of checkpoint and snapshot. The watermark page has its own, ``WATERMARK_VERSION``. 2: the settled ids are complete up to it, too.
FORMAT_VERSION: Final = 2

# --- batch -----------------------------------------------------------------------------------------------------
#: "HMQB"; version; flags; number of records; length with header and padding; own log offset; position known to be durable when
#: written; broker time, ms; epoch; length without padding; checksum of this header with the checksum as zero, then of every
#: record's bytes except message bodies (whose CRCs are among the checksummed bytes); 12 reserved.
BATCH_MAGIC: Final = b"HMQB"
BATCH_VERSION: Final = 1
BATCH_HEADER: Final = struct.Struct(">4sBBHIIqqqIII12x")
BATCH_CHECKSUM_AT: Final = 48

# --- indexes ---------------------------------------------------------------------------------------------
#: Message offset (start of the record with the body), message bytes, tag hash, visible-at position (the record that made it
#: visible), store time ms (of that record's batch), half index (``NO_HALF``, ``DELAYED``), hash of its UNIQ_KEY (0 without one).
#: The stored message starts ``message_at`` bytes after the message offset; see ``record_codec.message_at``.
QUEUE_ENTRY: Final = Layout(
    offset="q", message_bytes="i", tag_hash="i", visible_at="q", store_time_ms="q", half_index="q", key_hash="q"
)
QUEUE_ENTRY_BYTES: Final = QUEUE_ENTRY.size
#: Half index of an entry whose message was never a half; and of a delayed message, which has no half but is patched when read.
NO_HALF: Final = -1
DELAYED: Final = -2
QUEUE_FILE_ENTRIES: Final = 65_536

#: One half message; ``transaction_table.TransactionRow`` describes the fields. A verdict sets a contiguous part, from ``state`` on; 16
#: bytes are reserved. Every field is aligned to its width, so that a reader can use columns directly.
TRANSACTION_ROW: Final = Layout(
    size=128,
    first_half="q", original_offset="q", current_offset="q", message_bytes="i", topic_id="i", queue_id="i", number="h",
    halves="h", group_hash="q", id_hash="q", prepared_at_ms="q", next_check_at_ms="q", checks="i", state="B",
    decided_by="B", flags="H", verdict_position="q", settled_at_ms="q", queue_offset="q", due_ms="q",
)  # fmt: skip
TRANSACTION_ROW_BYTES: Final = TRANSACTION_ROW.size
TRANSACTION_FILE_ROWS: Final = 32_768
ROW_EMPTY: Final = 0
ROW_UNDECIDED: Final = 1
ROW_COMMITTED: Final = 2
ROW_ROLLED_BACK: Final = 3

#: Bytes of a slot in the watermark page, and in the checkpoint.
SLOT_BYTES: Final = 4_096

#: Two slots; the valid one with the higher sequence counts. "HMQP"; version 4; sequence; store UUID; epoch 4;
#: state 4; high watermark; log start; broker time ms; durable position; CRC-32 of the preceding bytes 4. State 1: indexes are
#: being rebuilt; a reader waits and looks up its position again.
WATERMARK: Final = struct.Struct(">4sIq16sIIqqqqI")
WATERMARK_VERSION: Final = 2
WATERMARK_MAGIC: Final = b"HMQP"
WATERMARK_OPEN: Final = 0
WATERMARK_REBUILDING: Final = 1

#: Two slots; same choice. "HMQC"; version 4; sequence; store UUID; epoch 4; reserved 4; log offset of the
#: snapshot (redo starts there; indexes are complete up to it); CRC-32 of the snapshot file 4; CRC-32 of the preceding bytes 4.
CHECKPOINT: Final = struct.Struct(">4sIq16sIIqII")
CHECKPOINT_MAGIC: Final = b"HMQC"

#: Hash of ``topic#key`` for one token of KEYS, log offset of the record with the message. A UNIQ_KEY is found through the key hash
#: of the queue entry, so the index contains KEYS only.
KEY_ENTRY: Final = Layout(hash="Q", offset="q")
#: Settled ids: ``settled_ids.id_hash`` of producer group and transaction id, log offset of the verdict's record.
SETTLED_ID_ENTRY: Final = Layout(hash="8s", offset="q")
SEGMENT_ENTRY_BYTES: Final = KEY_ENTRY.size

#: Snapshot: "HMQS"; version 4; store UUID; epoch 4; reserved 4; log offset. Then chunks, each preceded by its length 4 and CRC-32 4;
#: then a length of 0 with the CRC-32 of everything before it.
SNAPSHOT: Final = struct.Struct(">4sI16sIIq")
SNAPSHOT_MAGIC: Final = b"HMQS"
SNAPSHOT_CHUNK: Final = struct.Struct(">II")


def entries_with(wanted: bytes, data: bytes | bytearray, entry_bytes: int, at: int = 0) -> Iterator[int]:
    """Numbers of the entries of ``data``, from the last one on, that have ``wanted`` ``at`` bytes after their start."""
    place = data.rfind(wanted)
    while place >= at:
        number, rest = divmod(place - at, entry_bytes)
        if rest == 0:
            yield number
        place = data.rfind(wanted, 0, place + len(wanted) - 1)


assert SETTLED_ID_ENTRY.size == SEGMENT_ENTRY_BYTES
assert all(at % struct.calcsize(">" + TRANSACTION_ROW.fields[name]) == 0 for name, at in TRANSACTION_ROW.at.items())
assert BATCH_HEADER.size == 64, BATCH_HEADER.size
