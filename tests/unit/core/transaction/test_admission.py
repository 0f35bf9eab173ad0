"""Limits on what is undecided, per producer group."""

from tests.support.core_log import CoreLog, end, half, part, refused, sent

from halfmq.core.commands import Wanted
from halfmq.core.decision import Why
from halfmq.model.records import MESSAGE_AT, HalfRecord
from halfmq.model.settings import BrokerSettings


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
