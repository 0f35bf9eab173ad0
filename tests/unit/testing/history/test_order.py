"""The order in queues and in the log, compared with the order that clients observed."""

from tests.support.tales import Tale

from halfmq.testing.history.report import LOST, NOT_DURABLE, REORDERED


def test_a_message_acknowledged_before_another_was_sent_but_placed_after_it_is_reordered() -> None:
    tale = Tale()
    tale.plain("A", queue=0, queue_offset=1)
    tale.plain("B", queue=0, queue_offset=0)
    assert tale.found() == {REORDERED: 1}
    assert tale.sentence() == (
        "message A existed at 120 us, before message B was requested at 130 us, but is after it: "
        "t queue 0 offset 0 and t queue 0 offset 1"
    )


def test_messages_that_overlap_in_time_may_have_either_order() -> None:
    tale = Tale()
    tale.plain("A", outcome=None)
    tale.plain("B", queue=0, queue_offset=0)
    tale.seen("A", at=1)
    tale.seen("B", at=0)
    assert tale.found() == {}


def test_a_received_message_existed() -> None:
    tale = Tale()
    tale.plain("A", outcome=None)
    tale.seen("A", at=1)
    tale.plain("B", outcome=None)
    tale.seen("B", at=0)
    assert tale.found() == {REORDERED: 1}


def test_one_misplaced_message_is_reported_once() -> None:
    tale = Tale()
    for number in range(1, 9):
        tale.plain(f"A{number}", queue=0, queue_offset=number)
    tale.plain("late", queue=0, queue_offset=0)
    (violation,) = tale.report().violations
    assert violation.message == "late"
    assert violation.sentence.endswith(", and so are 7 others")


def test_for_transactions_the_order_of_commits_counts_not_that_of_halves() -> None:
    tale = Tale()
    tale.half("A")
    tale.half("B")
    tale.end("B")
    tale.end("A")
    tale.seen("B", at=0)
    tale.seen("A", at=1)
    assert tale.found() == {}
    swapped = Tale()
    swapped.events = tale.events[:-2]
    swapped.now = tale.now
    swapped.seen("A", at=0)
    swapped.seen("B", at=1)
    assert swapped.found() == {REORDERED: 1}


def test_the_report_names_a_common_sharding_key() -> None:
    tale = Tale()
    tale.plain("A", queue=0, queue_offset=1, key="k")
    tale.plain("B", queue=0, queue_offset=0, key="k")
    assert "both with sharding key 'k'" in tale.sentence()


def test_a_sharding_key_in_two_queues_is_reported() -> None:
    tale = Tale()
    tale.plain("A", queue=0, queue_offset=0, key="k")
    tale.plain("B", queue=0, queue_offset=1, key="k")
    assert tale.found() == {}
    tale.plain("C", queue=1, queue_offset=0, key="k")
    tale.plain("D", queue=1, queue_offset=1, key="k")
    assert tale.found() == {REORDERED: 1}
    assert tale.sentence() == "sharding key 'k' of t is in queue 0 and in queue 1"


def test_verdict_positions_do_not_decrease_along_a_queue() -> None:
    """Both commits overlapped in time, so only the positions show it."""
    tale = Tale()
    tale.half("A")
    tale.half("B")
    tale.end("A", outcome=None)
    tale.end("B", outcome=None)
    tale.end("A", position=64)
    tale.end("B", position=128)
    tale.seen("B", at=0)
    tale.seen("A", at=1)
    assert tale.found() == {REORDERED: 1}
    assert "its verdict is at log position 64, but it is after message B, whose position is 128" in tale.sentence()


def test_log_positions_follow_the_order_of_acknowledged_verdicts() -> None:
    tale = Tale()
    for tx, position in (("A", 128), ("B", 64)):
        tale.half(tx)
        tale.end(tx, "ROLLED_BACK", position=position)
    assert tale.found() == {REORDERED: 1}
    assert "the verdict of g/A" in tale.sentence()


def test_store_times_do_not_decrease_along_a_queue() -> None:
    tale = Tale()
    for number, store_time in enumerate((10, 10, 12, 11)):
        tale.plain(f"A{number}", outcome=None)
        tale.seen(f"A{number}", at=number, store_time_ms=store_time)
    (violation,) = tale.report().violations
    assert (violation.kind, violation.promise, violation.message) == (REORDERED, 9, "A3")


def test_two_messages_at_one_place_are_reported() -> None:
    for restart, kind in ((False, REORDERED), (True, NOT_DURABLE)):
        tale = Tale()
        tale.plain("A", outcome=None)
        tale.plain("B", outcome=None)
        tale.seen("A", at=0)
        if restart:
            tale.restart()
        tale.seen("B", at=0, reader="other")
        assert tale.found() == {kind: 1}


def test_a_message_that_a_complete_read_missed_is_lost_although_others_received_it() -> None:
    tale = Tale()
    tale.plain(outcome=None)
    tale.seen("P")
    tale.read(1)
    tale.read(1, reader="other")
    assert tale.found() == {LOST: 1}
    assert tale.sentence() == "other read t queue 0 offset 0 and did not receive it; others did"


def test_a_read_that_ended_before_the_message_was_visible_proves_no_loss() -> None:
    tale = Tale()
    since = tale.now
    tale.plain(outcome=None)
    tale.seen("P")
    tale.read(0, reader="other", since_us=since)
    assert tale.found() == {}


def test_two_verdicts_acknowledged_at_one_log_position_are_reported() -> None:
    for restart, kind in ((False, REORDERED), (True, NOT_DURABLE)):
        tale = Tale()
        for tx in ("A", "B"):
            tale.half(tx)
        tale.end("A", "ROLLED_BACK", position=64)
        tale.end("A", "ROLLED_BACK", position=64)
        assert tale.found() == {}
        if restart:
            tale.restart()
        tale.end("B", "ROLLED_BACK", position=64)
        assert tale.found() == {kind: 1}
        assert "where the verdict of g/B is" in tale.sentence()
