"""The fence: what it answers in each state, and that nothing is prepared under an id that was fenced."""

import pytest
from msgspec.structs import replace
from tests.support.core_log import CoreLog, end, half, refused, sent

from halfmq import limits
from halfmq.core.commands import EarlierVerdict, FenceTransaction, RequestedVerdict
from halfmq.core.decide import decide
from halfmq.core.decision import Fenced, Why
from halfmq.core.session import DiskSpace
from halfmq.core.transaction.story import story
from halfmq.model.records import DecidedBy, RolledBack
from halfmq.model.settings import BrokerSettings

#: In the log from its start on.
BEGAN = 0


def fence(tx_id: str = "order-1", since: int = BEGAN, group: str = "PG") -> FenceTransaction:
    return FenceTransaction(7, group, tx_id, since)


@pytest.mark.parametrize("restarted", [False, True])
def test_what_nobody_prepared_is_rolled_back_and_cannot_be_prepared_any_more(restarted: bool) -> None:
    log = CoreLog()
    answer = log.do(fence())
    (record,) = log.of(RolledBack)
    assert answer == Fenced("ROLLED_BACK", record.offset)
    assert (record.group, record.tx_id, record.decided_by, record.half_indexes) == (
        "PG",
        "order-1",
        DecidedBy.FENCE,
        (),
    )
    if restarted:
        log.restart()
    late = refused(log.do(half("order-1")), Why.ALREADY_SETTLED)
    assert (late.standing, late.position) == ("ROLLED_BACK", record.offset)
    assert log.do(fence()) == answer
    assert len(log.of(RolledBack)) == 1
    assert (
        "nobody had prepared it, and its messages are refused since then."
        in story(log.state, "PG", "order-1", log.now_ms)[0]
    )
    sent(log.do(half("order-2")))
    sent(log.do(half("order-1", group="other")))


def test_what_is_prepared_is_left_to_its_producer() -> None:
    log = CoreLog()
    prepared = log.do(half("order-1"))
    assert log.do(fence()) == Fenced("UNDECIDED", -1)
    assert log.of(RolledBack) == []
    log.do(end("order-1", prepared))
    assert log.do(fence()).standing == "COMMITTED"  # type: ignore[union-attr]


@pytest.mark.parametrize("wanted", [RequestedVerdict.COMMIT, RequestedVerdict.ROLLBACK])
@pytest.mark.parametrize("in_memory", [True, False])
def test_a_verdict_is_answered_from_memory_or_from_the_log(wanted: RequestedVerdict, in_memory: bool) -> None:
    log = CoreLog(BrokerSettings(dedup_ids_max=1))
    settled = log.do(end("order-1", log.do(half("order-1")), wanted))
    if not in_memory:
        log.do(end("order-2", log.do(half("order-2"))))
    standing = "COMMITTED" if wanted is RequestedVerdict.COMMIT else "ROLLED_BACK"
    assert log.do(fence()) == Fenced(standing, settled.position)  # type: ignore[union-attr]


def test_a_fence_that_left_memory_still_refuses_its_id() -> None:
    log = CoreLog(BrokerSettings(dedup_ids_max=1))
    fenced = log.do(fence())
    log.do(end("order-2", log.do(half("order-2"))))
    assert "order-1" not in log.state.producer_groups["PG"].settled
    assert refused(log.do(half("order-1")), Why.ALREADY_SETTLED).position == fenced.position  # type: ignore[union-attr]
    assert log.do(fence()) == fenced


def test_a_verdict_that_may_have_been_trimmed_is_never_given_a_second_time() -> None:
    log = CoreLog(BrokerSettings(dedup_ids_max=1))
    began = log.state.log_end
    settled = log.do(end("order-1", log.do(half("order-1"))))
    log.do(end("order-2", log.do(half("order-2"))))
    log.state.log_start = settled.position + 1  # type: ignore[union-attr]
    refusal = refused(log.do(fence(since=began)), Why.NOT_FOUND)
    assert "past retention" in refusal.text
    assert log.of(RolledBack) == []


def test_a_search_that_missed_a_forgotten_verdict_is_repeated() -> None:
    log = CoreLog(BrokerSettings(dedup_ids_max=1))
    first = log.do(end("order-1", log.do(half("order-1"))))
    log.do(end("order-2", log.do(half("order-2"))))
    position = first.position  # type: ignore[union-attr]
    missed = decide(log.state, replace(fence(), searched_to=position), log.now_ms)
    refused(missed.reply, Why.SEARCH_AGAIN)
    found = replace(fence(), searched_to=log.state.log_end, earlier=EarlierVerdict(True, position))
    assert decide(log.state, found, log.now_ms).reply == Fenced("COMMITTED", position)


def test_a_full_disk_takes_no_new_fence_and_answers_what_it_knows() -> None:
    log = CoreLog()
    known = log.do(fence("known"))
    log.engine.note(DiskSpace(True))
    refused(log.do(fence()), Why.STORE_FULL)
    assert log.do(fence("known")) == known


def test_fences_of_new_producer_groups_are_limited() -> None:
    log = CoreLog(BrokerSettings(undecided_groups_max=4))
    most = 4 + limits.PRODUCER_GROUPS_FREE
    for number in range(len(log.state.producer_groups), most):
        log.state.producer_group(f"g{number}")
    refused(log.do(fence(group="one-more")), Why.LIMIT_REACHED)
    assert log.do(fence(group=f"g{most - 1}")).standing == "ROLLED_BACK"  # type: ignore[union-attr]
