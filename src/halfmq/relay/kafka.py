"""Publishes to Apache Kafka, over librdkafka (the package ``confluent-kafka``).

A row becomes a record: topic, body, the order key as the record's key (without an order key: no key, any partition), its time as the
record's timestamp. Headers: the properties under their names (``TAGS``, ``KEYS``, the application's own), and last ``message-id``, which
consumers deduplicate by; a reader that wants one header of a name takes the last one.

What it promises beside other targets: docs/decisions/0064-relay-targets.md. Records of an order key and topic go to the
partition that Java's default partitioner chooses for the key, for as long as the topic's number of partitions stays,
and are pipelined: the producer is idempotent and gapless, so that the broker takes no record after one that it did not
take. Between topics a key's order is kept by waiting for the confirmation.

A record that its broker refuses fails every record of the same request, so these are sent again, one in each request.
"""

import asyncio
import contextlib
import logging
import threading
import time
from collections.abc import Sequence
from functools import partial
from typing import Any, Final

from halfmq.errors import ConnectError, HalfmqError, MissingDependency, NotAuthorized, UsageError
from halfmq.model import properties as names
from halfmq.relay.publisher import MESSAGES_MAX, Batch, OutboxMessage, Published
from halfmq.relay.waves import PublisherInWaves, Sent

try:
    from confluent_kafka import KafkaError, KafkaException, Message, Producer
except ModuleNotFoundError as error:
    raise MissingDependency(f"{error.name} is not installed", hint="pip install 'halfmq[kafka]'") from error

log = logging.getLogger(__name__)

#: For a batch, with everything that librdkafka tries again. It covers the restart of a broker.
TIMEOUT_S: Final = 30.0
CONNECT_TIMEOUT_S: Final = 5.0

#: Header with the message id.
MESSAGE_ID: Final = "message-id"

#: How the property with the order key begins.
_KEY_PROPERTY: Final = names.SHARDING_KEY.encode() + names.NAME_VALUE_SEPARATOR

#: Settings that the promises depend on.
_FIXED: Final[dict[str, Any]] = {
    "enable.idempotence": True,
    "enable.gapless.guarantee": True,
    "acks": "all",
    # Infinite: a record that timed out alone would leave a gap. ``timeout_s`` ends all of them.
    "message.timeout.ms": 0,
}
_RESERVED: Final = frozenset(
    (*_FIXED, "bootstrap.servers", "metadata.broker.list", "request.required.acks", "delivery.timeout.ms", "transactional.id"),
)  # fmt: skip
_DEFAULTS: Final[dict[str, Any]] = {
    # A batch arrives at once, and is waited for.
    "linger.ms": 2,
    # Of Java's producer, so that a key has one partition whoever writes it.
    "partitioner": "murmur2_random",
    # How long a topic may be unknown before its records are refused; less than ``timeout_s``.
    "topic.metadata.propagation.max.ms": 5_000,
    "reconnect.backoff.max.ms": 1_000,
}

#: The broker refuses the topic, with all records for it.
_OF_TOPIC: Final = frozenset(
    (
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.UNKNOWN_TOPIC_OR_PART,
        KafkaError.TOPIC_EXCEPTION,
        KafkaError._UNKNOWN_TOPIC,
        KafkaError._UNKNOWN_PARTITION,
    )
)
#: It refuses a record, and with it the request in which the record is.
_OF_REQUEST: Final = frozenset(
    (
        KafkaError.MSG_SIZE_TOO_LARGE,
        KafkaError.RECORD_LIST_TOO_LARGE,
        KafkaError.INVALID_MSG,
        KafkaError.INVALID_RECORD,
        KafkaError.INVALID_TIMESTAMP,
        KafkaError.POLICY_VIOLATION,
        KafkaError.UNSUPPORTED_FOR_MESSAGE_FORMAT,
    )
)
#: The producer stopped before it sent the record.
_NOT_SENT: Final = frozenset((KafkaError._PURGE_QUEUE, KafkaError._FATAL))
_NOT_ALLOWED: Final = frozenset(
    (
        KafkaError._AUTHENTICATION,
        KafkaError.SASL_AUTHENTICATION_FAILED,
        KafkaError.CLUSTER_AUTHORIZATION_FAILED,
    )
)

