"""Prepare and settle: who gets which answer, and that nothing is written where nothing may be."""

from zlib import crc32

import pytest
from msgspec.structs import replace
from tests.support.core_log import PEER, CoreLog, changed, end, half, message, part, raw, refused, sent
from tests.support.looked import Looked

from halfmq import limits
from halfmq.core.commands import (
    CopyForward,
    EarlierVerdict,
    RequestedVerdict,
    ResolveTransaction,
    SendHalf,
    SettledRow,
    TrimLog,
)
from halfmq.core.decision import Noted, Refused, Settled, WakeQueue, Why
from halfmq.core.session import DiskSpace
from halfmq.core.transaction import machine
from halfmq.model import properties
from halfmq.model.ids import hash64, parse_offset_message_id
from halfmq.model.records import MESSAGE_AT, Committed, CopiedHalf, DecidedBy, HalfRecord, RolledBack, committed_size
from halfmq.model.settings import BrokerSettings


def nothing_logged(log: CoreLog, command: object) -> object:
    before = log.state.log_end
    reply = log.do(command)  # type: ignore[arg-type]
    assert log.state.log_end == before, "the log grew"
    return reply


# --- prepare ---------------------------------------------------------------------------------------------------


def test_a_half_is_stored_under_its_true_topic_and_queue_and_is_not_visible() -> None:
    log = CoreLog()
    reply = sent(log.do(half("T1", topic="orders", queue=2, body=b"hello", TAGS="TagA")))
    (record,) = log.of(HalfRecord)
    stored = record.message
    assert (stored.topic, stored.queue_id, stored.body) == ("orders", 2, b"hello")
    assert (reply.log_offset, reply.queue_id, reply.queue_offset) == (record.offset, 2, record.half_index)
    assert stored.queue_offset == record.half_index
    assert log.state.topics_by_name["orders"].ends == [0, 0, 0, 0]
    assert not [effect for effect in log.effects if isinstance(effect, WakeQueue)]


def test_what_rocketmq_adds_later_is_added_at_prepare() -> None:
    log = CoreLog()
    log.do(half("T1", queue=3))
    stored = properties.to_dict(log.of(HalfRecord)[0].message.properties)
    assert (stored["REAL_TOPIC"], stored["REAL_QID"], stored["CLUSTER"]) == ("orders", "3", "DefaultCluster")
    assert (stored["MSG_REGION"], stored["TRACE_ON"]) == ("DefaultRegion", "true")
    assert (stored["PGROUP"], stored["UNIQ_KEY"], stored["TRAN_MSG"]) == ("PG", "T1", "true")


def test_a_half_without_unique_id_and_group_gets_both_and_can_be_settled_by_them() -> None:
    log = CoreLog()
    reply = sent(log.do(message("", group="Shop", TRAN_MSG="true")))
    assert parse_offset_message_id(reply.unique_id)[1] == reply.log_offset
    stored = properties.to_dict(log.of(HalfRecord)[0].message.properties)
    assert (stored["UNIQ_KEY"], stored["PGROUP"]) == (reply.unique_id, "Shop")
    assert isinstance(log.do(end(reply.unique_id, reply, group="Shop")), Settled)


def test_transaction_and_host_bits_of_the_client_are_not_stored_but_compression_is() -> None:
    log = CoreLog()
    log.do(half("T1", sys_flag=0x4 | 0x1 | 0x10 | 0x20 | 0x100))
    stored = log.of(HalfRecord)[0].message
    assert stored.sys_flag == 0x101
    assert (stored.born_host, stored.flag, stored.born_time_ms) == (PEER, 5, 77)


def test_true_is_true_in_any_case_as_in_java() -> None:
    log = CoreLog()
    log.do(message("T1", TRAN_MSG="TRUE", PGROUP="PG"))
    log.do(message("M1", TRAN_MSG="yes"))
    assert [record.tx_id for record in log.of(HalfRecord)] == ["T1"]


def test_the_last_property_of_a_name_wins_and_properties_need_no_final_separator() -> None:
    log = CoreLog()
    command = raw(b"UNIQ_KEY\x01old\x02TRAN_MSG\x01true\x02PGROUP\x01PG\x02UNIQ_KEY\x01T1")
    reply = sent(log.do(command))
    assert log.of(HalfRecord)[0].tx_id == "T1"
    assert isinstance(log.do(end("T1", reply)), Settled)


def test_a_half_that_would_never_fit_a_segment_with_its_commit_is_refused() -> None:
    log = CoreLog()
    refused(nothing_logged(log, half("T1", body=b"x" * 33_000)), Why.MESSAGE_ILLEGAL)
    reply = sent(log.do(half("T2", body=b"x" * 31_000)))
    log.roll()
    assert isinstance(log.do(end("T2", reply)), Settled)


def test_a_half_with_a_delay_of_more_than_three_days_is_refused() -> None:
    log = CoreLog()
    refused(nothing_logged(log, half("T1", TIMER_DELAY_SEC=str(3 * 86_400 + 1))), Why.MESSAGE_ILLEGAL)


# --- sent again ------------------------------------------------------------------------------------------------


