"""A service under fire: transactions over raw frames from 16 connections, with a record of what was acknowledged.

It plays the application whose database is never wrong: what a transaction's verdict should be is a function of its id
(``verdict_of``). It keeps every transaction until the broker has settled it: a lost answer to a half is followed by the
same half again (same UNIQ_KEY), perhaps to another queue; a lost answer to an end by the same end again; some
transactions are never ended, so that only the check can settle them. So at the end all are settled, and what is visible
must be exactly the messages of the transactions whose verdict is commit.

Run as a process: ``python -m tests.crash.recorder --port P --output FILE --seed S --rate TX_PER_S``. SIGTERM: start no more, settle what is
open, print a summary as JSON, exit 0. Lines of FILE: ``B id n`` begun with n messages, ``C id`` commit acknowledged,
``R id`` rollback acknowledged, ``K id`` answered to a check.
"""

import argparse
import asyncio
import json
import os
import random
import signal
import time
from zlib import crc32

import msgspec

from halfmq.bench.load import frame

TOPICS = ("CrashA", "CrashB")
COMMIT, ROLLBACK = 8, 12


def verdict_of(tx_id: str) -> int:
    """The truth about ``tx_id``: three in four commit."""
    return ROLLBACK if crc32(tx_id.encode()) % 4 == 0 else COMMIT


def left_to_check(tx_id: str) -> bool:
    """One in thirty is never ended by its sender."""
    return crc32(tx_id.encode(), 7) % 30 == 0


class _Answer(msgspec.Struct, gc=False):
    opaque: int
    code: int = 0
    flag: int = 0
    remark: str | None = None
    extFields: dict[str, str] | None = None  # noqa: N815


_decode = msgspec.json.Decoder(_Answer).decode


class Transaction:
    """One transaction and how far it is known to be. ``places``: (half index, log offset) of each acknowledged half."""

    __slots__ = ("body", "count", "ends_sent", "halves_sent", "places", "tx_id")

    def __init__(self, tx_id: str, count: int, body: bytes) -> None:
        self.tx_id = tx_id
        self.count = count
        self.body = body
        self.places: dict[int, tuple[str, int]] = {}
        self.halves_sent = 0
        self.ends_sent = 0


class Recorder:
    """All connections of one process; state survives their loss."""

    def __init__(self, port: int, output: str, seed: int, connections: int, threads: int, rate: float) -> None:
        self.port = port
        self.file = os.open(output, os.O_CREAT | os.O_WRONLY | os.O_APPEND)
        self.dice = random.Random(seed)
        self.prefix = f"{seed}-{os.getpid()}"
        #: Of its own: a check must reach a process that knows the transaction, as with any two services.
        self.group = f"crash-{seed}"
        self.connections = connections
        self.threads = threads
        self.rate = rate
        self.serial = 0
        self.open: dict[str, Transaction] = {}
        self.counts = {
            "begun": 0,
            "committed": 0,
            "rolled_back": 0,
            "checks": 0,
            "half_again": 0,
            "end_again": 0,
            "refused": 0,
            "past_retention": 0,
        }
        self.refusals: dict[str, int] = {}
        self.stopping = False
        self.buffer: list[str] = []

    def note(self, line: str) -> None:
        self.buffer.append(line)
        if len(self.buffer) >= 200:
            self.flush()

    def flush(self) -> None:
        if self.buffer:
            os.write(self.file, ("\n".join(self.buffer) + "\n").encode())
            self.buffer.clear()

    def begin(self) -> Transaction:
        self.serial += 1
        tx = Transaction(
            f"{self.prefix}-{self.serial}", self.dice.randint(1, 4), self.dice.randbytes(self.dice.randint(20, 400))
        )
        self.open[tx.tx_id] = tx
        self.counts["begun"] += 1
        self.note(f"B {tx.tx_id} {tx.count}")
        return tx

    def settled(self, tx: Transaction, committed: bool) -> None:
        if self.open.pop(tx.tx_id, None) is None:
            return
        self.counts["committed" if committed else "rolled_back"] += 1
        self.note(f"{'C' if committed else 'R'} {tx.tx_id}")

    async def run(self) -> None:
        workers = [asyncio.create_task(self._connection(number)) for number in range(self.connections)]
        while not self.stopping:
            await asyncio.sleep(0.05)
        deadline = time.monotonic() + 90
        while self.open and time.monotonic() < deadline:
            await asyncio.sleep(0.05)
        for worker in workers:
            worker.cancel()
        await asyncio.gather(*workers, return_exceptions=True)
        self.flush()

    async def _connection(self, number: int) -> None:
        """Connect, work until the connection is lost, connect again; its open transactions go on where they were."""
        mine: dict[str, Transaction] = {}
        while True:
            try:
                reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
            except OSError:
                await asyncio.sleep(0.05)
                continue
            link = Link(self, number, reader, writer, mine)
            try:
                await link.work()
            except (OSError, asyncio.IncompleteReadError):
                await asyncio.sleep(0.02)
            finally:
                link.close()