#: How often the thread looks whether it is to end, seconds.
_POLL_S: Final = 0.1
#: How long the reports of purged records may take, seconds.
_PURGE_S: Final = 2.0
#: How long ``close`` waits for the threads, which wait for those of librdkafka, seconds.
_END_S: Final = 10.0
#: Pause while the producer's queue is full of other batches, seconds.
_FULL_S: Final = 0.02


class KafkaPublisher(PublisherInWaves):
    """``servers``: ``host:port,host:port``. ``settings``: of librdkafka, such as ``**{"security.protocol": "SASL_SSL"}``; those that the
    promises depend on are refused. ``timeout_s``: for a batch, in seconds.
    """

    def __init__(
        self,
        servers: str,
        *,
        messages_max: int = MESSAGES_MAX,
        timeout_s: float = TIMEOUT_S,
        connect_timeout_s: float = CONNECT_TIMEOUT_S,
        **settings: Any,
    ) -> None:
        if fixed := _RESERVED & settings.keys():
            raise UsageError(f"{', '.join(sorted(fixed))} cannot be set", hint="order and duplicates depend on it")
        if not isinstance(servers, str):
            raise UsageError(f"servers={servers!r} is not a str", hint="host:port,host:port")
        super().__init__(messages_max)
        self._servers = servers
        self._timeout_s = timeout_s
        self._connect_timeout_s = connect_timeout_s
        self._settings = {**_DEFAULTS, **settings, **_FIXED, "bootstrap.servers": servers}
        #: The one of all batches; and, True, one that sends a single record at a time, so that a refusal is that of the record.
        self._producers: dict[bool, _Running] = {}
        self._starting = asyncio.Lock()
        self._sending_single = asyncio.Lock()
        #: Stopped ones, whose threads have not ended yet.
        self._ending: set[_Running] = set()

    @property
    def name(self) -> str:
        return f"kafka {self._servers}"

    async def open(self) -> None:
        await self._ready(single=False)

    async def close(self) -> None:
        """See ``Publisher``. Records that were not confirmed are dropped, and the thread ends."""
        for running in list(self._producers.values()):
            self._discard(running)
        if self._ending:
            await asyncio.wait([running.ended for running in self._ending], timeout=_END_S)
        self._ending.clear()

    async def publish(self, batch: Batch) -> Published:
        deadline = asyncio.get_running_loop().time() + self._timeout_s
        # Of one key and topic they go to one partition, where the broker takes none after a missing one.
        send = partial(self._send, deadline=deadline)
        return await self._publish_in_waves(batch, send, lambda earlier, later: earlier.topic == later.topic)

    async def _ready(self, *, single: bool) -> "_Running":
        """The producer; a new one if there is none, once it has an answer of the cluster.

        Raises: as ``open``.
        """
        async with self._starting:
            running = self._producers.get(single)
            if running is None:
                running = _Running(asyncio.get_running_loop(), self._settings)
                running.start(self._connect_timeout_s)
                try:
                    await running.answered
                except BaseException:
                    self._discard(running)
                    raise
                self._producers[single] = running
            return running

    def _discard(self, running: "_Running") -> None:
        """Drop its records, and end it in the background; the next batch gets a new one."""
        self._producers = {single: one for single, one in self._producers.items() if one is not running}
        running.stop()
        self._ending = {one for one in self._ending if not one.ended.done()} | {running}

    async def _send(self, wave: Sequence[OutboxMessage], deadline: float, *, single: bool = False) -> Sent:
        try:
            running = await self._ready(single=single)
        except HalfmqError as error:
            return Sent(unavailable=str(error))
        reports = _Reports(running.loop)
        try:
            while running.loop.time() < deadline and not running.produce(wave, reports):  # noqa: ASYNC110
                await asyncio.sleep(_FULL_S)  # nothing says when another batch leaves the queue
            if reports.expected < 0:
                return Sent(unavailable=f"{self.name}: not sent within {self._timeout_s:g} s")
            in_time = await reports.wait(deadline)
            if not in_time:
                running.purge()
                await reports.wait(running.loop.time() + _PURGE_S)
        except BaseException:  # cancelled: nothing may be sent behind the caller's back
            self._discard(running)
            raise
        if not in_time:
            self._discard(running)
            why = f"no confirmation within {self._timeout_s:g} s{running.because()}"
            return Sent(frozenset(reports.confirmed), reports.refused, unavailable=f"{self.name}: {why}")
        return await self._judge(wave, running, reports, deadline, single=single)

    async def _judge(
        self, wave: Sequence[OutboxMessage], running: "_Running", reports: "_Reports", deadline: float, *, single: bool
    ) -> Sent:
        """What the reports of a whole wave mean; sends the records of a refused request again, one by one."""
        if running.has_failed:
            self._discard(running)
        confirmed, refused = set(reports.confirmed), reports.refused
        suspects: set[int] = set()
        why = ""
        for seq, error in reports.failed:
            code = error.code()
            if code in _OF_TOPIC or (code in _OF_REQUEST and single):
                refused[seq] = _text(error)
            elif code in _OF_REQUEST:
                suspects.add(seq)
            elif code not in _NOT_SENT:
                why = f"{self.name}: {_text(error)}"
        if running.has_failed and not (confirmed or refused or suspects):
            why = why or f"{self.name}: the producer has failed{running.because()}"
        if why and not (running.has_failed and (confirmed or refused or suspects)):
            return Sent(frozenset(confirmed), refused, unavailable=why)
        stopped = {message.order_key for message in wave if message.seq in refused} - {""}
        if suspects:
            async with self._sending_single:
                for message in wave:
                    if message.seq in suspects and message.order_key not in stopped:
                        alone = await self._send([message], deadline, single=True)
                        confirmed |= alone.confirmed
                        refused.update(alone.refused)
                        if alone.refused and message.order_key:
                            stopped.add(message.order_key)
                        if alone.unavailable:
                            return Sent(frozenset(confirmed), refused, unavailable=alone.unavailable)
                if True in self._producers:
                    self._discard(self._producers[True])
        return Sent(frozenset(confirmed), refused, again=True)


