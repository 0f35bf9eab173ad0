"""Trim the log without losing anything alive: copy undecided and delayed messages forward, then remove the old segments.

    CopyForward(start) ... until Done(again=False)   ->   TrimLog(start)   ->   durable   ->   segments may be unlinked

A step copies what the previous search found; the search continues only after the step (``CopiedForward``), since a decision changes
nothing. A step whose search found nothing logs nothing.

An undecided message is never deleted, and never prevents the removal of others (promise 6). After a trim the live state removes
what redo of the remaining log would not know: verdicts and plain messages before the new start.
"""

from collections import deque
from collections.abc import Iterator
from typing import Final

from halfmq.core.commands import CopyForward, TrimLog
from halfmq.core.copies import copy_delayed, copy_half, step_bytes
from halfmq.core.decision import NOTHING, Decision, Done, Refused, Why
from halfmq.core.events import CopiedForward, TrimStarted
from halfmq.core.holds import held_and_not_given_up
from halfmq.core.retention import tied_start
from halfmq.core.state import Delayed, State, Undecided, next_offset
from halfmq.model.placement import segment_start
from halfmq.model.records import TRIM_SIZE, Record, Trim

#: Number of undecided transactions and delayed messages in one search; a step has at most two searches.
EXAMINED_MAX = 4_096
_END: Final = object()


class CopyProgress:
    """Session state: progress of a trim towards one log start. Earlier results stay valid: nothing new becomes alive before it."""

    __slots__ = ("found", "log_start", "rest", "seen")

    def __init__(self, state: State, log_start: int) -> None:
        self.log_start = log_start
        #: The rest of the search, one entry for each transaction or delayed message: None if it is after the start.
        self.rest = _candidates(state, log_start)
        #: To copy: (group, id, half index), or the first offset of a delayed message.
        self.found: deque[tuple[str, str, int] | int] = deque()
        #: Whether the search is complete.
        self.seen = False

    @property
    def done(self) -> bool:
        """Whether everything was searched and copied."""
        return self.seen and not self.found

    def search(self) -> None:
        """Search until something is found, the search is complete, or this search reaches its limit."""
        if self.found or self.seen:
            return
        for _ in range(EXAMINED_MAX):
            what = next(self.rest, _END)
            if what is _END:
                self.seen = True
                return
            if what is not None:
                self.found.append(what)  # type: ignore[arg-type]  # _END was handled above


def _candidates(state: State, log_start: int) -> Iterator[tuple[str, str, int] | int | None]:
    """All undecided and delayed messages at the time of the first step."""
    groups = [(group, list(group.undecided)) for group in state.producer_groups.values()]
    delayed = list(state.delayed)
    for group, ids in groups:
        for tx_id in ids:
            known = group.undecided.get(tx_id)
            below = [half for half in known.halves if half.offset < log_start] if known is not None else ()
            for half in below:
                yield group.name, tx_id, half.half_index
            if not below:
                yield None
    for first in delayed:
        message = state.delayed.get(first)
        yield first if message is not None and message.offset < log_start else None


def trim_started(state: State, command: CopyForward, now_ms: int) -> TrimStarted | None:
    """The event before the decision, which uses its result."""
    return None if _refuse_start(state, command.log_start) is not None else TrimStarted(command.log_start)


def decide_copy_forward(state: State, command: CopyForward, now_ms: int) -> Decision:
    """Copy the next messages that are alive before ``log_start``. ``again``: there are more to copy or to search.

    Apply ``TrimStarted`` before. The next step copies what the next search finds.
    """
    refused = _refuse_start(state, command.log_start)
    if refused is not None:
        return Decision(NOTHING, refused)
    records: list[Record] = []
    offset = next_offset(state)
    end = offset + step_bytes(state)
    count = 0
    for what in state.session.copy_progress.found:
        if len(records) >= command.records_max:
            break
        record = _copy(state, what, command.log_start, offset)
        if record is not None:
            if records and offset + record.size > end:
                break
            records.append(record)
            offset += record.size
        count += 1
    again = count < len(state.session.copy_progress.found) or not state.session.copy_progress.seen
    return Decision(tuple(records), Done(again=again), (), (CopiedForward(command.log_start, count),))


def start_search(state: State, event: TrimStarted) -> None:
    if state.session.copy_progress is None or state.session.copy_progress.log_start != event.log_start:
        state.session.copy_progress = CopyProgress(state, event.log_start)
        state.session.copy_progress.search()


def note_copied(state: State, event: CopiedForward) -> None:
    progress = state.session.copy_progress
    if progress is not None and progress.log_start == event.log_start:
        for _ in range(event.count):
            progress.found.popleft()
        progress.search()


def _copy(state: State, what: tuple[str, str, int] | int, log_start: int, offset: int) -> Record | None:
    """The record that copies ``what``; None if it was settled, released or copied since."""
    if isinstance(what, int):
        delayed = state.delayed.get(what)
        return copy_delayed(delayed, offset) if delayed is not None and delayed.offset < log_start else None
    group, tx_id, half_index = what
    of_group = state.producer_groups.get(group)
    known = of_group.undecided.get(tx_id) if of_group is not None else None
    if known is not None:
        for half in known.halves:
            if half.half_index == half_index and half.offset < log_start:
                return copy_half(known, half, offset)
    return None


def decide_trim(state: State, command: TrimLog, now_ms: int) -> Decision:
    """Let the log start later. The segments before it may be unlinked once this is durable, not earlier."""
    refused = _refuse_start(state, command.log_start)
    if refused is None and command.log_start <= state.log_start:
        return Decision(NOTHING, Done())
    if refused is None:
        refused = _refuse_alive(state, command.log_start) or _refuse_held(state, command)
    if refused is not None:
        return Decision(NOTHING, refused)
    return Decision((Trim(next_offset(state), TRIM_SIZE, command.log_start),), Done())


def _refuse_start(state: State, log_start: int) -> Refused | None:
    if log_start % state.settings.segment_bytes or log_start > segment_start(
        next_offset(state), state.settings.segment_bytes
    ):
        return Refused(Why.INVALID_PARAMETER, f"{log_start} is not the start of a segment of this log")
    if log_start > state.log_start and log_start not in state.bases:
        return Refused(Why.INVALID_PARAMETER, f"the segment at {log_start} has no base")
    if tied_start(state.ties.items(), log_start, state.settings.segment_bytes) != log_start:
        return Refused(
            Why.INVALID_PARAMETER,
            f"a verdict after {log_start} shows messages before it: their segments are removed together",
        )
    return None


def _refuse_alive(state: State, log_start: int) -> Refused | None:
    if (
        state.session.copy_progress is not None
        and state.session.copy_progress.done
        and log_start <= state.session.copy_progress.log_start
    ):
        return None  # everything was searched, in steps
    alive: Undecided | Delayed | None = next(
        (
            known
            for group in state.producer_groups.values()
            for known in group.undecided.values()
            if any(half.offset < log_start for half in known.halves)
        ),
        None,
    )
    if alive is None:
        alive = next((message for message in state.delayed.values() if message.offset < log_start), None)
    if alive is None:
        return None
    return Refused(
        Why.INVALID_PARAMETER, f"below {log_start} there is something alive, copy it forward first: {alive!r:.200}"
    )


def _refuse_held(state: State, command: TrimLog) -> Refused | None:
    held = held_and_not_given_up(state, command.log_start, command.given_up)
    if held is None:
        return None
    text = f"since the trim began, group {held.group!r} holds messages of topic {held.topic!r} that it has not read"
    return Refused(Why.NOT_NOW, text)
