"""The scripts of the matrix: a state before, and the operation whose disk operations are crashed.

Each is so small that a reader can say what must be on the disk at each moment. Together they reach every place in the store that
changes the disk (see ``call_sites.py``).
"""

import asyncio
from collections.abc import Callable
from typing import Any, NamedTuple

from halfmq.model.records import DecidedBy
from halfmq.store.store import Durability
from tests.crash_matrix import batches
from tests.crash_matrix.house import COMMIT, GROUP, ROLLBACK, SEGMENT_BYTES, Book, House, book_copy, config
from tests.simulation.world import DATA
from tests.support.faulty_disk import FaultyDisk

SHARD = DATA / "shard-0"


class Script(NamedTuple):
    """``before`` runs undisturbed; ``act`` is crashed at each disk operation."""

    name: str
    before: Callable[[House], None]
    act: Callable[[House], None]
    settings: dict[str, Any]

    @property
    def survives_power_loss(self) -> bool:
        """Whether the durability level guarantees that."""
        return self.settings.get("durability", Durability.FSYNC) is Durability.FSYNC


def open_house(script: Script, seed: int = 1) -> House:
    return House(FaultyDisk(seed), Book(), config(**script.settings))


# --- parts -------------------------------------------------------------------------------------------------------


def nothing(house: House) -> None:
    """A directory that was never used."""


def start(house: House) -> None:
    house.start()


def _prepared(house: House, tx_id: str, messages: int, wanted: str = "", **other: Any) -> None:
    house.new_tx(tx_id, messages, wanted, **other)
    house.halves(tx_id)
    house.settle()


def _take_checkpoint(house: House) -> None:
    maintenance = house.life.broker._maintenance
    assert maintenance is not None
    done: list[bool] = []
    maintenance.checkpoint(lambda: done.append(True))
    house.settle()
    assert done, "no checkpoint was taken"


def _without_checkpoint(house: House) -> None:
    some_of_everything(house, checkpoint=False)


def _fill_segment(house: House, name: str, left: int = 3_000) -> None:
    """Plain messages until less than ``left`` bytes are free in the segment."""
    number = 0
    while (free := SEGMENT_BYTES - house.life.state.log_end % SEGMENT_BYTES) > left:
        house.plain(f"{name}{number}", size=min(9_000, max(1_000, free - 2_800)))
        house.settle()
        number += 1


def _roll(house: House, name: str) -> None:
    """Plain messages until the log continues in the next segment."""
    here = house.life.state.log_end // SEGMENT_BYTES
    number = 0
    while house.life.state.log_end // SEGMENT_BYTES == here:
        house.plain(f"{name}{number}", size=9_000)
        house.settle()
        number += 1


def some_of_everything(house: House, *, checkpoint: bool = True) -> None:
    """A store in use: settled, undecided, incomplete, delayed, offsets; a checkpoint, and records after it."""
    house.start()
    house.heartbeat(producer=False, consumer=True)
    house.plain("first", queue=0)
    house.settle()
    _prepared(house, "done", 2, COMMIT)
    house.end("done")
    house.settle()
    _prepared(house, "open", 2)
    if checkpoint:
        _take_checkpoint(house)
    _prepared(house, "refused", 1, ROLLBACK)
    house.end("refused")
    house.settle()
    house.new_tx("half-sent", 3)
    house.halves("half-sent", [0])
    house.plain("later", delay_level=1)
    house.commit_offset("A", 0, 1)
    house.settle()
    house.visible()


# --- before ------------------------------------------------------------------------------------------------------


def _with_undecided(messages: int, wanted: str, **other: Any) -> Callable[[House], None]:
    def before(house: House) -> None:
        some_of_everything(house)
        _prepared(house, "t", messages, wanted, **other)

    return before


def _with_two_undecided(house: House) -> None:
    _with_undecided(3, COMMIT)(house)
    _prepared(house, "u", 1, ROLLBACK)


