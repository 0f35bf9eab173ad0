"""``async with mq.tcc(session, markers=...) as t``: Try/Confirm/Cancel that is finished by delivery, not by a second service.

    t.call   1. a delayed message with the cancel of the branch, due when the block's time is over, is sent and acknowledged
             2. the try is called, or sent as a request; what it reserved is held until its confirm or cancel
             3. the confirm becomes a message of the block's transaction
    the end  the half messages, the local COMMIT, the verdict: all confirms become visible at once if and only if it committed

A cancel arrives in any case. Its participant asks the broker first (the fence): if the transaction committed, it drops the cancel; if its
halves are there and undecided, it waits; if nobody has prepared it, it is rolled back there and then, and the initiator's prepare is
refused, which comes before its local COMMIT. So an initiator may die, or be paused, at any place.

A block that fails has its transaction fenced, and sends the cancels at once, as a courtesy: else they come when the time is over.
"""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self, TypeVar, Unpack, overload

from halfmq import limits
from halfmq.client.arguments import MessageOptions, refuse_misspelt
from halfmq.client.branch import CANCEL, CONFIRM, TRY, Branch
from halfmq.client.log import log
from halfmq.client.outgoing import OutgoingMessage, checked_topic, compose, encode_body
from halfmq.client.receipts import ROLLED_BACK, TransactionReceipt
from halfmq.client.user_code import RunBlocking, call, is_async, plain_result, refuse_generator
from halfmq.errors import BranchRefused, HalfmqError, OutcomeMixed, TransactionRefused, UsageError
from halfmq.model import properties as names

if TYPE_CHECKING:
    from halfmq.client.async_client import AsyncClient
    from halfmq.client.marker_table import TransactionBlock
    from halfmq.client.message import Message

_Body = TypeVar("_Body")
_R = TypeVar("_R")

#: Before the id that a client generates: the id of the transaction must be one that a broker searches, in its log as well.
_ID_PREFIX: Final = "tcc."
#: Longest time that a block that failed takes to cancel at once, seconds: its caller waits, and the cancels come in any case.
_COURTESY_S: Final = 3.0
#: Longest time of a block, seconds: its cancels are delayed messages.
TIMEOUT_MAX_S: Final = limits.TIMER_DELAY_MAX_MS // 1000
_TOO_LATE: Final = "its branches are cancelled; begin a new block, and give it more time with timeout="


class _Cancel(NamedTuple):
    """What cancels a branch: its call, and the message."""

    branch: Branch
    topic: str
    body: bytes


