"""The audit log: who was refused, and what administrators and operators did, in lines of JSON in files that are rotated.

    {"at":"2026-01-31T08:15:00.123Z","event":"refused","user":"shop","address":"10.0.0.7","command":"SEND_MESSAGE","on":["orders"],"code":16,
     "text":"user shop may not send to topic orders","count":3}

Fields that are empty are left out. ``claims``: the user that somebody named who did not prove to be it.
Text of peers is in it: it is cut, and no character in it controls a terminal (``printable``).

- **Nobody waits for it.** Lines are written by a thread of their own (``line_queue``), and are synced to the disk when a file is full and
  at the end: a crash of the process loses those that wait, a power loss those of some seconds.
- **A flood is counted.** Refusals of one user, from one address, for one reason, are one line for each second, with their number. What
  still does not fit in the queue, and what cannot be written, is counted: ``{"at":...,"event":"lost","count":17}``.
- Lines of refusals are thus up to a second later in the file than ``at`` says. Others are in order.
"""

import datetime
import logging
import threading
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from halfmq import limits
from halfmq.broker.line_queue import LineQueue
from halfmq.broker.log_output import one_line
from halfmq.broker.rotated_files import RotatedFiles
from halfmq.errors import EnvironmentFailed
from halfmq.runtime.clock import Clock, SystemClock
from halfmq.runtime.log_throttle import LogThrottle

log = logging.getLogger("halfmq.audit")

#: Events with this ``event`` that are equal in ``_EQUAL_IN`` are one line for each ``_TOGETHER_MS``.
REFUSED: Final = "refused"
_TOGETHER_MS: Final = 1_000
_EQUAL_IN: Final = ("user", "claims", "address", "command", "code", "text")
#: Maximum time at the end to write what waits, s.
CLOSE_S: Final = 10.0
_EPOCH: Final = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)


class _Held(NamedTuple):
    """Equal refusals, and since when, monotonic ms."""

    since_ms: int
    fields: dict[str, object]

    def add(self, fields: Mapping[str, object]) -> None:
        """One more."""
        self.fields["count"] = _count(self.fields) + _count(fields)
        names = list(dict.fromkeys([*_names(self.fields), *_names(fields)]))[: limits.AUDIT_NAMES_MAX]
        if names:
            self.fields["on"] = names


