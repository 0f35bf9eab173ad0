"""Limits on what is undecided, per producer group."""

from tests.support.core_log import CoreLog, end, half, part, refused, sent

from halfmq import limits
from halfmq.core.commands import SetProducer, Wanted
from halfmq.core.decision import Why
from halfmq.core.transaction.admission import COMMIT_FRAME_BYTES, HALF_FRAME_BYTES
from halfmq.model.records import CARRIED_HALF_MESSAGE_AT, MESSAGE_AT, REF_BYTES, HalfRecord
from halfmq.model.settings import BrokerSettings, PastLimit, ProducerSettings


def test_a_group_with_as_many_undecided_as_it_may_is_refused_until_one_is_settled() -> None:
    log = CoreLog(BrokerSettings(segment_bytes=65_536, undecided_max=2))
    first = sent(log.do(half("T1")))
    log.do(half("T2"))
    at = log.state.log_end
    assert "as many as it may" in refused(log.do(half("T3")), Why.LIMIT_REACHED).text
    assert log.state.log_end == at
    sent(log.do(half("T3", group="other")))
    log.do(end("T1", first, Wanted.ROLLBACK))
    sent(log.do(half("T3")))


def test_further_messages_of_a_transaction_do_not_count_as_transactions() -> None:
    log = CoreLog(BrokerSettings(segment_bytes=65_536, undecided_max=1))
    for index in range(5):
        sent(log.do(part("T1", index)))


def test_a_group_with_too_many_bytes_is_refused_until_they_are_settled() -> None:
    log = CoreLog(BrokerSettings(segment_bytes=65_536, undecided_bytes_max=2_500))
    first = sent(log.do(half("T1", body=b"x" * 1_000)))
    sent(log.do(half("T2", body=b"x" * 1_000)))
    refused(log.do(half("T3", body=b"x" * 1_000)), Why.LIMIT_REACHED)
    refused(log.do(half("T3", body=b"x" * 1_000)), Why.LIMIT_REACHED)
    assert log.state.producer_groups["PG"].bytes == sum(record.size - MESSAGE_AT for record in log.of(HalfRecord))
    log.do(end("T1", first))
    sent(log.do(half("T3", body=b"x" * 1_000)))


def test_limits_hold_after_a_restart() -> None:
    log = CoreLog(BrokerSettings(segment_bytes=65_536, undecided_max=1))
    log.do(half("T1"))
    log.restart()
    refused(log.do(half("T2")), Why.LIMIT_REACHED)


def message_bytes(log: CoreLog) -> int:
    return log.of(HalfRecord)[-1].size - MESSAGE_AT


def test_a_refusal_says_which_limit_is_reached() -> None:
    log = CoreLog(BrokerSettings(segment_bytes=65_536, undecided_max=1))
    log.do(half("T1"))
    text = "group 'PG' has 1 undecided transactions, as many as it may; settle some"
    assert refused(log.do(half("T2")), Why.LIMIT_REACHED).text == text


def test_the_bytes_of_a_group_are_bounded_to_the_byte() -> None:
    log = CoreLog()
    log.do(half("T1"))
    size = message_bytes(log)
    log = CoreLog(BrokerSettings(segment_bytes=65_536, undecided_bytes_max=2 * size))
    sent(log.do(half("T1")))
    sent(log.do(half("T2")))
    text = f"group 'PG' has {2 * size} bytes of undecided messages; {2 * size} are allowed; settle some"
    assert refused(log.do(half("T3", body=b"")), Why.LIMIT_REACHED).text == text
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
    text = "this broker takes no transactions: the limit is 0"
    assert refused(log.do(half("T1")), Why.NO_PERMISSION).text == text
    log = CoreLog()
    log.do(SetProducer(ProducerSettings("PG", 0, PastLimit.WAIT, undecided_max=0)))
    text = "PG takes no transactions: the limit is 0"
    assert refused(log.do(half("T1")), Why.NO_PERMISSION).text == text
    sent(log.do(half("T1", group="other")))


def test_a_transaction_may_take_half_a_segment_to_the_byte_with_what_its_commit_may_need() -> None:
    """One half: its message, its carried copy's head, its ref, and the commit around it."""
    assert HALF_FRAME_BYTES == CARRIED_HALF_MESSAGE_AT + REF_BYTES
    assert COMMIT_FRAME_BYTES == 24 + limits.GROUP_CHARS_MAX + limits.TRANSACTION_ID_CHARS_MAX
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