def test_an_undecided_half_sent_again_gets_its_first_answer_also_after_a_restart() -> None:
    log = CoreLog()
    first = log.do(half("T1", queue=1))
    for _ in range(2):
        assert nothing_logged(log, half("T1", queue=1)) == first
        assert nothing_logged(log, half("T1", queue=3, connection=8)) == first, "the queue may differ"
        log.restart()


def test_a_half_sent_again_is_answered_before_limits_and_full_disks_are_looked_at() -> None:
    log = CoreLog(BrokerSettings(segment_bytes=65_536, undecided_max=1))
    first = log.do(half("T1"))
    refused(nothing_logged(log, half("T2")), Why.LIMIT_REACHED)
    log.session(DiskSpace(True))
    refused(nothing_logged(log, half("T2")), Why.STORE_FULL)
    assert nothing_logged(log, half("T1")) == first


@pytest.mark.parametrize(
    ("wanted", "standing"), [(RequestedVerdict.COMMIT, "COMMITTED"), (RequestedVerdict.ROLLBACK, "ROLLED_BACK")]
)
@pytest.mark.parametrize("restarted", [False, True])
def test_a_half_of_a_settled_transaction_sent_again_is_refused_with_the_verdict(
    wanted: RequestedVerdict, standing: str, restarted: bool
) -> None:
    log = CoreLog()
    settled = log.do(end("T1", log.do(half("T1")), wanted, from_check=True))
    assert isinstance(settled, Settled)
    if restarted:
        log.restart()
    answer = refused(nothing_logged(log, half("T1", connection=8)), Why.ALREADY_SETTLED)
    assert (answer.standing, answer.position) == (standing, settled.position)


def forgotten(tx_id: str = "order-1") -> tuple[CoreLog, Settled]:
    """(a log whose memory has a later verdict only, the forgotten one)."""
    log = CoreLog(BrokerSettings(dedup_ids_max=1))
    first, second = (log.do(end(name, log.do(half(name)))) for name in (tx_id, "order-2"))
    assert isinstance(first, Settled)
    assert isinstance(second, Settled)
    return log, first


def searched(tx_id: str, to: int, earlier: EarlierVerdict | None = None, **options: object) -> SendHalf:
    return replace(half(tx_id, **options), searched_to=to, earlier=earlier)


@pytest.mark.parametrize(("committed", "standing"), [(True, "COMMITTED"), (False, "ROLLED_BACK")])
def test_a_half_whose_id_has_a_verdict_in_the_log_only_is_refused_with_it(committed: bool, standing: str) -> None:
    log, first = forgotten()
    half_again = searched("order-1", log.state.log_end, EarlierVerdict(committed, first.position), topic="new")
    answer = refused(nothing_logged(log, half_again), Why.ALREADY_SETTLED)
    assert (answer.standing, answer.position) == (standing, first.position)
    log.state.log_start = first.position + 1
    sent(log.do(half_again))


def test_a_search_that_missed_a_forgotten_verdict_is_repeated() -> None:
    log, first = forgotten()
    sent(log.do(searched("order-3", first.position + 1)))
    refused(nothing_logged(log, searched("order-1", first.position)), Why.SEARCH_AGAIN)
    closed = changed(half("order-1"), queue_id=9)
    refused(nothing_logged(log, replace(closed, searched_to=first.position)), Why.SEARCH_AGAIN)


def test_what_memory_knows_of_a_chosen_id_needs_no_search() -> None:
    """A half sent again, a further half of an undecided transaction, and a verdict in the window."""
    log, _ = forgotten()
    first = sent(log.do(half("order-3")))
    assert nothing_logged(log, searched("order-3", 1)) == first
    refused(nothing_logged(log, searched("order-2", 1)), Why.ALREADY_SETTLED)
    sent(log.do(part("order-4", 0)))
    sent(log.do(replace(part("order-4", 1, 2), searched_to=1)))


def test_a_generated_id_is_not_searched() -> None:
    log, _ = forgotten("A" * 32)
    assert half("A" * 32).searched_to == -1
    sent(log.do(half("A" * 32)))


def test_an_id_that_is_used_for_another_message_is_refused_and_not_taken_for_sent_again() -> None:
    log = CoreLog()
    log.do(half("T1", topic="orders"))
    refused(
        nothing_logged(log, changed(half("T1", topic="orders", connection=2), topic="loyalty")), Why.STILL_UNDECIDED
    )


def test_two_groups_may_use_one_id() -> None:
    log = CoreLog()
    first = log.do(half("T1", group="A"))
    second = log.do(half("T1", group="B"))
    assert first != second
    assert isinstance(log.do(end("T1", first, group="A")), Settled)
    assert isinstance(log.do(end("T1", second, RequestedVerdict.ROLLBACK, group="B")), Settled)


# --- several messages ------------------------------------------------------------------------------------------


def test_all_messages_of_a_transaction_become_visible_at_one_position() -> None:
    log = CoreLog()
    first = log.do(part("T1", 0, topic="orders", queue=0))
    log.do(part("T1", 1, topic="loyalty", queue=1))
    log.do(part("T1", 2, count=3, topic="orders", queue=0))
    reply = log.do(end("T1", first))
    (record,) = log.of(Committed)
    assert reply == Settled("PG", "T1", True, record.offset, False)
    ends = {topic.name: topic.ends for topic in log.state.topics_by_id.values()}
    assert ends == {"orders": [2, 0, 0, 0], "loyalty": [0, 1, 0, 0]}
    assert [(ref.queue_id, ref.queue_offset) for ref in record.refs] == [(0, 0), (1, 0), (0, 1)]
    wakes = [effect for effect in log.effects if isinstance(effect, WakeQueue)]
    assert len(wakes) == len(set(wakes)) == 2


