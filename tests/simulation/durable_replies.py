"""Everything that leaves the broker, compared with the disk at that moment: each reply, effect and deleted segment.

The simulated disk knows what a power loss at this moment would keep, so this module does not rely on the broker's own account of
what is durable, nor of which replies need to wait. A reply is based on a state, and that state ended at a position of the log,
even if the reply wrote nothing; up to there the disk must have the log (promise 5).
At the level ``memory`` it need not, and only trims are verified.
"""

from collections import Counter
from collections.abc import Callable
from typing import Any

from halfmq.model.records import Checked, HalfRecord
from tests.simulation.check_times import CheckTimes
from tests.simulation.damage import LOG
from tests.simulation.promises import Violation
from tests.simulation.swarm import Swarm
from tests.support.faulty_disk import SECTOR_BYTES, FaultyDisk, Operation

_FAR = 1 << 62


class KeptLog:
    """How much of the log a power loss would certainly keep now."""

    def __init__(self, disk: FaultyDisk) -> None:
        self._disk = disk
        self._at_step = -1
        self._position = 0

    @property
    def position(self) -> int:
        """Everything before it is on the disk, under durable names."""
        if self._disk.steps != self._at_step:
            self._at_step = self._disk.steps
            self._position = self.look()
        return self._position

    def look(self) -> int:
        disk = self._disk
        position = _FAR
        prefix = f"{LOG}/"
        for name, inode in disk._seen.items():
            if inode is None or not name.startswith(prefix) or not name.endswith(".seg"):
                continue
            start = int(name[len(prefix) : len(prefix) + 20])
            if start >= position:
                continue
            if disk._durable.get(name) is not inode:
                position = start
            elif not inode.is_clean:
                position = min(position, start + _clean_bytes(inode))
        return position


def _clean_bytes(inode: Any) -> int:
    """Number of bytes at the beginning of a file that are equal on disk and in the cache."""
    clean = min(inode.sizes[0], len(inode.seen)) if inode.sizes else len(inode.seen)
    for sector in sorted(inode.base.keys() | inode.lost.keys()):
        start = sector * SECTOR_BYTES
        if start >= clean:
            break
        seen = bytes(inode.seen[start : start + SECTOR_BYTES])
        disk = inode.base.get(sector, inode.lost.get(sector, b"")).ljust(SECTOR_BYTES, b"\0")
        if disk[: len(seen)] != seen:
            first = next(at for at, (one, other) in enumerate(zip(disk, seen, strict=False)) if one != other)
            return min(clean, start + first)
    return clean


