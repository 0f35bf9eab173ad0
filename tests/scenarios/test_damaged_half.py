"""A half that the disk damaged: what it may cost the other transactions of its group."""

from tests.peer_bugs.stage import LOG, SECOND, Stage


def test_damaged_half_does_not_delay_the_checks_of_others() -> None:
    """Goal: promise 7, a check leaves when the immunity is over. Method: two producers, a damaged half that is due, and then
    another transaction, whose check must come 6 s after it was prepared."""
    stage = Stage()
    producers = [stage.producer(name) for name in ("orders-1", "orders-2")]
    damaged = stage.half("order-1")
    at_its_length = 22
    stage.disk.flip_bit(LOG / stage.disk.list(LOG)[0], damaged.offset + at_its_length, bit=3)
    stage.pass_time(7 * SECOND)
    stage.half("order-2")
    stage.pass_time(8 * SECOND)
    asked = [check.tx_id for producer in producers for check in stage.checks(producer)]
    assert asked == ["order-2"]