def test_messages_are_shown_in_the_order_of_their_index_however_they_came() -> None:
    log = CoreLog()
    last = log.do(part("T1", 2, count=3))
    log.do(part("T1", 0))
    log.do(part("T1", 1))
    log.do(end("T1", last))
    halves = {record.half_index: record.index for record in log.of(HalfRecord)}
    assert [halves[ref.half_index] for ref in log.of(Committed)[0].refs] == [0, 1, 2]


@pytest.mark.parametrize("sent_parts", [[0], [0, 2], [2]])
def test_commit_of_an_incomplete_transaction_is_refused_and_stays_undecided(sent_parts: list[int]) -> None:
    log = CoreLog()
    replies = [log.do(part("T1", index, count=3 if index == 2 else 0)) for index in sent_parts]
    refused(nothing_logged(log, end("T1", replies[0])), Why.INCOMPLETE)
    assert "T1" in log.state.producer_groups["PG"].undecided
    for index in {0, 1, 2} - set(sent_parts):
        log.do(part("T1", index, count=3 if index == 2 else 0))
    assert isinstance(log.do(end("T1", replies[0])), Settled)


def test_an_incomplete_transaction_can_be_rolled_back() -> None:
    log = CoreLog()
    first = log.do(part("T1", 0))
    log.do(part("T1", 1))
    assert log.do(end("T1", first, RequestedVerdict.ROLLBACK)) == Settled(
        "PG", "T1", False, log.of(RolledBack)[0].offset, False
    )
    assert log.of(RolledBack)[0].half_indexes == (0, 1)


def test_a_part_sent_again_gets_its_first_answer_and_is_counted_once() -> None:
    log = CoreLog()
    first = sent(log.do(part("T1", 0, queue=2)))
    second = sent(log.do(part("T1", 1, count=2, queue=3)))
    assert (first.queue_id, second.queue_id, first.unique_id) == (2, 3, "T1-0")
    assert nothing_logged(log, part("T1", 0, connection=5, queue=1)) == first
    assert nothing_logged(log, part("T1", 1, count=2, connection=5, queue=1)) == second
    assert isinstance(log.do(end("T1", second)), Settled)
    refused(nothing_logged(log, part("T1", 0, connection=5)), Why.ALREADY_SETTLED)


def test_any_half_of_the_transaction_may_be_named_at_the_end() -> None:
    for named in range(3):
        log = CoreLog()
        replies = [log.do(part("T1", index, count=3 if index == 2 else 0)) for index in range(3)]
        assert isinstance(log.do(end("T1", replies[named])), Settled)
        assert isinstance(nothing_logged(log, end("T1", replies[(named + 1) % 3])), Settled)


def test_a_transaction_never_grows_beyond_what_fits_a_segment() -> None:
    log = CoreLog()
    replies = []
    for index in range(100):
        reply = log.do(part("T1", index, body=b"x" * 3_000))
        if not hasattr(reply, "log_offset"):
            refused(reply, Why.MESSAGE_ILLEGAL)
            break
        replies.append(reply)
    assert 5 < len(replies) < 30
    refused(log.do(part("T1", len(replies), count=len(replies) + 1, body=b"x" * 3_000)), Why.MESSAGE_ILLEGAL)
    sent(log.do(part("T1", len(replies), count=len(replies) + 1, body=b"")))
    log.roll()
    log.roll()
    assert isinstance(log.do(end("T1", replies[0])), Settled)


# --- segments --------------------------------------------------------------------------------------------------


def test_a_half_in_an_older_segment_is_carried_directly_before_its_commit_in_one_batch() -> None:
    log = CoreLog()
    first = log.do(part("T1", 0))
    log.roll()
    log.do(part("T1", 1, count=2))
    log.do(end("T1", first))
    *_, carried, committed = log.batches[-1].records
    assert isinstance(carried, CopiedHalf)
    assert isinstance(committed, Committed)
    assert carried.offset + carried.size == committed.offset
    assert [ref.offset for ref in committed.refs] == [carried.offset, log.of(HalfRecord)[1].offset]
    assert committed.refs[0].first_offset == first.log_offset == carried.half.first_offset


# --- verdicts --------------------------------------------------------------------------------------------------

VERDICTS = [
    (RequestedVerdict.COMMIT, RequestedVerdict.COMMIT, "repeated"),
    (RequestedVerdict.COMMIT, RequestedVerdict.ROLLBACK, "COMMITTED"),
    (RequestedVerdict.COMMIT, RequestedVerdict.UNKNOWN, "noted"),
    (RequestedVerdict.ROLLBACK, RequestedVerdict.ROLLBACK, "repeated"),
    (RequestedVerdict.ROLLBACK, RequestedVerdict.COMMIT, "ROLLED_BACK"),
    (RequestedVerdict.ROLLBACK, RequestedVerdict.UNKNOWN, "noted"),
]


