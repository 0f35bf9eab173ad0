"""What the broker does beside serving: checkpoints, trims by retention, and an eye on the free space.

Everything here only accelerates a restart or frees disk; if it stops, answers stay right.

    checkpoint   each interval: a copy of references is taken on the loop, encoded and written on the maintenance thread
                 once all that it shows is durable and derived files have followed
    retention    what is alive in the segments to go is carried forward in small steps between other commands, then a
                 Trim record says where the log starts, and only when that is durable are files removed, on the
                 maintenance thread
    free space   looked at each second; below the reserve, core refuses new messages and lets verdicts go on. Where a
                 write finds no room before that, the pump knows at once. Derived files that fell behind catch up here
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Any, Final

from halfmq.broker.config import BrokerConfig
from halfmq.broker.offload import Offload
from halfmq.broker.pump import Failed, Pump
from halfmq.broker.seldom import Seldom
from halfmq.broker.timers import BrokerTime
from halfmq.core.commands import CarryForward, TrimLog
from halfmq.core.decision import Done, Reply
from halfmq.core.session import DiskSpace, apply_session
from halfmq.core.snapshot import encode_rows, snapshot_rows
from halfmq.errors import StoreDamaged, StoreFull
from halfmq.store.store import Store

log = logging.getLogger("halfmq.maintenance")

SPACE_LOOK_MS: Final = 1_000
#: Records that one step carries: a step must not hold up the commands behind it.
CARRY_RECORDS_MAX: Final = 256


class Maintenance:
    def __init__(
        self,
        config: BrokerConfig,
        pump: Pump,
        store: Store,
        loop: asyncio.AbstractEventLoop,
        offload: Offload,
        time: BrokerTime,
        on_fatal: Callable[[BaseException], None],
    ) -> None:
        self._config = config
        self._pump = pump
        self._store = store
        self._loop = loop
        self._offload = offload
        self._time = time
        self._on_fatal = on_fatal
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._checkpointing = False
        #: Position of the newest checkpoint of this run, or what the start found.
        self._checkpoint_at = store.redo_from
        #: Where the log is to start, while what lives below is carried forward.
        self._trimming: int | None = None
        self._not_trimmed = Seldom(loop.time)
        self._stopped = False

    def start(self) -> None:
        self._again("checkpoint", self._config.checkpoint_interval_ms, self.checkpoint)
        self._again("retention", self._config.retention_check_ms, self.look_at_retention)
        self._again("space", SPACE_LOOK_MS, self.look_at_space)

    def stop(self) -> None:
        self._stopped = True
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()

    def _again(self, name: str, interval_ms: int, work: Callable[[], None]) -> None:
        def due() -> None:
            try:
                work()
            finally:  # what failed once may be mended; the loop's handler logs it
                if name in self._timers:
                    self._again(name, interval_ms, work)

        self._timers[name] = self._loop.call_later(interval_ms / 1000, due)

    # --- checkpoints -----------------------------------------------------------------------------------------

    def checkpoint(self, then: Callable[[], None] = lambda: None) -> None:
        """Take one, unless nothing changed or one is under way; ``then`` is called on the loop in every case."""
        position = self._pump.state.log_end
        if self._checkpointing or position == self._checkpoint_at or self._pump.failed is not None:
            then()
            return
        self._checkpointing = True
        capture = snapshot_rows(self._pump.state)
        self._pump.after_durable(self._write_checkpoint, (position, capture, then), Done())

    def _write_checkpoint(self, context: tuple[int, Any, Callable[[], None]], reply: Reply | Failed) -> None:
        position, capture, then = context
        if position > self._store.published_position:
            log.warning("no checkpoint now, the one before stands: derived files have not followed for want of room")
            self._checkpointing = False
            then()
            return

        def written(result: object) -> None:
            self._checkpointing = False
            if isinstance(result, StoreFull):
                log.warning("no checkpoint now, the one before stands: %s", result)
            elif isinstance(result, BaseException):
                self._on_fatal(result)
            else:
                self._checkpoint_at = position
            then()

        self._offload.run(lambda: self._store.checkpoint(position, encode_rows(capture)), written)

    # --- retention -------------------------------------------------------------------------------------------

    def look_at_retention(self) -> None:
        """Start a trim if segments are past retention and none is under way."""
        if self._trimming is not None or self._pump.failed is not None:
            return
        try:
            start = self._wanted_start()
        except (StoreDamaged, OSError) as error:
            self._say_not_trimmed(str(error))
            return
        if start <= self._pump.state.log_start:
            return
        if self._checkpoint_at < start:
            self.checkpoint()  # a restart should not have to redo from the log's new start; the next look trims
            return
        self._trimming = start
        self._carry()

    def _wanted_start(self) -> int:
        """Start of the first segment to keep: never the one that is written, which has no end yet.

        Nor one with something younger than the window of messages sent again: with a verdict its memory would go, and a
        half that comes again would be a transaction of its own.
        """
        config = self._config
        now_ms = self._time.now_ms()
        young_from_ms = now_ms - config.settings.sent_again_ms
        keep_from_ms = now_ms - config.retention_ms if config.retention_ms else 0
        keep_bytes_from = self._pump.state.published - config.retention_bytes if config.retention_bytes else 0
        wanted = self._pump.state.log_start
        for start, next_start, next_began_ms in self._store.closed_segments():
            too_old = next_began_ms < keep_from_ms
            too_far = next_start <= keep_bytes_from
            if not (too_old or too_far) or next_began_ms >= young_from_ms or start != wanted:
                break
            wanted = next_start
        return wanted

    def _carry(self) -> None:
        assert self._trimming is not None
        self._pump.submit(CarryForward(self._trimming, CARRY_RECORDS_MAX), self._carried)

    def _carried(self, context: None, reply: Reply | Failed) -> None:
        assert self._trimming is not None
        if not isinstance(reply, Done):
            self._trimming = None
            self._say_not_trimmed(str(getattr(reply, "text", reply)))
        elif reply.again:
            self._carry()
        else:
            self._pump.submit(TrimLog(self._trimming), self._trimmed)

    def _say_not_trimmed(self, why: str) -> None:
        if self._not_trimmed.is_due(why):
            log.warning("the log is not trimmed now, and takes more and more room: %s", why)

    def _trimmed(self, context: None, reply: Reply | Failed) -> None:
        start = self._trimming
        if not isinstance(reply, Done) or start is None:
            self._trimming = None
            log.warning("the log is not trimmed now: %s", getattr(reply, "text", reply))
            return
        self._offload.run(lambda: self._store.secure_trim(start), self._then(lambda _: self._let_go(start)))

    def _let_go(self, start: int) -> None:
        gone = self._store.let_go(start)
        self._offload.run(
            lambda: self._store.unlink(gone, start), self._then(lambda tables: self._unlinked(start, tables))
        )

    def _unlinked(self, start: int, tables: list[int]) -> None:
        self._store.drop_tables(tables)
        self._trimming = None
        log.info("trimmed: the log starts at %d", start)

    def _then(self, step: Callable[[Any], None]) -> Callable[[object], None]:
        """Goes on with ``step`` on the loop, unless the step before failed or the broker stops."""

        def done(result: object) -> None:
            if isinstance(result, BaseException):
                self._on_fatal(result)
            elif not self._stopped:
                step(result)

        return done

    # --- free space ------------------------------------------------------------------------------------------

    def look_at_space(self) -> None:
        self._offload.run(self._store.look_at_space, self._saw_space)

    def _saw_space(self, low: object) -> None:
        if isinstance(low, BaseException):
            self._on_fatal(low)
            return
        state = self._pump.state
        low = not self._pump.catch_up() or bool(low)
        if low != state.disk_full:
            if low:
                log.warning("free space is below %d bytes: new messages are refused", self._config.disk_reserve_bytes)
            else:
                log.info("there is free space again: new messages are taken")
            apply_session(state, DiskSpace(low))
