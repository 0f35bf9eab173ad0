"""Checks of one message: it was sent, with this body, and is at one place, where it was acknowledged."""

from typing import Any

import pytest
from tests.support.tales import Tale

from halfmq.testing.history.report import DUPLICATE, LOST, NOT_DURABLE, PHANTOM, REORDERED


def test_a_plain_message_received_where_it_was_acknowledged_is_clean() -> None:
    tale = Tale()
    tale.plain(queue=0, queue_offset=0, offset=64)
    tale.seen("P")
    tale.restart()
    tale.seen("P", reader="late")
    tale.settled()
    tale.read(1)
    tale.log("message", 64, message="P", queue_offset=0)
    assert tale.found() == {}


def test_a_message_that_nobody_sent_is_a_phantom() -> None:
    tale = Tale()
    tale.seen("X", tx="T9")
    (violation,) = tale.report().violations
    assert (violation.kind, violation.transaction, violation.message) == (PHANTOM, "T9", "X")
    assert violation.sentence == "it was seen, but nobody sent it"


def test_a_logged_message_that_nobody_sent_is_a_phantom_unless_it_is_a_copy_by_the_broker() -> None:
    tale = Tale()
    tale.log("message", 64, message="X", topic="%RETRY%readers")
    assert tale.found() == {}
    tale.log("message", 128, message="Y")
    assert tale.found() == {PHANTOM: 1}


def test_a_message_received_before_it_was_sent_is_a_phantom() -> None:
    tale = Tale()
    tale.seen("P")
    tale.plain()
    assert tale.found() == {PHANTOM: 1}


def test_another_body_than_sent_is_a_phantom_compared_by_31_bits() -> None:
    tale = Tale()
    tale.plain(crc=0x80000007)
    tale.seen("P", crc=7)
    assert tale.found() == {}
    tale.seen("P", crc=8)
    assert tale.found() == {PHANTOM: 1}


@pytest.mark.parametrize("plain", [True, False])
def test_two_received_bodies_are_a_phantom_even_if_the_sent_one_is_unknown(plain: bool) -> None:
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


def test_two_bodies_of_which_one_was_sent_are_reported_once() -> None:
    tale = Tale()
    tale.plain(crc=7)
    tale.seen("P", crc=7)
    tale.seen("P", crc=8, reader="other")
    assert tale.found() == {PHANTOM: 1}
    assert tale.sentence() == "its body differs from every body sent"
    tale = Tale()
    tale.plain(crc=7)
    tale.plain(crc=8)  # the same message with two bodies: either may become visible
    tale.seen("P", crc=7)
    assert tale.found() == {}
    tale.seen("P", crc=8, reader="other")
    assert tale.found() == {PHANTOM: 1}


def test_one_message_at_two_places_is_a_duplicate_but_a_redelivery_is_not() -> None:
    tale = Tale()
    tale.plain()
    tale.seen("P")
    tale.seen("P")
    tale.seen("P", reader="other")
    assert tale.found() == {}
    tale.seen("P", at=3, reader="other")
    assert tale.found() == {DUPLICATE: 1}
    assert tale.sentence() == "it is at 2 places, sent 1 x: t queue 0 offset 0, t queue 0 offset 3"


def test_a_half_twice_in_the_log_is_a_duplicate_but_a_copy_is_not() -> None:
    tale = Tale()
    tale.half(offset=0)
    tale.log("half", 0, tx="T", message="T")
    tale.log("copy", 64, tx="T", message="T")
    assert tale.found() == {}
    tale.log("half", 128, tx="T", message="T")
    assert tale.found() == {DUPLICATE: 1}


def test_a_half_acknowledged_at_two_offsets_is_reported() -> None:
    for restart, kind in ((False, DUPLICATE), (True, NOT_DURABLE)):
        tale = Tale()
        tale.half(offset=64)
        if restart:
            tale.restart()
        tale.half(offset=64)
        assert tale.found() == {}
        tale.half(offset=128)
        assert tale.found() == {kind: 1}


