"""Send back: when a message comes again, and when it is given up."""

import pytest
from tests.support.core_log import PEER, CoreLog, refused

from halfmq.core.commands import EnsureGroup, SendBack, SetGroup
from halfmq.core.decision import Done, Why
from halfmq.core.queues.retry import retry_level
from halfmq.core.session import DiskSpace
from halfmq.model.ids import offset_message_id
from halfmq.model.properties import encode, to_dict
from halfmq.model.records import DelayedRecord, MessageRecord, Released
from halfmq.model.stored_message import StoredMessage


def failed(times: int = 0, topic: str = "orders", **pairs: str) -> StoredMessage:
    """What the log holds and a consumer failed on: a committed half, say, with its patched transaction bits."""
    properties = encode({"UNIQ_KEY": "U1", "TAGS": "TagA", "TRAN_MSG": "true", **pairs})
    return StoredMessage(topic, 2, 40, 11, 8 | 1, 77, PEER, 5, PEER, times, 99, b"body", 1234, properties)


def back(message: StoredMessage | None, *, level: int = 0, max_times: int = -1, group: str = "CG") -> SendBack:
    return SendBack(1, group, 4_096, level, max_times, "", message)


def with_group() -> CoreLog:
    log = CoreLog()
    log.do(EnsureGroup("CG"))
    return log


def test_a_failed_message_comes_again_to_its_group_after_the_standard_delay() -> None:
    log = with_group()
    assert log.do(back(failed())) == Done()
    (record,) = log.of(DelayedRecord)
    copy = record.message
    assert (copy.topic, copy.queue_id, copy.reconsume_times) == ("%RETRY%CG", 0, 1)
    assert (copy.body, copy.body_crc, copy.flag, copy.born_time_ms, copy.born_host) == (b"body", 1234, 11, 77, PEER)
    assert copy.sys_flag == 1, "compression stays, transaction bits do not"
    assert record.due_ms == log.now_ms + 10_000
    log.run_to(log.now_ms + 10_000)
    assert [ref.topic_id for ref in log.of(Released)[0].refs] == [log.state.topics_by_name["%RETRY%CG"].topic_id]


def test_the_copy_says_where_it_came_from() -> None:
    log = with_group()
    log.do(back(failed(TIMER_DELAY_MS="500")))
    pairs = to_dict(log.of(DelayedRecord)[0].message.properties)
    assert pairs["RETRY_TOPIC"] == "orders"
    assert pairs["ORIGIN_MESSAGE_ID"] == offset_message_id(log.settings.store_host, 4_096)
    assert (pairs["UNIQ_KEY"], pairs["TAGS"], pairs["WAIT"], pairs["DELAY"]) == ("U1", "TagA", "false", "3")
    assert (pairs["REAL_TOPIC"], pairs["REAL_QID"]) == ("%RETRY%CG", "0")
    assert "TIMER_DELAY_MS" not in pairs


@pytest.mark.parametrize(
    ("stated", "is_meant"),
    [
        ("", True),  # the client does not say
        ("U1", True),
        (offset_message_id(bytes(8), 4_096), True),  # another address of the broker
        (offset_message_id(bytes(20), 4_096).lower(), True),
        ("U2", False),
        (offset_message_id(PEER, 4_097), False),
        ("1000", False),
    ],
)
def test_another_message_at_the_offset_is_not_delivered_again(stated: str, is_meant: bool) -> None:
    """A power loss with durability memory removes messages, and their offsets are given again."""
    log = with_group()
    command = back(failed())._replace(origin_message_id=stated)
    if is_meant:
        assert log.do(command) == Done()
    else:
        refused(log.do(command), Why.NOT_FOUND)
    assert bool(log.of(DelayedRecord)) is is_meant


def test_a_second_failure_keeps_the_first_origin() -> None:
    log = with_group()
    log.do(back(failed(1, "%RETRY%CG", RETRY_TOPIC="orders", ORIGIN_MESSAGE_ID="FIRST")))
    pairs = to_dict(log.of(DelayedRecord)[0].message.properties)
    assert (pairs["RETRY_TOPIC"], pairs["ORIGIN_MESSAGE_ID"], pairs["DELAY"]) == ("orders", "FIRST", "4")