def _with_whole_batches_behind_a_gap(house: House) -> None:
    """Several batches were written and not synced; the power loss lost the first one and kept the others."""
    _with_undecided(3, COMMIT)(house)
    end = house.life.state.log_end
    for number in range(4):
        house.plain(f"unanswered{number}", size=30)
        house.life.loop.run_ready()
        if number == 0:
            first_end = house.life.state.log_end
    house.disk.crash(keep=1.0)
    file = house.disk.open(SHARD / "log" / f"{0:020d}.seg")
    file.write(end, [bytes(first_end - end)])
    file.sync()
    house.disk.kill()


def _with_indexes_ahead_of_the_log(house: House) -> None:
    """Durability ``memory``: a power loss removed the end of the log, but not its entries in the indexes.

    The clients forget the responses about that end, since this level guarantees nothing about it.
    """
    some_of_everything(house)
    book, end = book_copy(house.book), house.life.state.log_end
    house.plain("gone")
    _prepared(house, "gone", 1)
    house.disk.crash(keep=1.0)
    file = house.disk.open(SHARD / "log" / f"{0:020d}.seg")
    file.write(end, [bytes(2_000)])
    file.sync()
    house.book = book


def _with_halves_in_an_older_segment(house: House) -> None:
    some_of_everything(house)
    house.new_tx("t", 3, COMMIT)
    house.halves("t", [0, 1])
    house.settle()
    _roll(house, "roll")
    house.halves("t", [2])
    house.settle()


def _with_two_checkpoints(house: House) -> None:
    some_of_everything(house)
    house.plain("between")
    house.settle()
    _take_checkpoint(house)
    house.plain("behind")
    _prepared(house, "t", 2)


def _nearly_full_segment(house: House) -> None:
    some_of_everything(house)
    _fill_segment(house, "fill")


def _nearly_full_with_undecided(house: House) -> None:
    _with_undecided(1, COMMIT)(house)
    _fill_segment(house, "fill")


def _past_retention(house: House) -> None:
    """More than three segments, two of which are to be removed; the first contains an undecided transaction, one with several
    halves, and a delayed message."""
    some_of_everything(house)
    _prepared(house, "old", 3)
    house.plain("much later", delay_level=7)
    house.settle()
    for name in ("roll", "again", "and-again"):
        _roll(house, name)
    # What is younger than the deduplication window is not trimmed.
    house.pass_time(house.config.settings.dedup_window_ms - 1_000, 1_000)
    assert house.life.state.log_start == 0


def _with_half_batches(house: House) -> None:
    """A decided batch, and an undecided one with two attempts, of which one wins."""
    some_of_everything(house)
    first = batches.new_batch(house, 0, {"0.1": 1}, ("0.1",))
    batches.prepare_all(house, first)
    batches.decide(house, first)
    house.settle()
    batches.prepare_all(house, batches.new_batch(house, 1, {"0.1": 2, "0.2": 2, "1.1": 1}, ("0.2", "1.1")))


def _with_half_batches_in_an_older_segment(house: House) -> None:
    _with_half_batches(house)
    _roll(house, "roll")


def _with_a_large_batch(house: House) -> None:
    """More than half a segment, over two segments: a decision ties them."""
    some_of_everything(house)
    house.plain("before", size=9_000)
    batches.prepare_all(house, batches.new_batch(house, 0, {"0.1": 5, "0.2": 1}, ("0.1",), size=3_200))


def _half_batches_past_retention(house: House) -> None:
    """Segments to be removed: with decided batches, one of which ties two segments, and an undecided one with two attempts."""
    _with_a_large_batch(house)
    batches.decide(house, house.book.batches[0])
    house.settle()
    assert house.life.state.ties, "nothing is tied"
    second = batches.new_batch(house, 1, {"0.1": 1}, ("0.1",))
    batches.prepare_all(house, second)
    batches.decide(house, second)
    house.settle()
    batches.prepare_all(house, batches.new_batch(house, 2, {"0.1": 2, "0.2": 1}, None))
    for name in ("roll", "again", "and-again"):
        _roll(house, name)
    house.pass_time(house.config.settings.dedup_window_ms - 1_000, 1_000)
    assert house.life.state.log_start == 0