@pytest.mark.parametrize("known_by", ["memory", "redo", "trim", "row"])
@pytest.mark.parametrize(("first", "second", "answer"), VERDICTS)
def test_the_first_verdict_stands_whatever_comes_later(
    first: RequestedVerdict, second: RequestedVerdict, answer: str, known_by: str
) -> None:
    from halfmq.core.commands import CopyForward, TrimLog

    log = CoreLog(BrokerSettings(segment_bytes=65_536, dedup_window_ms=1_000))
    half_sent = log.do(half("T1"))
    if known_by == "trim":
        log.roll()
        log.do(CopyForward(65_536, 10))
    settled = log.do(end("T1", half_sent, first))
    assert isinstance(settled, Settled)
    row = None
    if known_by == "redo":
        log.restart()
    elif known_by == "trim":
        log.do(TrimLog(65_536))
        log.restart()
    elif known_by == "row":
        log.later(10_000)
        log.do(message("later"))
        assert not log.state.verdicts
        row = SettledRow(
            half_sent.queue_offset, half_sent.log_offset, first == RequestedVerdict.COMMIT, settled.position,
            hash64(b"T1") & (1 << 64) - 1, hash64(b"PG"),
        )  # fmt: skip
    reply = nothing_logged(log, end("T1", half_sent, second, settled=row))
    if answer == "repeated":
        assert reply == replace(settled, repeated=True)
    elif answer == "noted":
        assert reply == Noted()
    else:
        conflict = refused(reply, Why.VERDICT_CONFLICT)
        assert (conflict.standing, conflict.position) == (answer, settled.position)


def test_who_decided_is_in_the_log() -> None:
    log = CoreLog()
    log.do(end("T1", log.do(half("T1"))))
    log.do(end("T2", log.do(half("T2")), from_check=True))
    log.do(half("T3"))
    log.do(ResolveTransaction("PG", "T3", RequestedVerdict.COMMIT, "ann"))
    assert [record.decided_by for record in log.of(Committed)] == [
        DecidedBy.PRODUCER, DecidedBy.CHECK, DecidedBy.OPERATOR,
    ]  # fmt: skip


def test_an_end_that_names_other_offsets_changes_nothing() -> None:
    log = CoreLog()
    reply = log.do(half("T1"))
    other = log.do(half("T2"))
    for wrong in (
        end("T1", reply, half_index=reply.queue_offset + 7),
        end("T1", reply, log_offset=reply.log_offset + 8),
        end("T1", other),
        end("T1", reply, half_index=other.queue_offset),
    ):
        refused(nothing_logged(log, wrong), Why.WRONG_OFFSETS)
    settled = log.do(end("T1", reply))
    assert isinstance(settled, Settled)
    refused(nothing_logged(log, end("T1", reply, log_offset=reply.log_offset + 8)), Why.WRONG_OFFSETS)


def test_a_row_of_another_transaction_or_group_is_no_verdict_for_this_one() -> None:
    log = CoreLog(BrokerSettings(segment_bytes=65_536, dedup_window_ms=1_000))
    reply = log.do(half("T1"))
    position = log.do(end("T1", reply)).position
    log.later(5_000)
    log.do(message("later"))
    row = SettledRow(reply.queue_offset, reply.log_offset, True, position, hash64(b"T1"), hash64(b"PG"))
    refused(nothing_logged(log, end("T2", reply, settled=row)), Why.WRONG_OFFSETS)
    refused(nothing_logged(log, end("T1", reply, group="PG2", settled=row)), Why.WRONG_GROUP)
    refused(nothing_logged(log, end("T1", reply, log_offset=8, settled=row)), Why.NOT_FOUND)


def test_a_row_that_does_not_know_the_place_of_its_half_tells_the_verdict_by_the_names() -> None:
    """The table was made again from a log that has the verdict and, after a trim, the half no more (promise 1)."""
    log = CoreLog(BrokerSettings(segment_bytes=65_536, dedup_window_ms=1_000))
    reply = log.do(half("T1"))
    position = log.do(end("T1", reply)).position
    log.later(5_000)
    log.do(message("later"))
    row = SettledRow(reply.queue_offset, 0, True, position, hash64(b"T1"), hash64(b"PG"))
    assert nothing_logged(log, end("T1", reply, settled=row)) == Settled("PG", "T1", True, position, True)
    refused(nothing_logged(log, end("T2", reply, settled=row)), Why.WRONG_OFFSETS)
    refused(nothing_logged(log, end("T1", reply, group="PG2", settled=row)), Why.WRONG_GROUP)


def test_a_standing_verdict_is_told_also_while_another_group_uses_the_same_id() -> None:
    """Goal: promise 1. Method: memory has forgotten the verdict, the row has not, and another group's half is undecided."""
    log = CoreLog(BrokerSettings(segment_bytes=65_536, dedup_window_ms=1_000))
    reply = log.do(half("order-1", group="A"))
    position = log.do(end("order-1", reply, group="A")).position
    log.do(half("order-1", group="B"))
    log.later(5_000)
    log.do(message("later"))
    assert not log.state.producer_groups["A"].settled
    row = SettledRow(reply.queue_offset, reply.log_offset, True, position, hash64(b"order-1"), hash64(b"A"))
    told = nothing_logged(log, end("order-1", reply, group="A", settled=row))
    assert told == Settled("A", "order-1", True, position, True)
    wrong = refused(
        nothing_logged(log, end("order-1", reply, RequestedVerdict.ROLLBACK, group="A", settled=row)),
        Why.VERDICT_CONFLICT,
    )
    assert wrong.position == position
    refused(nothing_logged(log, end("order-1", reply, group="C", settled=row)), Why.WRONG_GROUP)


