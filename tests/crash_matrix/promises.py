"""What must hold after a crash: first for everything that was acknowledged; after the clients retried, for everything."""

from halfmq.broker.recovery import recover
from halfmq.errors import UsageError
from halfmq.limits import DELAY_LEVELS_MS
from halfmq.model.settings import ProducerSettings
from halfmq.store.store import Durability, Store
from halfmq.store.verify import verify_store
from tests.crash_matrix import batches
from tests.crash_matrix.house import COMMIT, GROUP, ROLLBACK, House, Said, Tx, Violation
from tests.simulation.world import DATA, SeededEntropy
from tests.support import invariants
from tests.support.durable_digest import durable_digest
from tests.support.faulty_disk import FaultyDisk
from tests.support.hand_flush import HandFlush

#: Committed offsets are logged once a second; plus a time step of the scripts.
OFFSETS_LATE_MS = 1_000 + 150
#: Maximum number of retries of a client.
_ROUNDS = 4


def check_recoveries(house: House) -> None:
    """Snapshot and redo give the same state as the log alone. Runs before the start, and does not change the disk."""
    # Of what a power loss leaves, the indexes need not fit to the log before a start; at the level ``memory`` the log may end early.
    try:
        report = verify_store(house.disk.fork(1), DATA)
    except UsageError:  # a crash before the store existed
        report = None
    findings = report.findings if report is not None else ()
    wrong = [finding.what for finding in findings if finding.damage and finding.part == "log"]
    if wrong and house.book.batches and house.config.durability is Durability.FSYNC:
        raise Violation(f"verify before the start: {wrong}")
    digests = []
    for stripped in (False, True):
        disk = house.disk.fork(1)
        disk.kill()
        if stripped:
            _strip(disk)
        store = Store.open(
            disk,
            DATA,
            entropy=SeededEntropy(1),
            segment_bytes=house.config.segment_bytes,
            make_syncer=HandFlush,
            reserve_bytes=0,
        )
        state = recover(store, house.settings)[0].state
        digests.append(durable_digest(state))
        invariants.check(state)
        store.close()
    if digests[0] != digests[1]:
        raise Violation("Recovery: snapshot and redo differ from the log alone")


def _strip(disk: FaultyDisk) -> None:
    for path in disk.paths():
        if path.parent != DATA and path.parent.name != "log":
            disk.remove(path)


def check_answered(house: House) -> None:
    """Everything that was acknowledged is there, nothing is there that must not be, and a retry gets the same response."""
    invariants.check(house.life.state)
    _check_visible(house)
    undecided = house.undecided()
    for tx in house.book.txs.values():
        _check_undecided(house, tx, undecided)
        if tx.verdict is not None:
            house.end(tx.tx_id)
            house.end(tx.tx_id, ROLLBACK if tx.wanted == COMMIT else COMMIT)
            if tx.verdict[1] < house.life.state.log_start or not house.knows_again(tx.asked_at_ms):
                continue  # for the broker it would be another transaction
        house.halves(tx.tx_id, [index for index, said in enumerate(tx.messages) if said.acked is not None])
    for unique, said in house.book.plains.items():
        if said.acked is not None and house.knows_again(said.sent_at_ms):
            house.plain(unique)
    house.settle()
    for name, made in house.book.topics.items():
        if made and name not in house.life.state.topics_by_name and name not in house.book.deleted_topics:
            raise Violation(f"Durable: topic {name} was acknowledged and is gone")
    for name, deleted in house.book.deleted_topics.items():
        if deleted and name in house.life.state.topics_by_name:
            raise Violation(f"Durable: topic {name} was deleted and is there again")
    batches.check_answered(house)
    for ext in house.book.gone:
        house.ask("gone", ext, 37, ext)
    house.settle()
    _check_settings(house)
    _check_offsets(house)


def _check_settings(house: House) -> None:
    """The settings are the last acknowledged ones, or ones that were requested later."""
    asked = house.book.settings
    last = max((place for place, (_, acked) in enumerate(asked) if acked), default=-1)
    allowed = [settings for settings, _ in asked[max(last, 0) :]]
    if last < 0:
        allowed.append((0, "wait", 0))
    found = house.life.state.producer_settings.get(GROUP, ProducerSettings(GROUP))
    stands = (found.check_limit, found.past_limit.value, found.skip_age_ms)
    if stands not in allowed:
        raise Violation(f"Durable: settings of {GROUP} are {stands}; it must be one of {allowed}")


def _check_offsets(house: House) -> None:
    """Committed offsets are at most a second old, never ahead of the commits, and stay once a start returned them."""
    for (topic, queue), committed in house.book.offsets.items():
        found = house.committed_offset(topic, queue)
        late_ms = house.began_ms - OFFSETS_LATE_MS
        least = max((place for place, (_, at_ms) in enumerate(committed) if at_ms < late_ms), default=-1)
        allowed: list[int | None] = [offset for offset, _ in committed[max(least, 0) :]]
        if least < 0:
            allowed.append(None)
        kept = house.book.offsets_kept.get((topic, queue))
        if kept is not None:
            allowed = [kept]
        if found not in allowed:
            raise Violation(
                f"offset of {topic}/{queue} is {found}, it must be one of {allowed}; committed: {committed}"
            )
        if found is not None:
            house.book.offsets_kept[topic, queue] = found