def _with_delayed_half_batches(house: House) -> None:
    """An undecided batch: of both attempts one half batch has delays, the other none."""
    some_of_everything(house)
    batch = batches.new_batch(house, 0, {"0.1": 3, "0.2": 2}, ("0.1",), delays_ms={1: (5_000, 1, 1_000)})
    batches.prepare_all(house, batch)


def _with_decided_delays_in_an_older_segment(house: House) -> None:
    _with_delayed_half_batches(house)
    batches.decide(house, house.book.batches[0])
    house.settle()
    _roll(house, "roll")
    assert len(house.life.state.delayed) >= 3


def _delayed_half_batches_past_retention(house: House) -> None:
    """Segments to be removed: with a decided batch, and an undecided one; messages of both have delays that end later."""
    some_of_everything(house)
    late = {1: (200_000, 190_000, 200_000)}
    for number in range(2):
        batches.prepare_all(house, batches.new_batch(house, number, {"0.1": 2, "0.2": 2}, ("0.1",), delays_ms=late))
        if number == 0:
            batches.decide(house, house.book.batches[0])
            house.settle()
    for name in ("roll", "again", "and-again"):
        _roll(house, name)
    house.pass_time(house.config.settings.dedup_window_ms - 1_000, 1_000)
    assert house.life.state.log_start == 0


def _tied_delays_past_retention(house: House) -> None:
    """Two segments that a decision ties, to be removed; half of its messages have delays that end later."""
    some_of_everything(house)
    house.plain("before", size=9_000)
    late = dict.fromkeys((0, 3), (200_000, 190_000, 200_000))
    batch = batches.new_batch(house, 0, {"0.1": 5, "0.2": 1}, ("0.1",), size=3_200, delays_ms=late)
    batches.prepare_all(house, batch)
    batches.decide(house, batch)
    house.settle()
    assert house.life.state.ties, "nothing is tied"
    for name in ("roll", "again", "and-again"):
        _roll(house, name)
    house.pass_time(house.config.settings.dedup_window_ms - 1_000, 1_000)
    assert house.life.state.log_start == 0


def _delayed_in_an_older_segment(house: House) -> None:
    some_of_everything(house)
    house.plain("due", delay_level=2)
    _prepared(house, "t", 1, COMMIT, delay_level=2)
    house.end("t")
    house.settle()
    _roll(house, "roll")


def _killed(before: Callable[[House], None]) -> Callable[[House], None]:
    def stopped(house: House) -> None:
        before(house)
        house.disk.kill()

    return stopped


def _with_a_torn_tail(before: Callable[[House], None]) -> Callable[[House], None]:
    """A batch was written and the power failed: a part of it is on the disk."""

    def stopped(house: House) -> None:
        before(house)
        house.new_tx("torn", 2)
        house.halves("torn")
        house.life.loop.run_ready()
        house.disk.crash(keep=0.0)
        end = house.life.state.log_end
        path = SHARD / "log" / f"{end // SEGMENT_BYTES * SEGMENT_BYTES:020d}.seg"
        file = house.disk.open(path)
        file.write((end - 200) % SEGMENT_BYTES, [b"torn" * 10])
        file.sync()
        file.close()

    return stopped


def _without(before: Callable[[House], None], *paths: str) -> Callable[[House], None]:
    """Like ``before``; then files whose names begin with ``paths`` are removed."""

    def stopped(house: House) -> None:
        before(house)
        for path in house.disk.paths():
            if str(path.relative_to(DATA)).startswith(paths):
                house.disk.remove(path)
                house.disk.sync_directory(path.parent)

    return stopped