def test_an_end_with_a_wrong_id_looks_at_nothing_that_is_undecided() -> None:
    """Goal: who sends wrong ids does not hold up the loop, however much is undecided."""
    log = CoreLog()
    replies = [log.do(half(f"T{number}")) for number in range(20)]
    group = log.state.producer_groups["PG"]
    undecided = group.undecided = Looked(group.undecided)
    refused(nothing_logged(log, end("nope", replies[5])), Why.NOT_FOUND)
    refused(nothing_logged(log, end("nope", replies[5], half_index=10**9)), Why.NOT_FOUND)
    assert set(undecided.names) == {"nope"}


def test_unknown_changes_nothing_but_is_remembered_for_the_story() -> None:
    log = CoreLog()
    reply = log.do(half("T1"))
    assert nothing_logged(log, end("T1", reply, RequestedVerdict.UNKNOWN, remark="x" * 300)) == Noted()
    assert log.state.producer_groups["PG"].session.last_unknown["T1"] == (log.now_ms, "x" * 200)
    log.do(end("T1", reply))
    assert not log.state.producer_groups["PG"].session.last_unknown


def test_a_full_disk_stops_new_halves_and_no_verdicts() -> None:
    log = CoreLog()
    reply = log.do(half("T1"))
    log.session(DiskSpace(True))
    refused(nothing_logged(log, half("T2")), Why.STORE_FULL)
    assert isinstance(log.do(end("T1", reply)), Settled)
    log.session(DiskSpace(False))
    sent(log.do(half("T2")))


# --- delay -----------------------------------------------------------------------------------------------------


def test_the_delay_of_a_half_counts_from_its_commit() -> None:
    log = CoreLog()
    reply = log.do(half("T1", DELAY="2"))
    log.later(60_000)
    log.do(end("T1", reply))
    (ref,) = log.of(Committed)[0].refs
    assert (ref.due_ms, ref.queue_offset) == (log.now_ms + 5_000, -1)
    assert log.state.topics_by_name["orders"].ends[0] == 0
    log.run_to(log.now_ms + 4_999)
    assert log.state.topics_by_name["orders"].ends[0] == 0
    log.run_to(log.now_ms + 1)
    assert log.state.topics_by_name["orders"].ends[0] == 1


def test_a_delayed_and_a_plain_message_of_one_transaction_share_the_verdict_only() -> None:
    log = CoreLog()
    first = log.do(part("T1", 0, TIMER_DELAY_MS="100"))
    log.do(part("T1", 1, count=2))
    log.do(end("T1", first))
    assert [ref.queue_offset for ref in log.of(Committed)[0].refs] == [-1, 0]
    log.run_to(log.now_ms + 100)
    assert log.state.topics_by_name["orders"].ends[0] == 2


# --- what is said, and where exactly the lines are ---------------------------------------------------------------


def text_of(reply: object) -> str:
    assert isinstance(reply, Refused), reply
    return reply.text


def test_a_body_of_exactly_the_limit_is_taken_whatever_its_id_looks_like() -> None:
    log = CoreLog(BrokerSettings(segment_bytes=1 << 20, body_bytes_max=100))
    for tx_id in ("plain", "with-dash"):
        sent(log.do(half(tx_id, body=b"x" * 100)))
        answer = refused(nothing_logged(log, half(f"{tx_id}2", body=b"x" * 101)), Why.MESSAGE_ILLEGAL)
        assert answer.text == "body of 101 bytes; at most 100"


def test_an_id_has_the_characters_that_are_allowed_and_as_many() -> None:
    log = CoreLog()
    sent(log.do(half("x" * limits.TRANSACTION_ID_CHARS_MAX)))
    sent(log.do(part("y" * limits.TRANSACTION_ID_CHARS_MAX, 0)))
    said = f"is not a transaction id: 1 to {limits.TRANSACTION_ID_CHARS_MAX} of letters, digits and ._:-"
    for bad in ("x" * (limits.TRANSACTION_ID_CHARS_MAX + 1), "a b"):
        assert refused(nothing_logged(log, half(bad)), Why.MESSAGE_ILLEGAL).text == f"{bad!r} {said}"
    refused(nothing_logged(log, half("ü")), Why.MESSAGE_ILLEGAL)
    sent(log.do(half("0A-b.c:d_")))


def test_properties_may_be_exactly_as_long_as_allowed() -> None:
    log = CoreLog(BrokerSettings(segment_bytes=1 << 20))
    log.do(half("T2", filler="x"))
    room = limits.PROPERTIES_BYTES_MAX - len(log.of(HalfRecord)[0].message.properties) + 1
    over = limits.PROPERTIES_BYTES_MAX + 1
    said = f"properties of {over} bytes as stored; at most {limits.PROPERTIES_BYTES_MAX}"
    assert refused(nothing_logged(log, half("T3", filler="x" * (room + 1))), Why.MESSAGE_ILLEGAL).text == said
    sent(log.do(half("T3", filler="x" * room)))


