"""A crash between the removals of two segments that a decision ties together: the log alone can still be redone, and is intact."""

from pathlib import Path

from tests.crash_matrix import batches
from tests.crash_matrix.house import SEGMENT_BYTES, Book, House, book_copy
from tests.crash_matrix.operations import SCRIPTS, SHARD, Script, open_house
from tests.crash_matrix.promises import check_answered, check_recoveries
from tests.simulation.world import DATA
from tests.support.faulty_disk import FaultyDisk, Operation

from halfmq.store.segment import segment_name
from halfmq.store.verify import verify_store
from halfmq.testing.history.events import Logged
from halfmq.testing.history.logged import log_events

BY_NAME = {script.name: script for script in SCRIPTS}
SCRIPT = BY_NAME["retention trim of half batches and decisions"]
WITH_DELAYS = BY_NAME["retention trim of tied half batches with delays"]


def killed_between_two_removals(script: Script = SCRIPT) -> House:
    """A house whose broker died after the first segment was removed and before the second, which ends a tie, was; not started."""
    house = open_house(script)
    script.before(house)
    ((decided_at, lowest),) = house.life.state.ties.items()
    assert lowest < SEGMENT_BYTES < decided_at < 2 * SEGMENT_BYTES
    kept: list[tuple[FaultyDisk, Book, int]] = []

    def after(operation: Operation) -> None:
        if operation.kind == "remove" and operation.path.name == segment_name(0):
            house.collect()
            kept.append((house.disk.fork(1), book_copy(house.book), house.clock.now_ms))

    house.disk.after = after
    script.act(house)
    ((disk, book, now_ms),) = kept
    disk.kill()
    names = set(disk.list(SHARD / "log"))
    assert segment_name(0) not in names
    assert segment_name(SEGMENT_BYTES) in names
    return House(disk, book, house.config, now_ms)


def test_log_alone_is_redone_although_a_verdict_in_it_refers_to_a_removed_segment() -> None:
    house = killed_between_two_removals()
    check_recoveries(house)
    for path in house.disk.paths():
        if path.parent != DATA and path.parent.name != "log":
            house.disk.remove(path)
    house.start()
    check_answered(house)
    third = house.book.batches[2]
    third.winners = ("0.1",)
    batches.decide(house, third)
    house.settle()
    seen = {unique for messages in house.visible().values() for unique, _ in messages.values()}
    assert set(third.attempts["0.1"][0].ids) <= seen
    assert not verify_store(house.disk, DATA).damaged


def test_verify_and_histories_read_the_log_between_the_two_removals() -> None:
    house = killed_between_two_removals()
    report = verify_store(house.disk, DATA)
    assert not report.damaged, [finding.what for finding in report.findings]
    events = list(log_events(house.disk, Path(DATA)))
    shown = {event.message for event in events if isinstance(event, Logged) and event.kind == "batched"}
    first, second = (house.book.batches[number] for number in (0, 1))
    assert shown >= {unique for part in second.attempts["0.1"] for unique in part.ids}
    assert len(shown & {unique for part in first.attempts["0.1"] for unique in part.ids}) < 15


def test_delayed_messages_of_a_removed_segment_are_released_from_their_copies() -> None:
    """Redo meets the decision without some of its half batches, so it knows what waits only from the copies that the trim made."""
    house = killed_between_two_removals(WITH_DELAYS)
    check_recoveries(house)
    assert not verify_store(house.disk, DATA).damaged
    list(log_events(house.disk, Path(DATA)))
    for path in house.disk.paths():
        if path.parent != DATA and path.parent.name != "log":
            house.disk.remove(path)
    house.start()
    delayed = [unique for part in house.book.batches[0].parts(winning=True) if part.delays_ms for unique in part.ids]
    assert len(house.life.state.delayed) == len(delayed) == 6
    house.pass_time(210_000, 70_000)
    seen = [unique for messages in house.visible().values() for unique, _ in messages.values()]
    assert sorted(unique for unique in seen if unique in delayed) == sorted(delayed)
    assert not verify_store(house.disk, DATA).damaged