def test_a_message_acknowledged_at_one_place_and_received_at_another_is_reported() -> None:
    for restart, kind in ((False, DUPLICATE), (True, NOT_DURABLE)):
        tale = Tale()
        tale.plain(queue=0, queue_offset=4)
        if restart:
            tale.restart()
        tale.seen("P", at=5)
        assert tale.found() == {kind: 1}


def test_a_message_acknowledged_and_never_received_is_reported() -> None:
    """As lost, or as not durable if the broker restarted in between. With and without its place."""
    for place in ({}, {"queue": 0, "queue_offset": 0}):
        for restart, kind in ((False, LOST), (True, NOT_DURABLE)):
            tale = Tale()
            tale.plain(**place)
            if restart:
                tale.restart()
            tale.read(1)
            assert tale.found() == {kind: 1}, (place, restart)


def test_a_message_beyond_the_end_of_its_queue_is_missing() -> None:
    tale = Tale()
    tale.plain(queue=0, queue_offset=7)
    tale.read(3)
    assert tale.found() == {LOST: 1}


def test_an_unacknowledged_message_may_exist_or_not() -> None:
    for outcome in (None, "unknown"):
        tale = Tale()
        tale.plain(outcome=outcome)
        tale.read(0)
        assert tale.found() == {}


def test_a_message_missing_at_its_acknowledged_log_offset_is_reported() -> None:
    tale = Tale()
    tale.plain(offset=64)
    tale.seen("P")
    tale.log("other", 0)
    assert tale.found() == {NOT_DURABLE: 1}
    tale.log("message", 64, message="P", queue_offset=0)
    assert tale.found() == {}


def test_a_delayed_plain_message_is_not_reported_as_missing() -> None:
    tale = Tale()
    tale.plain(delay_ms=1000)
    tale.read(0)
    assert tale.found() == {}


def test_a_refused_request_makes_nothing_visible() -> None:
    tale = Tale()
    tale.plain(outcome="refused")
    tale.read(0)
    assert tale.found() == {}


def test_a_message_whose_every_request_was_refused_is_a_phantom_if_visible() -> None:
    for where in ("seen", "in the log"):
        tale = Tale()
        tale.plain(outcome="refused")
        tale.plain(outcome="refused")
        if where == "seen":
            tale.seen("P")
        else:
            tale.log("message", 64, message="P", queue_offset=0)
        assert tale.found() == {PHANTOM: 1}, where
        assert tale.sentence() == f"it was {where}, but every request to send it was refused"


@pytest.mark.parametrize("other", ["ok", None, "unknown"])
def test_another_request_for_a_refused_message_permits_it(other: str | None) -> None:
    for outcomes in (("refused", other), (other, "refused")):
        tale = Tale()
        for outcome in outcomes:
            tale.plain(outcome=outcome)
        tale.seen("P")
        tale.read(1)
        assert tale.found() == {}, outcomes


def test_a_message_received_between_a_refused_and_the_accepted_request_is_a_phantom() -> None:
    tale = Tale()
    tale.plain(outcome="refused")
    tale.seen("P")
    tale.plain()
    assert tale.found() == {PHANTOM: 1}
    assert tale.sentence() == "it was seen before anybody sent it"


def test_a_half_whose_every_request_was_refused_is_a_phantom_if_received() -> None:
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
        ({"tx": "M"}, {}),  # RocketMQ's clients take the message id for the transaction of any message
        ({"topic": "%RETRY%r", "queue": 0}, {}),
        ({"topic": "other"}, {PHANTOM: 1}),
        ({"queue": 2}, {PHANTOM: 1}),
        ({"tx": "T9"}, {PHANTOM: 1}),
        ({"index": 5}, {PHANTOM: 1}),
        ({"key": "else"}, {PHANTOM: 1}),
    ],
)
def test_a_half_is_received_at_the_place_and_with_the_fields_it_was_sent_with(
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
def test_a_plain_message_is_received_at_the_place_and_with_the_fields_it_was_sent_with(
    fields: dict[str, Any], found: dict[str, int]
) -> None:
    tale = Tale()
    tale.plain(to=1, key="k", queue=1, queue_offset=0)
    tale.seen(**{"message": "P", "queue": 1, "key": "k", **fields})
    tale.settled()
    assert tale.found() == found


def test_a_message_received_elsewhere_is_reported_with_both_places() -> None:
    tale = Tale()
    tale.half(queue=1, key="k")
    tale.end()
    tale.seen(queue=2, tx="T", key="k")
    assert tale.sentence() == (
        "it was seen in t queue 2 as message 0 of transaction T with sharding key 'k', but sent to t queue 1 as message 0 of "
        "transaction T with sharding key 'k'"
    )


def test_a_retry_may_name_another_queue() -> None:
    for queue, found in ((1, {}), (2, {}), (3, {PHANTOM: 1})):
        tale = Tale()
        tale.plain(to=1, outcome=None)
        tale.plain(to=2)
        tale.seen("P", queue=queue)
        assert tale.found() == found, queue


def test_a_plain_message_at_one_queue_offset_and_two_log_offsets_is_reported() -> None:
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
            "it was acknowledged at t queue 0 offset 0 and log offset 64, and then at log offset 128"
        )


