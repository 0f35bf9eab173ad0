"""Who stands behind a decision: directly before it, in the same batch, and never in the way of what must happen."""

from itertools import pairwise
from typing import Any

from tests.support.core_log import CoreLog, end, half, part
from tests.support.durable_digest import durable_digest
from tests.support.invariants import check

from halfmq import limits
from halfmq.core.commands import (
    Actor,
    CommitOffset,
    DeleteTopic,
    EnsureGroup,
    EnsureTopic,
    RequestedVerdict,
    ResolveTransaction,
    SetGroup,
    SetProducer,
    SetTopic,
)
from halfmq.core.queues.offsets import Stored, query_offset
from halfmq.model.records import (
    Committed,
    CopiedHalf,
    GroupSet,
    OffsetsCommitted,
    OperatorActed,
    OperatorAction,
    ProducerSet,
    RolledBack,
    TopicDeleted,
    TopicSet,
)
from halfmq.model.settings import ProducerSettings

ANN = Actor("ann", "the bank said so", "10.0.0.1:4242")
#: Longer than any of it may be, in letters of four bytes.
LONG = Actor("\U0001f600" * 200, "\U0001f600" * 900, "p" * 300)


def decided(log: CoreLog, command: Any) -> tuple[Any, ...]:
    """Its records, which follow each other as they are long."""
    records = log.decide(command).records
    for record, behind in pairwise(records):
        assert behind.offset == record.offset + record.size
    log.close()
    assert durable_digest(log.redone()) == durable_digest(log.state)
    check(log.state)
    return records


def told(record: OperatorActed) -> tuple[Any, ...]:
    return record.action, record.subject, record.name, record.reason, record.peer


def kinds(records: tuple[Any, ...]) -> list[type]:
    return [type(record) for record in records]


def resolve(tx_id: str, wanted: RequestedVerdict, by: Actor | None = ANN) -> ResolveTransaction:
    return ResolveTransaction("PG", tx_id, wanted, by.name if by is not None else "eve", by=by)


def test_a_verdict_by_hand_says_who_gave_it_and_its_receipt_names_the_verdict() -> None:
    log = CoreLog()
    log.do(half("T1"))
    log.do(half("T2"))
    acted, committed = decided(log, resolve("T1", RequestedVerdict.COMMIT))
    assert told(acted) == (OperatorAction.COMMIT, "T1", *ANN)
    assert isinstance(committed, Committed)
    repeated = log.do(resolve("T1", RequestedVerdict.COMMIT))
    assert (repeated.position, repeated.repeated) == (committed.offset, True)
    reply = log.do(resolve("T2", RequestedVerdict.ROLLBACK))
    (rolled_back,) = log.of(RolledBack)
    assert reply.position == rolled_back.offset
    assert told(log.of(OperatorActed)[1])[:2] == (OperatorAction.ROLL_BACK, "T2")


def test_a_verdict_by_hand_is_never_without_the_name() -> None:
    log = CoreLog()
    log.do(half("T1"))
    acted, _ = decided(log, resolve("T1", RequestedVerdict.ROLLBACK, None))
    assert told(acted) == (OperatorAction.ROLL_BACK, "T1", "eve", "", "")


def test_what_is_copied_for_a_commit_stays_in_front() -> None:
    """The sequencer looks at the first record to see whether a decision copies, and refs name the copies."""
    log = CoreLog()
    log.do(part("T1", 0))
    log.do(part("T1", 1, count=2))
    log.roll()
    records = decided(log, resolve("T1", RequestedVerdict.COMMIT, LONG))
    assert kinds(records) == [CopiedHalf, CopiedHalf, OperatorActed, Committed]
    assert [ref.offset for ref in records[3].refs] == [records[0].offset, records[1].offset]