@pytest.mark.parametrize(
    ("level", "times", "expected"), [(0, 0, 3), (0, 5, 8), (0, 15, 18), (0, 16, 18), (5, 3, 5), (99, 0, 18)]
)
def test_the_delay_level_grows_with_each_failure_unless_the_consumer_says(
    level: int, times: int, expected: int
) -> None:
    assert retry_level(level, times) == expected


@pytest.mark.parametrize(
    ("times", "max_times", "level", "dead"),
    [(15, -1, 0, False), (16, -1, 0, True), (2, 3, 0, False), (3, 3, 0, True), (0, -1, -1, True), (0, 0, 0, True)],
)
def test_a_message_that_was_tried_often_enough_is_a_dead_letter(
    times: int, max_times: int, level: int, dead: bool
) -> None:
    log = with_group()
    log.do(back(failed(times), level=level, max_times=max_times))
    assert len(log.of(MessageRecord)) == dead
    assert len(log.of(DelayedRecord)) == (not dead)
    if dead:
        letter = log.of(MessageRecord)[0].message
        pairs = to_dict(letter.properties)
        assert (letter.topic, letter.queue_id, letter.reconsume_times) == ("%DLQ%CG", 0, times + 1)
        assert pairs["DLQ_ORIGIN_TOPIC"] == "orders"
        assert "DELAY" not in pairs


def test_a_message_that_nobody_may_see_is_not_found() -> None:
    log = with_group()
    end = log.state.log_end
    refused(log.do(back(None)), Why.NOT_FOUND)
    refused(log.do(back(failed(), group="Nobody")), Why.GROUP_NOT_EXIST)
    log.session(DiskSpace(True))
    refused(log.do(back(failed())), Why.STORE_FULL)
    assert log.state.log_end == end


def test_a_group_without_retry_queues_drops_what_failed_as_it_asked_for() -> None:
    log = CoreLog()
    log.do(SetGroup("CG", 16, 0, True))
    end = log.state.log_end
    assert log.do(back(failed())) == Done()
    assert log.state.log_end == end


def test_a_message_sent_back_twice_is_two_copies() -> None:
    log = with_group()
    log.do(back(failed()))
    log.do(back(failed()))
    assert len(log.of(DelayedRecord)) == 2


def test_a_count_of_failures_that_a_client_made_up_still_fits_its_field() -> None:
    log = with_group()
    log.do(back(failed(2**31 - 1)))
    assert log.of(MessageRecord)[0].message.reconsume_times == 2**31 - 1


def test_a_dead_letter_keeps_why_its_last_attempt_failed_and_a_retry_does_not() -> None:
    log = with_group()
    log.do(back(failed())._replace(failure="ValueError: no account"))
    log.do(back(failed(), level=-1)._replace(failure="KeyError: 7"))
    assert "HMQ_DEAD_REASON" not in to_dict(log.of(DelayedRecord)[0].message.properties)
    assert to_dict(log.of(MessageRecord)[0].message.properties)["HMQ_DEAD_REASON"] == "KeyError: 7"


@pytest.mark.parametrize(
    ("times", "attempt", "kept"), [(0, 0, 1), (0, 3, 3), (2, 5, 5), (2, 1, 3), (0, -1, 1), (0, 2**31 - 1, 2**31 - 1)]
)
def test_a_dead_letter_keeps_the_attempts_that_its_consumer_has_made_by_itself(
    times: int, attempt: int, kept: int
) -> None:
    """RocketMQ's clients send a message in order to their group with the number of attempts in it, when they give it up."""
    log = with_group()
    log.do(back(failed(times), level=-1)._replace(attempt=attempt))
    log.do(back(failed(times), level=0, max_times=times)._replace(attempt=attempt))
    assert [record.message.reconsume_times for record in log.of(MessageRecord)] == [kept, kept]


def test_attempts_that_a_consumer_states_make_no_dead_letter() -> None:
    log = with_group()
    log.do(back(failed(1), max_times=2)._replace(attempt=100))
    log.do(back(failed(1), level=-1)._replace(attempt=100, not_consumed=True))
    assert [record.message.reconsume_times for record in log.of(DelayedRecord)] == [2, 1]


@pytest.mark.parametrize("other_bytes", [31_200, 31_700])  # what the record and what the properties have no space for
def test_a_dead_letter_without_space_for_its_reason_is_stored_without(other_bytes: int) -> None:
    log = with_group()
    large = failed(LARGE="x" * other_bytes)
    assert log.do(back(large, level=-1)._replace(failure="y" * 1_000)) == Done()
    assert "HMQ_DEAD_REASON" not in to_dict(log.of(MessageRecord)[0].message.properties)


