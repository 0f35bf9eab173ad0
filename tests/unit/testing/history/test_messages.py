"""One message: sent, with this body, at one place, and where it was acknowledged."""

from typing import Any

import pytest
from tests.support.tales import Tale

from halfmq.testing.history.report import DUPLICATE, LOST, NOT_DURABLE, PHANTOM


def test_a_plain_message_seen_where_it_was_acknowledged_is_clean() -> None:
    tale = Tale()
    tale.plain(queue=0, queue_offset=0, offset=64)
    tale.seen("P")
    tale.restart()
    tale.seen("P", reader="late")
    tale.settled()
    tale.read(1)
    tale.log("message", 64, message="P", queue_offset=0)
    assert tale.found() == {}


def test_what_nobody_sent_is_a_phantom() -> None:
    tale = Tale()
    tale.seen("X", tx="T9")
    (violation,) = tale.report().violations
    assert (violation.kind, violation.transaction, violation.message) == (PHANTOM, "T9", "X")
    assert violation.sentence == "it was seen, but nobody sent it"


def test_a_message_in_the_log_that_nobody_sent_is_a_phantom_but_not_a_copy_of_the_broker() -> None:
    tale = Tale()
    tale.log("message", 64, message="X", topic="%RETRY%readers")
    assert tale.found() == {}
    tale.log("message", 128, message="Y")
    assert tale.found() == {PHANTOM: 1}


def test_a_message_seen_before_it_was_sent_is_a_phantom() -> None:
    tale = Tale()
    tale.seen("P")
    tale.plain()
    assert tale.found() == {PHANTOM: 1}


def test_another_body_than_the_one_sent_is_a_phantom_and_31_bits_of_it_count() -> None:
    tale = Tale()
    tale.plain(crc=0x80000007)
    tale.seen("P", crc=7)
    assert tale.found() == {}
    tale.seen("P", crc=8)
    assert tale.found() == {PHANTOM: 1}


@pytest.mark.parametrize("plain", [True, False])
def test_two_bodies_of_one_message_are_a_phantom_also_when_nobody_says_which_was_sent(plain: bool) -> None:
    tale = Tale()
    if plain:
        tale.plain()
    else:
        tale.half("P")
        tale.end("P")
    tale.seen("P", crc=0x80000007)
    tale.seen("P", crc=7, reader="other")
    tale.seen("P", reader="third, who does not look")
    assert tale.found() == {}
    tale.seen("P", crc=8, reader="fourth")
    assert tale.found() == {PHANTOM: 1}
    (violation,) = tale.report().violations
    assert violation.sentence == "it was seen with 2 different bodies"
    assert len(violation.events) == 2


def test_two_bodies_of_which_one_was_sent_are_told_once() -> None:
    tale = Tale()
    tale.plain(crc=7)
    tale.seen("P", crc=7)
    tale.seen("P", crc=8, reader="other")
    assert tale.found() == {PHANTOM: 1}
    assert tale.sentence() == "its body is not one that was sent"
    tale = Tale()
    tale.plain(crc=7)
    tale.plain(crc=8)  # the same message with two bodies: whatever is visible, it is one of them
    tale.seen("P", crc=7)
    assert tale.found() == {}
    tale.seen("P", crc=8, reader="other")
    assert tale.found() == {PHANTOM: 1}


def test_one_message_at_two_places_is_a_duplicate_and_redelivery_is_not() -> None:
    tale = Tale()
    tale.plain()
    tale.seen("P")
    tale.seen("P")
    tale.seen("P", reader="other")
    assert tale.found() == {}
    tale.seen("P", at=3, reader="other")
    assert tale.found() == {DUPLICATE: 1}
    assert tale.sentence() == "it stands 2 times, sent 1 x: t queue 0 offset 0, t queue 0 offset 3"