def test_indexes_and_counts_are_bounded_exactly() -> None:
    most = limits.TRANSACTION_MESSAGES_MAX
    log = CoreLog()
    sent(log.do(part("T1", most - 1)))
    sent(log.do(part("T2", most - 1, count=most)))
    sent(log.do(part("T3", 0, count=1)))
    said = f"transaction 'T4': HMQ_TX_INDEX counts from 0 and HMQ_TX_COUNT says how many, at most {most}"
    for wrong in (
        part("T4", most),
        part("T4", 0, count=most + 1),
        half("T4-x", HMQ_TX_ID="T4", HMQ_TX_INDEX="-1"),
        half("T4-x", HMQ_TX_ID="T4", HMQ_TX_INDEX="0000000001"),
        half("T4-x", HMQ_TX_ID="T4", HMQ_TX_INDEX="0", HMQ_TX_COUNT="-1"),
        half("T4-x", HMQ_TX_ID="T4", HMQ_TX_INDEX="0", HMQ_TX_COUNT="x"),
        half("T4-x", HMQ_TX_ID="T4"),
    ):
        assert refused(nothing_logged(log, wrong), Why.INVALID_PARAMETER).text == said
    sent(log.do(half("T5-x", HMQ_TX_ID="T5", HMQ_TX_INDEX="000000001")))
    assert text_of(log.do(part("T4", 2, count=2))) == "transaction 'T4': index 2 of 2 messages"


def test_what_contradicts_a_transaction_is_refused_with_what_it_has() -> None:
    log = CoreLog()
    first = log.do(part("T1", 0))
    log.do(part("T1", 2))
    other = half("other", HMQ_TX_ID="T1", HMQ_TX_INDEX="0")
    said = "transaction 'T1' is undecided: an earlier run of it was prepared and not settled"
    assert refused(nothing_logged(log, other), Why.STILL_UNDECIDED).text == said
    elsewhere = part("T1", 0, topic="stock")
    assert text_of(log.do(elsewhere)) == said
    assert log.do(part("T1", 0)) == first
    said += "; it is said to have {} messages; message {} does not fit"
    assert text_of(log.do(part("T1", 1, count=2))) == said.format(2, 1), "index 2 is here already"
    sent(log.do(part("T1", 3, count=4)))
    assert refused(nothing_logged(log, part("T1", 4)), Why.STILL_UNDECIDED).text == said.format(4, 4)
    assert text_of(log.do(part("T1", 1, count=5))) == said.format(4, 1)
    sent(log.do(part("T1", 1, count=4)))


def test_a_settled_transaction_says_its_id_verdict_and_position() -> None:
    log = CoreLog()
    reply = log.do(half("T1"))
    position = log.do(end("T1", reply)).position
    assert log.do(half("T1")) == Refused(
        Why.ALREADY_SETTLED,
        "transaction 'T1' is already COMMITTED; do not run the local transaction",
        "COMMITTED",
        position,
    )
    assert log.do(end("T1", reply, RequestedVerdict.ROLLBACK)) == Refused(
        Why.VERDICT_CONFLICT,
        f"transaction 'T1' is COMMITTED since position {position}, decided by its producer; the first verdict is final",
        "COMMITTED",
        position,
    )


def test_an_incomplete_transaction_says_what_is_here_and_what_was_said() -> None:
    log = CoreLog()
    first = log.do(part("T1", 0))
    said = "transaction 'T1' stays undecided: {} messages are here, {}"
    assert text_of(log.do(end("T1", first))) == said.format(
        1, "its last message, which states their number, is missing"
    )
    log.do(part("T1", 2, count=3))
    assert text_of(log.do(end("T1", first))) == said.format(2, "3 messages")


def test_what_an_operator_is_told() -> None:
    log = CoreLog()
    resolve = ResolveTransaction("PG", "T1", RequestedVerdict.COMMIT, "ann")
    answer = refused(nothing_logged(log, resolve._replace(wanted=RequestedVerdict.UNKNOWN)), Why.INVALID_PARAMETER)
    assert answer.text == "an operator decides COMMIT or ROLLBACK"
    missing = "is not undecided, and not among the recent verdicts"
    assert refused(nothing_logged(log, resolve), Why.NOT_FOUND).text == f"transaction 'T1' of group 'PG' {missing}"
    assert text_of(log.do(resolve._replace(group=""))) == f"transaction 'T1' {missing}"
    log.do(half("T2"))
    assert text_of(log.do(resolve)) == f"transaction 'T1' of group 'PG' {missing}", "the group is known, the id is not"
    log.do(half("T1"))
    settled = log.do(resolve)
    assert settled == Settled("PG", "T1", True, log.of(Committed)[0].offset, False)
    assert log.of(Committed)[0].decided_by is DecidedBy.OPERATOR
    assert nothing_logged(log, resolve) == replace(settled, repeated=True)
    conflict = refused(nothing_logged(log, resolve._replace(wanted=RequestedVerdict.ROLLBACK)), Why.VERDICT_CONFLICT)
    assert (conflict.standing, conflict.position) == ("COMMITTED", settled.position)