@pytest.mark.parametrize(("delay_ms", "due_ms"), [(1, 1), (2_500, 2_500), (3 * 86_400_000, 3 * 86_400_000)])
def test_a_delay_in_milliseconds_comes_before_a_level(delay_ms: int, due_ms: int) -> None:
    log = with_group()
    assert log.do(back(failed(), level=5)._replace(delay_ms=delay_ms)) == Done()
    (record,) = log.of(DelayedRecord)
    assert record.due_ms == log.now_ms + due_ms
    assert "DELAY" not in to_dict(record.message.properties)


NOT_CONSUMED = "NotConsumed: group CG has a member that does not consume topic orders: client c"


@pytest.mark.parametrize("level", [0, -1, 5])
def test_a_member_that_does_not_consume_the_topic_makes_no_attempt(level: int) -> None:
    log = with_group()
    command = back(failed(2), level=level, max_times=2)._replace(delay_ms=1, not_consumed=True, failure=NOT_CONSUMED)
    assert log.do(command) == Done()
    (record,) = log.of(DelayedRecord)
    pairs = to_dict(record.message.properties)
    assert (record.message.topic, record.message.reconsume_times) == ("%RETRY%CG", 2)
    assert (pairs["HMQ_NOT_CONSUMED"], pairs["DELAY"]) == ("1", "3")
    assert record.due_ms == log.now_ms + 10_000
    log.do(back(record.message, max_times=3))
    assert log.of(DelayedRecord)[1].message.reconsume_times == 3, "an attempt is counted from where the count was"


def test_a_message_that_only_comes_to_such_members_is_a_dead_letter_that_says_so() -> None:
    log = with_group()
    message = failed(1)
    waited_ms = 0
    for _ in range(16):
        log.do(back(message, max_times=1)._replace(not_consumed=True, failure=NOT_CONSUMED))
        assert log.of(MessageRecord) == []
        message, waited_ms = (
            log.of(DelayedRecord)[-1].message,
            waited_ms + log.of(DelayedRecord)[-1].due_ms - log.now_ms,
        )
    assert waited_ms / 3_600_000 == pytest.approx(4.8, abs=0.05), "docs/services.md says nearly five hours"
    log.do(back(message, max_times=1)._replace(not_consumed=True, failure=NOT_CONSUMED))
    (letter,) = log.of(MessageRecord)
    pairs = to_dict(letter.message.properties)
    assert (letter.message.topic, letter.message.reconsume_times) == ("%DLQ%CG", 1)
    assert pairs["HMQ_DEAD_REASON"] == NOT_CONSUMED
    assert "HMQ_NOT_CONSUMED" not in pairs


@pytest.mark.parametrize("written", ["many", "-1", "9" * 400, "\u0663"])
def test_a_count_of_such_members_that_a_client_made_up_is_none(written: str) -> None:
    log = with_group()
    log.do(back(failed(HMQ_NOT_CONSUMED=written))._replace(not_consumed=True))
    assert to_dict(log.of(DelayedRecord)[0].message.properties)["HMQ_NOT_CONSUMED"] == "1"


def test_a_delay_of_nothing_delivers_it_again_at_once() -> None:
    log = with_group()
    log.do(back(failed())._replace(delay_ms=0))
    (record,) = log.of(MessageRecord)
    assert (record.message.topic, record.message.reconsume_times) == ("%RETRY%CG", 1)


def test_a_delay_does_not_keep_a_dead_letter_waiting() -> None:
    log = with_group()
    log.do(back(failed(16))._replace(delay_ms=5_000))
    log.do(back(failed(), level=-1)._replace(delay_ms=5_000))
    assert [record.message.topic for record in log.of(MessageRecord)] == ["%DLQ%CG"] * 2


def test_a_delay_that_no_message_may_have_is_refused() -> None:
    log = with_group()
    refused(log.do(back(failed())._replace(delay_ms=3 * 86_400_000 + 1)), Why.MESSAGE_ILLEGAL)
    refused(log.do(back(failed())._replace(delay_ms=2**62)), Why.MESSAGE_ILLEGAL)