def test_settings_and_deletions_say_who_made_them() -> None:
    log = CoreLog()
    nameless = Actor(peer="10.0.0.1:4242")
    cases: list[tuple[Any, OperatorAction, str, list[type]]] = [
        (SetTopic("T", 1, 1, 6, nameless), OperatorAction.SET_TOPIC, "T", [TopicSet]),
        (SetTopic("T", 2, 2, 6, nameless), OperatorAction.SET_TOPIC, "T", [TopicSet]),
        (SetGroup("CG", 3, 1, True, nameless), OperatorAction.SET_GROUP, "CG", [GroupSet, TopicSet]),
        (DeleteTopic("T", nameless), OperatorAction.DELETE_TOPIC, "T", [TopicDeleted]),
    ]
    for command, action, subject, behind in cases:
        records = decided(log, command)
        assert kinds(records) == [OperatorActed, *behind]
        assert told(records[0]) == (action, subject, "", "", "10.0.0.1:4242")
    policy = SetProducer(ProducerSettings("PG", skip_age_ms=3_600_000, set_by="ann"), None, ANN)
    records = decided(log, policy)
    assert kinds(records) == [OperatorActed, ProducerSet]
    assert told(records[0]) == (OperatorAction.SET_PRODUCER, "PG", *ANN)


def test_what_nobody_asked_for_and_what_changes_nothing_says_nobody() -> None:
    log = CoreLog()
    first = log.do(half("T1"))
    log.do(end("T1", first))
    log.do(EnsureGroup("CG"))
    log.do(EnsureTopic("T", 1))
    log.do(CommitOffset("CG", "T", 0, 5))
    assert log.decide(resolve("T1", RequestedVerdict.COMMIT)).records == ()
    assert log.decide(resolve("T1", RequestedVerdict.ROLLBACK)).records == ()
    assert log.decide(DeleteTopic("Nowhere", ANN)).records == ()
    assert log.decide(SetTopic("T", 1, 2, 6, ANN)).records == ()
    assert log.decide(CommitOffset("CG", "T", 0, 5, ANN)).records == ()
    assert log.of(OperatorActed) == []


def test_an_offset_that_is_reset_is_logged_at_once_and_what_a_member_said_before_does_not_come_back() -> None:
    log = CoreLog()
    log.do(EnsureGroup("CG"))
    log.do(EnsureTopic("T", 1))
    for offset in (5, 6, 7):
        log.do(CommitOffset("CG", "T", 0, offset))
    assert log.state.session.fresh_offsets["CG"], "7 is not logged yet"
    acted, logged = decided(log, CommitOffset("CG", "T", 0, 2, ANN))
    assert told(acted) == (OperatorAction.RESET_OFFSET, "CG", *ANN)
    assert isinstance(logged, OffsetsCommitted)
    assert logged.entries[0][3] == 2
    log.later(5_000)
    log.tick()
    assert query_offset(log.state, "CG", "T", 0) == Stored(2)
    log.restart()
    assert query_offset(log.state, "CG", "T", 0) == Stored(2)


def test_texts_have_a_bound_and_so_has_every_such_decision() -> None:
    """``CoreLog`` compares each decision with the bound that was asked for before."""
    log = CoreLog()
    log.do(half("T1"))
    log.do(EnsureGroup("CG"))
    (acted, *_) = decided(log, resolve("T1", RequestedVerdict.COMMIT, LONG))
    assert (len(acted.name), len(acted.reason), len(acted.peer)) == (
        limits.OPERATOR_CHARS_MAX, limits.REASON_CHARS_MAX, 64,
    )  # fmt: skip
    decided(log, SetTopic("t" * 127, 1, 1, 6, LONG))
    decided(log, SetGroup("g" * 120, 16, 1, True, LONG))
    held = tuple(f"{number}".ljust(127, "t") for number in range(64))
    decided(log, SetGroup("h" * 120, 16, 1, True, LONG, held, limits.HOLD_MS_MAX))
    log.do(SetGroup("h" * 120, hold_topics=held[:1]))
    decided(log, CommitOffset("CG", "t" * 127, 0, 5, LONG))
    decided(log, DeleteTopic("t" * 127, LONG))
    decided(log, SetProducer(ProducerSettings("PG", skip_age_ms=3_600_000, set_by="ann"), None, LONG))
    assert len(log.of(OperatorActed)) == 7
