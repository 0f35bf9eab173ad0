"""Messages of an outbox: published if and only if their transaction committed, once, in the order of their key, and by one way only."""

import pytest
from tests.support.tales import C, R, Tale

from halfmq.testing.history import Report
from halfmq.testing.history.report import DUPLICATE, LOST, PHANTOM, REORDERED, STUCK, UNREQUESTED, At


def looked(report: Report, check: int) -> int:
    return report.looked[check].looked


# --- if and only if its transaction committed


def test_a_message_of_a_committed_transaction_that_was_seen_is_clean_and_counted() -> None:
    tale = Tale()
    tale.written(crc=7, key="k")
    tale.local()
    tale.seen("M", tx="a batch of the relay", index=3, crc=7, key="k")
    tale.settled()
    tale.read(1)
    report = tale.report()
    assert report.clean
    assert [looked(report, check) for check in (At.OUTBOX_PHANTOM, At.OUTBOX_MISSED, At.ONCE, At.OUTBOX_ORDER)] == [
        1
    ] * 4


def test_a_message_of_a_transaction_that_rolled_back_is_a_phantom() -> None:
    tale = Tale()
    tale.written()
    tale.seen("M")
    assert tale.found() == {}, "it may have committed"
    tale.local(outcome=R)
    assert tale.found() == {PHANTOM: 1}
    assert tale.sentence() == "it was seen, but the database says ROLLED_BACK"


def test_a_message_whose_savepoint_was_rolled_back_is_a_phantom() -> None:
    tale = Tale()
    tale.written("A")
    tale.written("B")
    tale.local(messages=("A",))
    tale.settled()
    tale.seen("A")
    tale.read(1)
    assert tale.found() == {}
    tale.seen("B", at=1)
    assert tale.found() == {PHANTOM: 1}
    assert "does not list it" in tale.sentence()


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"crc": 8}, "its body differs from every body sent"),
        ({"topic": "u"}, "it was seen in u queue 0, but sent to t "),
    ],
)
def test_a_message_other_than_the_one_written_is_a_phantom(fields: dict[str, object], sentence: str) -> None:
    tale = Tale()
    tale.written(crc=7)
    tale.local()
    tale.seen("M", **fields)  # type: ignore[arg-type]
    assert tale.found() == {PHANTOM: 1}
    assert tale.sentence().startswith(sentence)


def test_a_message_seen_before_it_was_written_is_a_phantom() -> None:
    tale = Tale()
    tale.seen("M")
    tale.written()
    tale.local()
    assert tale.found() == {PHANTOM: 1}


def test_a_committed_message_that_was_never_seen_is_lost_once_everything_has_settled() -> None:
    tale = Tale()
    tale.written()
    tale.local()
    tale.read(0)
    assert tale.found() == {}, "a relay may still publish it"
    tale.settled()
    tale.read(0, reader="late")
    assert tale.found() == {LOST: 1}
    assert tale.sentence() == "its transaction committed, and late, which read everything, never received it"


def test_a_message_is_not_lost_if_its_commit_is_not_known_to_precede_the_end() -> None:
    tale = Tale()
    tale.written()
    tale.settled()
    tale.local()
    tale.read(0)
    assert tale.found() == {}


def test_a_delayed_message_is_not_lost() -> None:
    tale = Tale()
    tale.written(delay_ms=1)
    tale.local()
    tale.settled()
    tale.read(0)
    assert tale.found() == {}


# --- held, withdrawn, skipped, set aside


def test_a_held_message_is_published_only_after_it_was_confirmed() -> None:
    tale = Tale()
    tale.written(hold=True)
    tale.local()
    tale.settled()
    tale.read(0)
    assert tale.found() == {}, "it is not lost while it is held"
    tale.seen("M")
    assert tale.found() == {PHANTOM: 1}
    assert tale.sentence() == "it was seen, but nobody had confirmed it"
    tale.decided()
    assert tale.found() == {PHANTOM: 1}, "too late"


@pytest.mark.parametrize(
    ("outcome", "seen", "unseen"), [("ok", {}, {LOST: 1}), (None, {}, {}), ("refused", {PHANTOM: 1}, {})]
)
def test_after_a_confirmation_a_held_message_must_may_or_must_not_be_published(
    outcome: str | None, seen: dict[str, int], unseen: dict[str, int]
) -> None:
    for is_seen in (True, False):
        tale = Tale()
        tale.written(hold=True)
        tale.local()
        tale.decided(outcome=outcome)
        tale.settled()
        if is_seen:
            tale.seen("M")
        tale.read(int(is_seen))
        assert tale.found() == (seen if is_seen else unseen)