# --- act ---------------------------------------------------------------------------------------------------------


def _prepare(messages: int) -> Callable[[House], None]:
    def act(house: House) -> None:
        house.new_tx("t", messages, COMMIT)
        for index in range(messages):
            house.halves("t", [index])
            house.settle()

    return act


def _prepare_at_once(house: House) -> None:
    house.new_tx("t", 3, COMMIT)
    house.halves("t")
    house.settle()


def _prepare_half_batches(house: House) -> None:
    batches.prepare_all(house, batches.new_batch(house, 0, {"0.1": 2, "0.2": 1}, ("0.1",)))


def _decide_and_repeat(number: int) -> Callable[[House], None]:
    def act(house: House) -> None:
        batch = house.book.batches[number]
        for _ in range(2):
            batches.decide(house, batch)
            house.settle()
        assert batch.decided >= 0, "it was not decided"
        house.visible()

    return act


def _decide_across_segments(house: House) -> None:
    _decide_and_repeat(0)(house)
    assert house.life.state.ties, "nothing is tied"


def _decide_copies(house: House) -> None:
    older = [half.offset for half in house.life.state.producer_groups[batches.WRITERS].undecided["query:1:r1"].halves]
    assert max(older) < house.life.state.log_end // SEGMENT_BYTES * SEGMENT_BYTES
    _decide_and_repeat(1)(house)
    assert not house.life.state.ties


def _trim_and_decide(house: House) -> None:
    """The trim removes a tied pair of segments and copies what is undecided; decisions before it are known after it."""
    _trim(house)
    assert not house.life.state.ties
    known = house.life.state.producer_groups[batches.WRITERS].undecided["query:2:r1"]
    assert all(half.offset != half.first_offset for half in known.halves), "nothing was copied"
    house.book.batches[2].winners = ("0.1",)
    _decide_and_repeat(1)(house)
    _decide_and_repeat(2)(house)


def _end(house: House) -> None:
    house.end("t")
    house.settle()
    house.visible()


def _check(house: House) -> None:
    house.heartbeat()
    house.settle()
    house.pass_time(7_000, 500)
    assert house.book.txs["t"].checks > 0, "no check came"
    house.answer_checks()
    house.settle()
    house.visible()


def _several_batches_in_one_sync(house: House) -> None:
    """Verdicts and messages in separate turns, all written before the disk is asked to sync."""
    ready = house.life.loop.run_ready
    house.end("t")
    ready()
    house.plain("p0", queue=0)
    ready()
    house.end("u")
    house.new_tx("v", 2, COMMIT)
    house.halves("v")
    ready()
    house.settle()
    house.end("v")
    house.settle()
    house.visible()


def _fails_and_starts_again(
    path_ends: str, kind: str, *, drop_cache: bool = False, **how: Any
) -> Callable[[House], None]:
    """The disk reports an error and the broker stops; the content of the disk is unknown. Then the broker restarts."""

    def act(house: House) -> None:
        house.disk.failed_sync_keeps_share = 0.0
        house.plain("p0")
        house.settle()
        house.disk.fail(kind, path_ends=path_ends, **how)
        house.plain("p1", size=5_000)  # more sectors than the next start would rewrite by chance
        house.end("t")
        house.settle()
        assert house.life.broker.failed.done(), "nothing failed"
        assert house.book.txs["t"].verdict is None, "it was answered"
        house.disk.kill(drop_cache=drop_cache)
        house.start()

    return act


def _checkpoint_that_fails(path_ends: str, kind: str) -> Callable[[House], None]:
    """A file that a checkpoint syncs cannot be synced: the previous checkpoint remains, and the broker stops."""

    def act(house: House) -> None:
        house.disk.failed_sync_keeps_share = 0.0
        house.plain("p0")
        house.settle()
        house.disk.fail(kind, path_ends=path_ends)
        _take_checkpoint(house)
        assert house.life.broker.failed.done(), "nothing failed"
        house.disk.kill()
        house.start()

    return act


