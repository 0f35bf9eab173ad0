"""Which plain message is the same one, and which is another."""

import pytest
from msgspec.structs import replace
from tests.support.core_log import CoreLog, batch_of, changed, end, half, message, refused, sent

from halfmq.core.commands import EnsureGroup, RequestedVerdict, SendBatch, SetTopic
from halfmq.core.decision import Done, SentBatch, Why
from halfmq.core.queues.deduplication import forget_verdict
from halfmq.core.session import Published
from halfmq.model.properties import encode
from halfmq.model.records import HalfRecord, MessageRecord
from halfmq.model.settings import BrokerSettings


def released(log: CoreLog) -> None:
    """All answers so far have left."""
    log.session(Published(0, log.state.log_end))


def test_a_message_sent_again_on_another_connection_is_the_same() -> None:
    log = CoreLog()
    first = sent(log.do(message("M1", connection=1)))
    released(log)
    assert log.do(message("M1", connection=2)) == first
    assert len(log.of(MessageRecord)) == 1


def test_a_message_sent_again_before_its_answer_was_released_is_the_same_on_any_connection() -> None:
    log = CoreLog()
    first = sent(log.do(message("M1", connection=1)))
    assert log.do(message("M1", connection=1)) == first


def test_one_message_object_sent_twice_after_an_answer_is_two_messages() -> None:
    log = CoreLog()
    first = sent(log.do(message("M1", connection=1)))
    released(log)
    second = sent(log.do(message("M1", connection=1)))
    assert (first.queue_offset, second.queue_offset) == (0, 1)
    assert log.do(message("M1", connection=2)) == second, "a retry of the second is the second"


def test_a_message_that_is_marked_as_sent_again_is_the_same_on_any_connection_however_late() -> None:
    log = CoreLog()
    first = sent(log.do(message("M1", connection=1)))
    released(log)
    log.later(60_000)
    for connection in (1, 1, 2):
        assert log.do(changed(message("M1", connection=connection), sent_again=True)) == first
    assert len(log.of(MessageRecord)) == 1


def test_a_marked_message_that_was_never_stored_is_stored_once() -> None:
    log = CoreLog()
    first = sent(log.do(changed(message("M1"), sent_again=True)))
    released(log)
    assert log.do(changed(message("M1"), sent_again=True)) == first
    assert len(log.of(MessageRecord)) == 1


def test_the_queue_may_differ_when_a_client_tries_another_one() -> None:
    log = CoreLog()
    first = sent(log.do(message("M1", queue=0)))
    assert log.do(message("M1", queue=2, connection=2)) == first


def test_another_body_topic_or_id_is_another_message() -> None:
    log = CoreLog()
    log.do(message("M1", body=b"one"))
    log.do(message("M1", body=b"two", connection=2))
    log.do(message("M1", body=b"two", topic="loyalty", connection=2))
    log.do(message("M2", body=b"two", connection=2))
    assert len(log.of(MessageRecord)) == 4


@pytest.mark.parametrize("from_snapshot", [False, True])
def test_after_a_start_a_message_sent_again_is_the_same_since_its_connection_is_new(from_snapshot: bool) -> None:
    log = CoreLog()
    first = sent(log.do(message("M1", connection=1)))
    released(log)
    log.state = log.reloaded(log.snapshot()) if from_snapshot else log.redone()
    released(log)
    assert log.do(message("M1", connection=1)) == first


@pytest.mark.parametrize("prefix", ["%RETRY%", "%DLQ%"])
def test_copies_for_retry_and_dead_letters_keep_their_id_and_are_all_stored(prefix: str) -> None:
    log = CoreLog()
    log.do(EnsureGroup("CG"))
    for _ in range(3):
        sent(log.do(message("M1", topic=f"{prefix}CG", connection=2)))
    assert len(log.of(MessageRecord)) == 3


def test_a_reconsumed_message_is_never_taken_for_sent_again() -> None:
    log = CoreLog()
    log.do(message("M1"))
    log.do(message("M1", reconsume_times=1, connection=2))
    log.do(message("M1", reconsume_times=1, connection=3))
    assert len(log.of(MessageRecord)) == 3


def test_the_window_ends_by_age_at_the_time_of_the_batch() -> None:
    log = CoreLog(BrokerSettings(segment_bytes=65_536, dedup_window_ms=120_000))
    first = sent(log.do(message("M1")))
    log.later(120_000)
    log.do(message("other"))
    assert log.do(message("M1", connection=2)) == first
    log.later(1)
    log.do(message("another"))
    assert sent(log.do(message("M1", connection=2))) != first


def test_the_window_of_verdicts_ends_by_age_too() -> None:
    log = CoreLog(BrokerSettings(segment_bytes=65_536, dedup_window_ms=120_000))
    half_reply = sent(log.do(half("T1")))
    log.do(end("T1", half_reply))
    log.later(120_000)
    log.do(message("other"))
    assert log.do(end("T1", half_reply)).repeated  # type: ignore[union-attr]
    log.later(1)
    log.do(message("another"))
    assert "T1" not in log.state.producer_groups["PG"].settled
    refused(log.do(end("T1", half_reply)), Why.NOT_FOUND)


def test_the_newest_forgotten_verdict_is_known_by_its_position() -> None:
    log = CoreLog(BrokerSettings(dedup_ids_max=2))
    positions = []
    for number in range(5):
        name = f"{number:032d}"
        positions.append(log.do(end(name, log.do(half(name)))).position)
        assert log.state.derived.verdict_forgotten == (positions[-3] if number >= 2 else -1)
    assert log.redone().derived.verdict_forgotten == positions[2]