@pytest.mark.parametrize("wanted", [RequestedVerdict.COMMIT, RequestedVerdict.ROLLBACK, RequestedVerdict.UNKNOWN])
def test_a_settled_transaction_of_several_messages_answers_only_to_offsets_of_its_own(wanted: RequestedVerdict) -> None:
    log = CoreLog()
    first, second = log.do(part("T1", 0)), log.do(part("T1", 1, count=2))
    log.do(end("T1", first))
    for reply in (first, second):
        assert not isinstance(log.do(end("T1", reply)), Refused)
    for wrong in (
        end("T1", first, wanted, half_index=99),
        end("T1", first, wanted, log_offset=second.log_offset),
        end("T1", second, wanted, log_offset=first.log_offset),
    ):
        answer = refused(nothing_logged(log, wrong), Why.WRONG_OFFSETS)
        half_index, log_offset = wrong.half_index, wrong.log_offset
        assert answer.text == (
            f"transaction 'T1' has no half {half_index} at log offset {log_offset}: both must be as answered to it"
        )


def test_an_end_for_nothing_says_whether_it_may_have_been_trimmed_away() -> None:
    log = CoreLog()
    log.do(end("T0", log.do(half("T0"))))
    log.roll()
    log.do(TrimLog(65_536))
    assert (log.state.log_start, log.state.next_half_index) == (65_536, 1)
    past = "unknown, past retention"
    for half_index, log_offset, trimmed in (
        (0, 0, True), (0, 65_535, True), (0, 65_536, False), (1, 64, False), (-1, 64, False), (0, -1, False),
    ):  # fmt: skip
        never = (
            f"transaction 'T1' of group 'PG' was never prepared here as half {half_index} at log offset {log_offset}"
        )
        reply = log.do(end("T1", None, half_index=half_index, log_offset=log_offset))
        assert refused(reply, Why.NOT_FOUND).text == (past if trimmed else never)


def test_a_row_counts_as_long_as_its_verdict_is_in_the_log() -> None:
    log = CoreLog()
    reply = log.do(half("T1"))
    log.do(end("T1", reply))
    log.roll()
    log.do(TrimLog(65_536))
    row = SettledRow(reply.queue_offset, reply.log_offset, True, 65_536, hash64(b"T1"), hash64(b"PG"))
    assert log.do(end("T1", reply, settled=row)) == Settled("PG", "T1", True, 65_536, True)
    gone = log.do(end("T1", reply, settled=row._replace(verdict_position=65_535)))
    assert refused(gone, Why.NOT_FOUND).text == "unknown, past retention"
    rolled_back = log.do(end("T1", reply, settled=row._replace(committed=False)))
    assert refused(rolled_back, Why.VERDICT_CONFLICT).standing == "ROLLED_BACK"
    for name in ("log_offset", "half_index"):
        wrong = changed(end("T1", reply, settled=row), **{name: 7})
        refused(nothing_logged(log, wrong), Why.NOT_FOUND)


def test_who_names_another_group_is_told_so() -> None:
    log = CoreLog()
    reply = log.do(half("T1"))
    for wanted in (RequestedVerdict.COMMIT, RequestedVerdict.ROLLBACK):
        answer = refused(nothing_logged(log, end("T1", reply, wanted, group="X")), Why.WRONG_GROUP)
        assert answer.text == "transaction 'T1' is not of producer group 'X'"
        log.do(end("T1", reply))


def test_messages_of_one_queue_get_offsets_in_a_row_and_every_queue_is_woken_once() -> None:
    log = CoreLog()
    log.do(message("M1", queue=1))
    first = log.do(part("T1", 0, queue=1))
    log.do(part("T1", 1, queue=2))
    log.do(part("T1", 2, queue=1))
    log.do(part("T1", 3, topic="stock", queue=1))
    log.do(part("T1", 4, topic="stock", queue=1, count=5))
    decision = log.decide(end("T1", first))
    assert [ref.queue_offset for ref in log.of(Committed)[0].refs] == [1, 0, 2, 0, 1]
    assert len(decision.effects) == len(set(decision.effects)) == 3
    assert log.state.topics_by_name["orders"].ends == [0, 3, 1, 0]


def test_only_so_many_other_groups_are_asked_whose_a_transaction_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "_GROUPS_EXAMINED_MAX", 2)
    log = CoreLog()
    replies = [log.do(half(f"T{number}", group=f"G{number}")) for number in range(3)]
    refused(nothing_logged(log, end("T1", replies[1], group="X")), Why.WRONG_GROUP)
    refused(nothing_logged(log, end("T2", replies[2], group="X")), Why.NOT_FOUND)


def test_a_group_of_an_odd_name_is_told_why() -> None:
    log = CoreLog()
    answer = refused(nothing_logged(log, half("T1", group="no spaces")), Why.INVALID_PARAMETER)
    assert "producer group" in answer.text
    odd = "TRAN_MSG\x01true\x02UNIQ_KEY\x01T1\x02PGROUP\x01\u00e9\x02".encode()
    refused(nothing_logged(log, raw(odd)), Why.INVALID_PARAMETER)


