"""Which segment a batch goes to."""

from halfmq.model.placement import fits, next_segment_start
from halfmq.model.records import BATCH_HEADER_BYTES

SEGMENT = 1 << 16


def test_a_batch_that_fills_the_segment_to_the_last_byte_fits() -> None:
    assert fits(SEGMENT - 200, False, 200 - BATCH_HEADER_BYTES, SEGMENT)
    assert not fits(SEGMENT - 200, False, 201 - BATCH_HEADER_BYTES, SEGMENT)


def test_an_open_batch_that_fills_its_segment_takes_no_more() -> None:
    assert not fits(SEGMENT, True, 8, SEGMENT)
    assert not fits(3 * SEGMENT, True, 8, SEGMENT)


def test_a_closed_log_that_ends_with_its_segment_goes_on_in_the_next() -> None:
    assert not fits(SEGMENT, False, 8, SEGMENT)
    assert next_segment_start(SEGMENT - 8, SEGMENT) == SEGMENT


def test_an_empty_log_has_room() -> None:
    assert fits(0, False, 8, SEGMENT)
