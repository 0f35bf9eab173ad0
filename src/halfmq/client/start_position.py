"""Where a consumer group starts in a topic: fixed before its consumer is entered.

Each queue that has no committed offset gets one. From then on every message that is sent is for the group, whichever member reads the
queue, and also if all of them leave at once.

The protocol has no "commit if there is none"; the order of the requests replaces it: the end of the queue, then whether an offset is
committed, then the commit. If two members do this at the same time, the one that overwrites the other's offset has read the end before
the other committed, hence before the other was entered: neither skips a message that was sent after it was entered.

The start is that of the group in the topic, once. If some queues have an offset and others do not, the others are younger than the
group: they are read from their beginning.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final, NamedTuple, TypeVar

from halfmq.client.connection import Answer, NoAnswer, NotSent
from halfmq.client.context import ClientContext
from halfmq.client.log import log
from halfmq.client.refusals import refusal
from halfmq.client.routing import QueueRef, Route
from halfmq.errors import ConnectError, ProtocolError, RequestFailed, TopicNotFound
from halfmq.wire.remoting.codes import RequestCode, ResponseCode
from halfmq.wire.remoting.fields import OffsetReply

#: How long entering a consumer may wait for brokers that do not answer, seconds.
FIX_TIMEOUT_S: Final = 3.0
#: For one request then, seconds.
_ATTEMPT_S: Final = 1.0
_PAUSE_S: Final = 0.1
#: How long another member of the group, which may be entering now, has to commit its start positions, seconds.
_OTHERS_S: Final = 1.0
#: A queue whose start could not be fixed starts this long before the consumer was entered, ms, since the clocks of broker and client
#: differ.
_BEFORE_MS: Final = 30_000
_REQUEST_TIMEOUT_S: Final = 3.0

_T = TypeVar("_T")
_Failure = ConnectError | NotSent | NoAnswer | RequestFailed | ProtocolError
_FAILURES: Final = (ConnectError, NotSent, NoAnswer, RequestFailed, ProtocolError)


class Start(NamedTuple):
    """Where a group starts without a committed offset: ``where`` is ``earliest``, ``latest``, ``timestamp`` (then ``at``) or ``offset``."""

    where: str
    at: datetime | None = None
    offset: int = 0


EARLIEST: Final = Start("earliest")


class TopicStart(NamedTuple):
    """Where a group starts in the queues of one topic."""

    #: Queues that were there when the consumer was entered.
    fixed: dict[QueueRef, int]
    #: All others.
    others: Start

    def of(self, queue: QueueRef) -> Start:
        """The start in ``queue``."""
        offset = self.fixed.get(queue)
        return self.others if offset is None else Start("offset", offset=offset)


async def ask(
    context: ClientContext, queue: QueueRef, code: int, ext: dict[str, str], timeout_s: float = _REQUEST_TIMEOUT_S
) -> Answer:
    """Send a request to the broker of ``queue``. ``ext``: see ``place``. Raises ConnectError, NotSent, NoAnswer."""
    connection = await context.broker(queue.broker)
    return await connection.request(code, ext, timeout_s=timeout_s)


def place(queue: QueueRef, **more: str) -> dict[str, str]:
    """The extension fields that name ``queue``, and ``more``."""
    return {"topic": queue.topic, "queueId": str(queue.queue), **more}


async def committed_offset(
    context: ClientContext, group: str, queue: QueueRef, timeout_s: float = _REQUEST_TIMEOUT_S
) -> int | None:
    """The group's committed offset; None if it has none.

    Raises:
        ConnectError, NotSent, NoAnswer: no answer. RequestFailed: rejected.
    """
    ext = place(queue, consumerGroup=group, setZeroIfNotFound="false")
    answer = await ask(context, queue, RequestCode.QUERY_CONSUMER_OFFSET, ext, timeout_s)
    return None if answer.code == ResponseCode.QUERY_NOT_FOUND else _offset(answer, f"first offset of {queue}")


async def start_offset(
    context: ClientContext, queue: QueueRef, start: Start, timeout_s: float = _REQUEST_TIMEOUT_S
) -> int:
    """The offset at which ``start`` is now. Raises as ``committed_offset``."""
    if start.where == "offset":
        return start.offset
    ext = place(queue)
    if start.where == "earliest":
        code = RequestCode.GET_MIN_OFFSET
    elif start.at is not None:
        code, ext = (
            RequestCode.SEARCH_OFFSET_BY_TIMESTAMP,
            place(queue, timestamp=str(round(start.at.timestamp() * 1000))),
        )
    else:
        code = RequestCode.GET_MAX_OFFSET
    return _offset(await ask(context, queue, code, ext, timeout_s), f"start of {queue}")


def _offset(answer: Answer, what: str) -> int:
    if answer.code != ResponseCode.SUCCESS:
        raise refusal(answer.code, answer.remark, what)
    return answer.read(OffsetReply).offset


async def fix_start(
    context: ClientContext, group: str, topic: str, start: Start, members: Callable[[Route], Awaitable[tuple[str, ...]]]
) -> TopicStart:
    """Commit where ``group`` starts in each queue of ``topic`` that has no committed offset. This client must be a member by now.

    Returns when each queue has one, or after ``FIX_TIMEOUT_S``; that is logged, and those without one start a little before now, by the
    broker's clock. ``members``: asks a broker for the members of the group.
    """
    since = Start("timestamp", datetime.fromtimestamp((context.clock.wall_ms() - _BEFORE_MS) / 1000, UTC))
    fixing = _Fixing(context, group, topic, start, members)
    failure: _Failure | None = None
    try:
        async with asyncio.timeout(FIX_TIMEOUT_S):
            while (failure := await fixing.attempt()) is not None:
                log.debug("start of group %s in topic %s: %s", group, topic, failure)
                await asyncio.sleep(_PAUSE_S)
    except TimeoutError:
        log.warning(
            "group %s: no answer about its start in some queues of topic %s (%s); without a committed offset it reads there what"
            " was stored from %s on", group, topic, failure or "in time", since.at,
        )  # fmt: skip
        return TopicStart(fixing.begins | fixing.fixed, since)
    return TopicStart(fixing.fixed, EARLIEST)


@dataclass
class _Fixing:
    """The state over several attempts for one topic."""

    _context: ClientContext
    _group: str
    _topic: str
    _start: Start
    _members: Callable[[Route], Awaitable[tuple[str, ...]]]
    fixed: dict[QueueRef, int] = field(default_factory=dict)
    #: Read, and perhaps not committed.
    begins: dict[QueueRef, int] = field(default_factory=dict)

    async def attempt(self) -> _Failure | None:
        """Fix what is not fixed yet. None: everything is; else the first failure."""
        try:
            route = await self._context.router.route(self._topic, max_age_s=0)
        except TopicNotFound:
            return None
        except _FAILURES as error:
            return error
        queues = [queue for queue in route.readable if queue not in self.fixed]
        committed, failure = await _each(queues, self._committed)
        if None in committed.values() and (self._is_known(committed) or await self._has_others(route)):
            committed |= await self._those_of_others([queue for queue, offset in committed.items() if offset is None])
        start = EARLIEST if self._is_known(committed) else self._start
        without = [queue for queue, offset in committed.items() if offset is None]
        unread = [queue for queue in without if queue not in self.begins]
        begins, failed = await _each(unread, lambda queue: start_offset(self._context, queue, start, _ATTEMPT_S))
        self.begins |= begins
        still, failed_again = await _each([queue for queue in without if queue in self.begins], self._committed)
        commits = {queue: self.begins[queue] for queue, offset in still.items() if offset is None}
        # Apache RocketMQ before 5 answers 0 for a group without an offset in a young queue, which is later no longer young.
        commits |= {queue: 0 for queue, offset in committed.items() if offset == 0 and not self._is_halfmq(queue)}
        failed_at_last = await self._commit(commits)
        self.fixed |= {queue: offset for queue, offset in (committed | still).items() if offset is not None}
        return failure or failed or failed_again or failed_at_last

    async def _committed(self, queue: QueueRef) -> int | None:
        return await committed_offset(self._context, self._group, queue, _ATTEMPT_S)

    def _is_known(self, committed: dict[QueueRef, int | None]) -> bool:
        """The group has started in this topic before."""
        return bool(self.fixed) or any(offset is not None for offset in committed.values())

    async def _has_others(self, route: Route) -> bool:
        try:
            return bool(set(await self._members(route)) - {self._context.membership.client_id})
        except _FAILURES:
            return False

    async def _those_of_others(self, queues: list[QueueRef]) -> dict[QueueRef, int | None]:
        """Offsets of ``queues`` after the other members have had time to commit them."""
        now = asyncio.get_running_loop().time
        until, found = now() + _OTHERS_S, dict[QueueRef, int | None]()
        while queues and now() < until:
            await asyncio.sleep(_PAUSE_S)
            found |= (await _each(queues, self._committed))[0]
            queues = [queue for queue in queues if found.get(queue) is None]
        return found

    async def _commit(self, commits: dict[QueueRef, int]) -> _Failure | None:
        """The first queue of each broker alone: see ``GroupMember._commit_in``. A refused one is kept here only."""
        first = {queue.broker: queue for queue in sorted(commits, reverse=True)}.values()
        rest = [queue for queue in commits if queue not in first]
        failure: _Failure | None = None
        for some in (first, rest):
            done, failed = await _each(some, lambda queue: self._commit_one(queue, commits[queue]))
            self.fixed |= {queue: commits[queue] for queue in done}
            failure = failure or failed
        return failure

    async def _commit_one(self, queue: QueueRef, offset: int) -> None:
        ext = place(queue, consumerGroup=self._group, commitOffset=str(offset))
        answer = await ask(self._context, queue, RequestCode.UPDATE_CONSUMER_OFFSET, ext, _ATTEMPT_S)
        if answer.code != ResponseCode.SUCCESS:
            log.info(  # who reads the queue tries again, and warns
                "group %s: its start %d in %s was not stored: %d %s",
                self._group, offset, queue, answer.code, answer.remark,
            )  # fmt: skip

    def _is_halfmq(self, queue: QueueRef) -> bool:
        connection = self._context.established(queue.broker)
        return connection is not None and connection.is_halfmq


async def _each(
    queues: Iterable[QueueRef], call: Callable[[QueueRef], Awaitable[_T]]
) -> tuple[dict[QueueRef, _T], _Failure | None]:
    """``call`` for each queue at once: the results of those that succeeded, and the first failure."""
    asked = list(queues)
    results = await asyncio.gather(*(call(queue) for queue in asked), return_exceptions=True)
    found: dict[QueueRef, _T] = {}
    failure: _Failure | None = None
    for queue, result in zip(asked, results, strict=True):
        if isinstance(result, _FAILURES):
            failure = failure or result
        elif isinstance(result, BaseException):
            raise result
        else:
            found[queue] = result
    return found, failure