class Branches:
    """The branches of one block. Its calls are those of ``AsyncClient``, on the client's loop."""

    def __init__(self, client: "AsyncClient", timeout_s: float) -> None:
        self._client = client
        self._timeout_s = timeout_s
        self._began_ms = client.clock.monotonic_ms()
        self.gid = _ID_PREFIX + client.new_transaction_id()
        #: The broker that has the transaction, once a branch has begun, and the end of its log then.
        self.broker = ""
        self._since = 0
        #: Calls may begin at the same time, and all of a block are at one broker.
        self._finding = asyncio.Lock()
        self._is_closed = False
        self._cancels: list[_Cancel] = []
        #: Branches whose confirm is part of the transaction.
        self._confirmed: set[str] = set()

    def _left_s(self) -> float:
        """Raises TransactionRefused: the time is over."""
        left_s = self._timeout_s - (self._client.clock.monotonic_ms() - self._began_ms) / 1000
        if left_s <= 0:
            raise TransactionRefused(
                f"{self.gid} takes longer than its {self._timeout_s:g} s", standing=ROLLED_BACK, hint=_TOO_LATE
            )
        return left_s

    async def begin(self, try_: object, confirm: str, cancel: str, body: bytes) -> Branch:
        """Begin a branch: its cancel is on its way. Returns its try, which may be called now.

        Raises: any exception; the branch must not be tried.
        """
        if not isinstance(try_, str) and not callable(try_):
            raise UsageError(f"{try_!r} is no try", hint="a function of a branch and a body, or a topic")
        refuse_generator(try_, "the try")
        for topic in (confirm, cancel, *([try_] if isinstance(try_, str) else [])):
            checked_topic(topic)
        self._refuse_closed()
        async with self._finding:
            if not self.broker:
                self.broker, self._since = await self._client._place_of_tcc(confirm)
        self._refuse_closed()
        number = str(len(self._cancels) + 1)
        tried = Branch(self.gid, self._client.group, number, TRY, self.broker, self._since)
        cancelling = _Cancel(tried._replace(op=CANCEL), cancel, body)
        # From here on the message may be stored, so that the block may only commit with this branch.
        self._cancels.append(cancelling)
        await self._send(cancelling, self._left_s())
        self._left_s()
        return tried

    def close(self) -> None:
        """The block ends: what begins now would be held for ever, since its cancel is dropped once the block has committed."""
        self._is_closed = True

    def _refuse_closed(self) -> None:
        if self._is_closed:
            raise UsageError(f"the block of {self.gid} has ended; nothing was tried", hint="t.call inside of the block")

    async def _send(self, cancelling: _Cancel, delay_s: float) -> None:
        branch, topic, body = cancelling
        message = compose(topic, body, key=self.gid, delay=delay_s or None, properties=branch.properties())
        await self._client.send(topic, message)

    async def request(self, topic: str, tried: Branch, body: bytes) -> "Message":
        """Send the try as a request, and wait for its reply for as long as the block has time.

        Raises: see ``AsyncTcc.call``.
        """
        reply = await self._client.request(
            topic, body, key=self.gid, timeout=self._left_s(), properties=tried.properties()
        )
        reason = reply.properties.get(names.HMQ_TCC_REFUSED)
        if reason is not None:
            raise BranchRefused(f"branch {tried.branch} of {self.gid} is refused by who reads {topic}: {reason}")
        return reply

    def confirm_of(self, tried: Branch) -> Branch:
        """The confirm of a branch whose try has returned."""
        self._confirmed.add(tried.branch)
        return tried._replace(op=CONFIRM)

    def unfinished(self) -> UsageError | None:
        """Why the block cannot commit: a branch has no confirm, and a commit would drop its cancel, too."""
        for one in self._cancels:
            if one.branch.branch not in self._confirmed:
                return UsageError(
                    f"the call of branch {one.branch.branch} of {self.gid} has failed, so that the block cannot commit",
                    hint="let the exception leave the block; its branches are cancelled",
                )
        return None

    def refuse_incomplete(self, messages: Sequence[OutgoingMessage]) -> None:
        """Raise UsageError if the confirm of a branch is not among the ``messages`` of the transaction."""
        sent = {names.find(message.properties, names.HMQ_TCC_BRANCH) for message in messages}
        if missing := [branch for branch in sorted(self._confirmed) if branch.encode() not in sent]:
            raise UsageError(
                f"the confirm of branch {', '.join(missing)} of {self.gid} was rolled back with its savepoint",
                hint="t.call outside of session.begin_nested()",
            )

    async def cancel_now(self) -> None:
        """The block has failed: cancel what was begun, instead of when the time is over. Does what it can."""
        if not self._cancels:
            return
        try:
            async with asyncio.timeout(min(self._timeout_s, _COURTESY_S)):
                state = await self._client.fence(
                    self.gid, group=self._client.group, broker=self.broker, since=self._since
                )
                if state == ROLLED_BACK:
                    for one in self._cancels:
                        await self._send(one, 0.0)
        except (HalfmqError, TimeoutError) as error:
            log.info("%s is cancelled when its time is over, not now: %s", self.gid, str(error) or "no answer in time")


_Raised = tuple[type[BaseException] | None, BaseException | None]
_AWAITS: Final = "Client.tcc awaits nothing: async with AsyncClient(...) as mq:"


