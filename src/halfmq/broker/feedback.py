"""Long polls for checks (29009): parked until core has some for them, answered once, and then forgotten.

    poll -> core: somebody waits -> a tick finds what is due -> its checks come here as effects -> one answer
                                 -> time is up -> core: nobody waits -> an empty answer

Who polls decides core, by the same schedule as for checks that are pushed. A poll that core has served is answered by its
effects, also when time is up meanwhile: they are on their way to the disk. A parked poll dies with its connection.
"""

import asyncio
from dataclasses import dataclass, field
from typing import Any

from halfmq import limits
from halfmq.broker.connection import Connection
from halfmq.broker.remoting_gateway import Gateway
from halfmq.broker.sequencer import Sequencer
from halfmq.core.decision import SendCheck
from halfmq.core.session import PollEnded, Polling
from halfmq.core.transaction.admission import producer_groups_refusal
from halfmq.errors import InvalidName
from halfmq.model.ids import checked_name
from halfmq.wire.remoting.codes import ResponseCode
from halfmq.wire.remoting.feedback import HMQ_FEEDBACK, decode_poll
from halfmq.wire.remoting.header import Request


@dataclass(slots=True)
class _Parked:
    connection: Connection
    request: Request[None]
    timer: asyncio.TimerHandle
    halves: list[bytes] = field(default_factory=list)


class Feedback:
    def __init__(self, gateway: Gateway, sequencer: Sequencer, loop: asyncio.AbstractEventLoop) -> None:
        self._gateway = gateway
        self._sequencer = sequencer
        self._loop = loop
        #: By connection number and producer group: one poll each.
        self._parked: dict[tuple[int, str], _Parked] = {}
        #: Polls that core has served in this turn.
        self._served: dict[tuple[int, str], None] = {}
        gateway.handlers[HMQ_FEEDBACK] = self.poll

    @property
    def parked(self) -> int:
        return len(self._parked)

    def poll(self, connection: Connection, request: Request[Any]) -> None:
        asked = decode_poll(request.ext)
        refused = asked if isinstance(asked, str) else self._refusal(connection.number, asked.group)
        if refused or isinstance(asked, str):
            self._gateway.answer(connection, request, ResponseCode.INVALID_PARAMETER, refused)
            return
        key = connection.number, asked.group
        self._end(key)  # who polls anew has given up on the one before
        timer = self._loop.call_later(asked.wait_ms / 1000, self._time_is_up, key)
        self._parked[key] = _Parked(connection, request.to_answer(None), timer)
        self._session(Polling(connection.number, asked.client_id, asked.group, asked.checks_max))

    def _refusal(self, number: int, group: str) -> str | None:
        view = self._sequencer.view
        groups = view.session.produces.get(number, {})
        if (
            group not in groups
            and len(groups) + len(view.session.consumes.get(number, ())) >= limits.GROUPS_PER_CONNECTION_MAX
        ):
            return f"a connection may be in {limits.GROUPS_PER_CONNECTION_MAX} groups at most"
        try:
            checked_name(group, "producer group", limits.GROUP_CHARS_MAX)
        except InvalidName as error:
            return str(error)
        return producer_groups_refusal(view, number, [group])

    def _session(self, event: Polling | PollEnded) -> None:
        self._sequencer.engine.note(event)
        self._sequencer.look_at_deadline()

    # --- what core hands out

    def expects(self, check: SendCheck) -> bool:
        """Whether this check is for a poll that waits here."""
        return (check.connection, check.group) in self._parked

    def add(self, check: SendCheck, half: bytes | None) -> bool:
        """Put it into the answer of its poll. False: it cannot be handed over; the poll ends all the same."""
        key = check.connection, check.group
        parked = self._parked[key]
        self._served[key] = None
        if half is None or parked.connection.is_full:
            return False
        if parked.halves and sum(map(len, parked.halves)) + len(half) > limits.PULL_BYTES_MAX:
            return False  # it comes with a later poll
        parked.halves.append(half)
        return True

    def flush(self) -> None:
        """Answer the polls that were served; call it behind each turn's effects."""
        if self._served:
            served, self._served = self._served, {}
            for key in served:
                self._answer(key)

    # --- ends

    def _answer(self, key: tuple[int, str]) -> None:
        parked = self._parked.pop(key, None)
        if parked is not None:
            parked.timer.cancel()
            body = b"".join(parked.halves)
            self._gateway.answer(parked.connection, parked.request, ResponseCode.SUCCESS, body=body)

    def _end(self, key: tuple[int, str]) -> None:
        if key in self._parked:
            self._session(PollEnded(*key))
            self._answer(key)

    def _time_is_up(self, key: tuple[int, str]) -> None:
        group = self._sequencer.view.producer_groups.get(key[1])
        if group is not None and key[0] in group.session.parked_polls:
            self._end(key)
            self._gateway.flush()

    def release_all(self) -> None:
        """The broker stops: nobody waits any longer."""
        for key in list(self._parked):
            self._end(key)
        self._gateway.flush()

    def connection_closed(self, number: int) -> None:
        for key in [key for key in self._parked if key[0] == number]:
            self._parked.pop(key).timer.cancel()