class _Reports:
    """Delivery reports of one wave. Filled in the thread of the producer, read in the loop when it is complete."""

    __slots__ = ("_complete", "_loop", "confirmed", "expected", "failed", "refused")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._complete = asyncio.Event()
        self.confirmed: list[int] = []
        self.failed: list[tuple[int, KafkaError]] = []
        #: By the producer itself, when it was called.
        self.refused: dict[int, str] = {}
        #: Number of reports; -1 while records are being added.
        self.expected = -1

    def take(self, seq: int, error: KafkaError | None, _message: Message) -> None:
        """A report, in the thread."""
        if error is None:
            self.confirmed.append(seq)
        else:
            self.failed.append((seq, error))
        if len(self.confirmed) + len(self.failed) == self.expected:
            with contextlib.suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(self._complete.set)

    def is_complete(self) -> bool:
        """Each side writes before it looks, so one of them sees the last report."""
        return len(self.confirmed) + len(self.failed) == self.expected

    async def wait(self, deadline: float) -> bool:
        """Whether all reports came in time."""
        if self.is_complete():
            return True
        try:
            async with asyncio.timeout_at(deadline):
                await self._complete.wait()
        except TimeoutError:
            return self.is_complete()
        return True


class _DebugLog:
    """For the lines of librdkafka, which repeats itself. What matters of them is in the reason that ``publish`` returns."""

    def log(self, _level: int, text: str, *arguments: object) -> None:
        log.debug(text, *arguments)