def test_a_half_twice_in_the_log_is_a_duplicate_and_a_copy_of_it_is_not() -> None:
    tale = Tale()
    tale.half(offset=0)
    tale.log("half", 0, tx="T", message="T")
    tale.log("copy", 64, tx="T", message="T")
    assert tale.found() == {}
    tale.log("half", 128, tx="T", message="T")
    assert tale.found() == {DUPLICATE: 1}


def test_a_half_acknowledged_at_two_offsets() -> None:
    for restart, kind in ((False, DUPLICATE), (True, NOT_DURABLE)):
        tale = Tale()
        tale.half(offset=64)
        if restart:
            tale.restart()
        tale.half(offset=64)
        assert tale.found() == {}
        tale.half(offset=128)
        assert tale.found() == {kind: 1}


def test_acknowledged_at_one_place_and_seen_at_another() -> None:
    for restart, kind in ((False, DUPLICATE), (True, NOT_DURABLE)):
        tale = Tale()
        tale.plain(queue=0, queue_offset=4)
        if restart:
            tale.restart()
        tale.seen("P", at=5)
        assert tale.found() == {kind: 1}


def test_acknowledged_and_never_seen() -> None:
    """Lost; and not durable if the broker was restarted in between. With its place or without."""
    for place in ({}, {"queue": 0, "queue_offset": 0}):
        for restart, kind in ((False, LOST), (True, NOT_DURABLE)):
            tale = Tale()
            tale.plain(**place)
            if restart:
                tale.restart()
            tale.read(1)
            assert tale.found() == {kind: 1}, (place, restart)


def test_a_place_beyond_the_end_of_its_queue_is_missing_too() -> None:
    tale = Tale()
    tale.plain(queue=0, queue_offset=7)
    tale.read(3)
    assert tale.found() == {LOST: 1}


def test_a_message_that_was_not_acknowledged_may_be_there_or_not() -> None:
    for outcome in (None, "unknown"):
        tale = Tale()
        tale.plain(outcome=outcome)
        tale.read(0)
        assert tale.found() == {}


def test_acknowledged_at_a_log_offset_where_the_log_has_nothing() -> None:
    tale = Tale()
    tale.plain(offset=64)
    tale.seen("P")
    tale.log("other", 0)
    assert tale.found() == {NOT_DURABLE: 1}
    tale.log("message", 64, message="P", queue_offset=0)
    assert tale.found() == {}


def test_a_delayed_plain_message_is_not_missed() -> None:
    tale = Tale()
    tale.plain(delay_ms=1000)
    tale.read(0)
    assert tale.found() == {}


def test_an_operation_that_was_refused_makes_nothing_visible() -> None:
    tale = Tale()
    tale.plain(outcome="refused")
    tale.read(0)
    assert tale.found() == {}


def test_a_message_that_was_only_ever_refused_is_a_phantom_where_it_is_visible() -> None:
    for where in ("seen", "in the log"):
        tale = Tale()
        tale.plain(outcome="refused")
        tale.plain(outcome="refused")
        if where == "seen":
            tale.seen("P")
        else:
            tale.log("message", 64, message="P", queue_offset=0)
        assert tale.found() == {PHANTOM: 1}, where
        assert tale.sentence() == f"it was {where}, but whoever sent it was refused"


@pytest.mark.parametrize("other", ["ok", None, "unknown"])
def test_a_refusal_is_excused_by_another_request_of_the_same_message(other: str | None) -> None:
    for outcomes in (("refused", other), (other, "refused")):
        tale = Tale()
        for outcome in outcomes:
            tale.plain(outcome=outcome)
        tale.seen("P")
        tale.read(1)
        assert tale.found() == {}, outcomes


def test_seen_between_a_refusal_and_the_request_that_was_taken_is_a_phantom() -> None:
    tale = Tale()
    tale.plain(outcome="refused")
    tale.seen("P")
    tale.plain()
    assert tale.found() == {PHANTOM: 1}
    assert tale.sentence() == "it was seen before anybody sent it"


