"""Closed-loop load generator: each of ``threads`` keeps one transaction open at a time.

It formats requests and scans responses without the client library, so that one core can saturate the broker's core. A
transaction is what RocketMQ's client sends: a half message (310), then END_TRANSACTION (37).
"""

import asyncio
import random
import struct
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, TypeVar

import msgspec

from halfmq.client.connector import TcpConnector
from halfmq.model.address import Address, TlsFiles

T = TypeVar("T")

COMMIT, ROLLBACK, UNKNOWN = 8, 12, 0


@dataclass
class Plan:
    """Parameters of the load. Times in seconds, sizes in bytes, shares from 0 to 1; ``transactions_max`` 0: no limit."""

    topic: str = "BenchTx"
    group: str = "bench"
    threads: int = 32
    connections: int = 1
    body_bytes: int = 1_024
    rollback_share: float = 0.0
    unknown_share: float = 0.0
    acked_end: bool = False
    #: Whether END_TRANSACTION names the topic, as RocketMQ's client does since 5.0; the access control of a 5.x broker requires it.
    end_names_topic: bool = False
    seconds: float = 10.0
    warmup_seconds: float = 2.0
    transactions_max: int = 0
    seed: int = 1
    #: None: without TLS.
    tls: TlsFiles | None = None


@dataclass
class Counts:
    """Results. Latencies, and verdicts that were sent, of the measured window; rejections and checks of the whole run."""

    committed: int = 0
    rolled_back: int = 0
    unknown: int = 0
    refused: int = 0
    checks: int = 0
    prepare_us: list[int] = field(default_factory=list)
    commit_us: list[int] = field(default_factory=list)
    refusals: dict[str, int] = field(default_factory=dict)


class Answer(msgspec.Struct, gc=False):
    """Header of a response or push."""

    opaque: int
    code: int = 0
    flag: int = 0
    remark: str | None = None
    extFields: dict[str, str] | None = None  # noqa: N815 - the protocol's name


_decode = msgspec.json.Decoder(Answer).decode


def run(main: Coroutine[Any, Any, T]) -> T:
    """As ``asyncio.run``, on uvloop if it is installed."""
    try:
        import uvloop
    except ImportError:
        return asyncio.run(main)
    return uvloop.run(main)


def frame(header: bytes, body: bytes = b"") -> bytes:
    """A remoting frame with a JSON header."""
    return struct.pack(">II", 4 + len(header) + len(body), len(header)) + header + body


def end_frame(
    group: str,
    log_offset: str,
    unique: str,
    half_index: str,
    verdict: int,
    flag: int,
    opaque: int,
    check: str = "false",
    topic: str = "",
) -> bytes:
    """An END_TRANSACTION. ``flag`` 2: one-way. ``check``: whether it answers one. ``topic`` "": it names none."""
    named = f',"topic":"{topic}"' if topic else ""
    return frame(
        f'{{"code":37,"extFields":{{"producerGroup":"{group}","commitLogOffset":"{log_offset}",'
        f'"msgId":"{unique}","tranStateTableOffset":"{half_index}","commitOrRollback":"{verdict}",'
        f'"fromTransactionCheck":"{check}"{named}}},"flag":{flag},"language":"JAVA","opaque":{opaque},"version":401}}'.encode()
    )


def split(data: bytes) -> tuple[list[Answer], bytes]:
    """(headers of the complete JSON frames in ``data``, the incomplete rest)."""
    answers = []
    at = 0
    while len(data) - at >= 4:
        stop = at + 4 + int.from_bytes(data[at : at + 4], "big")
        if stop > len(data):
            break
        header_end = at + 8 + int.from_bytes(data[at + 5 : at + 8], "big")
        answers.append(_decode(data[at + 8 : header_end]))
        at = stop
    return answers, data[at:]


