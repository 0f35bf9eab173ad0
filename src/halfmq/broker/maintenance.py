"""Background tasks: checkpoints, trims by retention, checks of files and free space.

They only make a restart faster or free space; without them, replies stay correct.

    checkpoint   at an interval: the loop copies references; the maintenance thread encodes and writes them once all of that state is
                 durable and the indexes are written
    retention    what is alive in the segments to remove is copied forward in small steps between other commands; a Trim record sets
                 the new start of the log; once that is durable, the maintenance thread removes files. Consumer groups that hold messages
                 delay it; what a group loses because its hold has a limit is logged with the trim
    files        missing or truncated segments are reported when retention runs. The segment being written is checked every second; if
                 it is affected the broker stops, since what it acknowledges must exist after a start
    free space   checked every second; below the reserve, core refuses new messages but accepts verdicts. The sequencer notices at once
                 if a write finds no space earlier. Lagging indexes catch up here
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from heapq import nlargest
from typing import Any, Final

from halfmq import limits
from halfmq.broker.config import BrokerConfig
from halfmq.broker.offload import Offload
from halfmq.broker.sequencer import Sequencer
from halfmq.broker.slow_sync import SlowSync
from halfmq.broker.timers import BrokerTime
from halfmq.core.clock_jumps import is_time_due
from halfmq.core.commands import CopyForward, NoteTime, TrimLog, Unread
from halfmq.core.decision import Done, Failed, Reply
from halfmq.core.holds import holding, unread_between
from halfmq.core.retention import ClosedSegment, RetentionLimits, TrimTarget, hold_bytes_of, tied_start, trim_target
from halfmq.core.session import DiskSpace
from halfmq.core.snapshot import encode_rows
from halfmq.core.steps import goes_on
from halfmq.errors import StoreDamaged, StoreFull, StorePoisoned
from halfmq.model.durations import span
from halfmq.runtime.log_throttle import LogThrottle
from halfmq.store.segment import SegmentStays
from halfmq.store.store import Store

log = logging.getLogger("halfmq.maintenance")

SPACE_CHECK_MS: Final = 1_000
#: Maximum number of records that one step copies forward, so that it delays other commands only briefly.
COPY_RECORDS_MAX: Final = 256
#: Maximum number of producer groups named in the line about undecided messages that delay retention.
_GROUPS_SAID: Final = 3
#: Maximum number of queues named in a line about messages that a consumer group holds or loses.
_QUEUES_SAID: Final = 8
#: Holds end when the free space is below the reserve and this number of segments: before new messages are refused.
_HOLD_SPACE_SEGMENTS: Final = 2


class Maintenance:
    """Runs checkpoints, trims and checks of the free space, in steps between commands."""

    def __init__(
        self,
        config: BrokerConfig,
        sequencer: Sequencer,
        store: Store,
        loop: asyncio.AbstractEventLoop,
        offload: Offload,
        time: BrokerTime,
        slow_sync: SlowSync,
        on_fatal: Callable[[BaseException], None],
        *,
        kept_from: Callable[[], int | None] = lambda: None,
    ) -> None:
        """``kept_from``: the log offset from which backups in progress need the log; None: there are none."""
        self._config = config
        self._sequencer = sequencer
        self._store = store
        self._loop = loop
        self._offload = offload
        self._time = time
        self._slow_sync = slow_sync
        self._on_fatal = on_fatal
        self._kept_from = kept_from
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._checkpointing = False
        #: Position of the newest checkpoint of this run, or of the one used at the start.
        self._checkpoint_at = store.recovery.redo_from
        #: New start of the log while alive messages before it are copied forward.
        self._trimming: int | None = None
        #: Held messages before it, which the limits of retention do not keep.
        self._given_up: tuple[Unread, ...] = ()
        self._not_trimmed = LogThrottle(loop.time)
        self._said = LogThrottle(loop.time)
        self._stopped = False
        self._draining = False

    def check_reserve(self) -> None:
        """Refuse new messages from now on if there is too little free space. Call it before anybody can send any.

        Raises:
            StorePoisoned: the disk failed.
        """
        self._saw_space(self._store.check_space())

    def start(self) -> None:
        """Start; the first check is at once."""
        if self._sequencer.view.jumps and self._config.retention_ms and self._not_trimmed.is_due("clock"):
            self._log_clock_jump()
        if is_small_retention(self._config.retention_bytes, self._store.segment_bytes):
            self._log_small_retention()
        self._again("checkpoint", self._config.checkpoint_interval_ms, self.checkpoint)
        self._again("retention", self._config.retention_check_ms, self.check_retention)
        self._again("space", SPACE_CHECK_MS, self.check_free_space)

    def reconfigure(self, config: BrokerConfig) -> None:
        """Use these settings from now on. An interval that changed begins now."""
        before, self._config = self._config, config
        if "checkpoint" not in self._timers:
            return  # not yet, or no more
        if config.checkpoint_interval_ms != before.checkpoint_interval_ms:
            self._begin_again("checkpoint", config.checkpoint_interval_ms, self.checkpoint)
        if config.retention_check_ms != before.retention_check_ms:
            self._begin_again("retention", config.retention_check_ms, self.check_retention)
        is_small = is_small_retention(config.retention_bytes, self._store.segment_bytes)
        if config.retention_bytes != before.retention_bytes and is_small:
            self._log_small_retention()
        if config.disk_reserve_bytes != before.disk_reserve_bytes:
            self.check_free_space()

    def every(self, name: str, interval_ms: int, work: Callable[[], None]) -> None:
        """Also call ``work`` at this interval, until ``stop``."""
        self._again(name, interval_ms, work)

    def drain(self) -> None:
        """Begin no trim, and let the current one end with its step."""
        self._draining = True

    def stop(self) -> None:
        """Stop; a running step finishes."""
        self._stopped = True
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()

    def _again(self, name: str, interval_ms: int, work: Callable[[], None]) -> None:
        def due() -> None:
            try:
                work()
            finally:  # a failure may be temporary; the loop's handler logs it
                if name in self._timers:
                    self._again(name, interval_ms, work)

        self._timers[name] = self._loop.call_later(interval_ms / 1000, due)

    def _begin_again(self, name: str, interval_ms: int, work: Callable[[], None]) -> None:
        self._timers[name].cancel()
        self._again(name, interval_ms, work)

    # --- checkpoints -----------------------------------------------------------------------------------------

    def checkpoint(self, then: Callable[[], None] = lambda: None) -> None:
        """Write a checkpoint, unless nothing changed or one is in progress; ``then`` is called on the loop in every case."""
        position = self._sequencer.view.log_end
        if self._checkpointing or position == self._checkpoint_at or self._sequencer.failed is not None:
            then()
            return
        self._checkpointing = True
        capture = self._sequencer.engine.capture()
        self._sequencer.after_durable(self._write_checkpoint, (position, capture, then), Done())

    def _write_checkpoint(self, context: tuple[int, Any, Callable[[], None]], reply: Reply | Failed) -> None:
        position, capture, then = context
        self._sequencer.write_indexes()
        if position > self._store.high_watermark:
            log.warning("no checkpoint now, the previous one stays valid: the indexes lag because the disk is full")
            self._checkpointing = False
            then()
            return

        def written(result: object) -> None:
            self._checkpointing = False
            if isinstance(result, StoreFull):
                log.warning("no checkpoint now, the previous one stays valid: %s", result)
            elif isinstance(result, OSError):
                # What indexes hold on the disk is not known after a failed sync.
                fatal = StorePoisoned(
                    f"the checkpoint at {position} was not written ({result})",
                    hint="the log is not affected, and the previous checkpoint stays valid; check the disk, then restart",
                )
                fatal.__cause__ = result
                self._on_fatal(fatal)
            elif isinstance(result, BaseException):
                self._on_fatal(result)
            else:
                self._checkpoint_at = position
            then()
            if self._checkpoint_at == position:
                self._store.checkpointed()

        self._offload.run(lambda: self._store.checkpoint(position, encode_rows(capture)), written)

    # --- retention -------------------------------------------------------------------------------------------

    def check_retention(self) -> None:
        """Check that the log's files exist; start a trim if segments are past retention and none is in progress."""
        numbers = self._store.segments.numbers()
        self._offload.run(lambda: self._store.segments.missing(numbers), self._saw_segments)
        if self._sequencer.failed is not None:
            return
        if is_time_due(self._sequencer.view, self._config.retention_ms, self._time.now_ms()):
            self._sequencer.submit(NoteTime(), None)
        if self._trimming is not None or self._draining:
            return
        start = self._trim_target()
        if start is None:
            return
        start = self._not_beyond_backups(start)
        if start <= self._sequencer.view.log_start:
            return
        if self._checkpoint_at < start:
            self.checkpoint()  # so that a restart need not redo from the log's new start; the next check trims
            return
        self._trimming = start
        self._given_up = self._unread_before(start)
        self._copy_forward()

    def _saw_segments(self, missing: object) -> None:
        if isinstance(missing, BaseException):
            missing = [(-1, f"the files of the log cannot be checked: {missing}")]
        assert isinstance(missing, list)
        for number, what in missing:
            if (number < 0 or number in self._store.segments) and self._said.is_due(what):
                log.error("%s", what)

    def _trim_target(self) -> int | None:
        """Start of the first segment to keep; None: a segment cannot be read. Logs what prevents the removal of others."""
        try:
            wanted = self._wanted()
        except (StoreDamaged, OSError) as error:
            self._log_not_trimmed(str(error))
            return None
        if wanted.clock_in_doubt and self._not_trimmed.is_due("clock"):
            self._log_clock_jump()
        if wanted.copied_bytes and self._not_trimmed.is_due("copied"):
            self._log_what_delays_retention(wanted.copied_bytes)
        for group in dict.fromkeys([one.group for one in wanted.held]):
            if self._not_trimmed.is_due(("hold", group)):
                self._log_hold(group, [one for one in wanted.held if one.group == group])
        return wanted.log_start

    def _not_beyond_backups(self, start: int) -> int:
        """The last start of a segment up to ``start`` that leaves the log to backups in progress, unless the disk is nearly full."""
        kept_from, segment_bytes = self._kept_from(), self._store.segment_bytes
        if kept_from is None or kept_from >= start or self._store.free_bytes() < self._low_bytes():
            return start
        return tied_start(self._sequencer.view.ties.items(), kept_from - kept_from % segment_bytes, segment_bytes)

    def _low_bytes(self) -> int:
        """With fewer free bytes than this, nothing is kept that retention may remove."""
        return self._config.disk_reserve_bytes + _HOLD_SPACE_SEGMENTS * self._store.segment_bytes

    def _wanted(self) -> TrimTarget:
        config = self._config
        low = self._low_bytes()
        limits = RetentionLimits(
            config.retention_ms,
            config.retention_bytes,
            config.settings.dedup_window_ms,
            config.copy_again_ms,
            self._hold_bytes(),
            max(0, low - self._store.free_bytes()) if holding(self._sequencer.view) else 0,
        )
        segments = (ClosedSegment(*one) for one in self._store.closed_segments())
        return trim_target(self._sequencer.view, limits, segments, self._time.now_ms())

    def _hold_bytes(self) -> int:
        configured = self._config.hold_bytes
        return hold_bytes_of(self._store.total_bytes(), self._store.segment_bytes) if configured is None else configured

    def _log_hold(self, group: str, held: list[Unread]) -> None:
        view, hold_bytes = self._sequencer.view, self._hold_bytes()
        hold_ms = view.groups[group].hold_ms
        ends = [f"they are {span(hold_ms)} old"] if hold_ms else []
        ends += [f"the log has {hold_bytes} bytes"] if hold_bytes else []
        log.warning(
            "retention waits for consumer group %s, which holds messages that it has not read. In the next segment to remove: %s. The log "
            "takes %d bytes. They are kept until %s. Start the group's reader, or end its hold with `halfmq group release %s`",
            group,
            _in_words(held),
            view.log_end - view.log_start,
            ", or ".join([*ends, "the disk is nearly full"]),
            group,
        )

    def _log_lost(self, lost: Sequence[Unread], start: int) -> None:
        for group, topic in dict.fromkeys([(one.group, one.topic) for one in lost]):
            queues = [one for one in lost if (one.group, one.topic) == (group, topic)]
            log.error(
                "consumer group %s held messages of topic %s, and loses %d that it has not read: %s. Its hold reached a limit (the age in its settings, "
                "--hold-bytes, or a disk that is nearly full), and the log starts at %d now",
                group,
                topic,
                sum([one.end - one.first for one in queues]),
                _in_words(queues),
                start,
            )

    def _log_small_retention(self) -> None:
        log.warning("%s", small_retention("--retention-bytes", self._config.retention_bytes, self._store.segment_bytes))

    def _log_clock_jump(self) -> None:
        jumps = self._sequencer.view.jumps
        log.warning(
            "unconfirmed clock jump of %s is excluded from message age: the clock was ahead of the log at a start (last entry of the "
            "log: %s; clock: %s; such starts: %d). If the broker was down that long, confirm it by starting it once with "
            "--trust-clock. If not, correct the clock before the next start. Until then what was stored before is kept until "
            "it is %s old without that time; retention by size continues",
            span(sum(by_ms for _, _, by_ms in jumps)),
            moment(jumps[-1][1]),
            moment(jumps[-1][1] + jumps[-1][2]),
            len(jumps),
            span(self._config.retention_ms),
        )

    def _log_what_delays_retention(self, copied_bytes: int) -> None:
        view = self._sequencer.view
        groups = view.producer_groups.values()
        most = nlargest(_GROUPS_SAID, groups, key=lambda group: group.derived.bytes)
        log.warning(
            "the log takes %d bytes, more than the retention of %d: %d bytes of the segments to remove are undecided or delayed "
            "and were copied forward less than %d s ago. They are copied again after that, or if %d times as much is removed with "
            "them. %d transactions are undecided, %d bytes, most of them in the groups %s; %d messages are delayed. See "
            "`halfmq tx list`, and settle them, or use a larger --retention-bytes",
            view.log_end - view.log_start,
            self._config.retention_bytes,
            copied_bytes,
            self._config.copy_again_ms // 1000,
            limits.COPY_AGAIN_PART,
            sum(len(group.undecided) for group in groups),
            sum(group.derived.bytes for group in groups),
            ", ".join(
                f"{group.name} ({len(group.undecided)}, {group.derived.bytes} bytes)"
                for group in most
                if group.undecided
            )
            or "(none)",
            len(view.delayed),
        )

    def _copy_forward(self) -> None:
        assert self._trimming is not None
        self._sequencer.submit(CopyForward(self._trimming, COPY_RECORDS_MAX), self._copied_forward)

    def _copied_forward(self, context: None, reply: Reply | Failed) -> None:
        assert self._trimming is not None
        if not isinstance(reply, Done):
            self._trimming = None
            self._log_not_trimmed(str(getattr(reply, "text", reply)))
        elif goes_on(CopyForward, reply, draining=self._draining):
            self._copy_forward()
        elif reply.again:
            self._trimming = None  # the copies stay good: a trim after the next start begins with them
        elif self._not_beyond_backups(self._trimming) < self._trimming:
            self._trimming = None  # a backup began meanwhile; the copies stay good
        else:
            self._trim(self._trimming)

    def _trim(self, start: int) -> None:
        """Remove the segments. Refused if a group began to hold messages in them while others were copied: the next check decides again."""
        self._sequencer.submit(TrimLog(start, self._given_up), self._trimmed, self._unread_before(start))

    def _unread_before(self, start: int) -> tuple[Unread, ...]:
        view = self._sequencer.view
        return tuple(unread_between(view, holding(view), view.log_start, start))

    def _log_not_trimmed(self, why: str) -> None:
        if self._not_trimmed.is_due(why):
            log.warning("the log is not trimmed now, and grows: %s", why)

    def _trimmed(self, lost: tuple[Unread, ...], reply: Reply | Failed) -> None:
        start = self._trimming
        if not isinstance(reply, Done) or start is None:
            self._trimming = None
            log.warning("the log is not trimmed now: %s", getattr(reply, "text", reply))
            return
        self._log_lost(lost, start)
        self._offload.run(lambda: self._store.secure_trim(start), self._then(lambda _: self._detach_segments(start)))

    def _detach_segments(self, start: int) -> None:
        gone = self._store.detach(start)
        unlinked = self._then(lambda tables: self._unlinked(start, tables))

        def done(result: object) -> None:
            if not isinstance(result, SegmentStays):
                unlinked(result)
                return
            self._trimming = None
            if self._not_trimmed.is_due(str(result)):
                log.warning(
                    "the log starts at %d now, but the space of trimmed segments is not freed: %s. It is tried again with "
                    "the next trim, and at the next start",
                    start,
                    result,
                )

        self._offload.run(lambda: self._store.unlink(gone, start), done)

    def _unlinked(self, start: int, tables: list[int]) -> None:
        self._store.drop_tables(tables)
        self._trimming = None
        log.info("trimmed: the log starts at %d", start)

    def _then(self, step: Callable[[Any], None]) -> Callable[[object], None]:
        """Continues with ``step`` on the loop, unless the previous step failed or the broker stops."""

        def done(result: object) -> None:
            if isinstance(result, BaseException):
                self._on_fatal(result)
            elif not self._stopped:
                step(result)

        return done

    # --- free space ------------------------------------------------------------------------------------------

    def check_free_space(self) -> None:
        """Check the free space, the locks and the segment being written; refuse or accept new messages accordingly."""
        self._slow_sync.look()  # here, since a thread that waits for the disk logs nothing
        self._offload.run(self._store.check_locks, self._saw_locks)
        self._offload.run(self._store.check_written_segment, self._saw_written_segment)
        self._offload.run(self._store.check_space, self._saw_space)

    def _saw_written_segment(self, result: object) -> None:
        if isinstance(result, StorePoisoned):
            self._sequencer.sync_failed(result)
        elif isinstance(result, BaseException):
            if self._said.is_due(str(result)):
                log.warning("the segment being written cannot be checked: %s", result)
        elif isinstance(result, tuple) and self._store.forget_segment(result[0]):
            log.warning("%s. It was still empty: it is created again", result[1])

    def _saw_locks(self, result: object) -> None:
        if isinstance(result, StorePoisoned):
            self._sequencer.sync_failed(result)
        elif isinstance(result, BaseException) and self._said.is_due(str(result)):
            log.warning("cannot check whether the store's directory is still the locked one: %s", result)

    def _saw_space(self, low: object) -> None:
        if isinstance(low, BaseException):
            self._on_fatal(low)
            return
        if self._sequencer.failed is not None:
            return  # a poisoned log also reports that it has no space
        view = self._sequencer.view
        low = not self._sequencer.catch_up() or bool(low)
        if low != view.session.disk_full:
            if low:
                log.warning("free space is below %d bytes: new messages are refused", self._config.disk_reserve_bytes)
            else:
                log.info("there is free space again: new messages are accepted")
            self._sequencer.engine.note(DiskSpace(low))


def _in_words(unread: Sequence[Unread]) -> str:
    named = [f"{one.first} to {one.end - 1} of queue {one.queue_id} of topic {one.topic}" for one in unread]
    more = len(named) - _QUEUES_SAID
    return ", ".join(named[:_QUEUES_SAID]) + (f" and of {more} more queues" if more > 0 else "")


def is_small_retention(size: int, segment_bytes: int) -> bool:
    """Whether a retention of this size, bytes, is less than what it removes at once; 0 is none."""
    return 0 < size < segment_bytes


def small_retention(name: str, size: int, segment_bytes: int) -> str:
    """What an administrator should know of such a retention, which is given under this name."""
    return (
        f"{name} {size} is less than one segment of the log, {segment_bytes} bytes. Only whole segments are removed, and never the one that "
        f"is being written, so the log takes up to {size + segment_bytes} bytes. Give at least {segment_bytes}; for less, a new store with "
        "smaller --segment-bytes"
    )


def moment(ms: int) -> str:
    """UTC, to the second; the number itself if no calendar has such a time."""
    try:
        return datetime.fromtimestamp(ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    except (OverflowError, ValueError, OSError):
        return f"{ms} ms"
