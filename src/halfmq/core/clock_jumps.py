"""The age of messages if the clock jumped between two runs of the broker, for retention by age.

At each start, broker time continues from the later of the log's last time and the wall clock. If the clock is days ahead, all
messages become days older at once; the same happens if the broker was down for days, and the log cannot tell the two apart.
A start whose time is implausibly far ahead is therefore recorded as a **jump**. Until it is confirmed (``--trust-clock``) the age
of what was stored before excludes it. Nothing is kept for ever: the time the broker runs adds to the age.

A jump is part of the EPOCH_STARTED record of its start and concerns only the log before that record. It disappears with the
trim of its record, needs no space in a base, and a restart finds it in the log.
"""

from typing import Final

from halfmq.core.state import Jump, State

#: A plausible time ahead is this fraction of the retention, since as much may be trimmed too early, within the following bounds, ms.
#: With the default of 72 hours it is 9 hours: a night without the broker is no jump, a weekend is.
_PART: Final = 8
_LEAST_MS: Final = 60_000
_MOST_MS: Final = 86_400_000
#: Maximum number of separate jumps. Beyond it the two oldest are merged, which makes nothing older.
JUMPS_MAX: Final = 16
#: Value in a record: the clock is trusted, including all earlier jumps.
TRUSTED: Final = -1


def plausible_ms(retention_ms: int) -> int:
    """Plausible time of a start ahead of the log, ms. ``retention_ms`` 0: no retention by age now, but perhaps later."""
    return min(max(retention_ms // _PART, _LEAST_MS), _MOST_MS) if retention_ms else _MOST_MS


def is_time_due(view: State, retention_ms: int, now_ms: int) -> bool:
    """Whether to log the time (``NoteTime``). A broker that writes nothing must log that it runs, or the next start takes the time since
    its last batch for a jump. Call it more often than every half of ``plausible_ms``.
    """
    return now_ms - view.batch_time_ms > plausible_ms(retention_ms) // 2


def jump_of_start(state: State, now_ms: int, plausible_ms: int, *, trusted: bool) -> int:
    """The value for the record of a start at broker time ``now_ms``: ``TRUSTED``, the jump in ms, or 0 for none."""
    if trusted:
        return TRUSTED if state.jumps else 0
    ahead_ms = now_ms - state.batch_time_ms if state.loaded else 0
    return ahead_ms if ahead_ms > plausible_ms else 0


def note_start(state: State, offset: int, jump_ms: int = 0) -> None:
    """Apply the value of the start whose record is at ``offset``."""
    if jump_ms == TRUSTED:
        state.jumps = ()
    elif jump_ms > 0:
        jumps = (*state.jumps, Jump(offset, state.batch_time_ms - jump_ms, jump_ms))
        if len(jumps) > JUMPS_MAX:
            oldest, later, *others = jumps
            jumps = (later._replace(by_ms=oldest.by_ms + later.by_ms), *others)
        state.jumps = jumps


def forget_jumps(state: State) -> None:
    """Remove jumps whose record is before the new start of the log."""
    if state.jumps and state.jumps[0].offset < state.log_start:
        state.jumps = tuple([jump for jump in state.jumps if jump.offset >= state.log_start])


def age_ms(view: State, stored_ms: int, now_ms: int) -> int:
    """The certain age: without unconfirmed jumps since then."""
    return now_ms - stored_ms - sum([jump.by_ms for jump in view.jumps if stored_ms <= jump.at_ms])
