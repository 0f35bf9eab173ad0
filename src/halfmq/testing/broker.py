"""``Broker``: the real broker in a thread of the test's process, on free ports and a store of its own.

Its clock is real time and what ``advance`` adds: checks, delays and retries need no sleep. Time limits of connections and of waiting
requests keep to real time, in which their clients live.
"""

import asyncio
import shutil
import tempfile
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self, TypeVar, Unpack, get_origin, get_type_hints

from halfmq.broker.broker import Broker as RealBroker
from halfmq.broker.broker import Ports
from halfmq.broker.config import BrokerConfig
from halfmq.client.arguments import refuse_misspelt
from halfmq.core.commands import Command, DeleteGroup, DeleteTopic, EndTransaction, RequestedVerdict, ResolveTransaction
from halfmq.core.decision import Failed, Reply
from halfmq.core.engine import next_deadline_ms
from halfmq.core.queues.delay import next_due_ms
from halfmq.core.state import State
from halfmq.errors import UsageError
from halfmq.model.ids import ANY_HALF
from halfmq.model.records import DecidedBy
from halfmq.model.settings import BrokerSettings
from halfmq.runtime.disk import RealDisk
from halfmq.runtime.entropy import SystemEntropy
from halfmq.store.store import Durability
from halfmq.testing.broker_options import BrokerOptions
from halfmq.testing.clock import CLOCK

if TYPE_CHECKING:
    from halfmq.testing.sent import Sent

_T = TypeVar("_T")

#: Of a new store. Small files are made quickly; a message of the largest size still fits in one.
SEGMENT_BYTES: Final = 16 << 20
#: How long a call waits for the broker's thread, s: a bug, or a machine that is far too busy.
_CALL_S: Final = 60.0
#: How long ``advance`` waits for answers to the checks that became due, real s. Precedent: the broker's own ``check_answer_ms``.
_ANSWER_S: Final = 5.0
#: How long ``settle`` waits for a client that answers checks, real s: longer than its pause before it connects again.
SETTLE_S: Final = 10.0
#: Between two looks at the state, s.
_LOOK_S: Final = 0.001
#: How often ``settle`` moves the clock to the next check. Precedent: RocketMQ asks 15 times (``transactionCheckMax``).
_CHECKS_MAX: Final = 32
#: Of one ``advance``: ten years.
_ADVANCE_MAX_S: Final = 315_576_000.0
#: Due times of checks are rounded up to buckets of 64 ms.
_BUCKET_MS: Final = 64
_SETTINGS: Final = frozenset(one.name for one in fields(BrokerSettings))
_HINTS: Final = get_type_hints(BrokerConfig)


def _kept(name: str, given: Any) -> Any:
    """A setting as the broker keeps it: the name of a file as a path, and several texts as a tuple."""
    if _HINTS.get(name) == Path | None and isinstance(given, str):
        return Path(given)
    if get_origin(_HINTS.get(name)) is tuple:
        if isinstance(given, str):
            raise UsageError(f"{name}={given!r} is one text", hint=f"{name}=[{given!r}]")
        return tuple(given)
    return given


class Undecided(NamedTuple):
    """A transaction without a verdict. ``checks``: sent so far."""

    group: str
    tx_id: str
    checks: int


class Waiting(NamedTuple):
    """A delayed message, or one that is handled again later. ``due_s``: until then, seconds of the broker's clock."""

    topic: str
    due_s: float