class AuditLog:
    """``note`` may be called by any thread. Call ``close`` in the end."""

    def __init__(self, path: Path, bytes_max: int, files_max: int, *, clock: Clock | None = None) -> None:
        """Opens ``path``, which then becomes no larger than ``bytes_max``; ``files_max`` older ones are kept as ``path.1`` (the newest) and
        so on.

        Raises:
            EnvironmentFailed: it cannot be written.
        """
        self._clock: Clock = SystemClock() if clock is None else clock
        self._files = RotatedFiles(path, bytes_max, files_max)
        try:
            self._files.open()
        except OSError as error:
            raise EnvironmentFailed(
                f"the audit log {path} cannot be written: {error.strerror or error}",
                hint="--audit-log with a file in a directory that the broker's account may write",
            ) from error
        #: Lines since the start that are in no file: too many waited, or it could not be written.
        self.lost = 0
        #: Those of them that no line of the file says.
        self._lost_untold = 0
        self._is_failing = False
        self._throttle = LogThrottle(time.monotonic)
        self._lock = threading.Lock()
        #: Refusals of the last second, oldest first. Guarded by ``_lock``.
        self._held: dict[tuple[object, ...], _Held] = {}
        self._is_closed = False
        self._queue = LineQueue(
            self._write, name="halfmq-audit", bytes_max=limits.AUDIT_WAITING_BYTES_MAX, late=self._late
        )

    def note(self, event: Mapping[str, object]) -> None:
        """One line with the fields of ``event`` and ``at``, the time now. Never blocks. After ``close`` it has no effect.

        The fields: ``event`` ("refused", "done", "failed", "login"), ``user``, ``address`` (without port, so that all connections of a peer
        are equal), ``command`` (name of the request code), ``on`` (names of topics, groups, users), ``code``, ``text``, ``operator``,
        ``count``.
        """
        fields: dict[str, object] = {"at": self._now()}
        for name, value in event.items():
            if value not in (None, "", [], ()):
                fields[name] = _bounded(value)
        if event["event"] != REFUSED or not self._hold(fields):
            self._queue.put(_line(fields))

    def close(self, wait_s: float = CLOSE_S) -> bool:
        """Write everything that was noted, sync and close the file. False: it could not all be written in time; logged."""
        with self._lock:
            self._is_closed = True
        if not self._queue.end(wait_s):
            log.error("the audit log %s could not be written completely within %g s", self._files.path, wait_s)
            return False
        if self._lost_untold:
            self._tell_lost()
        try:
            self._files.close()
        except OSError as error:
            self._failed(error)
        return not self._is_failing

    def _now(self) -> str:
        at = _EPOCH + datetime.timedelta(milliseconds=self._clock.wall_ms())
        return at.isoformat(timespec="milliseconds").replace("+00:00", "Z")

    def _hold(self, fields: dict[str, object]) -> bool:
        """Whether the refusal waits for others that are equal."""
        key = tuple([fields.get(name) for name in _EQUAL_IN])
        now_ms = self._clock.monotonic_ms()
        over = None
        with self._lock:
            before = self._held.get(key)
            if before is not None and now_ms - before.since_ms < _TOGETHER_MS:
                before.add(fields)
                return True
            if self._is_closed or (before is None and len(self._held) >= limits.AUDIT_HELD_MAX):
                return False
            if before is not None:  # the thread is late
                over = self._held.pop(key)
            self._held[key] = _Held(now_ms, fields)
        if over is not None:
            self._queue.put(_line(over.fields))
        self._queue.look()
        return True

    # --- the thread

    def _late(self, all_of_them: bool) -> tuple[Iterable[bytes], float | None]:
        """The refusals to which no more are added, and the seconds to the next one."""
        lines: list[bytes] = []
        with self._lock:
            over_ms = self._clock.monotonic_ms() - _TOGETHER_MS
            for key, (since_ms, fields) in list(self._held.items()):
                if since_ms > over_ms and not all_of_them:
                    return lines, (since_ms - over_ms) / 1_000
                del self._held[key]
                lines.append(_line(fields))
        return lines, None

    def _write(self, chunk: bytes, dropped: int) -> None:
        if self._lost_untold:
            self._tell_lost()
        for part in self._files.parts(chunk):
            if not self._written(part):
                self._lose(part.count(b"\n"))
        if dropped:
            if self._throttle.is_due("dropped"):
                log.error("the audit log %s: %d lines are lost, because too many waited", self._files.path, dropped)
            self._lose(dropped)
            if not self._is_failing:
                self._tell_lost()

    def _lose(self, lines: int) -> None:
        self.lost += lines
        self._lost_untold += lines

    def _tell_lost(self) -> None:
        """Write how many are missing before this line, if it can be."""
        if self._written(_line({"at": self._now(), "event": "lost", "count": self._lost_untold})):
            self._lost_untold = 0

    def _written(self, lines: bytes) -> bool:
        try:
            self._files.write(lines)
        except OSError as error:
            self._failed(error)
            return False
        if self._is_failing:
            log.info("the audit log %s is written again", self._files.path)
        self._is_failing = False
        return True

    def _failed(self, error: OSError) -> None:
        self._is_failing = True
        if self._throttle.is_due(error.errno):
            log.error(
                "the audit log %s cannot be written, lines are lost: %s", self._files.path, error.strerror or error
            )


def _line(fields: dict[str, object]) -> bytes:
    return msgspec.json.encode(fields) + b"\n"


def _bounded(value: object) -> object:
    """``value`` without characters that are not printable, cut."""
    if isinstance(value, int):
        return value
    if isinstance(value, list | tuple | set | frozenset):
        return [one_line(str(one), limits.AUDIT_TEXT_CHARS_MAX) for one in [*value][: limits.AUDIT_NAMES_MAX]]
    return one_line(str(value), limits.AUDIT_TEXT_CHARS_MAX)


def _count(fields: Mapping[str, object]) -> int:
    count = fields.get("count", 1)
    return count if isinstance(count, int) else 1


def _names(fields: Mapping[str, object]) -> list[str]:
    names = fields.get("on")
    return names if isinstance(names, list) else []
