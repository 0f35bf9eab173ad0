"""A check that goes wrong costs its own transaction some time, and the others nothing."""

from halfmq.model.records import BATCH_HEADER_BYTES
from tests.peer_bugs.stage import COMMIT, LOG, ROLLBACK, SECOND, Stage


def test_half_that_cannot_be_read_keeps_nobody_else_from_being_asked() -> None:
    """RocketMQ #9500: an exception in the loop over the half messages leaves both queue offsets where they were. Each round
    begins at the same message and ends there; everything behind it is never checked, and the backlog only grows.

    Here: the disk damages a stored half, in any of its fields. The producer is asked about all others when they are due, the
    broker goes on, and the damaged one is neither settled nor given up: it can still be rolled back.
    """
    for where in range(1, half_bytes(), 5):
        stage = Stage()
        producer = stage.producer("orders-1")
        damaged = stage.half("order-1", b"damaged" * 10)
        stage.half("order-2", b"two")
        stage.half("order-3", b"three")
        stage.disk.flip_bit(LOG / stage.disk.list(LOG)[0], damaged.offset + where, bit=3)
        stage.pass_time(8 * SECOND)
        assert stage.is_serving, f"damage at byte {where} of one half stopped the broker"
        asked = {check.tx_id: check for check in stage.checks(producer)}
        assert stage.members() == ["orders-1"], f"damage at byte {where} of one half took its producer out of its group"
        missing = {"order-2", "order-3"} - set(asked)
        assert missing == set(), f"damage at byte {where} of one half: nobody is asked about {missing}"
        for tx_id in ("order-2", "order-3"):
            stage.answers(producer, asked[tx_id], COMMIT)
        assert stage.visible() == [b"two", b"three"], f"damage at byte {where}: consumers see {stage.visible()}"
        assert stage.undecided() == {"order-1"}, f"damage at byte {where}: {stage.undecided()} is left"
        assert stage.end(damaged, ROLLBACK).code == 0, f"damage at byte {where}: it cannot be rolled back"


def half_bytes() -> int:
    """The size of the record of ``order-1``."""
    stage = Stage()
    first = stage.half("order-1", b"damaged" * 10)
    verdict = stage.end(first, ROLLBACK)
    return int(verdict.ext["HMQ_POSITION"]) - BATCH_HEADER_BYTES - first.offset


def test_busy_connection_gets_its_checks_when_it_reads_again() -> None:
    """RocketMQ #1694: where the producer's channel is not writable the check is dropped, with a line in a log nobody reads.
    It counts as sent, and nobody is asked before the next round, which meets the same busy channel.

    Here: the check goes to another member of the group at once. Where there is none it waits for the connection, goes out as
    soon as that takes it, and is number 1.
    """
    stage = Stage()
    busy = stage.producer("orders-busy")
    stage.stops_reading(busy)
    other = stage.producer("orders-idle")
    stage.half("order-1", b"one")
    stage.half("order-2", b"two")
    stage.pass_time(8 * SECOND)
    asked = {check.tx_id: check for check in stage.checks(other)}
    assert set(asked) == {"order-1", "order-2"}, f"the member that reads was asked about {set(asked)} only"
    for check in asked.values():
        assert check.number == 1, f"a check that was not sent was counted: {check}"
        stage.answers(other, check, COMMIT)

    stage.leaves(other)
    stage.half("order-3", b"three")
    stage.pass_time(20 * SECOND)
    assert stage.checks(busy) == [], "sent to a connection that does not read"
    stage.reads_again(busy)
    stage.pass_time(SECOND)
    waited = stage.checks(busy)
    assert [check.tx_id for check in waited] == ["order-3"], f"what was missed is not asked when it can be: {waited}"
    assert waited[0].number == 1, f"a check that was not sent was counted: {waited[0].number}"
    stage.answers(busy, waited[0], COMMIT)
    assert stage.visible() == [b"one", b"two", b"three"], f"consumers see {stage.visible()}"
