"""Dependencies of a service, without socket, disk or loop: a peer, a manual clock, a sequencer over the real core, and queues of
messages in memory.
"""

import logging
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, NamedTuple

from halfmq.broker.turns import Turns
from halfmq.core.session import Published
from halfmq.core.state import State
from halfmq.errors import StoreDamaged
from halfmq.model.settings import BrokerSettings
from halfmq.model.stored_message import StoredMessage, body_crc_of, encode
from halfmq.runtime.log_throttle import LogThrottle
from halfmq.store.consume_queue import QueueEntry
from tests.support.core_log import PEER, CoreLog


class FakePeer:
    """What services use of a ``Peer``. ``said``: (kind, level, line) of each action that was to be logged."""

    def __init__(
        self, number: int = 1, said: list[tuple[Any, int, str]] | None = None, *, user: str = "", host: str = "10.0.0.7"
    ) -> None:
        self.said = [] if said is None else said
        self.number = number
        self.address = f"{host}:{number}"
        self.born_host = PEER
        self.is_open = True
        self.is_full = False
        #: As in a broker without users.
        self.principal = None
        self.user = user
        self.kept = 0
        #: Calls of ``hold_requests`` that have not ended.
        self.holds = 0

    def may(self, *right: object) -> bool:
        return True

    def keep(self, memory_bytes: int) -> None:
        self.kept += memory_bytes

    def give_back(self, memory_bytes: int) -> None:
        self.kept -= memory_bytes

    def log_throttled(self, logger: logging.Logger, level: int, kind: Hashable, text: str, *more: object) -> None:
        self.said.append((kind, level, text % more))

    def hold_requests(self) -> None:
        self.holds += 1

    def resume_requests(self) -> None:
        self.holds -= 1


class FakePeers:
    """What services use of ``Peers``, without what it limits."""

    def __init__(self) -> None:
        self.connected: dict[int, FakePeer] = {}
        #: Each push that was sent, with the number of its peer.
        self.pushed: list[tuple[int, Any]] = []
        self.log_throttle = LogThrottle(lambda: 0.0, rest_s=0.0)
        self.outgoing = Outgoing()
        self.intake = self
        self.flushed = 0

    def count_withheld_response(self, connection: Any, size: int) -> None: ...

    def flush(self) -> None:
        self.flushed += 1

    def push(self, number: int, what: object) -> bool:
        peer = self.connected.get(number)
        if peer is None or peer.is_full:
            return False
        self.pushed.append((number, what))
        return True


def turns_at_once() -> Turns:
    """Work is never interrupted: no time passes."""
    return Turns(HandLoop(), lambda: 0.0, lambda: None)  # type: ignore[arg-type]


def raises(error: Exception) -> None:
    """For services that report what was raised: it goes to the test."""
    raise error


@dataclass
class Outgoing:
    """What services use of ``OutgoingBytes``."""

    near_limit: bool = False
    over_limit: bool = False


class Answered(NamedTuple):
    """A response to a request."""

    number: int
    code: int
    remark: str
    ext: dict[str, Any]
    body: bytes


class FakeGateway:
    """The gateway as ``Handlers`` call it. Responses are kept."""

    def __init__(self) -> None:
        self.peers = FakePeers()
        self.answers: list[Answered] = []
        self.pushes: dict[type, Callable[[Any, int], bytes]] = {}
        self.on_response: Callable[..., None] = lambda connection, response: None

    def answer(
        self, connection: Any, request: Any, code: int, remark: str | None = None, ext: Any = None, body: Any = b""
    ) -> None:
        self.answers.append(Answered(request.opaque, int(code), remark or "", dict(ext or {}), bytes(body)))

    def failed(self, connection: Any, request: Any, error: Exception) -> None:
        raise error


def parts(sequencer: "CoreSequencer", **more: Any) -> Any:
    """``remoting.handlers.Parts`` of doubles."""
    made = {"gateway": FakeGateway(), "sequencer": sequencer, "loop": HandLoop(), "turns": turns_at_once()}
    return SimpleNamespace(**{**made, **more})


class _Timer:
    def __init__(self, at_s: float, call: Callable[[], None]) -> None:
        self.at_s = at_s
        self.call = call
        self.is_cancelled = False

    def cancel(self) -> None:
        self.is_cancelled = True