def _checkpoint_while_messages_come(house: House) -> None:
    """The state is captured, more is written, then the snapshot is written."""
    maintenance = house.life.broker._maintenance
    assert maintenance is not None
    house.plain("p0")
    house.life.loop.run_ready()
    maintenance.checkpoint()
    house.end("t")
    house.life.loop.run_ready()
    house.plain("p1")
    house.settle()
    _take_checkpoint(house)


def _go_on_in_the_next_segment(house: House) -> None:
    here = house.life.state.log_end // SEGMENT_BYTES
    for number in range(3):
        house.plain(f"next{number}", size=2_000)
        house.settle()
    assert house.life.state.log_end // SEGMENT_BYTES == here + 1, "the log did not roll"


def _start_and_roll(house: House) -> None:
    house.start()
    _roll(house, "roll")


def _roll_and_checkpoint(house: House) -> None:
    _go_on_in_the_next_segment(house)
    _take_checkpoint(house)


def _roll_with_a_transaction(house: House) -> None:
    house.new_tx("t", 3, COMMIT, size=1_500)
    house.halves("t")
    house.settle()
    house.end("t")
    house.settle()


def _roll_without_room(house: House) -> None:
    """There is no space for the segment after the next one: new messages are refused, the verdict is not. Then there is space again."""
    house.disk.fill(8_192)
    for number in range(4):
        house.plain(f"next{number}", size=2_000)
        house.settle()
    assert house.book.plains["next3"].acked is None, "nothing was refused"
    house.end("t")
    house.settle()
    assert house.book.txs["t"].verdict is not None
    house.pass_time(1_100)
    house.disk.heal()
    house.pass_time(1_100)
    house.plain("next3")
    house.settle()
    assert house.book.plains["next3"].acked is not None


def _trim(house: House) -> None:
    house.pass_time(3_000)
    assert house.life.state.log_start > 0, "nothing was trimmed"


def _topics(house: House) -> None:
    house.make_topic("made")
    house.settle()
    house.plain("into a new topic", topic="by-its-first-message", queue=1)
    house.settle()


def _delete_topic(house: House) -> None:
    house.delete_topic("short")
    house.settle()


def _with_topic_to_delete(house: House) -> None:
    some_of_everything(house)
    house.make_topic("short")
    house.settle()