class _Calls:
    """The calls of a client, of either face, for one block: its id, its broker."""

    def __init__(self, client: Any, branches: Branches) -> None:
        self._client = client
        self._branches = branches
        self.group = client.group
        self.commit = client.commit
        self.rollback = client.rollback

    def new_transaction_id(self) -> str:
        return self._branches.gid

    def prepare(self, messages: Sequence[OutgoingMessage], **named: Any) -> Any:
        """A coroutine, if that of the client is one."""
        self._branches.refuse_incomplete(messages)
        return self._client.prepare(messages, broker=self._branches.broker, **named)


class _Block:
    """What both faces have."""

    def __init__(self, session: Any, branches: Branches) -> None:
        self._session = session
        self._branches = branches
        self._tx: TransactionBlock | None = None

    @property
    def id(self) -> str:
        """The global transaction id, which is that of the messages."""
        return self._branches.gid

    @property
    def receipt(self) -> TransactionReceipt | None:
        """After the block: the broker's receipt for COMMIT, or None if no receipt has arrived, or nothing was sent."""
        return None if self._tx is None else self._tx.receipt

    def send(self, topic: str, body: object, **named: Unpack[MessageOptions]) -> None:
        """A further message of the transaction; arguments as for ``tx.send``."""
        refuse_misspelt(named, _Block.send, f"{type(self).__name__}.send")
        self._opened().send(topic, body, **named)

    def _opened(self) -> "TransactionBlock":
        if self._tx is None:
            raise UsageError("the block is not open", hint="async with mq.tcc(session, markers=markers) as t:")
        return self._tx

    def _refuse_savepoint(self) -> None:
        self._opened()
        nested = getattr(self._session, "in_nested_transaction", None)
        if nested is not None and nested():
            raise UsageError(
                "the session is inside a savepoint, and a try cannot be rolled back with it",
                hint="t.call outside of session.begin_nested()",
            )

    def _add_confirm(self, tried: Branch, topic: str, body: bytes) -> None:
        confirm = self._branches.confirm_of(tried)
        self._opened().send(topic, body, key=self.id, properties=confirm.properties())

    def _ending(self, kind: type[BaseException] | None, error: BaseException | None) -> _Raised:
        """The exception with which the block of the session is left. Nothing begins from here on."""
        self._branches.close()
        refused = self._branches.unfinished() if error is None else None
        return (kind, error) if refused is None else (type(refused), refused)

    def _told(self, error: Exception) -> Exception:
        """What the caller gets for an exception at the end of the block."""
        if isinstance(error, TransactionRefused):
            text = f"{self.id} was rolled back before it was prepared: {error}"
            told: HalfmqError = TransactionRefused(text, standing=error.standing, hint=_TOO_LATE)
        elif isinstance(error, OutcomeMixed):
            # What its messages said cannot be sent later: the confirms of branches that are cancelled.
            told = OutcomeMixed(
                f"the local transaction {self.id} is committed, and its branches are cancelled, since its messages were "
                "rolled back before by somebody else",
                tx_id=error.tx_id,
                standing=error.standing,
                hint="undo its rows, then begin a new block if it is still wanted; `halfmq tx damaged` lists it as soon as "
                "its marker was compared",
            )
        else:
            return error
        told.__cause__ = error
        return told