class HandLoop:
    """An event loop whose time advances with ``pass_s``."""

    def __init__(self) -> None:
        self._now_s = 1_000.0
        self.timers: list[_Timer] = []
        self._soon: list[Callable[[], None]] = []

    def time(self) -> float:
        return self._now_s

    def call_later(self, delay_s: float, call: Callable[..., None], *arguments: Any) -> _Timer:
        timer = _Timer(self._now_s + delay_s, lambda: call(*arguments))
        self.timers.append(timer)
        return timer

    def call_soon(self, call: Callable[..., None], *arguments: Any) -> None:
        self._soon.append(lambda: call(*arguments))

    def turn(self) -> bool:
        """Run the callbacks that are due now. False: there were none."""
        soon, self._soon = self._soon, []
        for call in soon:
            call()
        return bool(soon)

    def pass_s(self, seconds: float) -> None:
        self._now_s += seconds
        due = [timer for timer in self.timers if timer.at_s <= self._now_s]
        self.timers = [timer for timer in self.timers if timer.at_s > self._now_s]
        for timer in due:
            if not timer.is_cancelled:
                timer.call()

    @property
    def waits(self) -> int:
        """Number of pending timers."""
        return sum(not timer.is_cancelled for timer in self.timers)


class CoreSequencer:
    """Like ``Sequencer``: the real core decides each command at once, and its records are durable unless ``is_held``."""

    def __init__(self, settings: BrokerSettings | None = None) -> None:
        self.core = CoreLog(settings)
        self.view: State = self.core.state
        #: The engine's interface for shells.
        self.engine = self
        self.commands: list[Any] = []
        #: The turn does not end, or the disk is slow: replies wait for ``release``.
        self.is_held = False
        self.waits_for_space = False
        self.failed: BaseException | None = None
        self._held: list[Callable[[], None]] = []
        #: Number of queries for the next deadline.
        self.looks = 0

    def note(self, event: Any) -> Any:
        return self.core.session(event)

    def submit(self, command: Any, deliver: Callable[[Any, Any], None] | None, context: Any = None) -> None:
        self.commands.append(command)
        reply = self.core.do(command)
        if deliver is not None:
            self._later(lambda: deliver(context, reply))

    submit_small = submit_for_receipt = submit

    def submit_first(self, command: Any) -> None:
        self.submit(command, None)

    def after_durable(self, deliver: Callable[[Any, Any], None], context: Any, reply: Any) -> None:
        self._later(lambda: deliver(context, reply))

    def after_turn(self, call: Callable[..., None], *arguments: Any) -> bool:
        if self.is_held:
            self._held.append(lambda: call(*arguments))
        return self.is_held

    def update_deadline(self) -> None:
        self.looks += 1

    def _later(self, call: Callable[[], None]) -> None:
        if self.is_held:
            self._held.append(call)
        else:
            call()

    def release(self) -> None:
        held, self._held = self._held, []
        self.is_held = False
        for call in held:
            call()


class FakeQueues:
    """The store's queues: messages one after another at invented log offsets."""

    uuid = "0" * 32

    def __init__(self, sequencer: CoreSequencer) -> None:
        self._core = sequencer.core
        self._queues: dict[tuple[int, int], list[QueueEntry]] = {}
        self._bodies: dict[int, bytes] = {}
        self.low: dict[tuple[int, int], int] = {}
        self._end = 1_000
        #: Log offsets that the disk cannot read.
        self.damaged: set[int] = set()

    def add(self, topic_id: int, queue_id: int, body: bytes = b"x", *, tag_hash: int = 0, time_ms: int = 5) -> int:
        """Append a visible plain message to this queue; returns its log offset."""
        entries = self._queues.setdefault((topic_id, queue_id), [])
        offset = self._end
        message = StoredMessage(
            "T", queue_id, len(entries), 0, 0, 1, PEER, time_ms, PEER, 0, 0, body, body_crc_of(body), b""
        )
        stored = b"".join(encode(message, offset))
        self._bodies[offset] = stored
        entries.append(QueueEntry(offset, len(stored), tag_hash, offset, time_ms, -1, 0))
        self._end += len(stored)
        self._core.session(Published(self._end, self._end))
        return offset

    def bounds(self, topic_id: int, queue_id: int) -> tuple[int, int]:
        key = (topic_id, queue_id)
        return self.low.get(key, 0), len(self._queues.get(key, ()))

    def bounds_at(self, topic_id: int, queue_id: int, position: int) -> tuple[int, int]:
        return self.bounds(topic_id, queue_id)

    def read_queue(self, topic_id: int, queue_id: int, queue_offset: int, entries_max: int) -> list[QueueEntry]:
        return self._queues.get((topic_id, queue_id), [])[queue_offset : queue_offset + entries_max]

    def stored_view(self, offset: int, ahead: int = 0) -> memoryview:
        if offset in self.damaged:
            raise StoreDamaged(f"log offset {offset} cannot be read")
        return memoryview(self._bodies[offset])

    def first_offset(self, offset: int) -> int:
        return offset

    def search_by_time(self, topic_id: int, queue_id: int, time_ms: int, *, upper: bool = False) -> int:
        entries = self._queues.get((topic_id, queue_id), [])
        if upper:
            return max(0, sum(entry.store_time_ms <= time_ms for entry in entries) - 1)
        return sum(entry.store_time_ms < time_ms for entry in entries)