class Leaving:
    """Call ``started`` with each broker that serves. Violations are passed to ``on_violation``, since a broker catches exceptions of
    callbacks.
    """

    def __init__(
        self,
        swarm: Swarm,
        disk: FaultyDisk,
        counts: Counter[str],
        checks: CheckTimes,
        serves: Callable[[], bool],
        on_violation: Callable[[Violation], None],
    ) -> None:
        self.checks = checks
        self._kept = KeptLog(disk)
        self._holds = swarm.durability == "fsync"
        self._segment_bytes = swarm.segment_bytes
        self._retention_bytes = swarm.retention_bytes
        self._retention_ms = swarm.retention_ms
        self._window_ms = swarm.dedup_window_ms
        #: (end, broker time) of the observed batches.
        self._written: list[tuple[int, int]] = []
        self._counts = counts
        self._serves = serves
        self._on_violation = on_violation
        self._state: Any = None
        #: In this run: (new start of the log, end of the turn that logged it).
        self._trims: list[tuple[int, int]] = []
        self._log_start = 0
        #: id of a turn's effects -> (the effects, the turn's end).
        self._effects: dict[int, tuple[list[Any], int]] = {}
        disk.before = self._before

    def started(self, broker: Any) -> None:
        sequencer = broker._sequencer
        state = self._state = sequencer.engine.state
        self._log_start = state.log_start
        self._trims = [(state.log_start, 0)]
        self._effects.clear()
        self.checks.started(state)
        decide, after_durable, on_effects = sequencer._decide, sequencer.after_durable, sequencer._on_effects
        is_sent = broker._checks._is_sent

        def decided(pending: Any) -> Any:
            turn = decide(pending)
            end = turn.end
            if turn.batches:
                self._wrote(turn, state)
            if turn.effects:
                self._effects[id(turn.effects)] = turn.effects, end
            submitted = [(command, tell and self._tell, (tell, to, end)) for command, tell, to in turn.submitted]
            return turn._replace(submitted=submitted)

        def held(deliver: Any, context: Any, reply: Any) -> None:
            after_durable(self._tell, (deliver, context, state.log_end), reply)

        def effects_leave(effects: Any) -> None:
            _, end = self._effects.pop(id(effects), (None, 0))
            self._look("an effect", end)
            on_effects(effects)

        def check_is_sent(check: Any, half: Any) -> bool:
            sent = bool(is_sent(check, half))
            self.checks.left(check, reached=sent)
            return sent

        sequencer._decide = decided
        sequencer.after_durable = held
        sequencer._on_effects = effects_leave
        broker._checks._is_sent = check_is_sent

    def _tell(self, context: Any, reply: Any) -> None:
        deliver, to, end = context
        self._look(reply, end)
        deliver(to, reply)

    def _look(self, what: Any, end: int) -> None:
        if self._holds:
            self._counts["look leaves durable"] += 1
            kept = self._kept.position
            if end > kept:
                self._on_violation(
                    Violation(
                        f"Durable: {what!r:.300} leaves, made at {end} of the log, and the disk keeps it to {kept}"
                    )
                )

    # --- the records of a turn ---------------------------------------------------------------------------------------

    def _wrote(self, turn: Any, state: Any) -> None:
        checks = self.checks
        try:
            for batch in turn.batches:
                now_ms = batch.broker_time_ms
                self._written.append((batch.end, now_ms))
                for record in batch.records:
                    kind = type(record)
                    if kind is HalfRecord:
                        checks.half(record, now_ms)
                    elif kind is Checked:
                        checks.checked(record, now_ms)
            if turn.effects:
                checks.asked(turn.effects, state.batch_time_ms)
            if state.log_start != self._log_start:
                self._trimmed(state.log_start, turn.end)
        except Violation as violation:
            self._on_violation(violation)

    # --- trims -------------------------------------------------------------------------------------------------------

    def _trimmed(self, log_start: int, end: int) -> None:
        """
        Raises:
            Violation: it removes what must be kept.
        """
        self._log_start = log_start
        self._trims.append((log_start, end))
        self._counts["look retention"] += 1
        newest_ms = next((time_ms for at, time_ms in reversed(self._written) if at <= log_start), 0)
        if newest_ms >= self._state.batch_time_ms - self._window_ms:
            raise Violation(
                f"Retention: what was written at {newest_ms} goes at {self._state.batch_time_ms}, within the {self._window_ms} ms "
                "in which it may be asked for again"
            )
        if self._retention_ms and newest_ms < self._state.batch_time_ms - self._retention_ms:
            self._counts["look retention by age"] += 1
        elif not self._retention_bytes or log_start > end - self._retention_bytes:
            raise Violation(
                f"Retention: the log of {end} bytes starts at {log_start}, and {self._retention_bytes} bytes are to be kept "
                f"and, if not 0, {self._retention_ms} ms; the newest before it is of {newest_ms}, now is {self._state.batch_time_ms}"
            )

    def _before(self, operation: Operation) -> None:
        """A segment may be removed only after the new start of the log is durable. What a start removes was removed by such a trim."""
        path = operation.path
        if operation.kind != "remove" or path.parent != LOG or path.suffix != ".seg" or not self._serves():
            return
        stop = int(path.name[:20]) + self._segment_bytes
        if stop > self._state.log_end:
            return  # created for a roll that found no space
        self._counts["look unlink"] += 1
        end = min((end for log_start, end in self._trims if log_start >= stop), default=_FAR)
        # Computed again: the operation is already numbered, but not done.
        kept = self._kept.look() if self._holds else self._state.log_end
        if end > kept:
            said = (
                f"that is durable at {end}, the disk keeps {kept}" if end < _FAR else "the log does not start behind it"
            )
            self._on_violation(Violation(f"Retention: {path.name} goes, and {said}"))
