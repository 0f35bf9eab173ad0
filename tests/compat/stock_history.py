"""Kill a broker under transactions, record everything, read everything, and let the history checker say what is wrong.

    python -m tests.compat.stock_history --kills 4                      Apache RocketMQ 5.5.0 from its published jars
    python -m tests.compat.stock_history --kills 4 --system halfmq      the same load on halfmq

The load is that of the stock Java client, over raw frames: 16 threads with one transaction each; a half that is not
answered in 3 s is sent again under the same unique id, twice; the verdict is one-way; 30 % of the local transactions
answer UNKNOWN and are settled by the check. The broker flushes synchronously and asks every 3 s. It is killed with
SIGKILL and started again, as often as asked. Immunity is RocketMQ's default of
6 s: its notes of what was decided wait up to 3 s, so with a shorter one it would ask again, and commit again, without
any kill. When nothing is asked any more all queues are read, once, from the start.

Known of RocketMQ 5.4.0, with its own Java client: nothing lost, but 3,428 of 33,732 committed messages stood twice
after four kills: a commit writes the message first and notes that it did later. On a busy machine that note may come
later than the next round of checks, so messages that a check settled stand twice without any kill; those that their
application ended do so only with one. They are told apart at the end.
"""

import argparse
import asyncio
import contextlib
import random
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, Protocol
from zlib import crc32

from halfmq.model import properties
from halfmq.model.stored_message import decode as decode_message
from halfmq.runtime.disk import RealDisk
from halfmq.testing.history import Recorder, Report, check_files
from halfmq.testing.history.events import (
    Answered,
    CheckReceived,
    CheckUnanswered,
    EndAsked,
    Fault,
    HalfSent,
    Local,
    QueueRead,
    Seen,
    Settled,
    Started,
    Verdict,
)
from halfmq.testing.history.logged import write_log
from halfmq.testing.history.report import DUPLICATE
from tests.compat.stock_broker import StockBroker
from tests.support.raw_client import Answer, RawClient, pull_ext, send_ext
from tests.support.served import Served

VERSION = "5.5.0"
TOPIC = "StockHistory"
GROUP = "stock-history"
FIRST_GROUP = "makes-the-topic"
QUEUES = 4
THREADS = 16
ATTEMPTS = 3
ANSWER_SECONDS = 3.0
CHECK_MS = 3_000
#: Nothing was asked for so long: all is settled. A check that is lost comes again after this at the latest.
QUIET_SECONDS = 13.0
_NOT_STORED = {2, 14, 16, 17}
_COMMIT, _ROLLBACK = 8, 12


def truth_of(tx: str) -> Verdict:
    """What the database has: four in five commit."""
    return "ROLLED_BACK" if crc32(tx.encode()) % 5 == 0 else "COMMITTED"


def left_to_check(tx: str) -> bool:
    return crc32(tx.encode(), 7) % 10 < 3


class Broker(Protocol):
    """A broker that is killed and started again on the same port and directory."""

    system: str
    atomic: bool

    @property
    def port(self) -> int: ...
    def start(self) -> None: ...
    def kill(self) -> None: ...
    def again(self) -> None: ...
    def stop(self) -> None: ...


class RocketMQ(StockBroker):
    system = f"rocketmq {VERSION}"
    atomic = False

    def __init__(self, directory: Path) -> None:
        super().__init__(
            VERSION, directory, flushDiskType="SYNC_FLUSH", transactionCheckInterval=str(CHECK_MS),
            transactionCheckMax="1000",
        )  # fmt: skip

    @property
    def port(self) -> int:
        return self.broker_port

    def kill(self) -> None:
        """The broker; the name server stays."""
        broker = self._processes.pop()
        broker.kill()
        broker.wait(30)

    def again(self) -> None:
        self._java("broker", "org.apache.rocketmq.broker.BrokerStartup", str(self.directory / "broker.conf"))


class Halfmq(Served):
    system = "halfmq"
    atomic = True

    def __init__(self, directory: Path) -> None:
        super().__init__(
            directory / "data", directory / "log", "--check-interval-ms", str(CHECK_MS),
            "--check-interval-max-ms", str(CHECK_MS),
        )  # fmt: skip

    def again(self) -> None:
        self.start()

    def stop(self) -> None:  # type: ignore[override]
        super().stop()


