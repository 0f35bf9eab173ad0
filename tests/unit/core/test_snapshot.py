"""A snapshot holds everything durable, and is whole or refused."""

import msgspec
import pytest
from tests.support.core_log import CoreLog, end, half, half_batch, message, part
from tests.support.durable_digest import durable_digest
from tests.support.invariants import check

from halfmq.core.apply import open_batch
from halfmq.core.commands import CommitOffset, EnsureGroup, RequestedVerdict
from halfmq.core.snapshot import encode_rows, load_rows, snapshot_rows
from halfmq.errors import InvariantViolated
from halfmq.model.half_batch import delays_in


def filled() -> CoreLog:
    log = CoreLog()
    log.do(EnsureGroup("CG"))
    replies = [log.do(half(f"T{number}", group=f"G{number % 2}")) for number in range(10)]
    log.do(part("P", 0))
    log.do(part("P", 2, count=3))
    for number in range(0, 6, 2):
        log.do(
            end(
                f"T{number}",
                replies[number],
                RequestedVerdict.ROLLBACK if number else RequestedVerdict.COMMIT,
                group="G0",
            )
        )
    log.do(message("M1", queue=1))
    log.do(message("M2", DELAY="3"))
    log.do(CommitOffset("CG", "orders", 1, 1))
    log.tick()
    log.roll()
    return log


def test_a_state_from_a_snapshot_is_the_state() -> None:
    log = filled()
    state = load_rows(log.settings, log.snapshot())
    assert durable_digest(state) == durable_digest(log.state)
    check(state)


def test_it_does_not_matter_how_the_chunks_are_cut() -> None:
    log = filled()
    whole = b"".join(log.snapshot())
    for size in (1, 7, 1_000, len(whole)):
        pieces = [whole[at : at + size] for at in range(0, len(whole), size)]
        assert durable_digest(load_rows(log.settings, pieces)) == durable_digest(log.state)


def without_delayed_entries(chunk: bytes) -> bytes:
    """A chunk as a version wrote it that had no delays in half batches."""
    version, kind, content = msgspec.msgpack.decode(chunk[4:])
    if kind == "undecided":
        rows = msgspec.msgpack.decode(content)
        for _, _, halves, *_ in rows:
            for half_row in halves:
                assert half_row.pop() is False  # whether it has a marker, which that version did not know either
                if half_row[-1] is not None:
                    assert [half_row[-1].pop() for _ in range(4)] == ["", "", "", b""]
        content = msgspec.msgpack.encode(rows)
    chunk = msgspec.msgpack.encode((version, kind, content))
    return len(chunk).to_bytes(4, "big") + chunk


def test_snapshot_keeps_the_delays_of_undecided_half_batches() -> None:
    log = filled()
    log.do(half_batch(delays=(700, -5)))
    log.do(half_batch(index=1))
    log.do(half_batch("T", "", count=1, delays=(3,)))
    state = load_rows(log.settings, log.snapshot())
    assert durable_digest(state) == durable_digest(log.state)
    found = state.producer_groups["PG"].undecided["q1:0:r1"].halves
    assert [delays_in(one.batch.delayed_entries) for one in found if one.batch is not None] == [(700, -5), ()]


def test_snapshot_of_a_version_without_delays_in_half_batches_is_loaded() -> None:
    log = filled()
    log.do(half_batch())
    log.do(half_batch("T", "", count=1))
    old = [without_delayed_entries(chunk) for chunk in log.snapshot()]
    assert old != log.snapshot()
    assert durable_digest(load_rows(log.settings, old)) == durable_digest(log.state)


def test_a_capture_does_not_change_while_the_state_goes_on() -> None:
    log = filled()
    before = durable_digest(log.state)
    capture = snapshot_rows(log.state)
    log.do(half("later", group="G1"))
    log.do(message("M9", queue=1))
    log.do(half("T1", group="G1"))
    state = load_rows(log.settings, encode_rows(capture))
    assert durable_digest(state) == before
    assert capture.position == state.log_end


def test_a_snapshot_that_is_cut_anywhere_is_refused() -> None:
    log = filled()
    whole = b"".join(log.snapshot())
    for end_at in range(0, len(whole), 97):
        with pytest.raises(InvariantViolated):
            load_rows(log.settings, [whole[:end_at]])


def test_a_snapshot_with_a_chunk_missing_is_refused() -> None:
    log = filled()
    chunks = log.snapshot()
    with pytest.raises(InvariantViolated, match="its end says"):
        load_rows(log.settings, chunks[:4] + chunks[5:])


def test_there_is_no_snapshot_inside_a_batch() -> None:
    log = filled()
    open_batch(log.state, log.state.log_end, log.now_ms)
    with pytest.raises(InvariantViolated):
        snapshot_rows(log.state)