def test_a_half_that_was_only_ever_refused_is_a_phantom_where_it_is_seen() -> None:
    for other, found in (("refused", {PHANTOM: 1}), (None, {}), ("ok", {})):
        tale = Tale()
        tale.half(message="a")
        tale.half(message="b", index=1, outcome="refused")
        tale.half(message="b", index=1, outcome=other)
        tale.end()
        tale.seen("a")
        tale.seen("b", at=1)
        tale.read(2)
        assert tale.found() == found, other


@pytest.mark.parametrize(
    ("fields", "found"),
    [
        ({}, {}),
        ({"tx": "M"}, {}),  # what a stock client calls the transaction of any message
        ({"topic": "%RETRY%r", "queue": 0}, {}),
        ({"topic": "other"}, {PHANTOM: 1}),
        ({"queue": 2}, {PHANTOM: 1}),
        ({"tx": "T9"}, {PHANTOM: 1}),
        ({"index": 5}, {PHANTOM: 1}),
        ({"key": "else"}, {PHANTOM: 1}),
    ],
)
def test_a_half_is_seen_where_it_was_sent_to_and_as_what_it_was_sent(
    fields: dict[str, Any], found: dict[str, int]
) -> None:
    tale = Tale()
    tale.half(message="M", index=1, queue=1, key="k")
    tale.end()
    tale.seen(**{"message": "M", "queue": 1, "tx": "T", "index": 1, "key": "k", **fields})
    if not found:
        tale.seen("M", queue=1, reader="who tells nothing more")
    assert tale.found() == found


@pytest.mark.parametrize(
    ("fields", "found"),
    [
        ({}, {}),
        ({"tx": "P"}, {}),
        ({"topic": "%DLQ%r", "queue": 0}, {}),
        ({"topic": "other"}, {PHANTOM: 1}),
        ({"queue": 2}, {PHANTOM: 1}),
        ({"tx": "T9"}, {PHANTOM: 1}),
        ({"key": "else"}, {PHANTOM: 1}),
    ],
)
def test_a_plain_message_is_seen_where_it_was_sent_to_and_as_what_it_was_sent(
    fields: dict[str, Any], found: dict[str, int]
) -> None:
    tale = Tale()
    tale.plain(to=1, key="k", queue=1, queue_offset=0)
    tale.seen(**{"message": "P", "queue": 1, "key": "k", **fields})
    tale.settled()
    assert tale.found() == found


def test_a_message_that_was_seen_elsewhere_is_told_with_both() -> None:
    tale = Tale()
    tale.half(queue=1, key="k")
    tale.end()
    tale.seen(queue=2, tx="T", key="k")
    assert tale.sentence() == (
        "it was seen in t queue 2 as message 0 of transaction T with sharding key 'k', but sent to t queue 1 as message 0 of "
        "transaction T with sharding key 'k'"
    )


def test_who_sends_again_may_name_another_queue() -> None:
    for queue, found in ((1, {}), (2, {}), (3, {PHANTOM: 1})):
        tale = Tale()
        tale.plain(to=1, outcome=None)
        tale.plain(to=2)
        tale.seen("P", queue=queue)
        assert tale.found() == found, queue


def test_a_plain_message_at_one_place_of_a_queue_and_at_two_log_offsets() -> None:
    for restart, kind in ((False, DUPLICATE), (True, NOT_DURABLE)):
        tale = Tale()
        tale.plain(queue=0, queue_offset=0, offset=64)
        if restart:
            tale.restart()
        tale.plain(queue=0, queue_offset=0, offset=64)
        tale.seen("P")
        assert tale.found() == {}
        tale.plain(queue=0, queue_offset=0, offset=128)
        assert tale.found() == {kind: 1}
        assert tale.sentence().startswith(
            "it was acknowledged at t queue 0 offset 0 and log offset 64, and at log offset 128"
        )