class Load:
    """One producer with its connection, and all its threads."""

    def __init__(self, broker: Broker, directory: Path, seed: int) -> None:
        self._broker = broker
        began = {"system": broker.system, "atomic": broker.atomic}
        self.record = Recorder(directory / "producer.jsonl", "producer", **began)
        self._database = Recorder(directory / "database.jsonl", "database", **began)
        self._rng = random.Random(seed)
        self._seed = seed
        self._serial = 0
        self._client: RawClient | None = None
        self._connected = asyncio.Event()
        #: Transactions by whether the local transaction has ended; who is not in here never began one.
        self._ended: dict[str, bool] = {}
        self._checks: dict[str, int] = {}
        self.stopping = False
        self.committed = 0
        self.last_heard = time.monotonic()

    # --- the connection -------------------------------------------------------------------------------------------

    async def stay_connected(self) -> None:
        while True:
            try:
                client = await RawClient.connect(self._broker.port)
            except OSError:
                await asyncio.sleep(0.1)
                continue
            try:
                await client.heartbeat(f"client@{self._seed}", producers=[GROUP])
            except (OSError, TimeoutError):
                await client.close()
                continue
            self._client = client
            self._connected.set()
            heart = asyncio.create_task(self._beat(client))
            checks = asyncio.create_task(self._answer_checks(client))
            await client.closed.wait()
            self._connected.clear()
            heart.cancel()
            checks.cancel()
            await client.close()

    async def _beat(self, client: RawClient) -> None:
        while True:
            await asyncio.sleep(5)
            with contextlib.suppress(TimeoutError):
                await client.heartbeat(f"client@{self._seed}", producers=[GROUP])

    async def _ask(self, code: int, ext: dict[str, str], body: bytes) -> Answer | None:
        """The answer, or None when the connection was lost or it took too long."""
        await self._connected.wait()
        client = self._client
        assert client is not None
        asked = asyncio.create_task(client.ask(code, ext, body, wait_s=ANSWER_SECONDS))
        closed = asyncio.create_task(client.closed.wait())
        await asyncio.wait((asked, closed), return_when=asyncio.FIRST_COMPLETED)
        closed.cancel()
        if not asked.done():
            asked.cancel()
            return None
        try:
            return asked.result()
        except (TimeoutError, ConnectionError, asyncio.CancelledError):
            return None

    # --- transactions ---------------------------------------------------------------------------------------------

    async def thread(self, number: int) -> None:
        while not self.stopping:
            self._serial += 1
            await self._transaction(f"{self._seed:08X}{number:04X}{self._serial:020X}")

    async def _transaction(self, tx: str) -> None:
        body = self._rng.randbytes(200)
        self._ended[tx] = False
        half = await self._half(tx, body)
        truth: Verdict = truth_of(tx) if half is not None else "ROLLED_BACK"
        if half is not None or tx in self._checks:
            self._database.record(Local, group=GROUP, tx=tx, outcome=truth)
        self._ended[tx] = True
        if half is None:
            self._ended.pop(tx)
            return
        self.committed += truth == "COMMITTED"
        if not left_to_check(tx):
            self._end(tx, truth, half.ext["queueOffset"], str(int(half.ext["msgId"][-16:], 16)), from_check=False)

    async def _half(self, tx: str, body: bytes) -> Answer | None:
        """Sent until it is stored, as the Java client does; None: given up, so no local transaction."""
        pairs = {"TRAN_MSG": "true", "UNIQ_KEY": tx, "PGROUP": GROUP, "WAIT": "true"}
        born_ms = str(time.time_ns() // 1_000_000)
        for attempt in range(ATTEMPTS):
            queue = self._rng.randrange(QUEUES)
            op = f"{tx}.{attempt}"
            await self._connected.wait()
            self.record.record(
                HalfSent, op=op, group=GROUP, tx=tx, message=tx, topic=TOPIC, queue=queue, crc=crc32(body)
            )
            ext = send_ext(TOPIC, GROUP, queue, pairs, queues=QUEUES, sys_flag=4)
            ext["g"] = born_ms  # the stock broker counts immunity from here
            answer = await self._ask(310, ext, body)
            if answer is None:
                self.record.record(Answered, op=op, outcome="unknown")
            elif answer.code == 0:
                offset = int(answer.ext["msgId"][-16:], 16)
                self.record.record(Answered, op=op, outcome="ok", offset=offset)
                return answer
            elif answer.code == 604:
                verdict = answer.ext.get("HMQ_VERDICT")
                self.record.record(Answered, op=op, outcome="settled", code=604, verdict=verdict)
                return None
            else:
                outcome: Literal["refused", "unknown"] = "refused" if answer.code in _NOT_STORED else "unknown"
                self.record.record(Answered, op=op, outcome=outcome, code=answer.code)
                await asyncio.sleep(0.05)
        return None

    def _end(self, tx: str, verdict: Verdict, table_offset: str, log_offset: str, *, from_check: bool) -> None:
        """One-way: nobody will say what became of it."""
        op = f"{tx}.end{self._checks.get(tx, 0) if from_check else ''}"
        by: Literal["check", "application"] = "check" if from_check else "application"
        self.record.record(EndAsked, op=op, group=GROUP, tx=tx, verdict=verdict, decided_by=by)
        ext = {
            "producerGroup": GROUP, "tranStateTableOffset": table_offset, "commitLogOffset": log_offset,
            "commitOrRollback": str(_COMMIT if verdict == "COMMITTED" else _ROLLBACK),
            "fromTransactionCheck": "true" if from_check else "false", "msgId": tx, "transactionId": tx,
        }  # fmt: skip
        if self._client is not None and self._connected.is_set():
            self._client.tell(37, ext)

    async def _answer_checks(self, client: RawClient) -> None:
        while True:
            push = await client.pushes.get()
            if push.code != 39:
                continue
            self.last_heard = time.monotonic()
            message, _, _ = decode_message(push.body)
            tx = (properties.find(message.properties, "UNIQ_KEY") or b"").decode()
            times = self._checks[tx] = self._checks.get(tx, 0) + 1
            self.record.record(CheckReceived, group=GROUP, tx=tx, times=times)
            ended = self._ended.get(tx)
            if ended is False:
                self.record.record(CheckUnanswered, group=GROUP, tx=tx)
                continue
            truth: Verdict = truth_of(tx) if ended else "ROLLED_BACK"
            if ended is None and times == 1:
                self._database.record(Local, group=GROUP, tx=tx, outcome="ROLLED_BACK")
            self._end(tx, truth, push.ext["tranStateTableOffset"], push.ext["commitLogOffset"], from_check=True)

    def close(self) -> None:
        self.record.close()
        self._database.close()


async def read_all(broker: Broker, directory: Path) -> int:
    """Every queue from its first offset to its end; the number of messages seen."""
    count = 0
    client = await RawClient.connect(broker.port)
    with Recorder(directory / "reader.jsonl", "reader", system=broker.system, atomic=broker.atomic) as record:
        for queue in range(QUEUES):
            first = offset = 0
            since_us = time.monotonic_ns() // 1_000
            while True:
                answer = await client.ask(
                    11, pull_ext(TOPIC, "stock-history-reader", queue, offset, count=32), wait_s=30
                )
                if answer.code == 21 and int(answer.ext["nextBeginOffset"]) > offset:
                    first = offset = int(answer.ext["nextBeginOffset"])
                    continue
                if answer.code != 0:
                    break
                at = 0
                while at < len(answer.body):
                    message, log_offset, size = decode_message(answer.body, at)
                    at += size
                    unique = (properties.find(message.properties, "UNIQ_KEY") or b"").decode()
                    record.note(
                        Seen, reader="reader", message=unique, topic=TOPIC, queue=queue,
                        queue_offset=message.queue_offset, offset=log_offset, store_time_ms=message.store_time_ms,
                        crc=crc32(message.body),
                    )  # fmt: skip
                    offset = message.queue_offset + 1
                    count += 1
                record.flush()
            record.record(
                QueueRead, reader="reader", topic=TOPIC, queue=queue, first=first, end=offset, since_us=since_us
            )
    await client.close()
    return count


async def run(
    broker: Broker, directory: Path, *, kills: int, seconds: float, seed: int, say: Callable[[str], None]
) -> None:
    """Record a run into ``directory``: load for ``seconds`` before each kill and after the last."""
    world = Recorder(directory / "world.jsonl", "world", system=broker.system, atomic=broker.atomic)
    load = Load(broker, directory, seed)
    tasks = [asyncio.create_task(load.stay_connected())]
    await _topic_is_made(broker, world)
    tasks += [asyncio.create_task(load.thread(number)) for number in range(THREADS)]
    try:
        for number in range(kills):
            await asyncio.sleep(seconds)
            world.record(Fault, what="kill", whom="broker")
            await asyncio.to_thread(broker.kill)
            started = time.monotonic()
            await asyncio.to_thread(broker.again)
            await _answers(broker)
            world.record(Started, whom="broker", epoch=number + 2)
            say(
                f"kill {number + 1}: back after {time.monotonic() - started:.1f} s, {load.committed:,} committed so far"
            )
        await asyncio.sleep(seconds)
        load.stopping = True
        await asyncio.gather(*tasks[1:])
        load.last_heard = time.monotonic()
        while time.monotonic() - load.last_heard < QUIET_SECONDS:
            await asyncio.sleep(0.2)
        world.record(Settled)
        seen = await read_all(broker, directory)
        say(f"settled; {load.committed:,} transactions committed, {seen:,} messages stand in the queues")
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        load.close()
        world.close()


async def _answers(broker: Broker) -> None:
    """Until the broker answers a heartbeat."""
    end = time.monotonic() + 90
    while True:
        try:
            client = await RawClient.connect(broker.port)
            try:
                await client.heartbeat("is-it-there", producers=["nobody"])
                return
            finally:
                await client.close()
        except (OSError, TimeoutError):
            if time.monotonic() > end:
                raise
            await asyncio.sleep(0.1)


async def _topic_is_made(broker: Broker, world: Recorder) -> None:
    """On first use, by a message of a topic beside it; a new stock broker takes a moment until it does so."""
    await _answers(broker)
    client = await RawClient.connect(broker.port)
    body, end = b"first", time.monotonic() + 30
    while True:
        # A rolled-back half: it makes the topic and leaves nothing in it.
        unique = f"{time.monotonic_ns():032X}"
        world.record(
            HalfSent, op=unique, group=FIRST_GROUP, tx=unique, message=unique, topic=TOPIC, queue=0, crc=crc32(body)
        )
        half = await client.half(TOPIC, body, unique=unique, group=FIRST_GROUP, queues=QUEUES)
        if half.code == 0:
            world.record(EndAsked, op=f"{unique}.end", group=FIRST_GROUP, tx=unique, verdict="ROLLED_BACK")
            client.tell(
                37,
                {
                    "producerGroup": FIRST_GROUP, "tranStateTableOffset": half.ext["queueOffset"],
                    "commitLogOffset": str(int(half.ext["msgId"][-16:], 16)), "commitOrRollback": str(_ROLLBACK),
                    "fromTransactionCheck": "false", "msgId": unique,
                },
            )  # fmt: skip
            await asyncio.sleep(0.2)
            await client.close()
            return
        assert time.monotonic() < end, half
        await asyncio.sleep(0.5)


def recorded(
    system: str, directory: Path, *, kills: int, seconds: float, seed: int, say: Callable[[str], None]
) -> Report:
    """Start the broker, record, stop it, check."""
    history = directory / "history"
    history.mkdir(parents=True)
    (directory / "broker").mkdir()
    broker: Any = RocketMQ(directory / "broker") if system == "rocketmq" else Halfmq(directory / "broker")
    try:
        broker.start()
        asyncio.run(run(broker, history, kills=kills, seconds=seconds, seed=seed, say=say))
    finally:
        broker.stop()
    paths = [history]
    if system == "halfmq":
        paths.append(write_log(RealDisk(), directory / "broker" / "data", directory / "log.jsonl"))
    return check_files(paths)


def by_kills(report: Report) -> int:
    """Of the duplicates that are kept: sent once and ended by the application, so that only a kill explains them."""
    return sum(1 for one in report.of_kind(DUPLICATE) if "sent 1 x" in one.sentence and not left_to_check(one.message))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--system", choices=("rocketmq", "halfmq"), default="rocketmq")
    parser.add_argument("--kills", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=10.0, help="of load before each kill, and after the last")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--directory", type=Path, help="kept; else a temporary one")
    arguments = parser.parse_args()
    with contextlib.ExitStack() as ends:
        directory = arguments.directory or Path(ends.enter_context(tempfile.TemporaryDirectory()))
        report = recorded(
            arguments.system,
            directory,
            kills=arguments.kills,
            seconds=arguments.seconds,
            seed=arguments.seed,
            say=print,
        )
    for violation in report.violations[:3]:
        print(violation.text())
    print({kind: count for kind, count in report.counts.items() if count} or "clean", f"in {report.events:,} events")
    kept = len(report.of_kind(DUPLICATE))
    if kept:
        print(f"of the first {kept:,} duplicates {by_kills(report):,} were sent once and ended by the application")
    return 0 if report.clean else 1


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    sys.exit(main())
