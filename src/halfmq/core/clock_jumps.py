"""How old something in the log is, where the clock jumped between two runs of the broker: retention by age asks.

Broker time goes on at each start from the later of the log's last time and the wall clock. A clock that is days ahead makes
all that is there days older at once, and so does a broker that was down for days: the log cannot tell the two. So a start
whose time is further ahead than is plausible is written down as a **jump**, and until it is confirmed (``--trust-clock``) the
age of what was stored before it is counted without it. Nothing waits for ever: running time adds up to the same age.

A jump stands in the EPOCH_STARTED record of its start, and concerns only what lies before that record in the log. So it is
forgotten with the trim of its record, needs no place in a base, and a restart finds it in the log.
"""

from typing import Final

from halfmq.core.state import Jump, State
from halfmq.core.view import View

#: What is plausible is this part of the retention, since so much may be trimmed too early; between these bounds, ms. At the
#: default of 72 hours that is 9: a night that the broker was down is no jump, a weekend is.
_PART: Final = 8
_LEAST_MS: Final = 60_000
_MOST_MS: Final = 86_400_000
#: Jumps that are kept apart; above that the two oldest are taken for one, which makes nothing older.
JUMPS_MAX: Final = 16
#: In a record: the clock is trusted, and so it was in all earlier jumps.
TRUSTED: Final = -1


def plausible_ms(retention_ms: int) -> int:
    """How far ahead of the log a start may be. ``retention_ms`` 0: there is none by age, maybe later."""
    return min(max(retention_ms // _PART, _LEAST_MS), _MOST_MS) if retention_ms else _MOST_MS


def is_time_due(view: View, retention_ms: int, now_ms: int) -> bool:
    """Whether to log the time (``NoteTime``): a broker that writes nothing must show that it ran, or the next start takes the
    time since its last batch for a jump. Ask more often than half of ``plausible_ms``.
    """
    return now_ms - view.batch_time_ms > plausible_ms(retention_ms) // 2


def jump_of_start(state: State, now_ms: int, plausible_ms: int, *, trusted: bool) -> int:
    """What a start at broker time ``now_ms`` says of it in its record: ``TRUSTED``, the jump in ms, or 0: nothing."""
    if trusted:
        return TRUSTED if state.jumps else 0
    ahead_ms = now_ms - state.batch_time_ms if state.loaded else 0
    return ahead_ms if ahead_ms > plausible_ms else 0


def note_start(state: State, offset: int, jump_ms: int = 0) -> None:
    """The run whose record at ``offset`` is applied began with this."""
    if jump_ms == TRUSTED:
        state.jumps = ()
    elif jump_ms > 0:
        jumps = (*state.jumps, Jump(offset, state.batch_time_ms - jump_ms, jump_ms))
        if len(jumps) > JUMPS_MAX:
            oldest, later, *others = jumps
            jumps = (later._replace(by_ms=oldest.by_ms + later.by_ms), *others)
        state.jumps = jumps


def forget_jumps(state: State) -> None:
    """The log starts later: jumps whose record is gone concern nothing any more."""
    if state.jumps and state.jumps[0].offset < state.log_start:
        state.jumps = tuple([jump for jump in state.jumps if jump.offset >= state.log_start])


def age_ms(view: View, stored_ms: int, now_ms: int) -> int:
    """How old it is for certain: without the jumps since then that nobody has confirmed."""
    return now_ms - stored_ms - sum([jump.by_ms for jump in view.jumps if stored_ms <= jump.at_ms])