def test_what_the_log_keeps_of_a_half_is_all_that_its_commit_shows() -> None:
    """Here and carried: where it lies, its first place, its queue, sizes and hashes; one by one and of several."""
    for carried in (False, True):
        log = CoreLog()
        single = log.do(half("S1", queue=2, TAGS="TagA"))
        first = log.do(part("T1", 0, queue=1, TAGS="TagB"))
        log.do(part("T1", 1, count=2, queue=3, topic="stock", DELAY="1"))
        records = {record.half_index: record for record in log.of(HalfRecord)}
        known = dict(log.state.producer_groups["PG"].undecided)
        if carried:
            log.roll()
        for tx_id, reply in (("S1", single), ("T1", first)):
            assert carried or not log.of(CopiedHalf)
            settled = log.do(end(tx_id, reply, from_check=True))
            committed = log.of(Committed)[-1]
            assert settled == Settled("PG", tx_id, True, committed.offset, False)
            assert (committed.group, committed.tx_id, committed.decided_by) == ("PG", tx_id, DecidedBy.CHECK)
            copies = {copy.half.half_index: copy for copy in log.of(CopiedHalf)}
            for one, ref in zip(known[tx_id].halves, committed.refs, strict=True):
                place = copies[one.half_index].offset if carried else one.offset
                assert (ref.offset, ref.first_offset) == (place, one.first_offset)
                assert ref.half_index == one.half_index
                assert (ref.topic_id, ref.queue_id) == (one.topic_id, one.queue_id)
                assert ref.message_bytes == one.message_bytes == records[one.half_index].size - MESSAGE_AT
                assert (ref.tag_hash, ref.key_hash) == (one.tag_hash, one.key_hash)
                if carried:
                    copy = copies[one.half_index]
                    whole = known[tx_id]
                    assert (copy.source, copy.half) == (one.offset, replace(one, offset=copy.offset))
                    assert (copy.group, copy.tx_id, copy.count) == ("PG", tx_id, whole.count)
                    assert (copy.prepared_at_ms, copy.grace_until_ms) == (whole.prepared_at_ms, whole.grace_until_ms)
                    assert (copy.checks, copy.next_check_at_ms) == (whole.checks, whole.next_check)
        assert [ref.due_ms for ref in log.of(Committed)[-1].refs] == [0, log.now_ms + 1_000]


def test_a_rollback_whose_halves_were_trimmed_away_stands_for_them_whatever_their_place() -> None:
    """After a redo that found the verdict and no longer the halves, their first places are not known."""
    log = CoreLog()
    single = log.do(half("S1"))
    first, second = log.do(part("T1", 0)), log.do(part("T1", 1, count=2))
    log.roll()
    for tx_id, reply in (("S1", single), ("T1", first)):
        log.do(end(tx_id, reply, RequestedVerdict.ROLLBACK))
    log.do(CopyForward(65_536, 10))
    log.do(TrimLog(65_536))
    log.restart()
    for tx_id, reply in (("S1", single), ("T1", first), ("T1", second)):
        settled = log.do(end(tx_id, reply, RequestedVerdict.ROLLBACK))
        assert (settled.committed, settled.repeated) == (False, True)
        refused(log.do(end(tx_id, reply)), Why.VERDICT_CONFLICT)
    refused(log.do(end("S1", single, RequestedVerdict.ROLLBACK, half_index=second.queue_offset)), Why.WRONG_OFFSETS)


def test_an_id_of_several_messages_that_is_no_ascii_is_refused_and_raises_nothing() -> None:
    log = CoreLog()
    text = "TRAN_MSG\x01true\x02UNIQ_KEY\x01T1\x02PGROUP\x01PG\x02HMQ_TX_ID\x01ü\x02HMQ_TX_INDEX\x010\x02"
    refused(nothing_logged(log, raw(text.encode())), Why.MESSAGE_ILLEGAL)


def test_a_commit_takes_exactly_the_bytes_that_it_says() -> None:
    log = CoreLog()
    log.do(end("T1", log.do(half("T1"))))
    first = log.do(part("T2", 0))
    log.do(part("T2", 1, count=2))
    log.do(end("T2", first))
    sizes = [record.size for record in log.of(Committed)]
    assert sizes == [committed_size("PG", "T1", 1), committed_size("PG", "T2", 2)]


def test_the_properties_of_a_half_are_kept_as_they_came_with_one_separator_before_what_is_added() -> None:
    log = CoreLog()
    plain = half("T1").properties.removesuffix(b"\x02")
    for number, (came, separator) in enumerate([(plain, b"\x02"), (plain + b"\x02", b"")]):
        tx_id = b"T%d" % number
        came = came.replace(b"T1", tx_id)
        sent(log.do(raw(came)))
        stored = log.of(HalfRecord)[-1].message.properties
        assert stored == came + separator + log.state.topics_by_name["orders"].half_suffixes[0]


def test_a_half_is_stored_with_the_checksum_that_rocketmq_gives_its_body() -> None:
    """CRC-32 without its highest bit (``UtilAll.crc32``); one body has that bit, the other has not."""
    log = CoreLog()
    for tx_id, body in (("T1", b"body"), ("T2", b"hello"), ("T3", b"")):
        log.do(half(tx_id, body=body))
        stored = log.of(HalfRecord)[-1].message
        assert stored.body_crc == crc32(body) % (1 << 31)
        assert (stored.prepared_offset, stored.reconsume_times, stored.store_time_ms) == (0, 0, log.now_ms)
    assert {crc32(body) >> 31 for body in (b"body", b"hello")} == {0, 1}
