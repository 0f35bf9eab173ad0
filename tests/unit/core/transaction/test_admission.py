"""Limits on what is undecided, per producer group."""

import pytest
from tests.support.core_log import CoreLog, consumer, end, half, half_batch, part, producer, refused, sent
from tests.support.invariants import check

from halfmq import limits
from halfmq.core.commands import DecideBatch, RequestedVerdict, SetProducer
from halfmq.core.decision import Why
from halfmq.core.transaction import admission as admission
from halfmq.core.transaction.admission import COMMIT_FRAME_BYTES, HALF_FRAME_BYTES, groups_refusal
from halfmq.model.query_batch import QueryBatch
from halfmq.model.records import COPIED_HALF_MESSAGE_AT, MESSAGE_AT, REF_BYTES, HalfRecord
from halfmq.model.settings import BrokerSettings, PastLimit, ProducerSettings


def test_a_group_with_as_many_undecided_as_it_may_is_refused_until_one_is_settled() -> None:
    log = CoreLog(BrokerSettings(segment_bytes=65_536, undecided_max=2))
    first = sent(log.do(half("T1")))
    log.do(half("T2"))
    at = log.state.log_end
    text = "group 'PG' has 2 undecided transactions, as many as it may; settle some"
    assert refused(log.do(half("T3")), Why.LIMIT_REACHED).text == text
    assert log.state.log_end == at
    sent(log.do(half("T3", group="other")))
    log.do(end("T1", first, RequestedVerdict.ROLLBACK))
    sent(log.do(half("T3")))


def test_further_messages_of_a_transaction_do_not_count_as_transactions() -> None:
    log = CoreLog(BrokerSettings(segment_bytes=65_536, undecided_max=1))
    for index in range(5):
        sent(log.do(part("T1", index)))


def test_limits_hold_after_a_restart() -> None:
    log = CoreLog(BrokerSettings(segment_bytes=65_536, undecided_max=1))
    log.do(half("T1"))
    log.restart()
    refused(log.do(half("T2")), Why.LIMIT_REACHED)


def message_bytes(log: CoreLog) -> int:
    return log.of(HalfRecord)[-1].size - MESSAGE_AT


def test_the_bytes_of_a_group_are_bounded_to_the_byte() -> None:
    log = CoreLog()
    log.do(half("T1"))
    size = message_bytes(log)
    log = CoreLog(BrokerSettings(segment_bytes=65_536, undecided_bytes_max=2 * size))
    first = sent(log.do(half("T1")))
    sent(log.do(half("T2")))
    text = f"group 'PG' has {2 * size} bytes of undecided messages; {2 * size} are allowed; settle some"
    assert refused(log.do(half("T3", body=b"")), Why.LIMIT_REACHED).text == text
    log.do(end("T1", first))
    sent(log.do(half("T3")))
    log = CoreLog(BrokerSettings(segment_bytes=65_536, undecided_bytes_max=2 * size - 1))
    sent(log.do(half("T1")))
    refused(log.do(half("T2")), Why.LIMIT_REACHED)


def test_the_first_transaction_of_a_group_is_bounded_to_the_byte_too() -> None:
    log = CoreLog()
    log.do(half("T1"))
    size = message_bytes(log)
    sent(CoreLog(BrokerSettings(segment_bytes=65_536, undecided_bytes_max=size)).do(half("T1")))
    log = CoreLog(BrokerSettings(segment_bytes=65_536, undecided_max=7, undecided_bytes_max=size - 1))
    text = f"a group may have 7 undecided transactions and {size - 1} bytes of their messages on this broker"
    assert refused(log.do(half("T1")), Why.LIMIT_REACHED).text == text


def test_where_no_transactions_are_allowed_no_client_shall_try_again() -> None:
    log = CoreLog(BrokerSettings(segment_bytes=65_536, undecided_max=0))
    text = "this broker accepts no transactions: the limit is 0"
    assert refused(log.do(half("T1")), Why.NO_PERMISSION).text == text
    log = CoreLog()
    log.do(SetProducer(ProducerSettings("PG", 0, PastLimit.WAIT, undecided_max=0)))
    text = "PG accepts no transactions: the limit is 0"
    assert refused(log.do(half("T1")), Why.NO_PERMISSION).text == text
    sent(log.do(half("T1", group="other")))


