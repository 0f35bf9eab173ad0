"""What is undecided, the oldest first; where an id is known."""

from tests.support.core_log import CoreLog, end, half, part, producer

from halfmq.core.commands import Wanted
from halfmq.core.transaction.listing import groups_of, oldest_undecided, standing


def test_the_oldest_come_first_over_all_groups_and_are_counted() -> None:
    log = CoreLog()
    for number in range(5):
        log.do(half(f"T{number}", group="even" if number % 2 == 0 else "odd", topic="orders"))
        log.later(1_000)
    log.session(producer(1, log.now_ms, "odd"))
    total, listed = oldest_undecided(log.state, "", 3, log.now_ms)
    assert total == 5
    assert [(one.tx_id, one.group, one.age_ms, one.producers) for one in listed] == [
        ("T0", "even", 5_000, 0), ("T1", "odd", 4_000, 1), ("T2", "even", 3_000, 0),
    ]  # fmt: skip
    assert (listed[0].topics, listed[0].messages, listed[0].expected, listed[0].checks) == (("orders",), 1, 1, 0)
    assert listed[0].next_check_in_ms == 1_000
    total, listed = oldest_undecided(log.state, "odd", 100, log.now_ms)
    assert (total, [one.tx_id for one in listed]) == (2, ["T1", "T3"])
    assert oldest_undecided(log.state, "nobody", 100, log.now_ms) == (0, ())


def test_a_transaction_that_is_not_whole_says_what_it_has_and_expects() -> None:
    log = CoreLog()
    log.do(part("T1", 0, topic="orders"))
    log.do(part("T1", 1, count=3, topic="stock"))
    _, (listed,) = oldest_undecided(log.state, "", 10, log.now_ms)
    assert (listed.messages, listed.expected, listed.topics) == (2, 3, ("orders", "stock"))
    assert listed.message_bytes > 0


def test_a_transaction_keeps_its_place_when_it_is_asked_about() -> None:
    log = CoreLog()
    log.session(producer(1, log.now_ms))
    log.do(half("T1"))
    log.later(100)
    log.do(half("T2"))
    log.checks_after(20_000)
    _, listed = oldest_undecided(log.state, "", 1, log.now_ms)
    assert [one.tx_id for one in listed] == ["T1"]
    assert listed[0].checks >= 1


def test_where_an_id_is_known_and_how_it_stands() -> None:
    log = CoreLog()
    for group in ("one", "two"):
        reply = log.do(half("T1", group=group))
    assert groups_of(log.state, "T1") == ("one", "two")
    log.do(end("T1", reply, Wanted.ROLLBACK, group="two"))
    assert groups_of(log.state, "T1") == ("one", "two"), "its verdict is known"
    assert [standing(log.state, group, "T1") for group in ("one", "two", "three")] == [
        "UNDECIDED", "ROLLED_BACK", "UNKNOWN",
    ]  # fmt: skip
    assert standing(log.state, "one", "T2") == "UNKNOWN"
    assert groups_of(log.state, "T2") == ()
