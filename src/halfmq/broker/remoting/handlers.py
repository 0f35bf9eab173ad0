"""What the handlers of commands have in common: what they are made of, and how they respond."""

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Final, TypeVar

from halfmq.broker.offload import Offload
from halfmq.broker.remoting.gateway import Connection, Gateway, Handler
from halfmq.broker.remoting.refusals import refusal
from halfmq.broker.runtime_settings import RuntimeSettings
from halfmq.broker.sequencer import Sequencer
from halfmq.broker.services.actors import actor_with_reason
from halfmq.broker.services.backups import Backups
from halfmq.broker.services.check_polls import CheckPolls
from halfmq.broker.services.chosen_ids import ChosenIds
from halfmq.broker.services.comparisons import Comparisons
from halfmq.broker.services.members import Members
from halfmq.broker.services.messages import StoredMessages
from halfmq.broker.services.pages import Page
from halfmq.broker.services.pulls import Pulls
from halfmq.broker.services.queues import Queues
from halfmq.broker.services.sends import Sends
from halfmq.broker.services.stats import Stats
from halfmq.broker.services.store_reads import StoreReads
from halfmq.broker.services.topics import Topics
from halfmq.broker.services.traffic import Traffic
from halfmq.broker.services.transactions import Transactions
from halfmq.broker.services.verdicts import Verdicts
from halfmq.broker.timers import BrokerTime
from halfmq.broker.turns import Turns
from halfmq.core.commands import Actor, Command
from halfmq.core.decision import Done, Failed, Refused, Reply, Why
from halfmq.model.steps import Steps
from halfmq.wire.remoting.codes import ResponseCode
from halfmq.wire.remoting.header import Request
from halfmq.wire.remoting.operators import EXT_NEXT, EXT_TOTAL

log: Final = logging.getLogger("halfmq.operators")

R = TypeVar("R")
T = TypeVar("T")
_DONE: Final = Done()


@dataclass(frozen=True, kw_only=True)
class Parts:
    """The parts of a broker that handlers may use. The composition root has them."""

    gateway: Gateway
    sequencer: Sequencer
    store: StoreReads
    loop: asyncio.AbstractEventLoop
    time: BrokerTime
    turns: Turns
    offload: Offload
    chosen_ids: ChosenIds
    sends: Sends
    verdicts: Verdicts
    pulls: Pulls
    check_polls: CheckPolls
    queues: Queues
    stored: StoredMessages
    topics: Topics
    members: Members
    transactions: Transactions
    comparisons: Comparisons
    stats: Stats
    traffic: Traffic
    backups: Backups
    #: ``host:port`` that the broker advertises.
    address: str
    #: As responses to verdicts state it.
    durability: str
    settings: RuntimeSettings


class Handlers:
    """Base class. The table ``commands`` says which methods serve which commands."""

    #: Fields of refusals for these reasons, in place of others.
    FIELD_OF_REASON: ClassVar[Mapping[Why, str]] = {}

    def __init__(self, parts: Parts) -> None:
        self._gateway = parts.gateway
        self._sequencer = parts.sequencer
        self._view = parts.sequencer.view
        self._turns = parts.turns

    def handler(self, name: str) -> Handler:
        """What the gateway calls for the method with this name."""
        found: Handler = getattr(self, name)
        return found

    def peer_gone(self, number: int) -> None:
        """The connection has ended: forget what is kept for it."""

    # --- responses, none of them to a one-way request

    def _answer(
        self,
        connection: Connection,
        request: Request[Any],
        ext: Mapping[str, object] | None = None,
        body: bytes | bytearray = b"",
    ) -> None:
        """SUCCESS, at once."""
        self._gateway.answer(connection, request, ResponseCode.SUCCESS, None, ext, body)

    def _refuse(self, connection: Connection, request: Request[Any], reply: Reply | Failed) -> None:
        """The code of a reply that is no success, at once."""
        code, remark, ext = refusal(reply)
        if isinstance(reply, Refused) and reply.why in self.FIELD_OF_REASON:
            ext = {self.FIELD_OF_REASON[reply.why]: True}
        self._gateway.answer(connection, request, code, remark, ext)

    def _answering(
        self,
        connection: Connection,
        request: Request[Any],
        kind: type[R],
        ext: Callable[[R], Mapping[str, object] | None],
    ) -> Callable[[Any], None]:
        """Responds to the request with the fields of a reply of this kind, and refuses with any other. Keeps only what that needs."""
        request = request.to_answer(None)

        def answer(reply: Any) -> None:
            if isinstance(reply, kind):
                self._answer(connection, request, ext(reply))
            else:
                self._refuse(connection, request, reply)

        return answer

    def _answer_durably(
        self,
        connection: Connection,
        request: Request[Any],
        ext: Mapping[str, object] | None = None,
        body: bytes = b"",
        *,
        code: int = ResponseCode.SUCCESS,
        remark: str | None = None,
    ) -> None:
        """Respond with what was read from memory as soon as a crash can revert nothing there; at once if that is already so (promise 5)."""

        def is_durable(_: None, __: Reply | Failed) -> None:
            self._gateway.answer(connection, request, code, remark, ext, body)

        if body:
            self._gateway.peers.intake.count_withheld_response(connection, len(body))
        self._sequencer.after_durable(is_durable, None, _DONE)

    def _refuse_durably(self, connection: Connection, request: Request[Any], refused: Refused) -> None:
        """As ``_answer_durably``, where the reason to refuse was read from memory."""
        code, remark, ext = refusal(refused)
        self._answer_durably(connection, request, ext, code=code, remark=remark)

    def _answer_page(
        self, connection: Connection, request: Request[Any], page: Page[Any], body: bytes, **ext: object
    ) -> None:
        """As ``_answer_durably``, with a page, whose rows are in ``body``. ``ext``: further fields."""
        fields = {EXT_TOTAL: page.total, **ext}
        if page.following:
            fields[EXT_NEXT] = page.following
        self._answer_durably(connection, request, fields, body)

    def _forget(
        self,
        connection: Connection,
        request: Request[Any],
        kind: type[R],
        ext: Callable[[R], Mapping[str, object] | None],
        command: Callable[[Actor], Command],
        name: tuple[str, ...],
        what: Callable[[R], str],
    ) -> None:
        """Let the broker forget something for an operator, who must say why, and log it, as ``what`` names it. The other arguments: as for
        ``_answering``; ``name``: bounds how often that of one thing is logged.
        """
        answer = self._answering(connection, request, kind, ext)
        by = actor_with_reason(connection, request.ext.operator, request.ext.reason, "lets the broker forget it")
        if isinstance(by, Refused):
            answer(by)
            return

        def is_done(_: None, reply: Any) -> None:
            if isinstance(reply, kind):
                connection.log_throttled(
                    log, logging.WARNING, name, "operator %s from %s let the broker forget %s; reason: %s",
                    by.name, connection.address, what(reply), by.reason,
                )  # fmt: skip
            answer(reply)

        self._sequencer.submit(command(by), is_done)

    def _in_turns(
        self,
        connection: Connection,
        request: Request[None],
        steps: Steps[T],
        answer: Callable[[T], None],
        memory_bytes: int,
    ) -> None:
        """Call ``answer`` with the result of ``steps``, which are interrupted for others and meanwhile take ``memory_bytes``."""

        def failed(error: Exception) -> None:
            self._gateway.failed(connection, request, error)

        busy = self._turns.run(connection, memory_bytes, steps, answer, failed, in_order=False)
        if busy is not None:
            self._refuse(connection, request, busy)