class Link:
    """One life of one connection."""

    def __init__(
        self,
        owner: Recorder,
        number: int,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        mine: dict[str, Transaction],
    ) -> None:
        self.owner = owner
        self.number = number
        self.reader = reader
        self.writer = writer
        self.mine = mine
        self.opaque = 10
        self.waiting: dict[int, asyncio.Future[_Answer]] = {}
        self.tasks: set[asyncio.Task[None]] = set()

    async def work(self) -> None:
        body = json.dumps(
            {
                "clientID": f"crash@{self.owner.prefix}#{self.number}",
                "producerDataSet": [{"groupName": self.owner.group}],
                "consumerDataSet": [],
            }
        )
        self.writer.write(
            frame(b'{"code":34,"flag":0,"language":"JAVA","opaque":1,"version":401,"extFields":{}}', body.encode())
        )
        for tx in list(self.mine.values()):
            self._spawn(self._carry_through(tx, again=True))
        for _ in range(self.owner.threads):
            self._spawn(self._thread())
        while True:
            length = int.from_bytes(await self.reader.readexactly(4), "big")
            rest = await self.reader.readexactly(length)
            answer = _decode(rest[4 : 4 + int.from_bytes(rest[1:4], "big")])
            if answer.flag & 1:
                future = self.waiting.pop(answer.opaque, None)
                if future and not future.done():
                    future.set_result(answer)
            elif answer.code == 39:
                self._answer_check(answer.extFields or {}, rest)

    def _spawn(self, work: "asyncio.coroutines.Coroutine[object, object, None]") -> None:  # type: ignore[name-defined]
        task = asyncio.ensure_future(work)
        self.tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: "asyncio.Task[None]") -> None:
        self.tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            raise task.exception()  # type: ignore[misc]

    def close(self) -> None:
        for task in list(self.tasks):
            task.cancel()
        for future in self.waiting.values():
            future.cancel()
        self.writer.close()

    async def _thread(self) -> None:
        pause = self.owner.threads * self.owner.connections / self.owner.rate
        while not self.owner.stopping:
            started = time.monotonic()
            tx = self.owner.begin()
            self.mine[tx.tx_id] = tx
            await self._carry_through(tx, again=False)
            await asyncio.sleep(max(0.0, pause - (time.monotonic() - started)))

    async def _ask(self, header: dict[str, object], body: bytes = b"") -> _Answer:
        self.opaque += 1
        header["opaque"] = self.opaque
        future: asyncio.Future[_Answer] = asyncio.get_running_loop().create_future()
        self.waiting[self.opaque] = future
        self.writer.write(frame(msgspec.json.encode(header), body))
        return await future

    async def _carry_through(self, tx: Transaction, again: bool) -> None:
        if again and tx.halves_sent > len(tx.places):
            self.owner.counts["half_again"] += tx.halves_sent - len(tx.places)
        for index in range(tx.count):
            if index not in tx.places:
                answer = await self._half(tx, index)
                if answer.code == 604:
                    # Settled meanwhile (only a check can have done it): what stands must be what is true.
                    return self._take_standing(tx, answer)
                if answer.code != 0:
                    self._refused(answer)
                    await asyncio.sleep(0.2)
                    return await self._carry_through(tx, again=True)
                fields = answer.extFields or {}
                tx.places[index] = (fields["queueOffset"], int(fields["msgId"][-16:], 16))
        if left_to_check(tx.tx_id) and not tx.ends_sent:
            return None  # only a check may make us say it first; when that answer is lost we ask again like anybody
        if again:
            self.owner.counts["end_again"] += 1
        answer = await self._end(tx)
        if self._forgotten(tx, answer):
            return None
        if answer.code not in (0, 604):
            self._refused(answer)
            await asyncio.sleep(0.2)
            return await self._carry_through(tx, again=True)
        return self._take_standing(tx, answer)

    def _forgotten(self, tx: Transaction, answer: _Answer) -> bool:
        """Its verdict was given, the answer lost, and the record of it trimmed since: nobody knows more than that any more.

        The segments are small here so that this happens. What became of its messages the other witnesses tell.
        """
        if answer.code != 1 or "past retention" not in (answer.remark or "") or tx.ends_sent < 2:
            return False
        self.mine.pop(tx.tx_id, None)
        if self.owner.open.pop(tx.tx_id, None) is not None:
            self.owner.counts["past_retention"] += 1
        return True

    def _refused(self, answer: _Answer) -> None:
        self.owner.counts["refused"] += 1
        text = f"{answer.code} {answer.remark}"
        self.owner.refusals[text] = self.owner.refusals.get(text, 0) + 1

    def _take_standing(self, tx: Transaction, answer: _Answer) -> None:
        standing = (answer.extFields or {}).get("HMQ_VERDICT")
        wanted = "COMMITTED" if verdict_of(tx.tx_id) == COMMIT else "ROLLED_BACK"
        if standing != wanted:
            raise AssertionError(f"{tx.tx_id}: {standing} stands, the truth is {wanted}; answer {answer}")
        self.mine.pop(tx.tx_id, None)
        self.owner.settled(tx, standing == "COMMITTED")

    async def _half(self, tx: Transaction, index: int) -> _Answer:
        tx.halves_sent = max(tx.halves_sent, index + 1)
        properties = (
            f"UNIQ_KEY\x01{tx.tx_id}.{index}\x02TRAN_MSG\x01true\x02PGROUP\x01{self.owner.group}\x02HMQ_TX_ID\x01{tx.tx_id}\x02HMQ_TX_INDEX\x01{index}\x02"
            "CHECK_IMMUNITY_TIME_IN_SECONDS\x011\x02"
        )
        if index == tx.count - 1:
            properties += f"HMQ_TX_COUNT\x01{tx.count}\x02"
        ext = {
            "a": self.owner.group, "b": TOPICS[index % 2], "c": "TBW102", "d": "8", "e": str(self.owner.dice.randrange(8)), "f": "4",
            "g": "1795246382304", "h": "0", "i": properties, "j": "0", "k": "false", "m": "false",
        }  # fmt: skip
        return await self._ask({"code": 310, "flag": 0, "language": "JAVA", "version": 401, "extFields": ext}, tx.body)

    def _end_fields(self, tx: Transaction, from_check: bool) -> dict[str, str]:
        half_index, log_offset = tx.places[0]
        return {
            "producerGroup": self.owner.group, "HMQ_TX_ID": tx.tx_id, "msgId": f"{tx.tx_id}.0", "tranStateTableOffset": half_index,
            "commitLogOffset": str(log_offset), "commitOrRollback": str(verdict_of(tx.tx_id)),
            "fromTransactionCheck": "true" if from_check else "false",
        }  # fmt: skip

    async def _end(self, tx: Transaction) -> _Answer:
        tx.ends_sent += 1
        return await self._ask(
            {"code": 37, "flag": 0, "language": "JAVA", "version": 401, "extFields": self._end_fields(tx, False)}
        )

    def _answer_check(self, fields: dict[str, str], rest: bytes) -> None:
        """A check may come for any transaction of the group: one of ours (perhaps still being prepared) or another process's."""
        header_bytes = int.from_bytes(rest[1:4], "big")
        body = rest[4 + header_bytes :]
        at = body.index(b"HMQ_TX_ID\x01") + len(b"HMQ_TX_ID\x01")
        tx_id = body[at : body.index(b"\x02", at)].decode()
        tx = self.owner.open.get(tx_id)
        if tx is None or len(tx.places) < tx.count:
            return  # not ours, or not wholly prepared: unknown, ask again
        self.owner.counts["checks"] += 1
        tx.ends_sent += 1
        self.owner.note(f"K {tx_id}")
        self._spawn(self._settle_by_check(tx, fields))

    async def _settle_by_check(self, tx: Transaction, fields: dict[str, str]) -> None:
        answer = await self._ask(
            {"code": 37, "flag": 0, "language": "JAVA", "version": 401, "extFields": self._end_fields(tx, True)}
        )
        if answer.code in (0, 604):
            self._take_standing(tx, answer)
        elif not self._forgotten(tx, answer):
            self._refused(answer)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--output", required=True)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--connections", type=int, default=16)
    parser.add_argument("--threads", type=int, default=4)
    parser.add_argument("--rate", type=float, default=1_500)
    arguments = parser.parse_args()
    recorder = Recorder(
        arguments.port, arguments.output, arguments.seed, arguments.connections, arguments.threads, arguments.rate
    )

    async def run() -> None:
        loop = asyncio.get_running_loop()
        failure: list[str] = []

        def failed(_: object, context: dict[str, object]) -> None:
            failure.append(repr(context.get("exception") or context.get("message")))
            recorder.stopping = True

        loop.set_exception_handler(failed)
        loop.add_signal_handler(signal.SIGTERM, lambda: setattr(recorder, "stopping", True))
        await recorder.run()
        summary = {
            **recorder.counts,
            "open": len(recorder.open),
            "refusals": recorder.refusals,
            "failures": failure[:5],
        }
        print(json.dumps(summary), flush=True)
        if failure:
            raise SystemExit(1)

    asyncio.run(run())


if __name__ == "__main__":
    main()