class _Running:
    """A producer, and the thread that takes its reports, which also ends it."""

    def __init__(self, loop: asyncio.AbstractEventLoop, settings: dict[str, Any]) -> None:
        self.loop = loop
        self.answered: asyncio.Future[None] = loop.create_future()
        self.ended: asyncio.Future[None] = loop.create_future()
        #: It takes no more records.
        self.has_failed = False
        self._last_error: KafkaError | None = None
        self._is_stopped = False
        try:
            self._producer = Producer({**settings, "error_cb": self._take_error, "logger": _DebugLog()})
        except (KafkaException, TypeError, ValueError) as error:
            why = error.args[0].str() if isinstance(error, KafkaException) else error
            raise UsageError(f"Kafka's producer does not take these settings: {why}") from error

    def start(self, connect_timeout_s: float) -> None:
        """Afterwards await ``answered``, and call ``stop`` in any case."""
        threading.Thread(target=self._run, args=(connect_timeout_s,), name="halfmq-kafka", daemon=True).start()

    def stop(self) -> None:
        """Await ``ended`` to know that the thread has."""
        self._is_stopped = True

    def purge(self) -> None:
        """Drop all records; each is reported."""
        if not self._is_stopped:
            self._producer.purge(blocking=False)

    def because(self) -> str:
        """The last thing that librdkafka complained about."""
        return "" if self._last_error is None else f" ({_text(self._last_error)})"

    def produce(self, wave: Sequence[OutboxMessage], reports: _Reports) -> bool:
        """Hand records over, until the producer's queue is full or it has failed; False: it is full before the first one."""
        if self._is_stopped:  # for another batch
            reports.expected = 0
            return True
        produce, take = self._producer.produce, reports.take
        produced = 0
        stopped: set[str] = set()
        for message in wave:
            seq, message_id, topic, body, properties, order_key, _, written_at_ms = message
            if order_key in stopped:
                continue
            try:
                produce(
                    topic,
                    body,
                    order_key or None,
                    on_delivery=partial(take, seq),
                    timestamp=written_at_ms,
                    headers=_headers(properties, message_id),
                )
                produced += 1
            except BufferError:
                if not produced and not reports.refused:
                    return False
                break
            except KafkaException as error:
                (reason,) = error.args
                if reason.fatal() or reason.code() in (KafkaError._FATAL, KafkaError._STATE):
                    self.has_failed = True
                    break
                reports.refused[seq] = _text(reason)
                if order_key:
                    stopped.add(order_key)
        reports.expected = produced
        return True

    def _run(self, connect_timeout_s: float) -> None:
        try:
            self._connect(connect_timeout_s)
            while not self._is_stopped:
                self._poll()
            with contextlib.suppress(KafkaException):
                self._producer.purge()
            # Not by ``flush``: it calls for further reports after the fatal error that a purge causes, which Python rejects.
            deadline = time.monotonic() + _PURGE_S
            while len(self._producer) and time.monotonic() < deadline:
                self._poll()
        finally:
            self._is_stopped = self.has_failed = True
            # Ended here, because that waits for the producer's own threads.
            del self._producer
            self._tell(self.ended)

    def _poll(self) -> None:
        """Take reports. A fatal error is raised instead of reported, once; what was sent is reported after it."""
        try:
            self._producer.poll(_POLL_S)
        except KafkaException as error:
            self._take_error(error.args[0])

    def _connect(self, timeout_s: float) -> None:
        """Settle ``answered``."""
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            with contextlib.suppress(KafkaException):
                if self._producer.cluster_id(_POLL_S):
                    self._tell(self.answered)
                    return
            self._poll()
            if self._is_stopped:
                break
            if self._last_error is not None and self._last_error.code() in _NOT_ALLOWED:
                self._tell(self.answered, NotAuthorized(f"Kafka refuses the connection: {_text(self._last_error)}"))
                return
        why = f"no Kafka broker answered within {timeout_s:g} s{self.because()}"
        self._tell(self.answered, ConnectError(why, hint="is the server running, with this security.protocol?"))

    def _tell(self, future: "asyncio.Future[None]", error: HalfmqError | None = None) -> None:
        def settle() -> None:
            if future.done():
                return
            if error is None:
                future.set_result(None)
            else:
                future.set_exception(error)
                future.exception()  # perhaps nobody waits any more

        with contextlib.suppress(RuntimeError):  # the loop is closed
            self.loop.call_soon_threadsafe(settle)

    def _take_error(self, error: KafkaError) -> None:
        self._last_error = error
        if error.fatal() or error.code() == KafkaError._FATAL:
            self.has_failed = True


def _headers(properties: bytes, message_id: str) -> list[tuple[str, str | bytes | None]]:
    # Most rows have no property but their key.
    if not properties or (
        properties.startswith(_KEY_PROPERTY) and properties.find(names.PROPERTY_SEPARATOR) == len(properties) - 1
    ):
        return [(MESSAGE_ID, message_id)]
    pairs = names.to_dict(properties)
    pairs.pop(names.SHARDING_KEY, None)  # the record's key
    return [*pairs.items(), (MESSAGE_ID, message_id)]


def _text(error: KafkaError) -> str:
    return f"{error.name()}: {error.str()}"