def test_a_transaction_may_take_half_a_segment_to_the_byte_with_what_its_commit_may_need() -> None:
    """One half: its message, its carried copy's head, its ref, and the commit around it."""
    assert HALF_FRAME_BYTES == COPIED_HALF_MESSAGE_AT + REF_BYTES
    names = limits.GROUP_CHARS_MAX + limits.TRANSACTION_ID_CHARS_MAX + limits.USER_NAME_CHARS_MAX
    assert 24 + names == COMMIT_FRAME_BYTES
    log = CoreLog()
    log.do(half("T0", body=b""))
    room = 32_768 - COMMIT_FRAME_BYTES - HALF_FRAME_BYTES - message_bytes(log)
    text = f"the transaction would take 32769 bytes; one may take 32768 (64 MiB, and half a segment of {log.settings.segment_bytes})"
    assert refused(log.do(half("T1", body=b"x" * (room + 1))), Why.MESSAGE_ILLEGAL).text == text
    sent(log.do(half("T1", body=b"x" * room)))


def test_further_halves_of_a_transaction_are_added_up_to_the_byte() -> None:
    log = CoreLog()
    log.do(part("T0", 0, body=b""))
    empty = message_bytes(log)
    room = 32_768 - COMMIT_FRAME_BYTES - 3 * (HALF_FRAME_BYTES + empty)
    sent(log.do(part("T1", 0, body=b"x" * 100)))
    sent(log.do(part("T1", 1, body=b"x" * 100)))
    refused(log.do(part("T1", 2, body=b"x" * (room - 199))), Why.MESSAGE_ILLEGAL)
    sent(log.do(part("T1", 2, body=b"x" * (room - 200))))


def totals(**settings: int) -> CoreLog:
    return CoreLog(BrokerSettings(segment_bytes=1 << 20, **settings))


def test_all_groups_together_have_only_so_many_undecided() -> None:
    log = totals(undecided_total_max=3)
    first = sent(log.do(half("T0", group="G0")))
    for number in (1, 2):
        sent(log.do(part(f"T{number}", 0, group=f"G{number}")))
    log.restart()
    assert "3 (--undecided-total-max)" in refused(log.do(half("T3", group="G3")), Why.LIMIT_REACHED).text
    assert "3 (--undecided-total-max)" in refused(log.do(half("T3", group="G1")), Why.LIMIT_REACHED).text
    sent(log.do(part("T1", 1, group="G1")))
    log.do(end("T0", first, group="G0"))
    sent(log.do(half("T3", group="G3")))
    check(log.state)


def test_all_groups_together_have_only_so_many_bytes_undecided() -> None:
    log = totals(undecided_total_bytes_max=3_000)
    first = sent(log.do(part("T0", 0, 1, group="G0", body=b"x" * 1_000)))
    sent(log.do(part("T1", 0, group="G1", body=b"x" * 1_000)))
    for command in (half("T2", group="G2", body=b"x" * 1_000), part("T1", 1, group="G1", body=b"x" * 1_000)):
        assert "3000 (--undecided-total-bytes-max)" in refused(log.do(command), Why.LIMIT_REACHED).text
    sent(log.do(half("T0-0", group="G0", body=b"x" * 1_000, HMQ_TX_ID="T0", HMQ_TX_INDEX="0", HMQ_TX_COUNT="1")))
    log.do(end("T0", first, RequestedVerdict.ROLLBACK, group="G0"))
    sent(log.do(half("T2", group="G2", body=b"x" * 1_000)))
    check(log.state)


def test_only_so_many_groups_have_something_undecided() -> None:
    log = totals(undecided_groups_max=2)
    first = sent(log.do(half("T0", group="G0")))
    sent(log.do(half("T1", group="G1")))
    log.session(producer(1, log.now_ms, "Known"))
    for group in ("New", "Known"):
        assert "2 (--undecided-groups-max)" in refused(log.do(half("T2", group=group)), Why.LIMIT_REACHED).text
    second = sent(log.do(half("T2", group="G0")))
    log.do(end("T0", first, group="G0"))
    refused(log.do(half("T3", group="New")), Why.LIMIT_REACHED)
    log.do(end("T2", second, group="G0"))
    sent(log.do(half("T3", group="New")))
    check(log.state)