def test_a_withdrawn_message_is_never_published() -> None:
    tale = Tale()
    tale.written(hold=True)
    tale.local()
    tale.decided(verdict=R)
    tale.settled()
    tale.read(0)
    assert tale.found() == {}
    tale.decided(verdict=C, outcome=None)
    tale.seen("M")
    assert tale.found() == {PHANTOM: 1}
    assert tale.sentence() == "it was seen, but it was withdrawn"


@pytest.mark.parametrize("by", ["operator", "policy"])
def test_a_skipped_message_is_not_lost_and_may_have_been_published_before(by: str) -> None:
    tale = Tale()
    tale.written(hold=True)
    tale.local()
    tale.decided()
    tale.decided(verdict=R, by=by)
    tale.settled()
    tale.read(0)
    assert tale.found() == {}
    tale.seen("M")
    assert tale.found() == {}


def test_what_is_set_aside_and_behind_it_with_the_same_key_is_not_lost() -> None:
    tale = Tale()
    for message, key in (("A", "k"), ("B", "k"), ("C", "other"), ("D", ""), ("E", "")):
        tale.written(message, tx=message, key=key)
        tale.local(message)
    tale.settled(set_aside=("A", "D"))
    tale.read(0)
    assert [(one.kind, one.message) for one in tale.report().violations] == [(LOST, "C"), (LOST, "E")]


# --- once, where the target can tell


def test_a_message_at_two_places_is_a_duplicate_or_counted_where_that_is_legal() -> None:
    for at_least_once, found, duplicates in (((), {DUPLICATE: 1}, 0), (("g",), {}, 1)):
        tale = Tale(at_least_once=at_least_once)
        tale.written(crc=7)
        tale.local()
        for at in (0, 0, 1):
            tale.seen("M", at=at, crc=7)
        assert tale.found() == found
        assert tale.report().duplicates == duplicates
        assert looked(tale.report(), At.ONCE) == (not at_least_once)


def test_copies_of_a_message_have_one_body() -> None:
    tale = Tale(at_least_once=("g",))
    tale.written()
    tale.seen("M", crc=7)
    tale.seen("M", at=1, crc=7)
    assert tale.found() == {}
    tale.seen("M", at=2, crc=8)
    assert tale.found() == {PHANTOM: 1}


# --- the order of a key


def two_in_order(tale: Tale, *, key: str = "k") -> None:
    tale.written("A", tx="1", key=key)
    tale.local("1")
    tale.written("B", tx="2", key=key)
    tale.local("2")


def test_messages_of_one_key_are_in_the_order_of_transactions_that_waited_for_each_other() -> None:
    tale = Tale()
    two_in_order(tale)
    tale.seen("B", at=0)
    tale.seen("A", at=1)
    assert tale.found() == {REORDERED: 1}
    assert tale.sentence() == (
        "message A was committed at 120 us, before message B was written at 130 us, but is after it: "
        "t queue 0 offset 0 and t queue 0 offset 1, both with sharding key 'k'"
    )


def test_a_message_that_was_seen_was_committed() -> None:
    tale = Tale()
    tale.written("A", tx="1", key="k")
    tale.seen("A", at=1)
    tale.written("B", tx="2", key="k")
    tale.seen("B", at=0)
    assert tale.found() == {REORDERED: 1}


def test_messages_of_different_keys_or_without_one_are_in_no_order() -> None:
    for key in ("other", ""):
        tale = Tale()
        tale.written("A", tx="1", key=key)
        tale.local("1")
        tale.written("B", tx="2", key=key and "k")
        tale.seen("B", at=0)
        tale.seen("A", at=1)
        assert tale.found() == {}


def test_messages_of_transactions_at_the_same_time_are_in_no_order() -> None:
    tale = Tale()
    tale.written("A", tx="1", key="k")
    tale.written("B", tx="2", key="k")
    tale.local("1")
    tale.local("2")
    tale.seen("B", at=0)
    tale.seen("A", at=1)
    assert tale.found() == {}


def test_a_held_message_takes_its_place_when_it_is_confirmed() -> None:
    for outcome, found in ((None, {}), ("ok", {REORDERED: 1})):
        tale = Tale()
        tale.written("A", tx="1", key="k", hold=True)
        tale.local("1")
        tale.decided("A", outcome=outcome)
        tale.written("B", tx="2", key="k")
        tale.seen("B", at=0)
        tale.seen("A", at=1)
        assert tale.found() == found


