"""The index of settled ids: which verdicts are in it, that each is found, in which order, after which starts and trims."""

from pathlib import Path
from typing import Any

import pytest
from tests.support.faulty_disk import FaultyDisk
from tests.support.vectors import vectors

from halfmq.client.unique_ids import UniqueIds
from halfmq.model.ids import hash64
from halfmq.model.records import (
    Committed,
    Decided,
    DecidedBy,
    Ref,
    RolledBack,
    committed_size,
    decided_size,
    rolled_back_size,
)
from halfmq.runtime.clock import SystemClock
from halfmq.runtime.entropy import SystemEntropy
from halfmq.store import settled_ids
from halfmq.store.layout import SETTLED_ID_ENTRY
from halfmq.store.open_files import OpenFiles
from halfmq.store.settled_ids import IdPositions, SettledIds, id_hash, is_chosen

ROOT = Path("/i")
SEGMENT = 1 << 16
JAVA = "AC10000100002A9F0000000000000001"
IDS = UniqueIds(SystemClock(), SystemEntropy())


def committed(tx_id: str, at: int, *, unique: str = JAVA, group: str = "PG") -> Committed:
    ref = Ref(at - 200, 100, at - 200, 1, 1, 0, 0, 0, 0, hash64(unique.encode()))
    return Committed(at, committed_size(group, tx_id, 1), group, tx_id, DecidedBy.PRODUCER, (ref,))


def rolled_back(tx_id: str, at: int, *, group: str = "PG") -> RolledBack:
    return RolledBack(at, rolled_back_size(group, tx_id, 1), group, tx_id, DecidedBy.PRODUCER, (1,))


def decided(tx_id: str, at: int, *, digest: bytes = b"") -> Decided:
    return Decided(at, decided_size("PG", tx_id, digest, 0, 1), "PG", tx_id, DecidedBy.PRODUCER, digest, (), (1,))


class Bench:
    def __init__(self) -> None:
        self.disk = FaultyDisk()
        self.records: dict[int, Committed | RolledBack] = {}
        self.ids = self.opened()

    def opened(self) -> SettledIds:
        return SettledIds(self.disk, ROOT, OpenFiles(self.disk), SEGMENT)

    def add(self, *records: Committed | RolledBack) -> None:
        for record in records:
            self.records[record.offset] = record
            self.ids.add(record)

    def restart(self, position: int) -> None:
        self.ids = self.opened()
        self.ids.load(position, self.records.__getitem__)

    def loaded(self, position: int) -> None:
        self.restart(position)
        self.read()

    def read(self) -> int:
        """Reads what is left; returns the number of parts."""
        parts = 0
        while (part := self.ids.next_part) is not None:
            self.ids.use_part(part, self.ids.read_part(part))
            parts += 1
        assert self.ids.is_ready
        return parts


def test_an_entry_has_these_bytes() -> None:
    assert SETTLED_ID_ENTRY.pack(id_hash("orders", "order-17"), 0x1040) == vectors("derived")["settled_id_entry"]


@pytest.mark.parametrize(
    ("record", "expected"),
    [
        (committed("order-17", 300), True),
        (rolled_back("order-17", 300), True),
        (committed(JAVA, 300, unique=JAVA), False),
        (committed(JAVA, 300, unique="F" * 32), True),  # of the form of a UNIQ_KEY, and still HMQ_TX_ID
        (committed("K1", 300, unique="K1"), True),  # a UNIQ_KEY that the application chose
        (rolled_back(JAVA, 300), True),  # the record does not say what the UNIQ_KEY was
        (committed(IDS.transaction_id(), 300), False),
        (rolled_back(IDS.transaction_id(), 300), False),
        (committed(f"x{IDS.transaction_id()}", 300), True),
        (committed("1-2-3-4-5-6", 300), True),
        (committed("", 300), True),
        (decided("order-17", 300), True),
        (decided("q1:0:r1", 300, digest=bytes(16)), False),  # a batch of a query
        (decided(IDS.transaction_id(), 300), False),
    ],
)
def test_only_ids_that_a_client_generated_are_left_out(record: Any, expected: bool) -> None:
    bench = Bench()
    bench.add(record)
    assert is_chosen(record) == expected
    assert bench.ids.find("PG", record.tx_id) == ([300] if expected else [])


def test_a_verdict_is_found_at_once_newest_first_and_by_its_own_names_only() -> None:
    bench = Bench()
    bench.add(committed("a", 300), rolled_back("b", 600), committed("a", 900), committed("a", 1_200, group="PH"))
    assert bench.ids.find("PG", "a") == [900, 300]
    assert bench.ids.find("PG", "b") == [600]
    assert bench.ids.find("PH", "a") == [1_200]
    assert bench.ids.find("PG", "c") == [] == bench.ids.find("P", "Ga")


