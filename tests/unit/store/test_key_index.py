from pathlib import Path

import pytest
from tests.support import log_records as make
from tests.support.faulty_disk import FaultyDisk
from tests.support.vectors import vectors

from halfmq.model.ids import unsigned_hash64
from halfmq.model.stored_message import StoredMessage
from halfmq.store.key_index import KeyIndex, key_hashes, keys_of
from halfmq.store.layout import KEY_ENTRY
from halfmq.store.open_files import OpenFiles

ROOT = Path("/k")
SEGMENT = 1 << 16


def index(disk: FaultyDisk) -> KeyIndex:
    return KeyIndex(disk, ROOT, OpenFiles(disk), SEGMENT)


def add(keys: KeyIndex, message: StoredMessage, offset: int) -> None:
    keys.add(message.topic, keys_of(message), offset)


def found(keys: KeyIndex, topic: str, key: str) -> list[int]:
    return [offset for part in keys.find(topic, key) for offset in part]


def keyed(keys: str) -> bytes:
    return b"UNIQ_KEY\x01K1\x02KEYS\x01" + keys.encode() + b"\x02"


def test_an_entry_has_these_bytes() -> None:
    assert KEY_ENTRY.pack(unsigned_hash64(b"orders#o-17"), 0x1040) == vectors("derived")["key_entry"]


def test_each_blank_separated_token_is_a_key_once() -> None:
    assert key_hashes("orders", b"a b  a c") == [unsigned_hash64(b"orders#" + token) for token in (b"a", b"b", b"c")]
    assert key_hashes("orders", b"") == []


def test_keys_are_the_value_of_keys() -> None:
    assert keys_of(make.message(properties=keyed("a b"))) == b"a b"
    assert keys_of(make.message()) == b""
    assert keys_of(make.message(properties=b"MYKEYS\x01a\x02")) == b""


def test_keys_are_found_newest_first_across_segments() -> None:
    keys = index(FaultyDisk())
    message = make.message(properties=keyed("a b"))
    for offset in (64, 4_000, SEGMENT + 64, 3 * SEGMENT + 64):
        add(keys, message, offset)
    keys.flush()
    assert found(keys, "orders", "a") == [3 * SEGMENT + 64, SEGMENT + 64, 4_000, 64]
    assert found(keys, "payments", "a") == []


def test_a_hash_in_the_place_of_an_offset_is_no_hit() -> None:
    keys = index(FaultyDisk())
    entries = keys._entries
    file = entries._files.create((-2, -2, 0), ROOT / f"{0:020d}.key", 0)
    raw = unsigned_hash64(b"orders#a").to_bytes(8, "big")
    entries._files.write(file, 0, [b"\0" * 8 + raw + raw + (64).to_bytes(8, "big")])
    entries.ends[0] = 32
    assert found(keys, "orders", "a") == [64]


def test_after_a_crash_only_entries_below_the_position_count_and_the_rest_is_cut() -> None:
    disk = FaultyDisk()
    keys = index(disk)
    message = make.message(properties=keyed("a"))
    for offset in (64, 200, 300):
        add(keys, message, offset)
    keys.flush()
    again = index(disk)

    def read_message(offset: int) -> StoredMessage:
        return message

    again.load(300, read_message)
    add(again, message, 300)
    again.cut()
    assert found(again, "orders", "a") == [300, 200, 64]
    assert len(disk.content(ROOT / f"{0:020d}.key")) == 48
    again.load(200, read_message)
    again.cut()
    assert len(disk.content(ROOT / f"{0:020d}.key")) == 16


@pytest.mark.parametrize("kept", range(1, 8))
def test_an_entry_of_a_write_that_was_cut_short_does_not_count(kept: int) -> None:
    """An offset without its last bytes is a smaller one, perhaps below the position: it would stay, and name no message."""
    disk = FaultyDisk()
    keys = index(disk)
    message = make.message(properties=keyed("a"))
    for offset in (SEGMENT + 64, 2 * SEGMENT - 8):
        add(keys, message, offset)
    keys.flush()
    path = ROOT / f"{SEGMENT:020d}.key"
    disk.put(path, disk.content(path)[: 24 + kept] + bytes(8 - kept))
    again = index(disk)

    def read_message(offset: int) -> StoredMessage:
        if offset != SEGMENT + 64:
            raise LookupError(offset)
        return message

    again.load(SEGMENT + 400, read_message)
    add(again, message, 2 * SEGMENT - 8)
    again.cut()
    assert found(again, "orders", "a") == [2 * SEGMENT - 8, SEGMENT + 64]
    assert len(disk.content(path)) == 32


def test_the_keys_of_a_record_with_many_messages_are_those_of_each() -> None:
    single, together = FaultyDisk(), FaultyDisk()
    values = [b"order-1", b"a b  a c", b" ", b"order-1", b"\xc3\xa4"]
    one = index(single)
    for number, value in enumerate(values):
        one.add("orders", value, 4_096 + 100 * number)
    one.flush()
    many = index(together)
    many.add_many("orders", 4_096, [(100 * number, value) for number, value in enumerate(values)])
    many.flush()
    path = ROOT / "00000000000000000000.key"
    assert together.content(path) == single.content(path)
    assert len(single.content(path)) == 6 * KEY_ENTRY.size