class LoadConnection(asyncio.Protocol):
    """A connection and its share of the threads. ``opaque`` is twice the thread number, plus one for END_TRANSACTION.

    The caller sets ``measuring`` for the measured window, and ``stopping`` to end each thread after its transaction.
    """

    def __init__(self, plan: Plan, number: int, threads: int, counts: Counts, done: Callable[[], None]) -> None:
        self.plan = plan
        self.counts = counts
        self.number = number
        self.threads = threads
        self.done = done
        self.pending = b""
        self.measuring = False
        self.stopping = False
        self.alive = 0
        self.sent = 0
        self.rng = random.Random(plan.seed * 1_000 + number)  # nosec B311 # a load that can be repeated
        self.body = random.Random(plan.seed).randbytes(plan.body_bytes)  # nosec B311 # as above
        self.started_ns = [0] * threads
        self.ids = [""] * threads
        self.serial = 0
        self._named_topic = plan.topic if plan.end_names_topic else ""
        self.prefix = f"{number:04X}{random.SystemRandom().getrandbits(64):016X}"

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport: asyncio.Transport = transport  # type: ignore[assignment]
        heartbeat = (
            f'{{"clientID":"bench@{self.number}","producerDataSet":[{{"groupName":"{self.plan.group}"}}],'
            '"consumerDataSet":[]}'
        ).encode()
        header = b'{"code":34,"flag":0,"language":"JAVA","opaque":1000000,"version":401,"extFields":{}}'
        self.transport.write(frame(header, heartbeat))

    def start(self) -> None:
        """Begin a transaction in each thread."""
        self.alive = self.threads
        for thread in range(self.threads):
            self.transport.write(self._half(thread))

    def _half(self, thread: int) -> bytes:
        self.serial += 1
        unique = f"{self.prefix}{self.serial:012X}"
        self.ids[thread] = unique
        plan = self.plan
        header = (
            f'{{"code":310,"extFields":{{"a":"{plan.group}","b":"{plan.topic}","c":"TBW102","d":"8","e":"{self.serial & 7}",'
            f'"f":"4","g":"1795246382304","h":"0","i":"KEYS\\u0001k{self.serial}\\u0002TRAN_MSG\\u0001true\\u0002UNIQ_KEY\\u0001{unique}'
            f'\\u0002WAIT\\u0001true\\u0002PGROUP\\u0001{plan.group}\\u0002TAGS\\u0001TagA","j":"0","k":"false","m":"false"}},'
            f'"flag":0,"language":"JAVA","opaque":{thread * 2},"serializeTypeCurrentRPC":"JSON","version":401}}'
        ).encode()
        self.started_ns[thread] = time.perf_counter_ns()
        return frame(header, self.body)

    def _end(self, thread: int, half_index: str, log_offset: int, verdict: int) -> bytes:
        flag = 0 if self.plan.acked_end and verdict != UNKNOWN else 2
        unique = self.ids[thread]
        return end_frame(
            self.plan.group, str(log_offset), unique, half_index, verdict, flag, thread * 2 + 1, topic=self._named_topic
        )

    def _verdict(self) -> int:
        if not self.plan.rollback_share and not self.plan.unknown_share:
            return COMMIT
        draw = self.rng.random()
        if draw < self.plan.rollback_share:
            return ROLLBACK
        return UNKNOWN if draw < self.plan.rollback_share + self.plan.unknown_share else COMMIT

    def data_received(self, data: bytes) -> None:
        out: list[bytes] = []
        now = time.perf_counter_ns()
        answers, self.pending = split(self.pending + data)
        for answer in answers:
            self._take(answer, now, out)
        # One write per request, as the threads of a client write, even if responses arrived together.
        for one in out:
            self.transport.write(one)

    def _take(self, answer: Answer, now: int, out: list[bytes]) -> None:
        if not answer.flag & 1:
            if answer.code == 39:
                self._answer_check(answer.extFields or {}, out)
            return
        if answer.opaque >= 1_000_000:
            return
        thread, is_end = divmod(answer.opaque, 2)
        if answer.code != 0:
            self.counts.refused += 1
            text = f"{answer.code} {answer.remark}"
            self.counts.refusals[text] = self.counts.refusals.get(text, 0) + 1
            self._next(thread, out)
            return
        if is_end:
            if self.measuring:
                self.counts.commit_us.append((now - self.started_ns[thread]) // 1_000)
            self._next(thread, out)
            return
        fields = answer.extFields or {}
        verdict = self._verdict()
        if self.measuring:
            self.counts.prepare_us.append((now - self.started_ns[thread]) // 1_000)
            if verdict == COMMIT:
                self.counts.committed += 1
            elif verdict == ROLLBACK:
                self.counts.rolled_back += 1
            else:
                self.counts.unknown += 1
        out.append(self._end(thread, fields["queueOffset"], int(fields["msgId"][-16:], 16), verdict))
        if self.plan.acked_end and verdict != UNKNOWN:
            self.started_ns[thread] = now
        else:
            self._next(thread, out)

    def _answer_check(self, fields: dict[str, str], out: list[bytes]) -> None:
        self.counts.checks += 1
        half = fields["commitLogOffset"], fields["msgId"], fields["tranStateTableOffset"]
        out.append(end_frame(self.plan.group, *half, COMMIT, 2, 2_000_000, check="true", topic=self._named_topic))

    def _next(self, thread: int, out: list[bytes]) -> None:
        self.sent += 1
        limit = self.plan.transactions_max
        if self.stopping or (limit and self.sent > limit // self.plan.connections - self.threads):
            self.alive -= 1
            if self.alive == 0:
                self.done()
            return
        out.append(self._half(thread))

    def connection_lost(self, error: Exception | None) -> None:
        if self.alive:
            self.alive = 0
            self.done()


#: Arguments as of ``LoadConnection``.
Make = Callable[[Plan, int, int, Counts, Callable[[], None]], LoadConnection]


async def connect(
    plan: Plan, host: str, port: int, make: Make = LoadConnection
) -> tuple[list[LoadConnection], Counts, asyncio.Event]:
    """Open the connections of ``plan``, objects of ``make``; the caller starts each. The event is set once all threads have ended."""
    counts, finished = Counts(), asyncio.Event()
    connections: list[LoadConnection] = []

    def done() -> None:
        if all(connection.alive == 0 for connection in connections):
            finished.set()

    for number in range(plan.connections):
        threads = plan.threads // plan.connections + (number < plan.threads % plan.connections)
        connections.append(make(plan, number, threads, counts, done))
        await TcpConnector(plan.tls).connect(Address(host, port), lambda: connections[-1])
    await asyncio.sleep(0.2)  # heartbeats are processed before the first half message, so that checks find a producer
    return connections, counts, finished


async def close(*transports: asyncio.Transport) -> None:
    """Close connections at once; what they have not sent is lost."""
    for transport in transports:
        transport.abort()
    await asyncio.sleep(0)  # event loops close sockets in their next turn