class AsyncTcc(_Block):
    """The block of ``AsyncClient.tcc``."""

    def __init__(
        self,
        client: "AsyncClient",
        session: Any,
        timeout_s: float,
        bind: Callable[[Any], "AbstractAsyncContextManager[TransactionBlock]"],
        run_blocking: RunBlocking,
    ) -> None:
        super().__init__(session, Branches(client, timeout_s))
        self._run_blocking = run_blocking
        self._inner = bind(_Calls(client, self._branches))

    async def __aenter__(self) -> Self:
        self._tx = await self._inner.__aenter__()
        return self

    @overload
    async def call(self, try_: str, body: object, *, confirm: str, cancel: str) -> "Message": ...

    @overload
    async def call(
        self, try_: Callable[[Branch, _Body], Coroutine[Any, Any, _R]], body: _Body, *, confirm: str, cancel: str
    ) -> _R: ...

    @overload
    async def call(self, try_: Callable[[Branch, _Body], _R], body: _Body, *, confirm: str, cancel: str) -> _R: ...

    async def call(self, try_: Callable[..., Any] | str, body: Any, *, confirm: str, cancel: str) -> Any:
        """Call ``try_(branch, body)``, a coroutine function or a plain one, and return its result. A topic in its place: send the try as a
        request to it, and return the reply, a ``Message``.

        ``confirm``, ``cancel``: topics; each gets ``body``, as it is now, if the block commits, or if it does not. Give the participant the
        ``branch``: as ``branch.headers()`` of a request, or itself. A try that raises, also because its answer is lost, makes the block
        fail.

        Raises: any exception of ``try_``. SendTimeout, ConnectError and others of ``send``: it was not called. TransactionRefused: the time
            of the block is over. With a topic: BranchRefused: the participant refuses; it holds nothing. NoReply, and others of
            ``request``: it is not known what it holds, and will be cancelled.
        """
        self._refuse_savepoint()
        encoded = encode_body(body)  # before the try, which may change it
        tried = await self._branches.begin(try_, confirm, cancel, encoded)
        if isinstance(try_, str):
            result: Any = await self._branches.request(try_, tried, encoded)
        else:
            result = await call(self._run_blocking, try_, tried, body)
        self._add_confirm(tried, confirm, encoded)
        return result

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        leaving = self._ending(kind, error)
        try:
            await self._inner.__aexit__(*leaving, traceback)
            if error is None and leaving[1] is not None:
                raise leaving[1]
        except Exception as failed:  # noqa: BLE001 - raised
            await self._branches.cancel_now()
            raise self._told(failed)  # noqa: B904 - with its cause
        if isinstance(error, Exception):
            await self._branches.cancel_now()


class BlockingTcc(_Block):
    """The block of ``Client.tcc``: the same, blocking. ``run`` runs a coroutine on the client's loop."""

    def __init__(
        self,
        client: Any,
        asynchronous: "AsyncClient",
        session: Any,
        timeout_s: float,
        bind: Callable[[Any], "AbstractContextManager[TransactionBlock]"],
        run: Callable[[Any], Any],
    ) -> None:
        super().__init__(session, Branches(asynchronous, timeout_s))
        self._run = run
        self._inner = bind(_Calls(client, self._branches))

    def __enter__(self) -> Self:
        self._tx = self._inner.__enter__()
        return self

    @overload
    def call(self, try_: str, body: object, *, confirm: str, cancel: str) -> "Message": ...

    @overload
    def call(self, try_: Callable[[Branch, _Body], _R], body: _Body, *, confirm: str, cancel: str) -> _R: ...

    def call(self, try_: Callable[..., Any] | str, body: Any, *, confirm: str, cancel: str) -> Any:
        """See ``AsyncTcc.call``. ``try_`` is a plain function, called in this thread, or a topic."""
        self._refuse_savepoint()
        if not isinstance(try_, str) and is_async(try_):
            raise UsageError("the try is a coroutine function, which nobody awaits", hint=_AWAITS)
        encoded = encode_body(body)
        tried = self._run(self._branches.begin(try_, confirm, cancel, encoded))
        if isinstance(try_, str):
            result: Any = self._run(self._branches.request(try_, tried, encoded))
        else:
            result = plain_result(
                try_(tried, body), "the try", _AWAITS
            )  # nothing was tried, and it must not be confirmed
        self._add_confirm(tried, confirm, encoded)
        return result

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        leaving = self._ending(kind, error)
        try:
            self._inner.__exit__(*leaving, traceback)
            if error is None and leaving[1] is not None:
                raise leaving[1]
        except Exception as failed:  # noqa: BLE001 - raised
            self._run(self._branches.cancel_now())
            raise self._told(failed)  # noqa: B904 - with its cause
        if isinstance(error, Exception):
            self._run(self._branches.cancel_now())
