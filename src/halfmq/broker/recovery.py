"""Recovery of the engine at a start: from the newest snapshot and the log after it, with matching indexes."""

import logging
from collections.abc import Iterator

from halfmq.core.engine import Engine
from halfmq.core.session import Published
from halfmq.core.snapshot import load_rows
from halfmq.core.state import State
from halfmq.errors import HalfmqError, StoreDamaged
from halfmq.model.records import Trim
from halfmq.model.settings import BrokerSettings
from halfmq.store.segment import SegmentStays
from halfmq.store.store import Store
from halfmq.store.topics_file import TopicInfo
from halfmq.store.transaction_table import UndecidedHalf

log = logging.getLogger("halfmq.broker")


def recover(store: Store, settings: BrokerSettings) -> tuple[Engine, int]:
    """(engine at the log's end, number of redone batches): the newest snapshot, then the log after it, through ``replay``.

    Raises:
        StoreDamaged: segments at the log's beginning are missing although no Trim record removed them; nothing was changed.
    """
    state = _snapshot(store, settings)
    # A base cannot distinguish a log that begins with it from one whose beginning is lost. The last Trim record can, and it is always after
    # the start that it states.
    given_up = 0 if state is None else state.log_start
    engine = Engine(state or State(settings), store)
    state = engine.state
    redone = 0
    for batch in store.redo():
        try:
            engine.replay(batch.offset, batch.broker_time_ms, batch.records)
        except HalfmqError:
            raise
        except Exception as error:
            record = next(record for record in batch.records if record.offset == state.log_end)
            raise StoreDamaged(
                f"the record of kind {type(record).__name__} at log offset {record.offset} of {store.directory} cannot be "
                f"applied, though the checksum of its batch is right: {type(error).__name__}: {error}",
                hint="the log was not changed; open this store with the version that wrote it; if that is this one, keep "
                "the directory and report it",
            ) from error
        given_up = max([given_up, *[record.log_start for record in batch.records if type(record) is Trim]])
        redone += 1
    if store.log.start > given_up:
        raise StoreDamaged(
            f"the log in {store.directory} begins at {store.log.start}, but only what lies before {given_up} was trimmed: "
            "segments between are missing",
            hint="the log was not changed; restore the missing files of shard-0/log from a backup, or start with a new directory",
        )
    store.finish_recovery(
        next_half_index=state.next_half_index,
        undecided=_undecided_rows(state),
        topics=[
            TopicInfo(topic.topic_id, topic.name, topic.read_queues, topic.write_queues, topic.permission)
            for topic in state.topics_by_id.values()
        ],
        broker_time_ms=state.batch_time_ms,
        queue_ends=[
            (topic.topic_id, queue_id, end)
            for topic in state.topics_by_id.values()
            for queue_id, end in enumerate(topic.ends)
        ],
    )
    # A crash may have come between a Trim record and the removal of files, which would obstruct the next trim.
    try:
        store.trim(state.log_start)
    except SegmentStays as error:
        log.warning("the space of trimmed segments is not freed: %s. The next trim tries again", error)
    engine.note(Published(store.high_watermark, store.high_watermark))
    return engine, redone


def _snapshot(store: Store, settings: BrokerSettings) -> State | None:
    """The state at ``store.recovery.redo_from``; None: the whole log is redone."""
    chunks = store.snapshot_chunks()
    if chunks is None:
        return None
    try:
        state = load_rows(settings, chunks)
    except HalfmqError:
        raise
    except Exception as error:
        raise StoreDamaged(
            f"the snapshot of {store.directory} at log offset {store.recovery.redo_from} cannot be loaded, though its checksum is "
            f"right: {type(error).__name__}: {error}",
            hint="nothing was changed; open this store with the version that wrote it, or remove the file shard-0/checkpoint: "
            "a start then reads the whole log",
        ) from error
    log_start = max(state.log_start, store.log.start)
    difference = store.why_rebuild(_queues(state, log_start), log_start)
    if difference is None:
        return state
    log.warning("queue files do not match the checkpoint and are rebuilt from the log: %s", difference)
    return None


def _queues(state: State, log_start: int) -> Iterator[tuple[int, int, int, int]]:
    """(topic id, queue id, first queue offset, offset after the last) of each queue, for a log that starts at ``log_start``.

    A trim may have followed the snapshot; the base at the new start has the queues' ends at that time.
    """
    later = dict(state.bases.get(log_start, ())) if log_start > state.log_start else {}
    for topic in state.topics_by_id.values():
        firsts = (*later.get(topic.topic_id, ()), *topic.mins[len(later.get(topic.topic_id, ())) :])
        for queue_id, (first, end) in enumerate(zip(firsts, topic.ends, strict=True)):
            yield topic.topic_id, queue_id, first, end


def _undecided_rows(state: State) -> Iterator[UndecidedHalf]:
    """The expected row in the transaction table of every undecided half."""
    for group in state.producer_groups.values():
        for known in group.undecided.values():
            first = known.halves[0].half_index if known.halves[0].index == 0 else -1
            for half in known.halves:
                yield UndecidedHalf(
                    half, first, known.count, known.group, known.tx_id, known.prepared_at_ms, known.next_check,
                    known.checks,
                )  # fmt: skip