def test_a_refusal_by_what_all_share_says_who_has_most_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    log = totals(undecided_total_max=4, undecided_total_bytes_max=6_000)
    for number in range(3):
        sent(log.do(half(f"A{number}", group="Many")))
    sent(log.do(half("B", group="Large", body=b"x" * 4_000)))
    text = refused(log.do(half("C", group="New")), Why.LIMIT_REACHED).text
    assert "4 undecided transactions (3 of them by producer group 'Many')" in text
    held = log.state.producer_groups["Large"].derived.bytes
    text = refused(log.do(half("C", group="New", body=b"x" * 2_000)), Why.LIMIT_REACHED).text
    assert f"({held} of them by producer group 'Large')" in text
    monkeypatch.setattr(admission, "_GROUPS_EXAMINED_MAX", 1)
    text = refused(log.do(half("C", group="New")), Why.LIMIT_REACHED).text
    assert "4 undecided transactions (of 2 producer groups)" in text


def test_strangers_leave_places_for_groups_that_are_somebodys() -> None:
    """Their undecided transactions are there for ever, also after they have left (issue 28, 2.3)."""
    log = totals(undecided_groups_max=20)
    for number in range(15):
        sent(log.do(half(f"S{number}", group=f"Stranger{number}")))
    text = refused(log.do(half("T", group="Stranger")), Why.LIMIT_REACHED).text
    assert "accepts 15 of groups without a connected producer" in text
    log.session(producer(1, log.now_ms, "Live"))
    sent(log.do(half("T1", group="Live")))
    log.do(SetProducer(ProducerSettings("Limited", undecided_max=5), by=None))
    sent(log.do(half("T2", group="Limited")))
    log.session(producer(2, log.now_ms, *[f"Many{number}" for number in range(9)]))
    refused(log.do(half("T3", group="Many0")), Why.LIMIT_REACHED)
    log.session(producer(3, log.now_ms, "Many0"))
    sent(log.do(half("T3", group="Many0")))
    sent(log.do(half("T1b", group="Live")))
    log.restart()
    sent(log.do(half("T1c", group="Live")))
    refused(log.do(half("T4", group="Later")), Why.LIMIT_REACHED)
    for number in range(4, 6):
        log.session(producer(number, log.now_ms, f"Last{number}"))
        sent(log.do(half(f"T{number}", group=f"Last{number}")))
    log.session(producer(9, log.now_ms, "TooMany"))
    assert "20 (--undecided-groups-max)" in refused(log.do(half("T9", group="TooMany")), Why.LIMIT_REACHED).text
    check(log.state)


def test_query_that_has_decided_gets_a_place_also_without_a_connected_producer() -> None:
    log = totals(undecided_groups_max=4)
    known = QueryBatch("app", 0, "r1", "T")
    log.do(DecideBatch(1, "SPARK", known, b"d" * 16, ()))
    for number in range(3):
        sent(log.do(half(f"S{number}", group=f"Stranger{number}")))
    refused(log.do(half_batch(QueryBatch("new", 0, "r1", "T"), group="OTHER")), Why.LIMIT_REACHED)
    sent(log.do(half_batch(known._replace(batch=1), group="SPARK")))


def test_a_connection_is_in_so_many_groups_of_both_kinds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "GROUPS_PER_CONNECTION_MAX", 3)
    log = CoreLog()
    log.session(producer(1, 0, "P"))
    log.session(consumer(1, 0, "C", "T"))
    assert groups_refusal(log.state, 1, ["P", "Q"], ["C"]) is None, "those that it is in count once"
    assert groups_refusal(log.state, 1, [], ["D", "D"]) is None
    assert groups_refusal(log.state, 1, ["Q", "R"]) == groups_refusal(log.state, 1, ["Q"], ["D"])
    assert "3 groups" in str(groups_refusal(log.state, 1, ["Q"], ["D"]))
    assert groups_refusal(log.state, 2, ["Q", "R"], ["D"]) is None


def test_totals_are_those_of_a_recount_after_restarts_carries_and_verdicts() -> None:
    log = totals()
    replies = {number: log.do(half(f"T{number}", group=f"G{number % 7}")) for number in range(30)}
    log.roll()
    for number in range(0, 30, 3):
        log.do(end(f"T{number}", replies[number], group=f"G{number % 7}"))
    log.restart()
    check(log.state)
    assert (log.state.derived.undecided_count, log.state.derived.undecided_groups) == (20, 7)
    for number in range(30):
        log.do(end(f"T{number}", replies[number], RequestedVerdict.ROLLBACK, group=f"G{number % 7}"))
    assert (
        log.state.derived.undecided_count,
        log.state.derived.undecided_groups,
        log.state.derived.undecided_bytes,
    ) == (0, 0, 0)