def test_the_window_ends_by_number() -> None:
    log = CoreLog(BrokerSettings(segment_bytes=65_536, dedup_ids_max=3))
    first = sent(log.do(message("M1")))
    log.do(message("M2"))
    log.do(message("M3"))
    assert log.do(message("M1", connection=2)) == first
    log.do(message("M4"))
    assert sent(log.do(message("M1", connection=2))) != first
    assert len(log.state.sent) == 3


def test_a_delayed_message_sent_again_is_the_same() -> None:
    log = CoreLog()
    first = sent(log.do(message("M1", DELAY="3")))
    assert log.do(message("M1", DELAY="3", connection=2)) == first
    assert len(log.state.delayed) == 1


def batch(first: int, connection: int = 1) -> SendBatch:
    entries = [(b"entry", encode({"UNIQ_KEY": f"B{number}"})) for number in range(first, first + 3)]
    command: SendBatch = batch_of(*entries, connection=connection)
    return command


def test_a_batch_sent_again_is_the_same() -> None:
    log = CoreLog()
    log.do(message("M0", queue=1))
    first = log.do(batch(0))
    assert isinstance(first, SentBatch)
    released(log)
    assert log.do(batch(0, connection=2)) == first
    log.restart()
    assert log.do(batch(0, connection=2)) == first
    assert len(log.of(MessageRecord)) == 4


def test_a_batch_that_is_marked_as_sent_again_is_the_same_on_its_connection() -> None:
    log = CoreLog()
    first = log.do(batch(0))
    released(log)
    assert log.do(changed(batch(0), sent_again=True)) == first
    assert len(log.of(MessageRecord)) == 3


def test_a_batch_that_is_sent_twice_or_differs_is_another_one() -> None:
    log = CoreLog()
    first = log.do(batch(0))
    released(log)
    assert log.do(batch(0)) != first
    assert log.do(batch(1, connection=2)) != first
    assert len(log.of(MessageRecord)) == 9


def test_an_id_of_absurd_length_is_stored_and_not_remembered() -> None:
    log = CoreLog()
    for connection in (1, 2):
        sent(log.do(message("x" * 129, connection=connection)))
    assert not log.state.sent
    for connection in (1, 2):
        sent(log.do(message("x" * 128, connection=connection)))
    assert len(log.of(MessageRecord)) == 3


#: What an operator may do to a topic between a message and its repetition.
TOPIC_CHANGES = pytest.mark.parametrize(
    "change", [SetTopic("orders", 4, 2, 6), SetTopic("orders", 4, 4, 4)], ids=["fewer write queues", "read-only"]
)


@TOPIC_CHANGES
def test_a_message_sent_again_gets_its_first_answer_also_when_its_topic_takes_no_more(change: SetTopic) -> None:
    log = CoreLog()
    first = sent(log.do(message("M1", queue=3)))
    released(log)
    assert log.do(change) == Done()
    assert log.do(changed(message("M1", queue=3), sent_again=True)) == first
    assert log.do(message("M1", queue=3, connection=2)) == first
    why = Why.NO_PERMISSION if change.permission == 4 else Why.INVALID_PARAMETER
    refused(log.do(message("M1", queue=3)), why)
    refused(log.do(message("M1", body=b"another", queue=3, connection=2)), why)
    refused(log.do(message("", queue=3)), why)
    assert len(log.of(MessageRecord)) == 1


@TOPIC_CHANGES
def test_a_half_sent_again_gets_its_standing_answer_also_when_its_topic_takes_no_more(change: SetTopic) -> None:
    log = CoreLog()
    open_, settled = sent(log.do(half("T1", queue=3))), sent(log.do(half("T2", queue=3)))
    log.do(end("T2", settled, RequestedVerdict.ROLLBACK))
    assert log.do(change) == Done()
    assert log.do(half("T1", queue=3, connection=2)) == open_
    assert refused(log.do(half("T2", queue=3)), Why.ALREADY_SETTLED).standing == "ROLLED_BACK"
    log.do(end("T1", open_, RequestedVerdict.COMMIT))
    while log.state.verdicts:
        forget_verdict(log.state)
    assert refused(log.do(half("T1", queue=3)), Why.ALREADY_SETTLED).standing == "COMMITTED"
    unsearched = replace(half("T1", queue=3), searched_to=1)
    refused(log.do(unsearched), Why.SEARCH_AGAIN)
    why = Why.NO_PERMISSION if change.permission == 4 else Why.INVALID_PARAMETER
    refused(log.do(half("T3", queue=3)), why)
    refused(log.do(half("T4", queue=7)), why)
    assert len(log.of(HalfRecord)) == 2


@TOPIC_CHANGES
def test_a_batch_sent_again_gets_its_first_answer_also_when_its_topic_takes_no_more(change: SetTopic) -> None:
    log = CoreLog()
    first = log.do(changed(batch(0), queue_id=3))
    assert isinstance(first, SentBatch)
    released(log)
    assert log.do(change) == Done()
    assert log.do(changed(batch(0, connection=2), queue_id=3)) == first
    refused(
        log.do(changed(batch(1, connection=2), queue_id=3)),
        Why.NO_PERMISSION if change.permission == 4 else Why.INVALID_PARAMETER,
    )
    assert len(log.of(MessageRecord)) == 3
