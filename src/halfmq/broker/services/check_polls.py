"""Long polls for checks: held until core has checks for them, answered once, then removed.

    poll -> core: a client waits -> a tick finds due checks -> its checks arrive here as effects -> one response
                                 -> timeout -> core: the client waits no longer -> an empty response

Core chooses the polling client, by the same schedule as for pushed checks. A poll that core has served gets its effects as the response,
even if it times out meanwhile: they are on their way to the disk. A held poll ends with its peer.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from halfmq import limits
from halfmq.broker.peers.peer import Peer
from halfmq.broker.sequencer import Sequencer
from halfmq.core.decision import Refused, SendCheck, Why
from halfmq.core.session import PollEnded, Polling
from halfmq.core.transaction.admission import groups_refusal, producer_groups_refusal
from halfmq.model.ids import group_problem


class CheckedHalf(NamedTuple):
    """A half in the stored layout, with its first offsets, for check number ``checks``."""

    half: bytes
    checks: int


#: Gets the halves to check, possibly none.
Answer = Callable[[list[CheckedHalf] | Refused], None]


@dataclass(slots=True)
class _HeldPoll:
    peer: Peer
    answer: Answer
    timer: asyncio.TimerHandle
    halves: list[CheckedHalf] = field(default_factory=list)


class CheckPolls:
    """Long polls of clients that fetch their checks."""

    def __init__(self, sequencer: Sequencer, loop: asyncio.AbstractEventLoop, flush: Callable[[], None]) -> None:
        """``flush``: called after responses that belong to no request and no turn of the sequencer, so that they are sent."""
        self._sequencer = sequencer
        self._loop = loop
        self._flush = flush
        self._draining = False
        #: By peer's number and producer group: one poll each.
        self._held: dict[tuple[int, str], _HeldPoll] = {}
        #: Polls that core has served in this turn.
        self._served: dict[tuple[int, str], None] = {}

    @property
    def held(self) -> int:
        """Number of waiting polls."""
        return len(self._held)

    def poll(self, peer: Peer, group: str, client_id: str, wait_ms: int, checks_max: int, answer: Answer) -> None:
        """Respond with checks of the group as soon as there are some, or with none after the timeout.

        Checks are leased: nobody else gets them before their response is overdue. A poll for the same group over the same peer ends the
        previous
        one. ``wait_ms`` and ``checks_max`` are limited by ``limits.FEEDBACK_*``. ``answer`` is kept while the poll waits: it must not
        reference anything large of the request.

        Refusals: INVALID_PARAMETER: an invalid name, or too many groups.
        """
        refused = self._refusal(peer.number, group)
        if refused is not None:
            answer(Refused(Why.INVALID_PARAMETER, refused))
            return
        key = peer.number, group
        if self._draining:
            answer([])
            return
        self._end(key)  # the client has abandoned its previous poll
        wait_ms = min(max(wait_ms, limits.CHECK_POLL_WAIT_MIN_MS), limits.CHECK_POLL_WAIT_MAX_MS)
        timer = self._loop.call_later(wait_ms / 1000, self._time_is_up, key)
        self._held[key] = _HeldPoll(peer, answer, timer)
        self._session(Polling(peer.number, client_id, group, min(checks_max, limits.CHECK_POLL_CHECKS_MAX)))

    def _refusal(self, number: int, group: str) -> str | None:
        view = self._sequencer.view
        refused = group_problem(group) or groups_refusal(view, number, [group])
        return refused or producer_groups_refusal(view, number, [group])

    def _session(self, event: Polling | PollEnded) -> None:
        self._sequencer.engine.note(event)
        self._sequencer.update_deadline()

    # --- what core hands out

    def expects(self, check: SendCheck) -> bool:
        """Whether this check belongs to a poll that waits here."""
        return (check.connection, check.group) in self._held

    def add(self, check: SendCheck, half: bytes | None) -> bool:
        """Add it to the response of its poll. False: it cannot be delivered; the poll ends nevertheless."""
        key = check.connection, check.group
        held = self._held[key]
        self._served[key] = None
        if half is None or held.peer.is_full:
            return False
        if held.halves and sum(len(one.half) for one in held.halves) + len(half) > limits.PULL_BYTES_MAX:
            return False  # a later poll gets it
        held.halves.append(CheckedHalf(half, check.checks))
        return True

    def answer_served(self) -> None:
        """Respond to the polls that were served; call it after each turn's effects."""
        if self._served:
            served, self._served = self._served, {}
            for key in served:
                self._answer(key)

    # --- ends

    def _answer(self, key: tuple[int, str]) -> None:
        held = self._held.pop(key, None)
        if held is not None:
            held.timer.cancel()
            held.answer(held.halves)

    def _end(self, key: tuple[int, str]) -> None:
        if key in self._held:
            self._session(PollEnded(*key))
            self._answer(key)

    def _time_is_up(self, key: tuple[int, str]) -> None:
        group = self._sequencer.view.producer_groups.get(key[1])
        if group is not None and key[0] in group.session.held_polls:
            self._end(key)
            self._flush()

    def drain(self) -> None:
        """The broker stops: end all waits, and respond to later polls at once, with nothing."""
        self._draining = True
        for key in list(self._held):
            self._end(key)
        self._flush()

    def peer_gone(self, number: int) -> None:
        """Remove its polls."""
        for key in [key for key in self._held if key[0] == number]:
            self._held.pop(key).timer.cancel()
