"""A power loss with durability ``memory``: what it may lose is not a violation, and everything else is checked."""

import pytest
from tests.support.tales import R, Tale

from halfmq.testing.history.events import Fault, Started
from halfmq.testing.history.report import CHANGED, DUPLICATE, LOST, NOT_DURABLE, STUCK


def power(tale: Tale, log_end: int, durability: str = "memory") -> None:
    tale.add(Fault, what="power", whom="broker")
    tale.add(Started, whom="broker", epoch=2, durability=durability, log_end=log_end)


def tale_of(durability: str = "memory") -> Tale:
    return Tale(durability=durability)


@pytest.mark.parametrize(("log_end", "found"), [(64, {}), (128, {NOT_DURABLE: 1})])
def test_a_plain_message_may_be_lost_only_if_it_was_after_the_end_of_the_log(
    log_end: int, found: dict[str, int]
) -> None:
    tale = tale_of()
    tale.plain(queue=0, queue_offset=0, offset=64)
    power(tale, log_end)
    tale.log("other", 0)
    tale.settled()
    tale.read(0)
    assert tale.found() == found


def test_nothing_may_be_lost_with_durability_fsync() -> None:
    tale = tale_of("fsync")
    tale.plain(queue=0, queue_offset=0, offset=64)
    power(tale, 64, "fsync")
    tale.log("other", 0)
    tale.settled()
    tale.read(0)
    assert tale.found() == {NOT_DURABLE: 1}


def test_messages_requested_after_the_loss_may_not_be_lost() -> None:
    tale = tale_of()
    power(tale, 64)
    tale.plain(queue=0, queue_offset=0, offset=64)
    tale.log("other", 0)
    tale.settled()
    tale.read(0)
    assert tale.found() == {NOT_DURABLE: 1}


@pytest.mark.parametrize(("log_end", "found"), [(128, {}), (192, {CHANGED: 1})])
def test_a_verdict_may_change_only_if_the_first_one_was_after_the_end_of_the_log(
    log_end: int, found: dict[str, int]
) -> None:
    tale = tale_of()
    tale.half(offset=64)
    tale.end(position=128)
    power(tale, log_end)
    tale.end(verdict=R, by="operator", position=256)
    tale.log("half", 64, tx="T", message="T")
    tale.log("rollback", 256, tx="T", decided_by="operator")
    assert tale.found() == found


@pytest.mark.parametrize(("log_end", "found"), [(64, {}), (128, {NOT_DURABLE: 1})])
def test_a_place_may_be_reused_once_after_the_loss(log_end: int, found: dict[str, int]) -> None:
    tale = tale_of()
    tale.plain("P", queue=0, queue_offset=0, offset=64)
    tale.seen("P")
    power(tale, log_end)
    tale.plain("P", queue=0, queue_offset=3, offset=256)
    tale.seen("P", at=3)
    tale.settled()
    tale.read(4, first=3)
    assert tale.found() == found


def test_two_places_after_the_loss_are_a_duplicate() -> None:
    tale = tale_of()
    power(tale, 64)
    tale.plain("P", queue=0, queue_offset=0, offset=64)
    tale.seen("P")
    tale.seen("P", at=5)
    assert DUPLICATE in tale.found()


@pytest.mark.parametrize(("log_end", "found"), [(128, {}), (192, {LOST: 1})])
def test_a_message_committed_before_the_end_of_the_log_is_reported_as_missing(
    log_end: int, found: dict[str, int]
) -> None:
    """Without the log only the reader shows that it is missing. Nobody could decide it again, so no verdict is expected."""
    tale = tale_of()
    tale.half(offset=64)
    tale.end(position=128)
    power(tale, log_end)
    tale.settled("g")
    tale.read(0)
    kinds = {LOST: sum(tale.found().values())} if tale.found() else {}
    assert kinds == found


def test_an_incomplete_transaction_may_stay_undecided_after_the_loss_but_a_complete_one_may_not() -> None:
    for second, found in ((192, {}), (96, {STUCK: 1})):
        tale = tale_of()
        tale.half(message="A", offset=64)
        tale.half(message="B", index=1, offset=second)
        tale.check()
        power(tale, 128)
        tale.log("half", 64, tx="T", message="A")
        if second < 128:
            tale.log("half", second, tx="T", message="B", index=1)
        tale.settled()
        assert tale.found() == found


def test_a_check_before_the_loss_proves_nothing_about_lost_messages() -> None:
    tale = tale_of()
    tale.half(offset=64)
    tale.check()
    power(tale, 64)
    tale.log("other", 0)
    tale.settled()
    assert tale.found() == {}


def test_after_a_power_loss_without_log_end_acknowledgements_prove_nothing() -> None:
    tale = tale_of()
    tale.plain(queue=0, queue_offset=0, offset=64)
    tale.add(Fault, what="power", whom="broker")
    tale.add(Started, whom="broker", epoch=2)
    tale.log("other", 0)
    assert tale.found() == {}
    assert "log_end" in tale.report().notes[-1]


def test_a_copy_in_a_retry_queue_is_not_a_place_of_the_message() -> None:
    """The message itself was trimmed; the copy that a consumer handed back still exists."""
    tale = Tale()
    tale.plain(queue=0, queue_offset=0, offset=64)
    tale.half(offset=96)
    tale.end(position=128)
    tale.log("message", 512, message="P", topic="%RETRY%readers", queue_offset=0)
    tale.log("message", 640, message="T", topic="%RETRY%readers", queue_offset=1)
    tale.log("trim", 704, log_start=512)
    tale.settled()
    assert tale.found() == {}


def test_an_unrecorded_message_of_a_batch_may_be_elsewhere_after_a_loss() -> None:
    """The first decision was lost, and a later one shows the message again."""
    tale = tale_of()
    tale.seen("A", at=0)
    power(tale, 100)
    tale.seen("A", at=3, reader="late")
    tale.read(4, reader="late")
    tale.log("batched", 164, message="A", queue_offset=3)
    assert tale.found() == {}


@pytest.mark.parametrize(
    ("durability", "log_end", "found"), [("memory", 64, {}), ("memory", -1, {}), ("fsync", -1, {LOST: 1})]
)
def test_a_message_of_an_outbox_may_be_lost_with_what_its_target_confirmed(
    durability: str, log_end: int, found: dict[str, int]
) -> None:
    tale = tale_of(durability)
    tale.written("M")
    tale.local()
    power(tale, log_end, durability)
    tale.settled()
    tale.read(0)
    assert tale.found() == found


def test_a_message_of_an_outbox_seen_before_the_loss_and_published_again_is_no_duplicate() -> None:
    tale = tale_of()
    tale.written("M")
    tale.local()
    tale.seen("M", at=1)
    power(tale, 64)
    tale.seen("M", at=0)
    tale.settled()
    tale.read(1)
    assert tale.found() == {}
