"""The eight moments of a crash that the FMQ source lists (3.3.7.1 to 3.3.7.8), each as it is in halfmq.

In FMQ a transaction is a prepare record, its messages, its reference messages and a commit record, each flushed separately.
In halfmq prepare and message are one HALF record, and the commit with all references is one COMMITTED record in one batch with one
checksum. So some cases coincide, and the window of case 5, in which consumers see a part, does not exist. For each case the tests
state what the client knows, what the broker knows after the start, and how the transaction is settled.
"""

from collections.abc import Callable, Iterator

import pytest

from tests.crash_matrix.house import COMMIT, ROLLBACK, House
from tests.crash_matrix.matrix import ALL_KEPT, KILL, NOTHING_KEPT, Loss, lost, random_loss, reopened
from tests.crash_matrix.operations import SCRIPTS
from tests.crash_matrix.points import AFTER, BEFORE, Point, points_of
from tests.crash_matrix.promises import check_answered, check_settled

BY_NAME = {script.name: script for script in SCRIPTS}
EVERY_LOSS = (KILL, NOTHING_KEPT, ALL_KEPT, *(random_loss(seed) for seed in range(1, 6)))


def is_log_write(point: Point) -> bool:
    return point.operation.kind == "write" and point.operation.path.suffix == ".seg"


def is_log_sync(point: Point) -> bool:
    return point.operation.kind == "sync" and point.operation.path.suffix == ".seg"


def moments(script: str, which: Callable[[Point], bool]) -> list[Point]:
    found = [point for point in points_of(BY_NAME[script]) if which(point)]
    assert found, "no such moment"
    return found


def before_flush(script: str, number: int = 0) -> list[Point]:
    """From before the ``number``-th log write of the script to before the sync after it."""
    points = points_of(BY_NAME[script])
    writes = [place for place, point in enumerate(points) if is_log_write(point) and point.when == BEFORE]
    sync = next(
        place
        for place, point in enumerate(points)
        if place > writes[number] and is_log_sync(point) and point.when == BEFORE
    )
    return points[writes[number] : sync + 1]


def restarts(points: list[Point]) -> Iterator[tuple[Point, Loss, House]]:
    """Each moment with each loss, restarted; acknowledged records were checked."""
    for point in points:
        for loss in EVERY_LOSS:
            house = reopened(point, lost(point, loss))
            house.start()
            check_answered(house)
            yield point, loss, house


def shown(house: House, tx_id: str) -> int:
    """Number of visible messages of the transaction."""
    seen = [unique for messages in house.visible().values() for unique, _ in messages.values()]
    return sum(unique.startswith(f"{tx_id}.") for unique in seen)


def asked_by_a_check(house: House, tx_id: str = "t") -> bool:
    """The producer connects and answers every check with the decision of its application."""
    before = house.book.txs[tx_id].checks
    house.heartbeat()
    for _ in range(3):
        house.pass_time(7_000, 3_500)
        house.answer_checks()
    house.settle()
    return house.book.txs[tx_id].checks > before


@pytest.mark.slow
def test_case_1_before_the_prepare_is_flushed_the_client_has_no_response_and_may_retry() -> None:
    outcomes = set()
    for point, loss, house in restarts(before_flush("prepare, 1 message")):
        assert point.book.txs["t"].messages[0].acked is None
        outcomes.add("t" in house.undecided())
        if point.when == BEFORE and is_log_write(point):
            assert "t" not in house.undecided(), f"{point.name}, {loss.name}"
        assert shown(house, "t") == 0
        check_settled(house)
        assert shown(house, "t") == 1
    assert outcomes == {
        False,
        True,
    }  # torn: it never happened; complete: an undecided half, as if the crash had come later


@pytest.mark.slow
def test_case_2_a_transaction_with_an_unflushed_message_is_checked_and_rolled_back() -> None:
    points = [point for point in before_flush("prepare, 3 messages", 1) if point.when == BEFORE]
    for _, _, house in restarts(points):
        tx = house.book.txs["t"]
        assert tx.messages[0].acked is not None
        assert tx.messages[1].acked is None
        assert "t" in house.undecided()
        tx.wanted = ROLLBACK  # the send failed, so the local transaction was rolled back
        assert asked_by_a_check(house)
        assert tx.verdict is not None
        assert tx.verdict[0] == "ROLLED_BACK"
        assert shown(house, "t") == 0
        assert "t" not in house.undecided()