def _check_undecided(house: House, tx: Tx, undecided: dict[str, object]) -> None:
    acked = [said for said in tx.messages if said.acked is not None]
    if tx.asked or not acked:
        return
    known = undecided.get(tx.tx_id)
    if known is None:
        raise Violation(f"Retention: {tx.tx_id} was acknowledged, nobody decided it, and it is not undecided")
    halves = {str(half.half_index) for half in known.halves}  # type: ignore[attr-defined]
    missing = {said.acked[0] for said in acked if said.acked is not None} - halves
    if missing:
        raise Violation(f"Retention: {tx.tx_id} lost its halves {sorted(missing)}")
    if tx.aside and not known.parked:  # type: ignore[attr-defined]
        raise Violation(f"Durable: {tx.tx_id} was said to be parked, and is not")
    if known.checks < tx.checks:  # type: ignore[attr-defined]
        raise Violation(f"{tx.tx_id} was checked {tx.checks} times, and the broker knows of {known.checks}")  # type: ignore[attr-defined]


def _check_visible(house: House) -> None:
    places: dict[str, tuple[str, int, int]] = {}
    for (topic, queue), messages in house.visible().items():
        for offset, (unique, _) in messages.items():
            if unique in places:
                raise Violation(f"Once: {unique} at {places[unique]} and at {(topic, queue, offset)}")
            places[unique] = (topic, queue, offset)
    sent = {*house.book.plains, *(said.unique for tx in house.book.txs.values() for said in tx.messages)}
    for batch in house.book.batches.values():
        for parts in batch.attempts.values():
            sent.update(unique for part in parts for unique in part.ids)
    if places.keys() - sent:
        raise Violation(f"Recovery: {sorted(places.keys() - sent)} is visible, which is not in the log any more")
    for tx in house.book.txs.values():
        shown = [said.unique in places for said in tx.messages]
        if any(shown) and not (tx.wanted == COMMIT and tx.asked):
            raise Violation(f"Validity: {tx.tx_id} is visible, and nobody committed it")
        if any(shown) != all(shown):
            raise Violation(f"All or none: {tx.tx_id} shows {shown}")
        _check_times(house, tx.messages, places, tx.asked_at_ms)
        waits = any(said.delay_level for said in tx.messages)
        if tx.wanted == COMMIT and tx.verdict is not None and not any(shown) and not waits:
            _check_retained(house, tx.tx_id, tx.verdict, tx.verdict[1])
    batches.check_visible(house, places)
    for said in house.book.plains.values():
        _check_times(house, [said], places, said.sent_at_ms)
        if said.acked is not None and not said.delay_level and said.unique not in places:
            _check_retained(house, said.unique, said.acked, log_offset(said))


def _check_retained(house: House, name: str, answer: object, offset: int) -> None:
    if offset >= house.life.state.log_start:
        raise Violation(f"Durable: {name} was acknowledged with {answer} and is not visible")


def log_offset(said: Said) -> int:
    """The acknowledged log offset of the message."""
    assert said.acked is not None
    return int(said.acked[-1][-16:], 16)


def _check_times(house: House, messages: list[Said], places: dict[str, tuple[str, int, int]], from_ms: int) -> None:
    for said in messages:
        if said.delay_level and said.unique in places and house.clock.now_ms < from_ms + delay_ms(said):
            raise Violation(f"{said.unique} is visible before its time")


def delay_ms(said: Said) -> int:
    return DELAY_LEVELS_MS[said.delay_level - 1] if said.delay_level else 0


def check_settled(house: House) -> None:
    """Clients retry requests without a response, the producer answers checks, time passes: then everything is there, once."""
    for _ in range(_ROUNDS):
        _ask_for_the_rest(house)
    for tx in house.book.txs.values():
        if tx.wanted and tx.prepared and tx.verdict is None:
            raise Violation(f"Progress: {tx.tx_id} has no verdict though it was asked for {_ROUNDS} times")
    for unique, said in house.book.plains.items():
        if said.acked is None and not said.is_over:
            raise Violation(f"Progress: plain {unique} was not acknowledged")
    longest_ms = max([batches.longest_delay_ms(house), *(delay_ms(said) for said in _all_messages(house))])
    if longest_ms:
        longest_ms += 500
        # Everything due within a step happens at its end; nothing is checked in between.
        house.pass_time(longest_ms, max(500, longest_ms // 10))
    _check_visible(house)
    seen = {unique for messages in house.visible().values() for unique, _ in messages.values()}
    for said in _all_messages(house):
        if said.delay_level and said.unique not in seen and not said.is_over:
            raise Violation(f"{said.unique} was delayed and is not visible after its time")
    batches.check_released(house, seen)
    left = set(house.undecided())
    expected = {tx.tx_id for tx in house.book.txs.values() if not tx.wanted}
    if left != expected:
        raise Violation(f"undecided in the end are {sorted(left)}, not {sorted(expected)}")
    batches.check_settled(house)
    report = verify_store(house.disk, DATA)
    if report.damaged:
        raise Violation(f"verify: {[finding.what for finding in report.findings if finding.damage]}")


def _all_messages(house: House) -> list[Said]:
    """Messages that must be visible at the end, except those that retention may remove."""
    committed = [tx for tx in house.book.txs.values() if tx.wanted == COMMIT]
    return [*house.book.plains.values(), *(said for tx in committed for said in tx.messages)]


def _ask_for_the_rest(house: House) -> None:
    for name, made in house.book.topics.items():
        if not made:
            house.make_topic(name)
    for name, deleted in house.book.deleted_topics.items():
        if not deleted:
            house.delete_topic(name)
    for unique, said in house.book.plains.items():
        if said.acked is None and not said.is_over:
            house.plain(unique)
    for tx in house.book.txs.values():
        if tx.verdict is None:
            house.halves(tx.tx_id, [index for index, said in enumerate(tx.messages) if said.acked is None])
    house.settle()
    for tx in house.book.txs.values():
        if tx.wanted and tx.prepared and tx.verdict is None:
            house.end(tx.tx_id)
    house.settle()
    batches.ask_for_the_rest(house)