def batched(*messages: str) -> Tale:
    """A log whose decision shows ``messages`` of half batches; nobody recorded that they were sent."""
    tale = Tale()
    for at, message in enumerate(messages):
        tale.log("batched", 64 + 100 * at, tx="q:0:r", message=message, queue_offset=at, crc=7)
    tale.commit(1_000, tx="q:0:r", by="query")
    return tale


def test_an_unrecorded_message_that_a_decision_shows_must_be_received_where_the_log_has_it() -> None:
    tale = batched("A", "B")
    tale.seen("A", at=0, crc=7)
    tale.seen("B", at=1, crc=7)
    tale.read(2)
    assert tale.found() == {}


@pytest.mark.parametrize(
    ("seen", "found"),
    [
        ({}, {LOST: 1}),
        ({"message": "B", "at": 2}, {DUPLICATE: 1}),
        ({"message": "B", "at": 1, "crc": 8}, {PHANTOM: 1}),
        ({"message": "loser", "at": 2}, {PHANTOM: 1, LOST: 1}),
    ],
    ids=["missing", "elsewhere", "another body", "one that no decision shows"],
)
def test_what_a_reader_past_a_decision_received_otherwise_is_reported(
    seen: dict[str, Any], found: dict[str, int]
) -> None:
    tale = batched("A", "B")
    tale.seen("A", at=0, crc=7)
    if seen:
        tale.seen(**seen)
    tale.read(3)
    assert tale.found() == found


def test_a_reader_that_stopped_before_the_place_of_a_decision_misses_nothing() -> None:
    tale = batched("A", "B")
    tale.seen("A", at=0, crc=7)
    tale.read(1)
    assert tale.found() == {}


def test_a_message_that_two_decisions_show_is_a_duplicate() -> None:
    assert batched("A", "A").found() == {DUPLICATE: 1}


def test_a_recorded_message_is_missed_where_the_log_shows_it_also_without_an_answer() -> None:
    tale = batched("A")
    tale.plain("A", outcome=None, crc=7)
    tale.read(1)
    assert tale.found() == {LOST: 1}


def test_a_refused_decision_shows_nothing_in_the_log() -> None:
    tale = batched("A")
    tale.plain("A", outcome="refused", crc=7)
    assert tale.found() == {PHANTOM: 1}


def test_a_verdict_on_a_batch_of_a_query_needs_no_request() -> None:
    tale = Tale()
    tale.log("rollback", 64, tx="q:0:r", decided_by="query")
    tale.commit(128, tx="q:0:s", by="query")
    assert tale.found() == {}
    tale.commit(256, tx="other")
    assert tale.report().counts["unrequested verdict"] == 1


@pytest.mark.parametrize(("by", "found"), [("query", {}), ("application", {REORDERED: 1})])
def test_a_rollback_by_a_later_run_may_be_before_the_request_for_it(by: str, found: dict[str, int]) -> None:
    tale = Tale()
    tale.end("q:0:new", position=200)
    tale.end("q:0:old", verdict="ROLLED_BACK", position=100)
    tale.log("rollback", 100, tx="q:0:old", decided_by=by)
    tale.commit(200, tx="q:0:new", by="query")
    assert tale.found() == found
