"""A participant of Try/Confirm/Cancel as a consumer: fences before a cancel, and passes each call through the barrier."""

from typing import TYPE_CHECKING, Any, Final, Protocol

from halfmq.client.branch import CANCEL, TRY, Branch
from halfmq.client.handler import Block, Handler, answer
from halfmq.client.log import log
from halfmq.client.message import Message
from halfmq.client.outgoing import OutgoingMessage
from halfmq.client.receipts import COMMITTED, UNDECIDED, Verdict
from halfmq.errors import BranchRefused, HalfmqError
from halfmq.model import properties as names
from halfmq.runtime.log_throttle import LogThrottle

if TYPE_CHECKING:
    from halfmq.client.async_client import AsyncClient

#: The first time after which a cancel of an undecided transaction comes again, seconds; it doubles up to the longest.
LATER_S: Final = 1.0
LATER_MAX_S: Final = 60.0
#: The reply to a try that holds what was asked, if the handler gives none, or gave one that is not known any more.
HELD: Final = b"held"
#: Characters of a reason in a reply.
_REASON_CHARS_MAX: Final = 1_000
#: After so many times, which take an hour, a broker that does not answer is no longer one that starts again.
LATER_LONG: Final = 65
#: How often each such broker is logged then, seconds; and how many of them, since messages name them.
_WARN_S: Final = 3_600.0
_WARNED_TOGETHER_MAX: Final = 16


class BarrierPort(Protocol):
    """The part of ``halfmq.sql.Barrier`` that a handler uses."""

    def once(self, session: Any, branch: Branch) -> Block:
        """A block that yields whether the handler is to be called, and commits ``session`` at its end."""
        ...


class Participant:
    """Handles a message that is a call of a branch.

    A cancel is dropped if the transaction committed, and put off if it is undecided: sent again to the group's own retry queue, with a
    delay and as often as necessary, since only attempts of the handler count.

    A try that is a request gets its reply after the COMMIT; the same for one that comes again, since the barrier's row says that it holds.
    One that the handler or the barrier refuses is rolled back, replied to with the reason, and consumed.
    """

    def __init__(self, client: "AsyncClient", group: str, handler: Handler) -> None:
        self._client = client
        self._group = group
        self._handler = handler
        self._warned = LogThrottle(
            lambda: client.clock.monotonic_ms() / 1_000, rest_s=_WARN_S, together_max=_WARNED_TOGETHER_MAX
        )

    async def __call__(self, message: Message) -> None:
        """The caller acknowledges the message after a normal return. Raises: any exception; the caller hands the message back."""
        try:
            branch = Branch.of(message)
            state = await self._fenced(branch, message) if branch.op == CANCEL else None
        except HalfmqError as error:  # it says what is wrong, and a traceback would show this module only
            log.error("%r cannot be handled, and is handed back: %s", message, error)
            await message.retry()
            return
        if state == COMMITTED:
            log.debug("%r is dropped: %s committed", message, branch.gid)
            return
        if state == UNDECIDED:
            await self._put_off(message)
            return
        if branch.op == TRY:
            await self._try(message)
        else:
            await self._handler(message)

    async def _try(self, message: Message) -> None:
        try:
            await self._handler(message, message._reply(HELD, {}) if message.is_request else None)
        except BranchRefused as refused:
            log.info("%r is refused: %s", message, refused)
            if message.is_request:
                reason = str(refused)[:_REASON_CHARS_MAX] or "no reason given"
                await answer(message, message._reply(reason, {names.HMQ_TCC_REFUSED: reason}))

    async def _fenced(self, branch: Branch, message: Message) -> Verdict:
        try:
            return await self._client.fence(branch.gid, group=branch.group, broker=branch.broker, since=branch.since)
        except HalfmqError as error:
            if not error.retriable:
                raise
            if _times_later(message) >= LATER_LONG and self._warned.is_due(branch.broker):
                log.warning(
                    "%r waits for long: broker %s, which has its transaction, cannot be asked (%s). Start it again on its data; if its data is gone "
                    "for good, cancel or confirm the branches by hand, as the initiator's database says, and end the waiting as docs/tcc.md says",
                    message, branch.broker, error,
                )  # fmt: skip
            else:
                log.info("%s cannot be fenced now: %s", branch.gid, error)
            return UNDECIDED

    async def _put_off(self, message: Message) -> None:
        number = _times_later(message)
        delay_s = min(LATER_S * 2 ** min(number, 16), LATER_MAX_S)
        log.info("%r waits: its transaction is undecided; again in %g s", message, delay_s)
        await self._client._send_later(_copy(message, self._group, number + 1, delay_s))


def _times_later(message: Message) -> int:
    """How often the message was put off."""
    times = message.properties.get(names.HMQ_TCC_LATER, "0")
    return int(times) if times.isdecimal() and len(times) < 9 else 0


def _copy(message: Message, group: str, number: int, delay_s: float) -> OutgoingMessage:
    """For the retry queue of ``group``, with the id of ``message``."""
    kept = {name: value for name, value in message.properties.items() if name not in _NOT_COPIED}
    own = {
        names.HMQ_TCC_LATER: str(number),
        names.RETRY_TOPIC: message.topic,
        names.ORIGIN_MESSAGE_ID: message.properties.get(names.ORIGIN_MESSAGE_ID) or message.message_id,
    }
    return OutgoingMessage(
        f"%RETRY%{group}",
        message.body,
        names.encode({**kept, **own}.items()),
        message.sharding_key or "",
        round(delay_s * 1000),
        message.message_id,
    )


#: What says when and where the message was stored, and what the client writes itself.
_NOT_COPIED: Final = names.SYSTEM - {names.KEYS, names.TAGS, names.SHARDING_KEY}