def test_after_duplicates_the_order_is_that_of_the_first_deliveries() -> None:
    tale = Tale(at_least_once=("g",))
    two_in_order(tale)
    for at, message in enumerate("ABAB"):
        tale.seen(message, at=at)
    tale.read(4)
    assert tale.found() == {}
    assert looked(tale.report(), At.OUTBOX_ORDER) == 2
    tale = Tale(at_least_once=("g",))
    two_in_order(tale)
    for at, message in enumerate("BAB"):
        tale.seen(message, at=at)
    tale.read(3)
    assert tale.found() == {REORDERED: 1}


def test_the_first_delivery_is_the_first_in_the_queue_whoever_saw_it_when() -> None:
    tale = Tale(at_least_once=("g",))
    two_in_order(tale)
    tale.seen("B", at=1, reader="of the end")
    tale.seen("A", at=2, reader="of the end")
    for at, message in enumerate("ABA"):
        tale.seen(message, at=at)
    tale.read(3)
    assert tale.found() == {}


def test_the_order_of_first_deliveries_is_known_only_from_the_beginning_of_a_queue() -> None:
    """The reader began after the first delivery of A."""
    tale = Tale(at_least_once=("g",))
    two_in_order(tale)
    tale.seen("B", at=1)
    tale.seen("A", at=2)
    tale.read(3, first=1)
    assert tale.found() == {}
    assert looked(tale.report(), At.OUTBOX_ORDER) == 0


# --- one way only


def fallen_back(**began: object) -> Tale:
    """A block whose prepare got no answer, and whose message went to the outbox."""
    tale = Tale(**began)
    tale.half(message="M", outcome=None, key="k")
    tale.written(key="k")
    tale.local()
    return tale


def test_a_message_that_went_to_the_outbox_is_seen_once_and_its_half_message_rolls_back() -> None:
    tale = fallen_back()
    tale.check()
    tale.end(verdict=R, by="marker")
    tale.seen("M", tx="a batch of the relay")
    tale.settled()
    tale.read(1)
    assert tale.found() == {}
    assert looked(tale.report(), At.FALLBACK) == 1


def test_a_half_message_that_is_seen_although_it_went_to_the_outbox_is_a_phantom() -> None:
    for at_least_once in ((), ("g",)):
        tale = fallen_back(at_least_once=at_least_once)
        tale.seen("M", tx="a batch of the relay")
        tale.seen("M", tx="T", at=1)
        tale.settled()
        tale.read(2)
        assert tale.found() == {PHANTOM: 1}
        assert tale.sentence() == "it was seen, but its messages went to the outbox"


def test_a_message_that_was_seen_by_its_half_message_only_is_a_phantom_and_lost() -> None:
    tale = fallen_back()
    tale.seen("M", tx="T")
    tale.settled()
    tale.read(1)
    assert tale.found() == {PHANTOM: 1, LOST: 1}


def test_both_ways_are_a_duplicate_also_if_nobody_reports_the_transaction() -> None:
    tale = fallen_back()
    tale.seen("M")
    tale.seen("M", at=1)
    assert tale.found() == {DUPLICATE: 1}


@pytest.mark.parametrize("local", [C, R, None])
def test_half_messages_of_a_transaction_that_went_to_the_outbox_never_commit(local: str | None) -> None:
    tale = Tale()
    tale.half(message="M", outcome=None)
    tale.written()
    if local is not None:
        tale.local(outcome=local)  # type: ignore[arg-type]
    tale.end(verdict=C, by="check")
    assert tale.found() == {UNREQUESTED: 1}
    assert tale.sentence() == "COMMITTED was acknowledged, but its messages went to the outbox"


def test_half_messages_of_a_transaction_that_went_to_the_outbox_are_decided() -> None:
    tale = fallen_back()
    tale.check()
    tale.settled()
    tale.check()
    tale.seen("M", tx="a batch of the relay")
    assert tale.found() == {STUCK: 1}


# --- the log of a broker that is the target


def test_a_relay_decides_about_its_own_batches() -> None:
    """It was killed after its first batch was prepared; the next one rolled that back, and published the message again."""
    for relay_groups, found in ((("relay",), {}), ((), {UNREQUESTED: 2})):
        tale = Tale(relay_groups=relay_groups)
        tale.written()
        tale.local()
        tale.seen("M", tx="B2")
        for offset, batch in ((0, "B1"), (128, "B2")):
            tale.log("half", offset, tx=batch, message="M", group="relay")
        tale.log("rollback", 64, tx="B1", group="relay", decided_by="application")
        tale.log("commit", 192, tx="B2", group="relay", decided_by="application", shown=(("t", 0, 0, 128),))
        assert tale.found() == found