def _offsets(house: House) -> None:
    for number in range(2, 9):
        house.commit_offset("A", 0, number)
        house.commit_offset("B", 1, number // 3)
        house.pass_time(400)
    house.commit_offset("A", 0, 1)  # backwards: this is how offsets are reset
    house.pass_time(1_500)


def _undecided_with_policy(check_limit: int, past_limit: str, skip_age_ms: int = 0) -> Callable[[House], None]:
    def before(house: House) -> None:
        _with_undecided(2, "")(house)
        house.set_policy(check_limit, past_limit, skip_age_ms)
        house.heartbeat()
        house.settle()
        if past_limit == "rollback":
            for tx in house.book.txs.values():
                if not tx.wanted:  # for the clients it is as if they had requested it
                    tx.wanted, tx.asked = ROLLBACK, True

    return before


def _aside(house: House) -> list[str]:
    house.look_at_list()
    house.settle()
    return [tx.tx_id for tx in house.book.txs.values() if tx.aside]


def _policy_sets_aside(house: House) -> None:
    house.pass_time(16_000, 500)
    assert house.book.txs["t"].checks == 1
    assert set(_aside(house)) == {"t", "open", "half-sent"}


def _age_sets_aside(house: House) -> None:
    house.pass_time(70_000, 5_000)
    assert set(_aside(house)) == {"t", "open", "half-sent"}


def _policy_rolls_back(house: House) -> None:
    house.pass_time(16_000, 500)
    verdict = house.life.state.producer_groups[GROUP].settled["t"]
    assert (verdict.committed, verdict.decided_by) == (False, DecidedBy.POLICY)
    house.end("t")
    house.settle()


def _set_policy(house: House) -> None:
    house.set_policy(15, "set-aside", 0)
    house.settle()
    house.set_policy(3, "rollback", 72 * 3_600_000)
    house.set_policy(0, "wait", 0)
    house.settle()


def _roll_with_policy(house: House) -> None:
    """The settings are in the base of the next segment, and are changed after it."""
    house.set_policy(15, "set-aside", 0)
    house.settle()
    _roll(house, "roll")
    house.set_policy(2, "set-aside", 60_000)
    house.settle()


def _with_aside(house: House) -> None:
    _undecided_with_policy(1, "set-aside")(house)
    _policy_sets_aside(house)
    house.answer_checks()  # the outcome is unknown
    house.book.txs["t"].wanted = COMMIT


def _ask_now(house: House) -> None:
    house.ask_now("t")
    house.settle()
    house.answer_checks()
    house.settle()
    house.visible()
    assert house.book.txs["t"].verdict is not None, "it was not asked about"


def _ask_aside(house: House) -> None:
    house.ask_parked(2)
    house.settle()
    house.ask_parked(2)
    house.settle()
    house.answer_checks()
    house.settle()
    house.pass_time(16_000, 2_000)
    assert set(_aside(house)) == {"open", "half-sent"}
    assert house.book.txs["t"].verdict is not None


def _with_more_in_the_indexes_than_in_the_log(house: House) -> None:
    """Durability ``memory``: a power loss removed verdicts and messages, but none of their index entries.

    Nothing written later replaces them at once: more rows and entries remain than are rewritten.
    """
    some_of_everything(house)
    book, end = book_copy(house.book), house.life.state.log_end
    for number in range(6):
        house.plain(f"gone{number}")
        _prepared(house, f"gone-tx{number}", 2, COMMIT)
        house.end(f"gone-tx{number}")
        house.settle()
    gone = [house.end_of(f"gone-tx{number}") for number in range(6)]
    length = house.life.state.log_end - end
    house.disk.crash(keep=1.0)
    file = house.disk.open(SHARD / "log" / f"{0:020d}.seg")
    file.write(end, [bytes(length)])
    file.sync()
    house.book = book
    house.book.gone = gone


def _start_and_go_on_elsewhere(house: House) -> None:
    """The log grows beyond the place of the lost messages, with messages for another queue."""
    house.start()
    house.settle()
    for number in range(20):
        house.plain(f"elsewhere{number}", topic="C")
    house.settle()
    house.visible()


def _release(house: House) -> None:
    house.pass_time(5_500, 500)
    seen = {unique for messages in house.visible().values() for unique, _ in messages.values()}
    assert "due" in seen, "nothing was released"


def _delayed(house: House) -> None:
    some_of_everything(house)
    house.plain("due", delay_level=2)
    house.settle()


def _plain(house: House) -> None:
    for number in range(3):
        house.plain(f"p{number}", queue=number % 2)
    house.settle()
    house.visible()


def _decide_and_release(house: House) -> None:
    _decide_and_repeat(0)(house)
    _release_all(house)


def _release_all(house: House) -> None:
    """The first two delays end in one step."""
    house.pass_time(6_000, 2_000)
    assert not house.life.state.delayed
    house.visible()


def _trim_decide_and_release(house: House) -> None:
    """The trim copies delayed messages of a decided batch, and undecided half batches with delays."""
    _trim(house)
    copied = [one for one in house.life.state.delayed.values() if one.offset != one.first_offset]
    assert len(copied) >= 3, "nothing was copied"
    known = house.life.state.producer_groups[batches.WRITERS].undecided["query:1:r1"]
    assert all(half.offset != half.first_offset for half in known.halves), "nothing was copied"
    _decide_and_repeat(1)(house)
    house.pass_time(210_000, 70_000)
    assert not house.life.state.delayed
    house.visible()


def _trim_tied_and_release(house: House) -> None:
    _trim(house)
    assert not house.life.state.ties
    assert sum(one.offset != one.first_offset for one in house.life.state.delayed.values()) == 6
    house.pass_time(210_000, 70_000)
    assert not house.life.state.delayed
    house.visible()


def _drain(house: House) -> None:
    """A shutdown with as much time as it needs; time passes only while it waits."""
    loop = house.life.loop
    asyncio.events._set_running_loop(loop)
    coroutine = house.life.broker.drain()
    try:
        while True:
            waits_for = coroutine.send(None)
            for _ in range(100):
                if waits_for.done():
                    break
                house.clock.now_ms += 10
                house.life.settle()
    except StopIteration:
        house.life.broker.close()
    finally:
        asyncio.events._set_running_loop(None)


_MEMORY = {"durability": Durability.MEMORY}
_RETENTION = {"checkpoint_interval_ms": 500, "retention_check_ms": 300, "retention_bytes": 40_000}

SCRIPTS = (
    Script("first start", nothing, start, {}),
    Script("prepare, 1 message", some_of_everything, _prepare(1), {}),
    Script("prepare, 3 messages", some_of_everything, _prepare(3), {}),
    Script("prepare, 3 messages at once", some_of_everything, _prepare_at_once, {}),
    Script("prepare in an empty store", start, _prepare(1), {}),
    Script("commit, same segment", _with_undecided(3, COMMIT), _end, {}),
    Script("commit, copies from an older segment", _with_halves_in_an_older_segment, _end, {}),
    Script("several batches in one sync", _with_two_undecided, _several_batches_in_one_sync, {}),
    Script("rollback", _with_undecided(2, ROLLBACK), _end, {}),
    Script("check", _with_undecided(2, COMMIT), _check, {}),
    Script("plain messages", some_of_everything, _plain, {}),
    Script("first checkpoint and snapshot", _without_checkpoint, _take_checkpoint, {}),
    Script("next checkpoint and snapshot", _with_two_checkpoints, _take_checkpoint, {}),
    Script("checkpoint while messages come", _with_undecided(2, COMMIT), _checkpoint_while_messages_come, {}),
    Script("segment roll", _nearly_full_segment, _go_on_in_the_next_segment, {}),
    Script("segment roll between half and verdict", _nearly_full_segment, _roll_with_a_transaction, {}),
    Script("segment roll without room", _nearly_full_with_undecided, _roll_without_room, {}),
    Script("retention trim with carry-forward", _past_retention, _trim, _RETENTION),
    Script("retention trim with carry-forward, durability memory", _past_retention, _trim, {**_RETENTION, **_MEMORY}),
    Script("half batches", some_of_everything, _prepare_half_batches, {}),
    Script("decision, same segment", _with_half_batches, _decide_and_repeat(1), {}),
    Script("decision, copies from an older segment", _with_half_batches_in_an_older_segment, _decide_copies, {}),
    Script("decision, tied segments", _with_a_large_batch, _decide_across_segments, {}),
    Script("decision, tied segments, durability memory", _with_a_large_batch, _decide_across_segments, _MEMORY),
    Script("retention trim of half batches and decisions", _half_batches_past_retention, _trim_and_decide, _RETENTION),
    Script("decision, delays, release", _with_delayed_half_batches, _decide_and_release, {}),
    Script("decision, delays, durability memory", _with_delayed_half_batches, _decide_and_release, _MEMORY),
    Script("release of half batches from an older segment", _with_decided_delays_in_an_older_segment, _release_all, {}),
    Script("retention trim of half batches with delays", _delayed_half_batches_past_retention, _trim_decide_and_release, _RETENTION),
    Script("retention trim of tied half batches with delays", _tied_delays_past_retention, _trim_tied_and_release, _RETENTION),
    Script("restart, half batches with delays, log only", _killed(_with_decided_delays_in_an_older_segment), start, {}),
    Script("restart, half batches, log only", _killed(_with_half_batches_in_an_older_segment), start, {}),
    Script("topic creation", some_of_everything, _topics, {}),
    Script("topic deletion", _with_topic_to_delete, _delete_topic, {}),
    Script("offsets", some_of_everything, _offsets, {}),
    Script("policy parks, by checks", _undecided_with_policy(1, "set-aside"), _policy_sets_aside, {}),
    Script("policy parks, by age", _undecided_with_policy(0, "wait", 60_000), _age_sets_aside, {}),
    Script("policy rolls back", _undecided_with_policy(1, "rollback"), _policy_rolls_back, {}),
    Script("settings of a producer group", some_of_everything, _set_policy, {}),
    Script("settings of a producer group, segment roll", _nearly_full_segment, _roll_with_policy, {}),
    Script("asked about by an operator", _with_aside, _ask_now, {}),
    Script("parked, asked about in bulk", _with_aside, _ask_aside, {}),
    Script("delayed release", _delayed, _release, {}),
    Script("delayed release from an older segment", _delayed_in_an_older_segment, _release, {}),
    Script("commit, durability memory", _with_undecided(3, COMMIT), _end, _MEMORY),
    Script("first start and roll, durability memory", nothing, _start_and_roll, _MEMORY),
    Script("roll and checkpoint, durability memory", _nearly_full_segment, _roll_and_checkpoint, _MEMORY),
    Script("log sync fails, the cache stays", _with_undecided(3, COMMIT), _fails_and_starts_again(".seg", "sync"), {}),
    Script("log sync fails, the cache is dropped", _with_undecided(3, COMMIT), _fails_and_starts_again(".seg", "sync", drop_cache=True), {}),
    Script("log write fails", _with_undecided(3, COMMIT), _fails_and_starts_again(".seg", "write", short=True), {}),
    Script("queue write fails", _with_undecided(3, COMMIT), _fails_and_starts_again(".q", "write", short=True), {}),
    Script("sync of a queue fails in a checkpoint", _with_two_checkpoints, _checkpoint_that_fails(".q", "sync"), {}),
    Script("sync of a snapshot fails", _with_two_checkpoints, _checkpoint_that_fails(".new", "sync"), {}),
    Script("drain", some_of_everything, _drain, {"drain_ms": 20}),
    Script("restart, log only", _killed(_without_checkpoint), start, {}),
    Script("restart, torn tail, log only", _with_a_torn_tail(_without_checkpoint), start, {}),
    Script("restart, snapshot", _killed(_with_two_checkpoints), start, {}),
    Script("restart, torn tail, snapshot", _with_a_torn_tail(_with_two_checkpoints), start, {}),
    Script("restart, snapshots gone", _without(_killed(_with_two_checkpoints), "shard-0/snapshots"), start, {}),
    Script("restart, torn tail, snapshots gone", _without(_with_a_torn_tail(_with_two_checkpoints), "shard-0/snapshots"), start, {}),
    Script("restart, queues gone", _without(_killed(_with_two_checkpoints), "shard-0/queues"), start, {}),
    Script("restart, indexes ahead of the log", _with_indexes_ahead_of_the_log, start, _MEMORY),
    Script("restart, indexes far ahead of the log", _with_more_in_the_indexes_than_in_the_log, _start_and_go_on_elsewhere, _MEMORY),
    Script("restart, whole batches behind a gap", _with_whole_batches_behind_a_gap, start, {}),
    Script("restart, torn tail, two segments", _with_a_torn_tail(_with_halves_in_an_older_segment), start, {}),
)  # fmt: skip

assert len({script.name for script in SCRIPTS}) == len(SCRIPTS)