class Broker:
    """A broker for tests: ``with Broker() as broker: Client(broker.url)``.

    It starts when the block is entered, or by ``start``. ``stop`` and ``kill`` end it, and ``start`` goes on with the same store at the
    same address. Errors of its thread are raised by the next call, and at the end of the block.
    """

    def __init__(self, data: str | Path | None = None, **settings: Unpack[BrokerOptions]) -> None:
        """``data``: the directory of the store; None: a temporary one, which is removed at the end of the block, or by ``close``.
        ``settings``: fields of ``BrokerConfig`` and ``BrokerSettings``, such as ``check_interval_ms``.

        Raises:
            UsageError: no such setting; it names the one that was perhaps meant.
        """
        refuse_misspelt(settings, Broker.__init__)
        self._is_temporary = data is None
        self._data = None if data is None else Path(data)
        self._settings: dict[str, Any] = {
            "segment_bytes": SEGMENT_BYTES,
            "durability": Durability.MEMORY,
            "drain_ms": 0,
            **{name: _kept(name, value) for name, value in settings.items()},
        }
        self._config(Path())
        self._ports = Ports(0, 0)
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._broker: RealBroker | None = None
        #: Set on the loop to end it; its result says whether to drain before.
        self._stopping: asyncio.Future[bool] | None = None
        self._problems: list[BaseException] = []
        #: Whether the last ``settle`` was called on an event loop, which it holds up.
        self._is_on_a_loop = False

    def _config(self, data: Path) -> BrokerConfig:
        of_decisions = {name: value for name, value in self._settings.items() if name in _SETTINGS}
        others = {name: value for name, value in self._settings.items() if name not in _SETTINGS}
        values: dict[str, Any] = {"disk_reserve_bytes": 0, "vip_channel": False, **others}
        return BrokerConfig(data, settings=BrokerSettings(**of_decisions), **values)

    # --- life -----------------------------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def is_running(self) -> bool:
        """Whether it was started, and not ended since."""
        return self._thread is not None

    @property
    def url(self) -> str:
        """Its address for clients; the same after a restart. Raises UsageError before the first start."""
        if not self._ports.names:
            raise UsageError("this broker was not started", hint="with Broker() as broker:")
        return f"rocketmq://127.0.0.1:{self._ports.names}"

    @property
    def port(self) -> int:
        """Of the broker itself; ``url`` is that of its name service."""
        return self._ports.broker

    @property
    def data(self) -> Path:
        """The directory of the store. Raises UsageError before the first start."""
        if self._data is None:
            raise UsageError("this broker has no store yet", hint="with Broker() as broker:")
        return self._data

    def start(self) -> None:
        """Serve, from what is in the store.

        Raises:
            UsageError: it is running, or a setting has an impossible value. HalfmqError, OSError: the store cannot be used, or its ports
                were taken by others meanwhile.
        """
        if self._thread is not None:
            raise UsageError("this broker is running already")
        if self._data is None:
            self._data = Path(tempfile.mkdtemp(prefix="halfmq-test-"))
        self._settings |= {"port": self._ports.broker, "name_port": self._ports.names}
        config = self._config(self._data).checked()
        started: Future[Ports] = Future()
        thread = threading.Thread(target=self._run, args=(config, started), name="halfmq-test-broker", daemon=True)
        thread.start()
        try:
            self._ports = started.result(_CALL_S)
        except BaseException:
            thread.join(_CALL_S)
            raise
        self._thread = thread
        CLOCK.follow(self._clock_moved)

    def stop(self) -> None:
        """End it as an operator does: it finishes accepted requests and writes a checkpoint. Harmless if it is not running."""
        self._end(drain=True)
        self.raise_problems()

    def kill(self) -> None:
        """End it at once, as ``kill -9`` does: connections are cut, and the next start redoes the log. Harmless if it is not running."""
        self._end(drain=False)
        self.raise_problems()

    def restart(self) -> None:
        """``kill``, then ``start``."""
        self.kill()
        self.start()

    def close(self) -> None:
        """End it, and remove a temporary store. Raises what its thread has raised since the last call."""
        self._end(drain=False)
        if self._is_temporary and self._data is not None:
            shutil.rmtree(self._data, ignore_errors=True)
            self._data = None
        self.raise_problems()

    def _end(self, *, drain: bool) -> None:
        thread, self._thread = self._thread, None
        if thread is None:
            return
        CLOCK.leave(self._clock_moved)
        loop, stopping = self._loop, self._stopping
        assert loop is not None
        assert stopping is not None

        def end() -> None:
            if not stopping.done():
                stopping.set_result(drain)

        try:
            loop.call_soon_threadsafe(end)
        except RuntimeError:
            pass  # it has ended by itself, and says why
        thread.join(_CALL_S)
        if thread.is_alive():
            raise TimeoutError(f"the broker did not end within {_CALL_S:g} s")

    # --- its thread -----------------------------------------------------------------------------------------------

    def _run(self, config: BrokerConfig, started: "Future[Ports]") -> None:
        try:
            with asyncio.Runner() as runner:
                runner.run(self._serve(config, started))
        except BaseException as error:  # noqa: BLE001 - raised in the test's thread
            if started.done():
                self._problems.append(error)
            else:
                started.set_exception(error)

    async def _serve(self, config: BrokerConfig, started: "Future[Ports]") -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(self._on_exception)
        broker = RealBroker(config, RealDisk(), CLOCK, SystemEntropy(), loop)
        self._loop, self._broker, self._stopping = loop, broker, loop.create_future()
        try:
            ports = await broker.start()
            started.set_result(ports)
            await asyncio.wait((self._stopping, broker.failed), return_when=asyncio.FIRST_COMPLETED)
            if broker.failed.done():
                raise broker.failed.result()
            if self._stopping.result():
                await broker.drain()
        finally:
            broker.close()
            self._broker = None

    def _on_exception(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        self._problems.append(error if isinstance(error, BaseException) else RuntimeError(str(context.get("message"))))

    def raise_problems(self) -> None:
        """Raise what went wrong in the broker's thread since the last call, once.

        Raises:
            RuntimeError: with the errors as its cause.
        """
        problems, self._problems = self._problems, []
        if problems:
            cause = problems[0] if len(problems) == 1 else BaseExceptionGroup("of the broker", problems)
            raise RuntimeError(f"the broker failed: {problems[0]!r}") from cause

    def _call(self, work: Coroutine[Any, Any, _T], timeout_s: float = _CALL_S) -> _T:
        """Run ``work`` on the broker's loop, and wait for it."""
        try:
            loop = self._refuse_stopped()
        except BaseException:
            work.close()
            raise
        try:
            result = asyncio.run_coroutine_threadsafe(work, loop).result(timeout_s)
        except BaseException:
            self.raise_problems()
            raise
        self.raise_problems()
        return result

    def _refuse_stopped(self) -> asyncio.AbstractEventLoop:
        """Its loop. Raises UsageError: it is not running."""
        if self._thread is None or self._loop is None or self._broker is None:
            self.raise_problems()
            raise UsageError("this broker is not running", hint="broker.start()")
        return self._loop

    def _live(self) -> RealBroker:
        assert self._broker is not None
        return self._broker

    @property
    def _state(self) -> State:
        return self._live()._sequencer.view

    def _now_ms(self) -> int:
        return self._live()._timer._time.now_ms()

    def _clock_moved(self) -> None:
        loop, broker = self._loop, self._broker
        if loop is not None and broker is not None:
            loop.call_soon_threadsafe(broker.clock_moved)

    # --- time -----------------------------------------------------------------------------------------------------

    def advance(self, seconds: float) -> None:
        """Let that much time pass for the brokers of this process, at once: what becomes due by it is done when this returns. Delayed and
        repeated messages are visible, and checks are sent and, if a client is connected that answers them within 5 s, answered. Messages
        that wait in this process, such as those with a sharding key, go to their handlers again, which are not waited for.

        It waits for the answers. If a client on the caller's own event loop gives them: ``await asyncio.to_thread(broker.advance, 60)``.

        Raises:
            UsageError: it is no such time, or the broker is not running.
        """
        if not 0 <= seconds < _ADVANCE_MAX_S:  # also true for NaN
            raise UsageError(
                f"advance({seconds:g}): time does not go back, and ends", hint="seconds, at most ten years"
            )
        self._refuse_stopped()
        CLOCK.advance(round(seconds * 1000))
        self._call(self._until_quiet())

    def settle(self, *, timeout: float = SETTLE_S) -> None:
        """Let time pass until every transaction is settled: the checks are sent, and their answers taken.

        ``timeout``: real seconds, for clients that have to connect first.

        Raises:
            AssertionError: transactions are still undecided; it names them.
        """
        try:
            asyncio.get_running_loop()
            self._is_on_a_loop = True
        except RuntimeError:
            self._is_on_a_loop = False
        self._call(self._settle(timeout), timeout + _CALL_S)

    def undecided(self) -> list[Undecided]:
        """The transactions without a verdict, in the order in which they were prepared in each group."""

        async def look() -> list[Undecided]:
            return self._undecided()

        return self._call(look())

    def _undecided(self) -> list[Undecided]:
        groups = self._state.producer_groups
        return [
            Undecided(one.group, one.tx_id, one.checks) for group in groups.values() for one in group.undecided.values()
        ]

    async def _until_quiet(self) -> None:
        """Until nothing is due, and nobody is waited for."""
        loop = asyncio.get_running_loop()
        until_s = loop.time() + _ANSWER_S
        # The broker has no event for it, which production would pay for.
        while not self._is_quiet() and loop.time() < until_s:  # noqa: ASYNC110
            await asyncio.sleep(_LOOK_S)

    def _is_quiet(self) -> bool:
        broker, state = self._live(), self._state
        due_ms = next_deadline_ms(state)
        return (
            broker._sequencer.idle
            and (due_ms is None or due_ms > self._now_ms())
            and not any(group.session.in_flight for group in state.producer_groups.values())
        )

    async def _settle(self, timeout_s: float) -> None:
        loop = asyncio.get_running_loop()
        until_s = loop.time() + timeout_s
        moves = 0
        while True:
            await self._until_quiet()
            undecided = [one for group in self._state.producer_groups.values() for one in group.undecided.values()]
            if not undecided:
                return
            # A parked one waits for an operator, and one that is overdue for a client that answers.
            soonest_ms = min((one.next_check for one in undecided if one.parked is None), default=None)
            if soonest_ms is None or loop.time() >= until_s or moves >= _CHECKS_MAX:
                raise AssertionError(self._unsettled())
            if soonest_ms > self._now_ms():
                moves += 1
                CLOCK.advance(soonest_ms - self._now_ms() + _BUCKET_MS)
            else:
                await asyncio.sleep(_LOOK_S)

    def _unsettled(self) -> str:
        lines, left = [], self._undecided()
        for one in left:
            group = self._state.producer_groups[one.group]
            reached = (
                ""
                if group.session.members or group.session.pollers
                else "; no client of the group is connected, so that nobody answers"
            )
            lines.append(f"  {one.tx_id} of group {one.group}: {one.checks} checks{reached}")
        if self._is_on_a_loop:
            lines.append(
                "a client on the event loop of this call cannot answer: await asyncio.to_thread(broker.settle)"
            )
        return "\n".join([f"{len(left)} transactions are undecided:", *lines])

    # --- what was sent ----------------------------------------------------------------------------------------------

    def sent(self) -> "Sent":
        """Reads what is sent from now on."""
        from halfmq.testing.sent import Sent

        return Sent(self, self.positions())

    def positions(self) -> dict[str, tuple[int, ...]]:
        """The end of each queue, by topic."""

        async def look() -> dict[str, tuple[int, ...]]:
            return {topic.name: tuple(topic.ends) for topic in self._state.topics_by_name.values()}

        return self._call(look())

    def delayed(self) -> int:
        """Messages that become visible later."""

        async def look() -> int:
            return len(self._state.derived.delayed_heap)

        return self._call(look())

    def waiting(self) -> dict[int, Waiting]:
        """The messages that become visible later, the soonest first. The key stays the same until then."""

        async def look() -> dict[int, Waiting]:
            state, now_ms = self._state, self._now_ms()
            found = sorted(state.delayed.values(), key=lambda one: (one.due_ms, one.first_offset))
            return {
                one.first_offset: Waiting(state.topics_by_id[one.topic_id].name, max(0.0, (one.due_ms - now_ms) / 1000))
                for one in found
            }

        return self._call(look())

    # --- between two tests --------------------------------------------------------------------------------------------

    def clear(self) -> None:
        """Forget what earlier tests have left: roll back what is undecided, let delays pass, and delete topics and groups that no connected
        client consumes. What a connected consumer reads stays, and it goes on where it is.
        """
        self._call(self._clear())

    async def _clear(self) -> None:
        for group, tx_id, _ in self._undecided():
            await self._command(_rollback(group, tx_id))
        for group, tx_id, _ in self._undecided():  # a coordinator's
            await self._command(ResolveTransaction(group, tx_id, RequestedVerdict.ROLLBACK, "halfmq.testing"))
        while (due_ms := next_due_ms(self._state)) is not None:
            CLOCK.advance(max(due_ms - self._now_ms(), 0) + 1)
            await self._until_quiet()
        consumed: set[str] = set()
        for name, session in list(self._state.session.consumers.items()):
            if session.members:
                consumed |= {f"%RETRY%{name}", f"%DLQ%{name}", *(one.topic for one in session.subscriptions.values())}
        for name in list(self._state.groups):
            await self._command(DeleteGroup(name, with_offsets=True))  # refused if it has members
        for name in list(self._state.topics_by_name):
            if name not in consumed:
                await self._command(DeleteTopic(name))

    async def _command(self, command: Command) -> Reply | Failed:
        """Have it decided, without a connection."""
        replied: asyncio.Future[Reply | Failed] = asyncio.get_running_loop().create_future()
        deliver: Callable[[None, Reply | Failed], None] = lambda _, reply: replied.set_result(reply)  # noqa: E731
        self._live()._sequencer.submit(command, deliver)
        return await replied


def _rollback(group: str, tx_id: str) -> EndTransaction:
    """A rollback by the id alone, as its producer sends one."""
    return EndTransaction(
        0, group, tx_id, ANY_HALF, ANY_HALF, RequestedVerdict.ROLLBACK, DecidedBy.PRODUCER, "", None
    )  # fmt: skip