def test_after_a_start_it_is_not_ready_until_the_files_were_read() -> None:
    bench = Bench()
    bench.add(*[committed(f"order-{number}", 300 + 300 * number) for number in range(5)])
    bench.ids.flush()
    bench.restart(1_500)
    assert not bench.ids.is_ready
    bench.ids.add(bench.records[1_500])  # the redo
    part = bench.ids.next_part
    assert part is not None
    entries = bench.ids.read_part(part)
    bench.add(rolled_back("order-0", 1_800))  # live, before the result arrives
    bench.ids.use_part(part, entries)
    bench.ids.use_part(part, entries)  # the same again: ignored
    assert bench.ids.is_ready
    assert [bench.ids.find("PG", f"order-{number}") for number in range(6)] == [
        [1_800, 300], [600], [900], [1_200], [1_500], [],
    ]  # fmt: skip
    bench.ids.cut()
    bench.loaded(1 << 40)
    assert [bench.ids.find("PG", f"order-{number}") for number in (0, 4, 5)] == [[1_800, 300], [1_500], []]


def test_many_entries_of_several_segments_are_read_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settled_ids, "_PART_ENTRIES", 7)
    bench = Bench()
    for number in range(500):
        bench.add(committed(f"order-{number}", 300 + 700 * number))
    bench.ids.flush()
    bench.restart(1 << 40)
    assert bench.read() > 500 / 7
    assert all(bench.ids.find("PG", f"order-{number}") == [300 + 700 * number] for number in range(500))
    assert len(bench.ids._older) == 500


def test_a_file_that_was_trimmed_while_it_was_to_be_read_is_skipped() -> None:
    bench = Bench()
    bench.add(committed("a", 300), committed("b", SEGMENT + 300))
    bench.ids.flush()
    bench.restart(1 << 40)
    bench.ids.trim(SEGMENT)
    bench.read()
    assert (bench.ids.find("PG", "a"), bench.ids.find("PG", "b")) == ([], [SEGMENT + 300])


def test_memory_lets_go_of_what_was_trimmed() -> None:
    bench = Bench()
    for number in range(300):  # one bucket gets many of them
        bench.add(committed("a", 300 + number))
    bench.ids.flush()
    bench.restart(1 << 40)
    bench.read()
    bench.add(committed("a", SEGMENT + 300))
    bench.ids.trim(SEGMENT)
    assert bench.ids.find("PG", "a") == [SEGMENT + 300], "all older ones were before the log's start"
    bench.ids.trim(2 * SEGMENT)
    bench.add(committed("a", 2 * SEGMENT + 300))
    assert bench.ids.find("PG", "a") == [2 * SEGMENT + 300]
    assert bench.disk.list(ROOT) == []  # neither flushed file is left
    bench.ids.flush()
    bench.ids.reset()
    assert bench.disk.list(ROOT) == []


def test_hashes_in_the_place_of_a_position_are_no_hits() -> None:
    """Entries are searched for 4 bytes, which may also be a part of a position."""
    positions = IdPositions()
    inner = (0x01020304).to_bytes(8, "big")
    positions.add(b"hh" + b"\0\0\0\0" + b"xx", 0x01020304, bytes(8))
    positions.add(b"hh" + inner[4:] + b"xx", 0x01020305, bytes(8))
    assert list(positions.find(b"hh" + inner[4:] + b"xx")) == [0x01020305]
    assert list(positions.find(b"hh" + b"\x02\x03\x04\x01" + b"xx")) == []
    assert list(positions.find(b"hh" + b"\0\0\0\0" + b"xx")) == [0x01020304]


def test_a_file_that_cannot_be_read_leaves_the_index_unready() -> None:
    bench = Bench()
    bench.add(committed("a", 300))
    bench.ids.flush()
    bench.restart(1 << 40)

    def fail(*_: Any, **__: Any) -> Any:
        raise OSError(5, "broken")

    disk, bench.ids._disk = bench.ids._disk, type("Broken", (), {"open": fail})()  # type: ignore[assignment]
    part = bench.ids.next_part
    assert part is not None
    with pytest.raises(OSError, match="broken"):
        bench.ids.read_part(part)
    bench.ids._disk = disk
    assert not bench.ids.is_ready
    bench.read()
    assert bench.ids.find("PG", "a") == [300]