@pytest.mark.slow
def test_case_3_between_its_messages_a_commit_is_refused_and_a_rollback_settles() -> None:
    halves = set()
    for _, _, house in restarts(before_flush("prepare, 3 messages", 2)):
        tx = house.book.txs["t"]
        known = len(house.undecided()["t"].halves)
        halves.add(known)
        tx.wanted = ROLLBACK
        if known < 3:
            house.end("t", COMMIT)  # refused; otherwise the house raises a violation
            house.settle()
            assert len(house.undecided()["t"].halves) == known
        assert asked_by_a_check(house)
        assert tx.verdict is not None
        assert shown(house, "t") == 0
    assert halves == {2, 3}


@pytest.mark.slow
def test_case_4_before_the_references_are_flushed_it_is_undecided_and_a_check_commits_it() -> None:
    points = [point for point in before_flush("commit, same segment") if point.when == BEFORE and is_log_write(point)]
    for _, _, house in restarts(points):
        assert house.book.txs["t"].verdict is None
        assert len(house.undecided()["t"].halves) == 3
        assert shown(house, "t") == 0
        assert asked_by_a_check(house)
        assert shown(house, "t") == 3
        check_settled(house)


@pytest.mark.slow
@pytest.mark.parametrize("script", ["commit, same segment", "commit, copies from an older segment"])
def test_case_5_between_the_references_nothing_is_visible_until_everything_is(script: str) -> None:
    torn = [point for point in before_flush(script) if point.when.startswith("torn")]
    points = torn[:2]  # the last ones may lack only padding, and be complete
    assert len(points) >= 2
    for point, loss, house in restarts(points):
        assert "t" in house.undecided(), f"{point.name}, {loss.name}"
        assert shown(house, "t") == 0
        assert house.letter == "I" or loss.power, "a torn batch that a killed process left is cut"
        assert asked_by_a_check(house)
        assert shown(house, "t") == 3
        check_settled(house)


@pytest.mark.slow
def test_case_6_before_the_commit_is_flushed_it_is_complete_or_absent() -> None:
    outcomes = set()
    points = [point for point in before_flush("commit, same segment") if is_log_sync(point) or point.when == AFTER]
    for _, loss, house in restarts(points):
        assert house.book.txs["t"].verdict is None
        stands = "t" not in house.undecided()
        outcomes.add((loss.name, stands))
        assert shown(house, "t") == (3 if stands else 0)
        assert asked_by_a_check(house) != stands
        check_settled(house)
    assert ("kill", True) in outcomes
    assert ("power, nothing kept", False) in outcomes


@pytest.mark.slow
@pytest.mark.parametrize("script", ["commit, same segment", "commit, copies from an older segment"])
def test_case_7_after_the_commit_is_flushed_everything_is_visible_and_nobody_is_checked(script: str) -> None:
    points = points_of(BY_NAME[script])
    flushed = next(place for place, point in enumerate(points) if is_log_sync(point) and point.when == AFTER)
    for _, _, house in restarts(points[flushed::2]):
        assert "t" not in house.undecided()
        assert shown(house, "t") == 3
        assert not asked_by_a_check(house)
        house.end("t")  # the client may not have received the response, and retries
        house.settle()
        assert house.book.txs["t"].verdict is not None
        check_settled(house)


@pytest.mark.slow
def test_case_8_before_the_rollback_is_flushed_a_check_settles_it_and_after_it_there_is_no_check() -> None:
    points = points_of(BY_NAME["rollback"])
    flushed = next(place for place, point in enumerate(points) if is_log_sync(point) and point.when == AFTER)
    for _, loss, house in restarts(points[:flushed]):
        stands = "t" not in house.undecided()
        assert not stands or loss.name != NOTHING_KEPT.name
        assert asked_by_a_check(house) != stands
        assert shown(house, "t") == 0
        check_settled(house)
    for _, _, house in restarts(points[flushed:]):
        assert "t" not in house.undecided()
        assert not asked_by_a_check(house)
        house.end("t", COMMIT)  # refused; otherwise the house raises a violation
        house.settle()
        assert shown(house, "t") == 0
        check_settled(house)
